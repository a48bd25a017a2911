//! The maps that the daemon fills and adopts. All are pinned by name; their sizes are set at load time.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, DevMap, HashMap, LpmTrie, LruHashMap, PerCpuArray, RingBuf};
use router_common::abi::balance::{
    Affinity, AffinityKey, Course, EndpointBucket, FlowBucket, Group, Instance, Link, MAX_GROUPS,
    MAX_INSTANCES, MAX_LINKS, MAX_SERVICES, NewFlows, ReplyBucket, RingChunk, RuleKey, Service, Settings,
    Tunnel,
};
use router_common::abi::binding::{BindingSettings, BoundEndpoint, BoundListener, Embryo, MAX_RINGS, Stash};
use router_common::abi::capture::{CaptureBudget, Wanted};
use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKeyV4, FlowKeyV6, FlowRef};
use router_common::abi::next_hop::NextHop;
use router_common::abi::reason::{PacketReason, XdpReason};
use router_common::abi::trace::Said;
use router_common::abi::xdp::{Interface, MAX_INTERFACES};
use router_common::path::answer_budget::AnswerBudget;
use router_common::path::fragment::{Datagram, DatagramKey};
use router_common::path::options::Scratch;

use crate::binding::HeaderBytes;

const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_F_NO_PREALLOC: u32 = 1 << 0;

/// Two entries an IPv4 flow. Never LRU: a silent eviction would reset a live connection.
#[map]
pub static KEYS: HashMap<FlowKeyV4, FlowRef> = HashMap::pinned(2 * 1024, 0);

/// Two entries an IPv6 flow. Takes memory for an entry only while it is there: many hosts have flows of one family only.
#[map]
pub static KEYS6: HashMap<FlowKeyV6, FlowRef> = HashMap::pinned(2 * 1024, BPF_F_NO_PREALLOC);

/// The daemon maps this array into its memory.
#[map]
pub static FLOWS: Array<Flow> = Array::pinned(1024, BPF_F_MMAPABLE);

#[map]
pub static NEXT_HOPS: Array<NextHop> = Array::pinned(1024, BPF_F_MMAPABLE);

/// Packets by [`PacketReason`].
#[map]
pub static PACKETS: PerCpuArray<u64> = PerCpuArray::pinned(PacketReason::COUNT as u32, 0);

/// Options to erase from the SYN of a connection that the daemon is about to open: bits of `syn_options`.
#[map]
pub static SYN_OPTIONS: LruHashMap<FlowKeyV4, u32> = LruHashMap::pinned(4096, 0);

#[map]
pub static SYN_OPTIONS6: LruHashMap<FlowKeyV6, u32> = LruHashMap::pinned(4096, 0);

/// Tuples of packets to sockets that bear a client's address; the value means nothing. Takes memory for an entry only while it is there.
#[map]
pub static TRANSPARENT: HashMap<FlowKeyV4, u32> = HashMap::pinned(262_144, BPF_F_NO_PREALLOC);

#[map]
pub static TRANSPARENT6: HashMap<FlowKeyV6, u32> = HashMap::pinned(262_144, BPF_F_NO_PREALLOC);

/// Datagrams whose first fragment was translated.
#[map]
pub static DATAGRAMS: LruHashMap<DatagramKey, Datagram> = LruHashMap::with_max_entries(4096, 0);

/// How many more senders may be told of an MTU, for each CPU.
#[map]
pub static ANSWER_BUDGET: PerCpuArray<AnswerBudget> = PerCpuArray::with_max_entries(1, 0);

/// Working memory of `path::options`, one for each CPU.
#[map]
pub static OPTIONS_SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// [`router_common::abi::LAYOUT_VERSION`] of the pinned maps; 0 until the daemon has set it.
#[map]
pub static LAYOUT: Array<u32> = Array::pinned(1, 0);

/// What the packet path must know for every Layer-4 packet.
#[map]
pub static BALANCE_SETTINGS: Array<Settings> = Array::pinned(1, BPF_F_MMAPABLE);

/// Two tables of endpoints, one in force and one to be built.
#[map]
pub static ENDPOINTS: Array<EndpointBucket> = Array::pinned(1, BPF_F_MMAPABLE);

#[map]
pub static SERVICES: Array<Service> = Array::pinned(MAX_SERVICES, BPF_F_MMAPABLE);

#[map]
pub static INSTANCES: Array<Instance> = Array::pinned(MAX_INSTANCES, BPF_F_MMAPABLE);

#[map]
pub static GROUPS: Array<Group> = Array::pinned(MAX_GROUPS, BPF_F_MMAPABLE);

/// Maglev tables, one behind the other.
#[map]
pub static RINGS: Array<RingChunk> = Array::pinned(1, BPF_F_MMAPABLE);

