//! Samples of packets that are dropped or passed up, for `routerctl capture`. Packets that are carried on do not come here.

use core::ffi::c_void;

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_skb_load_bytes, bpf_xdp_get_buff_len, bpf_xdp_load_bytes};
use router_common::abi::capture::{CaptureBudget, DROPPED, PASSED, SNAP_LENGTH, Sample};
use router_common::abi::reason::PacketReason;
use router_common::abi::shared::Shared32;

use crate::maps::{CAPTURE_BUDGET, CAPTURE_WANTED, CAPTURED};

/// Copies the packet into the buffer, if somebody wants it.
#[inline(always)]
pub fn sample(skb: *mut __sk_buff, reason: PacketReason, dropped: bool) {
    if is_wanted(reason, if dropped { DROPPED } else { PASSED }) {
        take(skb, reason.index() as u32, dropped as u32);
    }
}

/// The same for a frame that XDP drops. What it passes up comes to [`sample`] then.
#[inline(always)]
pub fn sample_dropped(xdp: *mut xdp_md, reason: PacketReason) {
    if is_wanted(reason, DROPPED) {
        take_frame(xdp, reason.index() as u32);
    }
}

#[inline(always)]
fn is_wanted(reason: PacketReason, when: u32) -> bool {
    CAPTURE_WANTED.get(reason.index() as u32).is_some_and(|wanted| wanted.when.get() & when != 0)
}

/// What lies beside the bytes of a packet.
struct About {
    reason: u32,
    dropped: u32,
    interface: u32,
    length: u32,
    vlan: u32,
}

/// A stack frame of its own, and one place that the verifier follows.
#[inline(never)]
fn take(skb: *mut __sk_buff, reason: u32, dropped: u32) -> u32 {
    // SAFETY: the context is the program's own.
    let about = unsafe {
        let vlan = match (*skb).vlan_present {
            0 => 0,
            _ => ((*skb).vlan_proto as u16).swap_bytes() as u32 * 0x1_0000 | (*skb).vlan_tci & 0xffff,
        };
        About { reason, dropped, interface: (*skb).ifindex, length: (*skb).len, vlan }
    };
    // SAFETY: as above; the helper checks the range in the packet.
    copy_or_miss(&about, |bytes, len| unsafe { bpf_skb_load_bytes(skb.cast(), 0, bytes, len) == 0 });
    0
}

/// As above.
#[inline(never)]
fn take_frame(xdp: *mut xdp_md, reason: u32) -> u32 {
    // SAFETY: the context is the program's own.
    let (interface, length) = unsafe { ((*xdp).ingress_ifindex, bpf_xdp_get_buff_len(xdp) as u32) };
    let about = About { reason, dropped: 1, interface, length, vlan: 0 };
    // SAFETY: as above; the helper checks the range in the frame.
    copy_or_miss(&about, |bytes, len| unsafe { bpf_xdp_load_bytes(xdp, 0, bytes, len) == 0 });
    0
}

#[inline(always)]
fn copy_or_miss(about: &About, load: impl FnOnce(*mut c_void, u32) -> bool) {
    let Some(budget) = CAPTURE_BUDGET.get(0) else { return };
    if !copy(budget, about, load) {
        add(&budget.missed, 1);
    }
}

#[inline(always)]
fn copy(budget: &CaptureBudget, about: &About, load: impl FnOnce(*mut c_void, u32) -> bool) -> bool {
    if add(&budget.left, u32::MAX).cast_signed() <= 0 {
        // Back, so that it does not wrap around.
        add(&budget.left, 1);
        return false;
    }
    let Some(mut entry) = CAPTURED.reserve::<Sample>(0) else { return false };
    let sample = entry.as_mut_ptr();
    let captured = if about.length > SNAP_LENGTH as u32 { SNAP_LENGTH as u32 } else { about.length };
    // SAFETY: the entry has room for a sample and is ours until it is submitted. Bytes behind `captured` are whatever lay there, and are read by nobody.
    unsafe {
        (*sample).time = bpf_ktime_get_ns();
        (*sample).reason = about.reason;
        (*sample).dropped = about.dropped;
        (*sample).interface = about.interface;
        (*sample).length = about.length;
        (*sample).captured = captured;
        (*sample).vlan = about.vlan;
        // Through memory, so that the verifier sees the bounds: it loses them where a length has 64 bits.
        let captured = (&raw const (*sample).captured).read_volatile();
        let bytes = (&raw mut (*sample).bytes).cast();
        if captured == 0 || captured > SNAP_LENGTH as u32 || !load(bytes, captured) {
            entry.discard(0);
            return false;
        }
    }
    entry.submit(0);
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
