//! Samples of packets that are dropped or passed up, for `routerctl capture`. Packets that are carried on do not come here.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_skb_load_bytes};
use router_common::abi::capture::{CaptureBudget, DROPPED, PASSED, SNAP_LENGTH, Sample};
use router_common::abi::reason::PacketReason;
use router_common::abi::shared::Shared32;

use crate::maps::{CAPTURE_BUDGET, CAPTURE_WANTED, CAPTURED};

/// Copies the packet into the buffer, if somebody wants it.
#[inline(always)]
pub fn sample(skb: *mut __sk_buff, reason: PacketReason, dropped: bool) {
    let reason = reason.index() as u32;
    let when = if dropped { DROPPED } else { PASSED };
    if CAPTURE_WANTED.get(reason).is_some_and(|wanted| wanted.when.get() & when != 0) {
        take(skb, reason, dropped as u32);
    }
}

/// A stack frame of its own, and one place that the verifier follows.
#[inline(never)]
fn take(skb: *mut __sk_buff, reason: u32, dropped: u32) -> u32 {
    let Some(budget) = CAPTURE_BUDGET.get(0) else { return 0 };
    if !copy(skb, budget, reason, dropped) {
        add(&budget.missed, 1);
    }
    0
}

#[inline(always)]
fn copy(skb: *mut __sk_buff, budget: &CaptureBudget, reason: u32, dropped: u32) -> bool {
    if add(&budget.left, u32::MAX).cast_signed() <= 0 {
        // Back, so that it does not wrap around.
        add(&budget.left, 1);
        return false;
    }
    let Some(mut entry) = CAPTURED.reserve::<Sample>(0) else { return false };
    let sample = entry.as_mut_ptr();
    // SAFETY: the entry has room for a sample and is ours until it is submitted; the context is the program's own, and the helper checks the range.
    // Bytes behind `captured` are whatever lay there, and are read by nobody.
    unsafe {
        let length = (*skb).len;
        let captured = if length > SNAP_LENGTH as u32 { SNAP_LENGTH as u32 } else { length };
        (*sample).time = bpf_ktime_get_ns();
        (*sample).reason = reason;
        (*sample).dropped = dropped;
        (*sample).interface = (*skb).ifindex;
        (*sample).length = length;
        (*sample).captured = captured;
        (*sample).vlan = match (*skb).vlan_present {
            0 => 0,
            _ => ((*skb).vlan_proto as u16).swap_bytes() as u32 * 0x1_0000 | (*skb).vlan_tci & 0xffff,
        };
        let bytes = (&raw mut (*sample).bytes).cast();
        if captured == 0 || bpf_skb_load_bytes(skb.cast(), 0, bytes, captured) != 0 {
            entry.discard(0);
            return false;
        }
        entry.submit(0);
    }
    true
}

/// Adds to a word that others add to at the same time; returns what it was.
#[inline(always)]
fn add(word: &Shared32, count: u32) -> u32 {
    // SAFETY: the cell lies in a map value; the instruction is BPF_ATOMIC with BPF_FETCH, which kernels have since 5.12.
    unsafe {
        core::intrinsics::atomic_xadd::<u32, u32, { core::intrinsics::AtomicOrdering::SeqCst }>(
            word.as_ptr(),
            count,
        )
    }
}
