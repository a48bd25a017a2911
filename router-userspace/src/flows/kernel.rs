//! The kernel programs and their maps: loading, pinning, adopting. With `xdp` the only module that names aya.
//!
//! Programs, links and maps outlive the daemon: links and maps are pinned, and a restarted daemon takes the
//! maps over and exchanges the programs behind the links in one step, so no packet meets a gap.

mod live;
mod samples;
mod shadow;

use std::collections::{BTreeSet, HashSet};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, DevMap, HashMap, Map, MapData, MapError, PerCpuArray};
use aya::programs::links::{FdLink, LinkOrder, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use aya_log::EbpfLogger;
use router_common::abi::LAYOUT_VERSION;
use router_common::abi::balance::{Affinity, AffinityKey, ENDPOINT_BUCKETS, Link, RING_CHUNK, RuleKey};
use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKey, FlowKeyV4, FlowKeyV6, FlowRef};
use router_common::abi::next_hop::NextHop;
use router_common::abi::reason::PacketReason;

use super::balance::{self, FLOWS_PER_BUCKET};
use super::mapped::Mapped;
use super::xdp::{Wishes, Xdp};

pub use live::LiveMaps;
pub use samples::Samples;
pub use shadow::{Copies, LONGEST_FRAME, Shadow, Step, Word, shortest_frame};

/// The compiled kernel programs, as an ELF object.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/router"));

/// Next hops that can be known at a time.
const MAX_NEXT_HOPS: u32 = 4096;

/// Every map that is pinned. `LAYOUT` comes last: its presence tells that the others are complete.
const PINNED_MAPS: [&str; 23] = [
    "KEYS",
    "KEYS6",
    "FLOWS",
    "NEXT_HOPS",
    "PACKETS",
    "SYN_OPTIONS",
    "SYN_OPTIONS6",
    "BALANCE_SETTINGS",
    "ENDPOINTS",
    "SERVICES",
    "INSTANCES",
    "GROUPS",
    "RINGS",
    "L4_FLOWS",
    "REPLIES",
    "CLIENT_RULES",
    "AFFINITY",
    "NEW_FLOWS",
    "LINKS",
    "XDP_INTERFACES",
    "XDP_DEVICES",
    "XDP_FRAMES",
    "LAYOUT",
];

/// Those whose size depends on whether there are Layer-4 listeners, and those that refer to them.
const BALANCE_MAPS: [&str; 8] =
    ["BALANCE_SETTINGS", "ENDPOINTS", "SERVICES", "INSTANCES", "GROUPS", "RINGS", "L4_FLOWS", "REPLIES"];

/// References to flows have 20 bits for their bucket.
const MAX_FLOW_BUCKETS: u32 = 1 << 20;

const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// Where every distribution mounts the BPF file system.
const BPF_FS: &str = "/sys/fs/bpf";

/// A program, and where it is attached.
struct Hook {
    program: &'static str,
    attach_type: TcAttachType,
    /// How links of it are called.
    name: &'static str,
    /// Only for Layer-4 listeners.
    layer4: bool,
}

/// In the order in which they are attached. Layer 4 stands beside the ingress of handed-off flows: no packet belongs to both, so their order on
/// the hook does not matter.
const HOOKS: [Hook; 3] = [
    Hook { program: "router_ingress", attach_type: TcAttachType::Ingress, name: "ingress", layer4: false },
    Hook { program: "router_egress", attach_type: TcAttachType::Egress, name: "egress", layer4: false },
    Hook { program: "router_layer4", attach_type: TcAttachType::Ingress, name: "layer4", layer4: true },
];

impl Hook {
    /// Interface names hold neither `/` nor `:`, so the name is unique.
    fn link(&self, interface: &str) -> String {
        format!("{}:{interface}", self.name)
    }

    fn is_ingress(&self) -> bool {
        matches!(self.attach_type, TcAttachType::Ingress)
    }
}

