//! The kernel programs and their maps: loading, pinning, adopting. With `xdp` the only module that names aya.
//!
//! Programs, links and maps outlive the daemon: links and maps are pinned, and a restarted daemon takes the
//! maps over and exchanges the programs behind the links in one step, so no packet meets a gap.

mod binding;
mod by_family;
mod clients;
mod error;
mod hooks;
mod live;
mod maps;
mod pins;
mod samples;
mod settings;
mod shadow;
mod transparent;

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use aya::maps::{Array, MapData, MapError, PerCpuArray};
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader};
use aya_log::EbpfLogger;
use router_common::abi::LAYOUT_VERSION;
use router_common::abi::balance::{ENDPOINT_BUCKETS, Link, RING_CHUNK};
use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKey, FlowRef};
use router_common::abi::next_hop::NextHop;
use router_common::abi::reason::PacketReason;

use super::balance::{self, FLOWS_PER_BUCKET};
use super::mapped::Mapped;
use super::xdp::{Wishes, Xdp};
use by_family::ByFamily;
use error::{io_error, map_error, not_loaded, refused};
use hooks::{HOOKS, Hook, Wanted};
use maps::{balance_maps, mapped, of, take, xdp, xdp_program_of};
use pins::Pins;

pub use binding::{Arrivals, BindingMaps};
pub use clients::{ClientMemory, ClientRules};
pub use error::KernelError;
pub use live::LiveMaps;
pub use samples::Samples;
pub use settings::{BalanceSizes, KernelSettings};
pub use shadow::{Copies, LONGEST_FRAME, Shadow, Step, Word, shortest_frame};
pub use transparent::TransparentTuples;

/// The compiled kernel programs, as an ELF object.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/router"));

/// Next hops that can be known at a time.
const MAX_NEXT_HOPS: u32 = 4096;

/// References to flows have 20 bits for their bucket.
const MAX_FLOW_BUCKETS: u32 = 1 << 20;

/// Clients at a time, of each family, that have completed the handshake and whose connection is young.
const MAX_EMBRYOS: u32 = 65_536;
/// First packets at a time that instances have not acknowledged.
const MAX_STASHES: u32 = 4_096;
/// Room for first packets that a worker has not read: a thousand.
const ARRIVALS_BYTES: u32 = 2 << 20;

/// `bpf(2)` flag: the key must not exist yet.
const BPF_NOEXIST: u64 = 1;

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
    /// `None` if no listener's connections are bound.
    pub binding: Option<BindingMaps>,
    pub samples: Samples,
    pub transparent: TransparentTuples,
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

        if settings.binding {
            pins.make_room_for_binding()?;
        }
        let binding = settings.binding || pins.binds();

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
        if binding {
            loader
                .map_max_entries("EMBRYOS", MAX_EMBRYOS)
                .map_max_entries("EMBRYOS6", MAX_EMBRYOS)
                .map_max_entries("STASHES", MAX_STASHES);
            for ring in &binding::RINGS[..settings.binders] {
                loader.map_max_entries(ring, ARRIVALS_BYTES);
            }
        }
        let mut ebpf = loader.load(OBJECT).map_err(|error| refused("the kernel programs' maps", error))?;
        // Without a listener for its messages the kernel side works all the same.
        let logger = EbpfLogger::init(&mut ebpf).ok();

        let wanted = HOOKS.iter().filter(|hook| match hook.wanted {
            Wanted::Always => true,
            Wanted::ForLayer4 => layer4,
            Wanted::ForBinding => binding,
        });
        for hook in wanted.clone() {
            let program: &mut SchedClassifier = ebpf
                .program_mut(hook.program)
                .and_then(|found| found.try_into().ok())
                .expect("the object is built together with this file");
            program.load().map_err(|error| not_loaded(hook.program, error))?;
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
        let transparent = TransparentTuples::take(&mut ebpf)?;
        let binding = if binding { Some(BindingMaps::take(&mut ebpf, settings.binders)?) } else { None };
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
        Ok(Opened { kernel, flows, next_hops, links, balance, binding, samples, transparent, adopted })
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

/// aya-log's levels: 1 (error) to 5 (trace). The kernel side only makes messages that somebody reads.
fn kernel_log_level() -> u8 {
    if log::log_enabled!(target: "router", log::Level::Debug) { 5 } else { 1 }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
