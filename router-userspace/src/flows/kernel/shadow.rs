//! The kernel programs a second time, never attached: frames run through them (BPF_PROG_TEST_RUN) as they would through those that carry packets.
//!
//! What programs only read, they share with those. What they write is a copy, of the few entries that one packet can reach: so an answer is
//! true, and nothing of it is left behind. The arrays among these are hash maps here, in which a few entries lie under the numbers that they
//! have in the great ones.

use std::fs;

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions, TestRunResult};
use aya::{Ebpf, EbpfLoader};
use router_common::abi::balance::{Affinity, AffinityKey, Course, FlowBucket, Link, ReplyBucket, Tunnel};
use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKey, FlowRef};
use router_common::abi::reason::{PacketReason, XdpReason};
use router_common::abi::trace::{Said, SaidVerdict};
use router_common::path::fragment::DatagramKey;

use super::hooks::Wanted;
use super::live::{BudgetBytes, DatagramKeyBytes, LiveMaps, NewFlowsBytes, bytes_of_key};
use super::maps::xdp_program_of;
use super::{
    ByFamily, HOOKS, Hook, Kernel, KernelError, io_error, lock, map_error, not_loaded, refused, take,
};

/// Maps that programs only read.
const READ_ONLY: [&str; 12] = [
    "NEXT_HOPS",
    "TRANSPARENT",
    "TRANSPARENT6",
    "BALANCE_SETTINGS",
    "ENDPOINTS",
    "SERVICES",
    "INSTANCES",
    "GROUPS",
    "RINGS",
    "CLIENT_RULES",
    "XDP_INTERFACES",
    "XDP_DEVICES",
];

/// Copies of entries at a time: far more than one packet reaches.
const COPIES: u32 = 256;

/// Where the copies' maps are pinned while the programs are loaded, below the directory of the others.
const DIRECTORY: &str = "shadow";

const BPF_F_NO_PREALLOC: u32 = 1 << 0;
/// `TC_ACT_UNSPEC`: the next program's turn.
const NEXT_PROGRAM: i32 = -1;
/// The program that counts what is nobody's.
const INGRESS: &str = "router_ingress";
const XDP_PASS: i32 = 2;
/// What a program may put before a packet, and more.
const ROOM_TO_GROW: usize = 128;

/// What BPF_PROG_TEST_RUN takes: an Ethernet header with an IP header behind it, where it names one, and no more than a page beside what the
/// kernel keeps there.
pub const LONGEST_FRAME: usize = 3_500;

/// The shortest frame that BPF_PROG_TEST_RUN takes, if it begins like this one.
pub fn shortest_frame(frame: &[u8]) -> usize {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => 14 + 20,
        Some([0x86, 0xdd]) => 14 + 40,
        _ => 14 + 1,
    }
}

/// Copies of what one packet can reach.
#[derive(Debug, Default)]
pub struct Copies {
    pub keys: Vec<(FlowKey, FlowRef)>,
    pub flows: Vec<(u32, Flow)>,
    pub datagrams: Vec<(DatagramKey, [u32; 2])>,
    pub courses: Vec<(DatagramKey, Course)>,
    pub buckets: Vec<(u32, FlowBucket)>,
    pub replies: Vec<(u32, ReplyBucket)>,
    pub clients: Vec<(AffinityKey, Affinity)>,
    pub links: Vec<(u32, Link)>,
    pub tunnels: Vec<(u32, Tunnel)>,
}

/// What one program has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub program: &'static str,
    /// `None`: the packet is none of its own, and it has counted nothing.
    pub word: Option<Word>,
    /// Of a program of XDP: why it leaves the packet to the others.
    pub left: Option<XdpReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    pub verdict: SaidVerdict,
    pub reason: PacketReason,
    /// By which the packet leaves; 0 if it does not.
    pub interface: u32,
    /// Where the kernel is to find its link-layer address; else 0.
    pub next_hop: u32,
}