/// `bpf(2)` flag: the key must not exist yet.
const BPF_NOEXIST: u64 = 1;

/// How the kernel side is to be set up.
#[derive(Clone, Debug)]
pub struct KernelSettings {
    /// Interfaces that carry clients or instances.
    pub interfaces: Vec<String>,
    /// A directory on a BPF file system.
    pub pin_dir: PathBuf,
    /// Greatest number of flows; ignored where maps are adopted.
    pub max_flows: u32,
    /// Where the interfaces' packets are to be met.
    pub attach: Wishes,
    /// Start anew instead of adopting: existing handed-off connections end.
    pub replace: bool,
    /// `None` if there is no Layer-4 listener: then its tables are as small as can be.
    pub balance: Option<BalanceSizes>,
}

/// How large the tables of Layer-4 listeners are to be; ignored where such tables are adopted.
#[derive(Clone, Copy, Debug)]
pub struct BalanceSizes {
    /// Greatest number of stored flows.
    pub max_flows: u32,
    /// Places of a Maglev table.
    pub ring_size: u32,
    /// Maglev tables, those included that are being built.
    pub rings: u32,
    /// Clients that are remembered.
    pub clients: u32,
}

/// Why there is no kernel data path. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(
        "loading kernel programs needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; start routerd as root or by its systemd unit"
    )]
    NotPermitted,
    #[error(
        "{path} is not on a BPF file system; mount one with `mount -t bpf bpf {BPF_FS}` or set datapath.pin_dir"
    )]
    NotBpfFs { path: PathBuf },
    #[error(
        "{path} holds flows in layout {found}, and this version uses layout {LAYOUT_VERSION}; run the version that made them, or start with --replace, which ends the connections that were handed off"
    )]
    Layout { path: PathBuf, found: u32 },
    #[error("interface {name} does not exist; correct datapath.interfaces or create it")]
    NoInterface { name: String },
    #[error(
        "this kernel cannot attach by TCX, which came with Linux 6.6; update the kernel to hand connections off"
    )]
    NoTcx,
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
    #[error("the kernel refused {doing}: {message}")]
    Refused { doing: String, message: String },
}

/// Why a key was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertError {
    Exists,
    Failed,
}

/// The loaded and attached kernel side.
pub struct Kernel {
    keys: ByFamily<FlowRef>,
    syn_options: ByFamily<u32>,
    /// Keys that may be in `syn_options`, so that the many connections without an entry cost no system call.
    named: Mutex<HashSet<FlowKey>>,
    packets: PerCpuArray<MapData, u64>,
    logger: Mutex<Option<EbpfLogger<&'static dyn log::Log>>>,
    interfaces: Vec<String>,
    pin_dir: PathBuf,
    /// The program of Layer-4 listeners is attached too.
    layer4: bool,
    xdp: Xdp,
    /// Which XDP program this host needs.
    xdp_program: &'static str,
    // Keeps the programs loaded even where no link is pinned yet.
    ebpf: Mutex<Ebpf>,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("interfaces", &self.interfaces).finish_non_exhaustive()
    }
}

/// What [`Kernel::open`] gives: the kernel side and the two arrays that the daemon writes.
#[derive(Debug)]
pub struct Opened {
    pub kernel: Kernel,
    pub flows: Mapped<Flow>,
    pub next_hops: Mapped<NextHop>,
    pub links: Mapped<Link>,
    pub balance: balance::Maps,
    pub samples: Samples,
    /// Maps of an earlier daemon were taken over.
    pub adopted: bool,
}