/// Layer-4 flows.
#[map]
pub static L4_FLOWS: Array<FlowBucket> = Array::pinned(1, BPF_F_MMAPABLE);

/// The same by the tuples of their answers.
#[map]
pub static REPLIES: Array<ReplyBucket> = Array::pinned(1, BPF_F_MMAPABLE);

/// Groups by the client's address.
#[map]
pub static CLIENT_RULES: LpmTrie<RuleKey, u32> = LpmTrie::pinned(65_536, BPF_F_NO_PREALLOC);

/// Where clients were served. LRU: a client that is forgotten is placed by the ring.
#[map]
pub static AFFINITY: LruHashMap<AffinityKey, Affinity> = LruHashMap::pinned(1024, 0);

/// Where fragmented datagrams of Layer-4 flows go.
#[map]
pub static L4_DATAGRAMS: LruHashMap<DatagramKey, Course> = LruHashMap::with_max_entries(4096, 0);

/// New Layer-4 flows of this second.
#[map]
pub static NEW_FLOWS: PerCpuArray<NewFlows> = PerCpuArray::pinned(1, 0);

/// What routers have told of the ways to instances with `dsr-ipip`.
#[map]
pub static TUNNELS: Array<Tunnel> = Array::pinned(MAX_INSTANCES, BPF_F_MMAPABLE);

/// By the index of the interface.
#[map]
pub static LINKS: Array<Link> = Array::pinned(MAX_LINKS, BPF_F_MMAPABLE);

/// What the programs say of a packet that they are asked about.
#[map]
pub static TRACE: Array<Said> = Array::with_max_entries(1, 0);

/// Which packets are to be sampled, by [`PacketReason`].
#[map]
pub static CAPTURE_WANTED: Array<Wanted> =
    Array::with_max_entries(PacketReason::COUNT as u32, BPF_F_MMAPABLE);

#[map]
pub static CAPTURE_BUDGET: Array<CaptureBudget> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Samples of them: about two hundred at a time.
#[map]
pub static CAPTURED: RingBuf = RingBuf::with_byte_size(64 * 1024, 0);

/// Interfaces as XDP must know them.
#[map]
pub static XDP_INTERFACES: Array<Interface> = Array::pinned(MAX_INTERFACES, BPF_F_MMAPABLE);

/// Those that XDP sends by; each under its own index.
#[map]
pub static XDP_DEVICES: DevMap = DevMap::pinned(MAX_INTERFACES, 0);

/// Frames that XDP has met, by [`XdpReason`].
#[map]
pub static XDP_FRAMES: PerCpuArray<u64> = PerCpuArray::pinned(XdpReason::COUNT as u32, 0);

/// What the packet path must know for every listener whose connections are bound.
#[map]
pub static BINDING_SETTINGS: Array<BindingSettings> = Array::pinned(1, BPF_F_MMAPABLE);

#[map]
pub static BOUND_LISTENERS: HashMap<BoundEndpoint, BoundListener> = HashMap::pinned(1024, 0);

/// Clients that have completed the handshake. LRU: who sends nothing for long gives way.
#[map]
pub static EMBRYOS: LruHashMap<FlowKeyV4, Embryo> = LruHashMap::pinned(1, 0);

#[map]
pub static EMBRYOS6: LruHashMap<FlowKeyV6, Embryo> = LruHashMap::pinned(1, 0);

/// What instances get first.
#[map]
pub static STASHES: Array<Stash> = Array::pinned(1, BPF_F_MMAPABLE);

/// What the daemon is told: a ring for each worker that binds, as many as [`MAX_RINGS`]. Not pinned: what a dead daemon has not read, its
/// clients send again.
#[map]
pub static ARRIVALS_0: RingBuf = RingBuf::with_byte_size(4096, 0);

#[map]
pub static ARRIVALS_1: RingBuf = RingBuf::with_byte_size(4096, 0);

#[map]
pub static ARRIVALS_2: RingBuf = RingBuf::with_byte_size(4096, 0);

#[map]
pub static ARRIVALS_3: RingBuf = RingBuf::with_byte_size(4096, 0);

#[map]
pub static ARRIVALS_4: RingBuf = RingBuf::with_byte_size(4096, 0);

#[map]
pub static ARRIVALS_5: RingBuf = RingBuf::with_byte_size(4096, 0);

#[map]
pub static ARRIVALS_6: RingBuf = RingBuf::with_byte_size(4096, 0);

#[map]
pub static ARRIVALS_7: RingBuf = RingBuf::with_byte_size(4096, 0);

const _: () = assert!(MAX_RINGS == 8);

/// A copy of a TCP header, one for each CPU.
#[map]
pub static HEADER_SCRATCH: PerCpuArray<HeaderBytes> = PerCpuArray::with_max_entries(1, 0);