/// The loaded programs and their copies.
pub struct Shadow {
    keys: ByFamily<FlowRef>,
    flows: Copied<u32, [u8; size_of::<Flow>()]>,
    buckets: Copied<u32, [u8; size_of::<FlowBucket>()]>,
    replies: Copied<u32, [u8; size_of::<ReplyBucket>()]>,
    links: Copied<u32, [u8; size_of::<Link>()]>,
    tunnels: Copied<u32, [u8; size_of::<Tunnel>()]>,
    datagrams: Copied<DatagramKeyBytes, [u32; 2]>,
    courses: Copied<DatagramKeyBytes, Course>,
    clients: Copied<AffinityKey, Affinity>,
    answer_budget: PerCpuArray<MapData, BudgetBytes>,
    new_flows: PerCpuArray<MapData, NewFlowsBytes>,
    said: Array<MapData, [u32; 4]>,
    xdp_frames: PerCpuArray<MapData, u64>,
    /// Those that are attached where packets arrive, in their order.
    programs: Vec<&'static str>,
    /// What comes before them on interfaces with XDP; loaded when it is first asked.
    xdp_program: &'static str,
    ebpf: Ebpf,
}

impl std::fmt::Debug for Shadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shadow").field("programs", &self.programs).finish_non_exhaustive()
    }
}

impl Shadow {
    /// Loads the programs; takes about as long as a start of the daemon.
    pub fn load(kernel: &Kernel) -> Result<Self, KernelError> {
        let directory = kernel.pin_dir.join(DIRECTORY);
        // One that a killed daemon has left.
        let _ = fs::remove_dir_all(&directory);
        let failed = |source| io_error(format!("cannot create {}", directory.display()), source);
        fs::create_dir(&directory).map_err(failed)?;
        let loaded = Self::load_in(kernel, &directory);
        // The programs hold their maps; the names were for the loader.
        let _ = fs::remove_dir_all(&directory);
        loaded
    }

    fn load_in(kernel: &Kernel, directory: &std::path::Path) -> Result<Self, KernelError> {
        let flows = Copied::pinned(directory, "FLOWS")?;
        let buckets = Copied::pinned(directory, "L4_FLOWS")?;
        let replies = Copied::pinned(directory, "REPLIES")?;
        let links = Copied::pinned(directory, "LINKS")?;
        let tunnels = Copied::pinned(directory, "TUNNELS")?;
        let mut loader = EbpfLoader::new();
        loader
            .default_map_pin_directory(directory)
            .map_max_entries("AFFINITY", COPIES)
            .override_global("TRACING", &1u8, true);
        for name in READ_ONLY {
            loader.map_pin_path(name, kernel.pin_dir.join(name));
        }
        let mut ebpf = loader.load(super::OBJECT).map_err(|error| refused("copies of maps", error))?;
        let ingress = |hook: &&Hook| {
            hook.is_ingress()
                && match hook.wanted {
                    Wanted::Always => true,
                    Wanted::ForLayer4 => kernel.layer4,
                    // It would tell the daemon of a packet that nobody has sent.
                    Wanted::ForBinding => false,
                }
        };
        let programs: Vec<_> = HOOKS.iter().filter(ingress).map(|hook| hook.program).collect();
        for name in &programs {
            let program: &mut SchedClassifier = ebpf
                .program_mut(name)
                .and_then(|found| found.try_into().ok())
                .expect("the object is built together with this file");
            program.load().map_err(|error| not_loaded(name, error))?;
        }
        let said = Array::try_from(take(&mut ebpf, "TRACE")?).map_err(map_error)?;
        let xdp_frames = PerCpuArray::try_from(take(&mut ebpf, "XDP_FRAMES")?).map_err(map_error)?;
        let answer_budget = PerCpuArray::try_from(take(&mut ebpf, "ANSWER_BUDGET")?).map_err(map_error)?;
        let new_flows = PerCpuArray::try_from(take(&mut ebpf, "NEW_FLOWS")?).map_err(map_error)?;
        Ok(Self {
            keys: ByFamily::take(&mut ebpf, ["KEYS", "KEYS6"])?,
            flows,
            buckets,
            replies,
            links,
            tunnels,
            datagrams: Copied::of(take(&mut ebpf, "DATAGRAMS")?)?,
            courses: Copied::of(take(&mut ebpf, "L4_DATAGRAMS")?)?,
            clients: Copied::of(take(&mut ebpf, "AFFINITY")?)?,
            answer_budget,
            new_flows,
            said,
            xdp_frames,
            programs,
            xdp_program: kernel.xdp_program,
            ebpf,
        })
    }