impl Kernel {
    /// Loads the programs, adopts or creates the maps, and attaches to every interface.
    pub fn open(settings: &KernelSettings) -> Result<Opened, KernelError> {
        for name in &settings.interfaces {
            // Not by /sys/class/net: that shows the network namespace in which it was mounted.
            if nix::net::if_::if_nametoindex(name.as_str()).is_err() {
                return Err(KernelError::NoInterface { name: name.clone() });
            }
        }
        let pins = Pins { dir: &settings.pin_dir };
        pins.prepare()?;
        if settings.replace {
            pins.remove_all()?;
        }
        let adopted = pins.check_layout()?;

        if settings.balance.is_some() {
            pins.make_room_for_balancing()?;
        }
        // Flows of an earlier daemon go on though their listeners may be gone.
        let layer4 = settings.balance.is_some() || pins.balances();

        let mut loader = EbpfLoader::new();
        let log_level = kernel_log_level();
        loader
            .default_map_pin_directory(pins.dir)
            .map_max_entries("FLOWS", settings.max_flows)
            .map_max_entries("KEYS", settings.max_flows.saturating_mul(2))
            .map_max_entries("KEYS6", settings.max_flows.saturating_mul(2))
            .map_max_entries("NEXT_HOPS", MAX_NEXT_HOPS)
            .override_global("AYA_LOG_LEVEL", &log_level, false);
        if let Some(sizes) = &settings.balance {
            let buckets = sizes.max_flows.div_ceil(FLOWS_PER_BUCKET as u32).clamp(2, MAX_FLOW_BUCKETS);
            loader
                .map_max_entries("ENDPOINTS", 2 * ENDPOINT_BUCKETS)
                .map_max_entries("RINGS", sizes.rings * sizes.ring_size.div_ceil(RING_CHUNK as u32))
                .map_max_entries("L4_FLOWS", buckets)
                .map_max_entries("REPLIES", buckets)
                .map_max_entries("AFFINITY", sizes.clients);
        }
        let mut ebpf = loader.load(OBJECT).map_err(|error| refused("the kernel programs' maps", error))?;
        // Without a listener for its messages the kernel side works all the same.
        let logger = EbpfLogger::init(&mut ebpf).ok();

        let wanted = HOOKS.iter().filter(|hook| !hook.layer4 || layer4);
        for hook in wanted.clone() {
            let program: &mut SchedClassifier = ebpf
                .program_mut(hook.program)
                .and_then(|found| found.try_into().ok())
                .expect("the object is built together with this file");
            program.load().map_err(|error| refused("a kernel program", error))?;
            for interface in &settings.interfaces {
                pins.attach(program, interface, hook)?;
            }
        }
        let names = |hook: &Hook| settings.interfaces.iter().map(|name| hook.link(name)).collect::<Vec<_>>();
        let mut links: BTreeSet<String> = wanted.flat_map(names).collect();

        let xdp = xdp(&mut ebpf, &settings.pin_dir)?;
        let xdp_program = if layer4 { "router_xdp_layer4" } else { "router_xdp" };
        xdp.attach(xdp_program_of(&mut ebpf, xdp_program), &settings.interfaces, &settings.attach);
        links.append(&mut xdp.links());
        pins.detach_others(&links)?;

        let keys = ByFamily::take(&mut ebpf, ["KEYS", "KEYS6"])?;
        let syn_options = ByFamily::take(&mut ebpf, ["SYN_OPTIONS", "SYN_OPTIONS6"])?;
        let packets =
            take(&mut ebpf, "PACKETS").and_then(|map| PerCpuArray::try_from(map).map_err(map_error))?;
        let mut layout: Array<_, u32> =
            take(&mut ebpf, "LAYOUT").and_then(|map| Array::try_from(map).map_err(map_error))?;
        layout.set(0, LAYOUT_VERSION, 0).map_err(map_error)?;
        let flows = mapped(of(&ebpf, "FLOWS"))?;
        let next_hops = mapped(of(&ebpf, "NEXT_HOPS"))?;
        let links = mapped(of(&ebpf, "LINKS"))?;
        let balance = balance_maps(&mut ebpf)?;
        let samples = Samples::take(&mut ebpf)?;
        let kernel = Self {
            keys,
            syn_options,
            named: Mutex::default(),
            packets,
            logger: Mutex::new(logger),
            interfaces: settings.interfaces.clone(),
            pin_dir: settings.pin_dir.clone(),
            layer4,
            xdp,
            xdp_program,
            ebpf: Mutex::new(ebpf),
        };
        Ok(Opened { kernel, flows, next_hops, links, balance, samples, adopted })
    }

