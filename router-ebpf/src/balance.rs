//! The kernel's side of `path::balance::tables`: the maps of Layer-4 listeners.

use aya_ebpf::helpers::bpf_ktime_get_coarse_ns;
use aya_ebpf::maps::lpm_trie::Key;
use router_common::abi::balance::FlowId;
use router_common::abi::balance::{
    Affinity, AffinityKey, Course, EndpointBucket, FlowBucket, Group, Instance, Link, NewFlows, ReplyBucket,
    RingChunk, RuleKey, Service, Settings, TICK_SHIFT, Tunnel,
};
use router_common::abi::next_hop::NextHop;
use router_common::abi::shared::Shared32;
use router_common::path::balance::datagram::Datagram;
use router_common::path::balance::place::{self, Placement};
use router_common::path::balance::table::{self, ReplyKey};
use router_common::path::balance::tables::Tables;
use router_common::path::balance::{self, Outcome, answer};
use router_common::path::fragment::DatagramKey;

use crate::maps::{
    AFFINITY, BALANCE_SETTINGS, CLIENT_RULES, ENDPOINTS, GROUPS, INSTANCES, L4_DATAGRAMS, L4_FLOWS, LINKS,
    NEW_FLOWS, NEXT_HOPS, REPLIES, RINGS, SERVICES, TUNNELS,
};

pub struct KernelTables;

/// Bits of a rule's key that every prefix contains: the set's number.
const SET_BITS: u32 = 32;
const ADDRESS_BITS: u32 = 128;

impl Tables for KernelTables {
    #[inline(always)]
    fn settings(&self) -> Option<&Settings> {
        BALANCE_SETTINGS.get(0)
    }

    #[inline(always)]
    fn endpoints(&self, bucket: u32) -> Option<&EndpointBucket> {
        ENDPOINTS.get(bucket)
    }

    #[inline(always)]
    fn service(&self, index: u32) -> Option<&Service> {
        SERVICES.get(index)
    }

    #[inline(always)]
    fn instance(&self, index: u32) -> Option<&Instance> {
        INSTANCES.get(index)
    }

    #[inline(always)]
    fn tunnel(&self, index: u32) -> Option<&Tunnel> {
        TUNNELS.get(index)
    }

    #[inline(always)]
    fn group(&self, index: u32) -> Option<&Group> {
        GROUPS.get(index)
    }

    #[inline(always)]
    fn ring(&self, chunk: u32) -> Option<&RingChunk> {
        RINGS.get(chunk)
    }

    #[inline(always)]
    fn flows(&self, bucket: u32) -> Option<&FlowBucket> {
        L4_FLOWS.get(bucket)
    }

    #[inline(always)]
    fn replies(&self, bucket: u32) -> Option<&ReplyBucket> {
        REPLIES.get(bucket)
    }

