//! The kernel's side of `path::ports::{Flows, Clock}`: map look-ups and helpers.

use aya_ebpf::helpers::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns};
use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKey, FlowRef};
use router_common::abi::next_hop::NextHop;
use router_common::abi::shared::Shared32;
use router_common::path::ports::{Clock, Flows};

use crate::maps::{FLOWS, KEYS, NEXT_HOPS};

pub struct KernelFlows;

impl Flows for KernelFlows {
    #[inline(always)]
    fn find(&self, key: &FlowKey) -> Option<FlowRef> {
        // SAFETY: the value is a word that is copied at once; a concurrent update gives the old or the new one.
        unsafe { KEYS.get(key).copied() }
    }

    #[inline(always)]
    fn flow(&self, slot: u32) -> Option<&Flow> {
        FLOWS.get(slot)
    }

    #[inline(always)]
    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        NEXT_HOPS.get(index)
    }

    #[inline(always)]
    fn forget(&self, key: &FlowKey) {
        // The only failure is that the key is gone already.
        let _ = KEYS.remove(key);
    }
}

impl Clock for KernelFlows {
    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: a helper without arguments.
        unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn coarse_now(&self) -> u64 {
        // SAFETY: a helper without arguments.
        unsafe { bpf_ktime_get_coarse_ns() }
    }

    #[inline(always)]
    fn fix_once(&self, cell: &Shared32, value: u32) -> u32 {
        // SAFETY: the cell lies in a map value; the instruction is BPF_CMPXCHG, which kernels have since 5.12.
        let (before, _) = unsafe {
            core::intrinsics::atomic_cxchg::<
                u32,
                { core::intrinsics::AtomicOrdering::SeqCst },
                { core::intrinsics::AtomicOrdering::SeqCst },
            >(cell.as_ptr(), 0, value)
        };
        if before == 0 { value } else { before }
    }
}