    /// Inserts a key that must not exist yet.
    pub fn insert(&self, key: FlowKey, value: FlowRef) -> Result<(), InsertError> {
        match self.keys.insert(key, value, BPF_NOEXIST) {
            Ok(()) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::EEXIST) => {
                Err(InsertError::Exists)
            }
            Err(_) => Err(InsertError::Failed),
        }
    }

    /// Removes a key if it still names `value`; a newer flow of the same tuple keeps its key.
    pub fn remove(&self, key: FlowKey, value: FlowRef) {
        self.keys.remove_if(key, |found| found == value);
    }

    /// Names the options to erase from the SYN of a connection about to be opened (`ERASE_*`); 0 for none.
    pub fn erase_syn_options(&self, key: FlowKey, options: u32) {
        let mut named = lock(&self.named);
        if options != 0 {
            named.insert(key);
            // Where it fails, the options are agreed after all, and the handoff is refused.
            let _ = self.syn_options.insert(key, options, 0);
        } else if named.remove(&key) {
            // The port was used by another connection before.
            self.syn_options.remove_if(key, |_| true);
        }
    }

    /// Packets by reason, summed over CPUs.
    pub fn packets(&self, reason: PacketReason) -> u64 {
        self.packets.get(&(reason.index() as u32), 0).map_or(0, |cpus| cpus.iter().sum())
    }

    /// What XDP does on these interfaces.
    pub fn xdp(&self) -> &Xdp {
        &self.xdp
    }

    /// Attaches XDP to the interfaces, or detaches it, as they are wished for now.
    pub fn attach_anew(&self, wishes: &Wishes) {
        let mut ebpf = lock(&self.ebpf);
        self.xdp.attach(xdp_program_of(&mut ebpf, self.xdp_program), &self.interfaces, wishes);
    }

    /// The interfaces that the programs are attached to.
    pub fn interfaces(&self) -> &[String] {
        &self.interfaces
    }

    /// Their indexes. One that is gone is left out: nothing comes in by it.
    pub fn interface_indexes(&self) -> Vec<u32> {
        let index = |name: &String| nix::net::if_::if_nametoindex(name.as_str()).ok();
        self.interfaces.iter().filter_map(index).collect()
    }

    /// Passes on what the kernel programs have logged.
    pub fn flush_log(&self) {
        if let Some(logger) = &mut *lock(&self.logger) {
            logger.flush();
        }
    }
}

/// A hash map for each family's keys.
struct ByFamily<V: aya::Pod> {
    v4: Mutex<HashMap<MapData, FlowKeyV4, V>>,
    v6: Mutex<HashMap<MapData, FlowKeyV6, V>>,
}

impl<V: aya::Pod> ByFamily<V> {
    /// Takes the maps of these names: of IPv4 and of IPv6.
    fn take(ebpf: &mut Ebpf, [v4, v6]: [&str; 2]) -> Result<Self, KernelError> {
        Self::of(take(ebpf, v4)?, take(ebpf, v6)?)
    }

    fn of(v4: Map, v6: Map) -> Result<Self, KernelError> {
        let v4 = HashMap::try_from(v4).map_err(map_error)?;
        let v6 = HashMap::try_from(v6).map_err(map_error)?;
        Ok(Self { v4: Mutex::new(v4), v6: Mutex::new(v6) })
    }

    fn get(&self, key: FlowKey) -> Option<V> {
        match key {
            FlowKey::V4(key) => lock(&self.v4).get(&key, 0).ok(),
            FlowKey::V6(key) => lock(&self.v6).get(&key, 0).ok(),
        }
    }