    #[inline(always)]
    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        NEXT_HOPS.get(index)
    }

    #[inline(always)]
    fn rule(&self, key: &RuleKey) -> Option<u32> {
        CLIENT_RULES.get(&Key::new(SET_BITS + ADDRESS_BITS, *key)).copied()
    }

    #[inline(always)]
    fn affinity(&self, key: &AffinityKey) -> Option<Affinity> {
        // SAFETY: the value is copied at once; an update in between gives an older or a newer instance of the same client.
        unsafe { AFFINITY.get(key).copied() }
    }

    #[inline(always)]
    fn remember(&self, key: &AffinityKey, affinity: Affinity) {
        // Where it fails, the client is placed by the ring next time.
        let _ = AFFINITY.insert(key, &affinity, 0);
    }

    #[inline(always)]
    fn recall(&self, key: &DatagramKey) -> Option<Course> {
        // SAFETY: the value is copied at once; one of another datagram, if its entry is used anew meanwhile, names another flow or is as old.
        unsafe { L4_DATAGRAMS.get(key).copied() }
    }

    #[inline(always)]
    fn note(&self, key: &DatagramKey, course: Course) {
        // Where it fails, the later fragments are dropped.
        let _ = L4_DATAGRAMS.insert(key, &course, 0);
    }

    #[inline(always)]
    fn new_flows(&self) -> Option<&NewFlows> {
        // SAFETY: a cell of this CPU; programs at this hook do not interrupt each other.
        NEW_FLOWS.get_ptr(0).map(|cell| unsafe { &*cell })
    }

    #[inline(always)]
    fn link(&self, interface: u32) -> Option<&Link> {
        LINKS.get(interface)
    }

    #[inline(always)]
    fn swap_if(&self, word: &Shared32, old: u32, new: u32) -> u32 {
        // SAFETY: the cell lies in a map value; the instruction is BPF_CMPXCHG, which kernels have since 5.12.
        let (before, _) = unsafe {
            core::intrinsics::atomic_cxchg::<
                u32,
                { core::intrinsics::AtomicOrdering::SeqCst },
                { core::intrinsics::AtomicOrdering::SeqCst },
            >(word.as_ptr(), old, new)
        };
        before
    }

    #[inline(always)]
    fn add(&self, word: &Shared32, count: u32) {
        // SAFETY: as above.
        unsafe {
            core::intrinsics::atomic_xadd::<u32, u32, { core::intrinsics::AtomicOrdering::SeqCst }>(
                word.as_ptr(),
                count,
            );
        }
    }

    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        let Some(cell) = self.new_flows().map(|of_this_cpu| &of_this_cpu.scratch) else { return 0 };
        cell.set(number);
        cell.get()
    }

    #[inline(always)]
    fn ticks(&self) -> u32 {
        // SAFETY: a helper without arguments.
        (unsafe { bpf_ktime_get_coarse_ns() } >> TICK_SHIFT) as u32
    }

    #[inline(always)]
    fn target(&self, address: &[u32; 4], port: u32) -> u32 {
        layer4_target(address, port)
    }

    #[inline(always)]
    fn flow_of(&self, client: &[u32; 4], origin: u32) -> Option<FlowId> {
        match layer4_flow_of(client, origin) {
            0 => None,
            id => Some(FlowId::unpack(id)),
        }
    }

    #[inline(always)]
    fn begin(&self, datagram: &Datagram, service: u32) -> Result<Placement, Outcome> {
        place::unpack(layer4_begin(datagram, service))
    }

    #[inline(always)]
    fn answered(&self, datagram: &Datagram, instance: u32) -> Option<FlowId> {
        match layer4_answered(datagram, instance) {
            0 => None,
            id => Some(FlowId::unpack(id)),
        }
    }

    #[inline(always)]
    fn claim(&self, hash: u64) -> Option<FlowId> {
        match layer4_claim(hash) {
            0 => None,
            id => Some(FlowId::unpack(id)),
        }
    }

    #[inline(always)]
    fn enter(&self, answers: &ReplyKey, id: FlowId) -> bool {
        layer4_enter(answers, id.pack()) != 0
    }
}

// Global functions: the verifier follows each once, by what their arguments may be, instead of once for every path that leads to a call.

/// A packed `Target`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn layer4_target(address: *const [u32; 4], port: u32) -> u32 {
    if address.is_null() {
        return 0;
    }
    // SAFETY: the verifier has seen to it that the memory is there.
    balance::target(&KernelTables, unsafe { &*address }, port)
}

/// A packed [`FlowId`], or 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn layer4_flow_of(client: *const [u32; 4], origin: u32) -> u32 {
    if client.is_null() {
        return 0;
    }
    // SAFETY: as above.
    table::flow_of(&KernelTables, unsafe { &*client }, origin).map_or(0, FlowId::pack)
}

/// As [`place::pack`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn layer4_begin(datagram: *const Datagram, service: u32) -> u64 {
    if datagram.is_null() {
        return 0;
    }
    // SAFETY: the verifier has seen to it that the memory is there.
    place::pack(&place::begin(&KernelTables, unsafe { &*datagram }, service))
}

/// A packed [`FlowId`], or 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn layer4_answered(datagram: *const Datagram, instance: u32) -> u32 {
    if datagram.is_null() {
        return 0;
    }
    // SAFETY: as above.
    answer::find(&KernelTables, unsafe { &*datagram }, instance).map_or(0, FlowId::pack)
}

/// The same.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn layer4_claim(hash: u64) -> u32 {
    table::claim(&KernelTables, hash).map_or(0, FlowId::pack)
}

/// 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn layer4_enter(answers: *const ReplyKey, id: u32) -> u32 {
    if answers.is_null() {
        return 0;
    }
    // SAFETY: the verifier has seen to it that the memory is there.
    table::enter(&KernelTables, unsafe { &*answers }, FlowId::unpack(id)).into()
}