    /// Makes the copies hold these entries and no others, and the budgets of every processor what they are now.
    pub fn hold(&mut self, live: &LiveMaps, copies: &Copies) -> Result<(), KernelError> {
        self.keys.hold(&copies.keys).map_err(map_error)?;
        // SAFETY: these types are made of integers only, without padding.
        let (flows, buckets, replies, links, tunnels) = unsafe {
            (
                as_bytes(&copies.flows),
                as_bytes(&copies.buckets),
                as_bytes(&copies.replies),
                as_bytes(&copies.links),
                as_bytes(&copies.tunnels),
            )
        };
        self.flows.hold(&flows)?;
        self.buckets.hold(&buckets)?;
        self.replies.hold(&replies)?;
        self.links.hold(&links)?;
        self.tunnels.hold(&tunnels)?;
        let datagrams: Vec<_> =
            copies.datagrams.iter().map(|(key, datagram)| (bytes_of_key(key), *datagram)).collect();
        self.datagrams.hold(&datagrams)?;
        let courses: Vec<_> =
            copies.courses.iter().map(|(key, course)| (bytes_of_key(key), *course)).collect();
        self.courses.hold(&courses)?;
        self.clients.hold(&copies.clients)?;
        if let Some(budgets) = live.answer_budget() {
            self.answer_budget.set(0, budgets, 0).map_err(map_error)?;
        }
        if let Some(counters) = live.new_flows() {
            self.new_flows.set(0, counters, 0).map_err(map_error)?;
        }
        Ok(())
    }

    /// A frame arrives by this interface, which may have XDP. Returns what each program has said, and the frame as the last one has left it.
    pub fn run(
        &mut self,
        frame: &[u8],
        interface: u32,
        has_xdp: bool,
    ) -> Result<(Vec<Step>, Vec<u8>), KernelError> {
        let mut frame = frame.to_vec();
        let mut steps = Vec::new();
        if has_xdp {
            let step = self.run_in_xdp(&mut frame, interface)?;
            steps.push(step);
            if step.left.is_none() {
                return Ok((steps, frame));
            }
        }
        if is_tagged(&frame) {
            steps.extend(self.programs.iter().map(|program| of_tagged(program)));
            return Ok((steps, frame));
        }
        for program in self.programs.clone() {
            self.said.set(0, [0; 4], 0).map_err(map_error)?;
            let loaded: &SchedClassifier = self
                .ebpf
                .program(program)
                .and_then(|found| found.try_into().ok())
                .expect("it was loaded from this object");
            let action = run_one(loaded, &mut frame, &socket_buffer(interface))?;
            steps.push(Step { program, word: self.word()?, left: None });
            if action != NEXT_PROGRAM {
                break;
            }
        }
        Ok((steps, frame))
    }

    fn run_in_xdp(&mut self, frame: &mut Vec<u8>, interface: u32) -> Result<Step, KernelError> {
        let program = self.xdp_program;
        self.said.set(0, [0; 4], 0).map_err(map_error)?;
        let before = self.xdp_frames()?;
        let loaded = xdp_program_of(&mut self.ebpf, program);
        if loaded.fd().is_err() {
            loaded.load().map_err(|error| not_loaded(program, error))?;
        }
        let context = frame_context(frame.len() as u32, interface);
        let action = run_one(&*loaded, frame, &context)?;
        let (word, after) = (self.word()?, self.xdp_frames()?);
        let noted = XdpReason::ALL.iter().zip(before.iter().zip(&after)).find(|(_, (old, new))| old != new);
        let left = noted.map(|(reason, _)| *reason).filter(|_| action == XDP_PASS);
        Ok(Step { program, word, left })
    }

    /// What the program has said that ran last.
    fn word(&self) -> Result<Option<Word>, KernelError> {
        let [verdict, reason, interface, next_hop] = self.said.get(&0, 0).map_err(map_error)?;
        let reason = PacketReason::ALL.get(reason as usize).copied();
        let word = SaidVerdict::of(verdict).zip(reason);
        Ok(word.map(|(verdict, reason)| Word { verdict, reason, interface, next_hop }))
    }

    /// The copy's counts, in the order of [`XdpReason`].
    fn xdp_frames(&self) -> Result<Vec<u64>, KernelError> {
        let count = |reason: &XdpReason| {
            let cpus = self.xdp_frames.get(&(reason.index() as u32), 0).map_err(map_error)?;
            Ok(cpus.iter().sum())
        };
        XdpReason::ALL.iter().map(count).collect()
    }
}