    /// `flags` are those of `bpf(2)`.
    fn insert(&self, key: FlowKey, value: V, flags: u64) -> Result<(), MapError> {
        match key {
            FlowKey::V4(key) => lock(&self.v4).insert(key, value, flags),
            FlowKey::V6(key) => lock(&self.v6).insert(key, value, flags),
        }
    }

    /// Removes the entry of a key if there is one and its value is such.
    fn remove_if(&self, key: FlowKey, such: impl FnOnce(V) -> bool) {
        match key {
            FlowKey::V4(key) => remove_if(&mut lock(&self.v4), key, such),
            FlowKey::V6(key) => remove_if(&mut lock(&self.v6), key, such),
        }
    }
}

fn remove_if<K: aya::Pod, V: aya::Pod>(
    map: &mut HashMap<MapData, K, V>,
    key: K,
    such: impl FnOnce(V) -> bool,
) {
    if map.get(&key, 0).is_ok_and(such) {
        // The kernel may have removed it in between.
        let _ = map.remove(&key);
    }
}

/// Groups by the client's address.
#[derive(Debug)]
pub struct ClientRules(Mutex<LpmTrie<MapData, RuleKey, u32>>);

impl ClientRules {
    /// Enters a network: the first `length` bits of the key count.
    pub fn insert(&self, key: &RuleKey, length: u32, value: u32) -> Result<(), String> {
        let mut trie = lock(&self.0);
        trie.insert(&Key::new(length, *key), value, 0).map_err(|error| map_error(error).to_string())
    }

    /// Fine if there is none.
    pub fn remove(&self, key: &RuleKey, length: u32) {
        let _ = lock(&self.0).remove(&Key::new(length, *key));
    }

    /// Removes what `keep` does not want.
    pub fn retain(&self, keep: impl Fn(&RuleKey) -> bool) {
        let mut trie = lock(&self.0);
        let gone: Vec<_> = trie.keys().flatten().filter(|key| !keep(&key.data())).collect();
        for key in gone {
            let _ = trie.remove(&key);
        }
    }
}

/// Where clients were served.
#[derive(Debug)]
pub struct ClientMemory(Mutex<HashMap<MapData, AffinityKey, Affinity>>);

impl ClientMemory {
    /// Notes that a client is still served by an instance, unless it has another one meanwhile.
    pub fn note(&self, key: AffinityKey, affinity: Affinity) {
        let mut clients = lock(&self.0);
        let known = clients.get(&key, 0).ok();
        let newer = |known: Affinity| {
            known.instance == affinity.instance && affinity.seen.wrapping_sub(known.seen).cast_signed() > 0
        };
        if known.is_none_or(newer) {
            // A client that is forgotten is placed by the ring.
            let _ = clients.insert(key, affinity, 0);
        }
    }
}

/// The directory where links and maps are kept.
struct Pins<'a> {
    dir: &'a Path,
}

