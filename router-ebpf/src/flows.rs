//! The kernel's side of `path::ports::{Flows, Keys, UnwantedOptionsOf, Clock}`: map look-ups and helpers.

use aya_ebpf::helpers::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns};
use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKeyV4, FlowKeyV6, FlowRef};
use router_common::abi::next_hop::NextHop;
use router_common::abi::shared::Shared32;
use router_common::path::answer_budget::AnswerBudget;
use router_common::path::fragment::{Datagram, DatagramKey};
use router_common::path::ports::{Clock, Flows, Fragments, Keys, UnwantedOptionsOf};

use crate::maps::{
    ANSWER_BUDGET, DATAGRAMS, FLOWS, KEYS, KEYS6, NEXT_HOPS, SYN_OPTIONS, SYN_OPTIONS6, TRANSPARENT,
    TRANSPARENT6,
};

pub struct KernelFlows;

impl Flows for KernelFlows {
    #[inline(always)]
    fn flow(&self, slot: u32) -> Option<&Flow> {
        FLOWS.get(slot)
    }

    #[inline(always)]
    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        NEXT_HOPS.get(index)
    }

    #[inline(always)]
    fn answer_budget(&self) -> Option<&AnswerBudget> {
        // SAFETY: the cell belongs to this CPU, and programs on one CPU do not interrupt each other at this hook.
        ANSWER_BUDGET.get_ptr(0).map(|budget| unsafe { &*budget })
    }
}

impl Fragments for KernelFlows {
    #[inline(always)]
    fn remember(&self, key: &DatagramKey, datagram: &Datagram) {
        // Where it fails, the later fragments are the stack's, and the segment is sent again.
        let _ = DATAGRAMS.insert(key, datagram, 0);
    }

    #[inline(always)]
    fn recall(&self, key: &DatagramKey) -> Option<Datagram> {
        // SAFETY: the value is copied at once; one of another datagram, if its entry is used anew meanwhile, is told by its flow's addresses.
        unsafe { DATAGRAMS.get(key).copied() }
    }

    #[inline(always)]
    fn forget_datagram(&self, key: &DatagramKey) {
        // There need not be one.
        let _ = DATAGRAMS.remove(key);
    }
}

macro_rules! keys {
    ($($key:ty: $keys:ident, $syn_options:ident, $transparent:ident;)*) => { $(
        impl Keys<$key> for KernelFlows {
            #[inline(always)]
            fn find(&self, key: &$key) -> Option<FlowRef> {
                // SAFETY: the value is a word that is copied at once; a concurrent update gives the old or the new one.
                unsafe { $keys.get(key).copied() }
            }

            #[inline(always)]
            fn forget(&self, key: &$key) {
                // The only failure is that the key is gone already.
                let _ = $keys.remove(key);
            }

            #[inline(always)]
            fn is_transparent(&self, key: &$key) -> bool {
                // SAFETY: nothing is read of the value.
                unsafe { $transparent.get(key).is_some() }
            }
        }

        impl UnwantedOptionsOf<$key> for KernelFlows {
            #[inline(always)]
            fn unwanted(&self, key: &$key) -> Option<u32> {
                // SAFETY: as above.
                unsafe { $syn_options.get(key).copied() }
            }
        }
    )* };
}

keys! {
    FlowKeyV4: KEYS, SYN_OPTIONS, TRANSPARENT;
    FlowKeyV6: KEYS6, SYN_OPTIONS6, TRANSPARENT6;
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