/// Whether the frame carries a VLAN tag, as it comes over the wire.
fn is_tagged(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]))
}

/// What a program at TC says of a frame with a VLAN tag. There it lies beside the bytes, where BPF_PROG_TEST_RUN cannot put it.
fn of_tagged(program: &'static str) -> Step {
    let passed =
        Word { verdict: SaidVerdict::Pass, reason: PacketReason::VlanTagged, interface: 0, next_hop: 0 };
    Step { program, word: (program == INGRESS).then_some(passed), left: None }
}

/// Runs a frame through a program, which may change it. Returns the program's action.
fn run_one<P>(program: &P, frame: &mut Vec<u8>, context: &[u8]) -> Result<i32, KernelError>
where
    P: for<'a> TestRun<Opts<'a> = TestRunOptions<'a>, Result = TestRunResult>,
{
    let mut out = vec![0; frame.len() + ROOM_TO_GROW];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: Some(context),
        ..TestRunOptions::new()
    };
    let result = program.test_run(options).map_err(|error| refused("to run a frame", error))?;
    out.truncate(result.data_size_out as usize);
    *frame = out;
    Ok(result.return_value as i32)
}

/// The beginning of a `struct __sk_buff` that arrives by this interface.
fn socket_buffer(interface: u32) -> [u8; 44] {
    const IFINDEX: usize = 40;
    let mut context = [0; 44];
    context[IFINDEX..].copy_from_slice(&interface.to_ne_bytes());
    context
}

/// A `struct xdp_md` of a frame of so many bytes that arrives by the first queue of this interface.
fn frame_context(length: u32, interface: u32) -> [u8; 24] {
    const DATA_END: usize = 4;
    const INGRESS_IFINDEX: usize = 12;
    let mut context = [0; 24];
    context[DATA_END..DATA_END + 4].copy_from_slice(&length.to_ne_bytes());
    context[INGRESS_IFINDEX..INGRESS_IFINDEX + 4].copy_from_slice(&interface.to_ne_bytes());
    context
}

const _: () = assert!(size_of::<Said>() == size_of::<[u32; 4]>());

/// Entries as they lie in a map.
///
/// # Safety
/// `T` is `N` bytes long and made of integers only, without padding.
unsafe fn as_bytes<T, const N: usize>(entries: &[(u32, T)]) -> Vec<(u32, [u8; N])> {
    const { assert!(size_of::<T>() == N) };
    // SAFETY: as the caller says.
    entries.iter().map(|(index, entry)| (*index, unsafe { std::mem::transmute_copy(entry) })).collect()
}

/// A map of copies.
struct Copied<K: aya::Pod, V: aya::Pod>(HashMap<MapData, K, V>);

impl<K: aya::Pod, V: aya::Pod> Copied<K, V> {
    fn of(map: Map) -> Result<Self, KernelError> {
        HashMap::try_from(map).map(Self).map_err(map_error)
    }

    /// A new one that the loader finds under the name of another.
    fn pinned(directory: &std::path::Path, name: &str) -> Result<Self, KernelError> {
        let map: HashMap<MapData, K, V> = HashMap::create(COPIES, BPF_F_NO_PREALLOC).map_err(map_error)?;
        let path = directory.join(name);
        map.pin(&path).map_err(|error| refused("to pin a map", error))?;
        Self::of(Map::HashMap(MapData::from_pin(&path).map_err(map_error)?))
    }

    fn hold(&mut self, entries: &[(K, V)]) -> Result<(), KernelError> {
        clear(&mut self.0);
        for (key, value) in entries {
            self.0.insert(key, value, 0).map_err(map_error)?;
        }
        Ok(())
    }
}

impl ByFamily<FlowRef> {
    /// Makes the maps hold these keys and no others.
    fn hold(&self, keys: &[(FlowKey, FlowRef)]) -> Result<(), MapError> {
        clear(&mut lock(&self.v4));
        clear(&mut lock(&self.v6));
        keys.iter().try_for_each(|(key, value)| self.insert(*key, *value, 0))
    }
}

/// Removes what was copied, and what programs have entered by themselves.
fn clear<K: aya::Pod, V: aya::Pod>(map: &mut HashMap<MapData, K, V>) {
    let keys: Vec<K> = map.keys().flatten().collect();
    for key in keys {
        // A program cannot have removed it: none runs now.
        let _ = map.remove(&key);
    }
}