impl Pins<'_> {
    fn prepare(&self) -> Result<(), KernelError> {
        if self.dir.starts_with(BPF_FS) && !is_bpf_fs(Path::new(BPF_FS)) {
            mount_bpf_fs();
        }
        // Judged by what exists already, so that nothing is created elsewhere.
        if !self.dir.ancestors().find(|path| path.exists()).is_some_and(is_bpf_fs) {
            return Err(KernelError::NotBpfFs { path: self.dir.to_owned() });
        }
        fs::create_dir_all(self.dir)
            .map_err(|source| io_error(format!("cannot create {}", self.dir.display()), source))
    }

    /// Whether there are maps to adopt.
    fn check_layout(&self) -> Result<bool, KernelError> {
        if !PINNED_MAPS.iter().any(|name| self.dir.join(name).exists()) {
            return Ok(false);
        }
        let found = MapData::from_pin(self.dir.join("LAYOUT"))
            .and_then(|data| Array::<_, u32>::try_from(Map::Array(data)))
            .and_then(|layout| layout.get(&0, 0))
            .unwrap_or(0);
        if found == LAYOUT_VERSION {
            Ok(true)
        } else {
            Err(KernelError::Layout { path: self.dir.to_owned(), found })
        }
    }

    /// Entries of the table of endpoints: 1 if it was made without any Layer-4 listener, `None` if there is none to adopt.
    fn endpoints(&self) -> Option<u32> {
        let data = MapData::from_pin(self.dir.join("ENDPOINTS")).ok()?;
        data.info().ok().map(|info| info.max_entries())
    }

    /// Whether there are tables of Layer-4 listeners to adopt.
    fn balances(&self) -> bool {
        self.endpoints().is_some_and(|entries| entries > 1)
    }

    /// Maps that were made without any Layer-4 listener hold nothing and have no room: they are made anew.
    fn make_room_for_balancing(&self) -> Result<(), KernelError> {
        if self.endpoints() == Some(1) {
            for name in BALANCE_MAPS.iter().chain(&["AFFINITY"]) {
                self.unpin(name)?;
            }
        }
        Ok(())
    }

    fn remove_all(&self) -> Result<(), KernelError> {
        for entry in self.entries()? {
            self.unpin(&entry)?;
        }
        Ok(())
    }

    /// Attaches, or puts the new program behind the link that an earlier daemon left.
    fn attach(&self, program: &mut SchedClassifier, interface: &str, hook: &Hook) -> Result<(), KernelError> {
        let pin = self.dir.join(hook.link(interface));
        if let Ok(link) = PinnedLink::from_pin(&pin) {
            let replaced = SchedClassifierLink::try_from(FdLink::from(link))
                .ok()
                .and_then(|link| program.attach_to_link(link).ok());
            if let Some(link) = replaced {
                // The pin holds the link; this handle is not needed.
                drop(program.take_link(link));
                return Ok(());
            }
            // The interface was deleted and made again: the old link hangs in the air.
            self.unpin(&hook.link(interface))?;
        }
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        let link =
            program.attach_with_options(interface, hook.attach_type, options).map_err(
                |error| match error {
                    ProgramError::SyscallError(error)
                        if error.io_error.raw_os_error() == Some(libc::EINVAL) =>
                    {
                        KernelError::NoTcx
                    }
                    error => refused(&format!("to attach to {interface}"), error),
                },
            )?;
        let link = program.take_link(link).map_err(|error| refused("a link", error))?;
        FdLink::try_from(link)
            .map_err(|error| refused("a link", error))?
            .pin(&pin)
            .map_err(|error| refused("to pin a link", error))?;
        Ok(())
    }

    /// Detaches from interfaces that are no longer configured, and what is no longer needed: all but these links.
    fn detach_others(&self, wanted: &BTreeSet<String>) -> Result<(), KernelError> {
        for entry in self.entries()? {
            if !PINNED_MAPS.contains(&entry.as_str()) && !wanted.contains(&entry) {
                self.unpin(&entry)?;
            }
        }
        Ok(())
    }

    fn entries(&self) -> Result<Vec<String>, KernelError> {
        let doing = || format!("cannot read {}", self.dir.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(self.dir).map_err(|source| io_error(doing(), source))? {
            let entry = entry.map_err(|source| io_error(doing(), source))?;
            // The shadow's directory, if a daemon was killed while it loaded.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn unpin(&self, name: &str) -> Result<(), KernelError> {
        let path = self.dir.join(name);
        fs::remove_file(&path).map_err(|source| io_error(format!("cannot remove {}", path.display()), source))
    }
}

/// aya-log's levels: 1 (error) to 5 (trace). The kernel side only makes messages that somebody reads.
fn kernel_log_level() -> u8 {
    if log::log_enabled!(target: "router", log::Level::Debug) { 5 } else { 1 }
}

fn is_bpf_fs(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: all-zero is a valid `statfs`.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a terminated path and a valid place for the result.
    unsafe { libc::statfs(path.as_ptr(), &mut stat) == 0 && stat.f_type as i64 == BPF_FS_MAGIC }
}

/// Hosts without systemd may not have it mounted. A failure shows in the check that follows.
fn mount_bpf_fs() {
    let target = CString::new(BPF_FS).expect("no NUL");
    // SAFETY: terminated strings; no data.
    unsafe { libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null()) };
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map, KernelError> {
    Ok(ebpf.take_map(name).expect("the object is built together with this file"))
}

fn balance_maps(ebpf: &mut Ebpf) -> Result<balance::Maps, KernelError> {
    let rules = take(ebpf, "CLIENT_RULES").and_then(|map| LpmTrie::try_from(map).map_err(map_error))?;
    let clients = take(ebpf, "AFFINITY").and_then(|map| HashMap::try_from(map).map_err(map_error))?;
    Ok(balance::Maps {
        settings: mapped(of(ebpf, "BALANCE_SETTINGS"))?,
        endpoints: mapped(of(ebpf, "ENDPOINTS"))?,
        services: mapped(of(ebpf, "SERVICES"))?,
        instances: mapped(of(ebpf, "INSTANCES"))?,
        groups: mapped(of(ebpf, "GROUPS"))?,
        rings: mapped(of(ebpf, "RINGS"))?,
        flows: mapped(of(ebpf, "L4_FLOWS"))?,
        replies: mapped(of(ebpf, "REPLIES"))?,
        rules: ClientRules(Mutex::new(rules)),
        clients: ClientMemory(Mutex::new(clients)),
    })
}

fn xdp(ebpf: &mut Ebpf, pin_dir: &Path) -> Result<Xdp, KernelError> {
    let devices = take(ebpf, "XDP_DEVICES").and_then(|map| DevMap::try_from(map).map_err(map_error))?;
    let frames = take(ebpf, "XDP_FRAMES").and_then(|map| PerCpuArray::try_from(map).map_err(map_error))?;
    Ok(Xdp::new(pin_dir, mapped(of(ebpf, "XDP_INTERFACES"))?, devices, frames))
}

fn xdp_program_of<'e>(ebpf: &'e mut Ebpf, name: &str) -> &'e mut aya::programs::Xdp {
    let program = ebpf.program_mut(name).and_then(|found| found.try_into().ok());
    program.expect("the object is built together with this file")
}

/// A map that stays with the programs: one that is loaded later names it by its file descriptor.
fn of<'e>(ebpf: &'e Ebpf, name: &str) -> &'e Map {
    ebpf.map(name).expect("the object is built together with this file")
}

fn mapped<T: super::mapped::SharedWithKernel>(map: &Map) -> Result<Mapped<T>, KernelError> {
    let Map::Array(data) = map else { unreachable!("they are arrays") };
    let len = data.info().map_err(map_error)?.max_entries() as usize;
    Mapped::new(data.fd().as_fd(), len).map_err(|source| io_error("cannot map an array".to_owned(), source))
}

fn map_error(error: MapError) -> KernelError {
    refused("a map", error)
}

fn io_error(doing: String, source: io::Error) -> KernelError {
    if source.kind() == io::ErrorKind::PermissionDenied {
        KernelError::NotPermitted
    } else {
        KernelError::Io { doing, source }
    }
}

/// Walks the causes: the innermost holds the errno.
fn refused(doing: &str, error: impl std::error::Error + 'static) -> KernelError {
    let mut message = error.to_string();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>()
            && matches!(io.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        {
            return KernelError::NotPermitted;
        }
        message = error.to_string();
        cause = error.source();
    }
    KernelError::Refused { doing: doing.to_owned(), message }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
