//! From a verdict to what the kernel shall do, counted by reason.

use core::mem::size_of;

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC, bpf_redir_neigh, bpf_redir_neigh__bindgen_ty_1};
use aya_ebpf::helpers::{bpf_redirect, bpf_redirect_neigh};
use aya_ebpf::programs::TcContext;
use aya_log_ebpf::debug;
use router_common::abi::next_hop::NextHop;
use router_common::abi::reason::PacketReason;
use router_common::path::Verdict;

use crate::capture;
use crate::maps::{NEXT_HOPS, PACKETS};
use crate::trace;

/// Whatever else is attached to the hook sees the packet next, then the stack (TCX_NEXT, TC_ACT_UNSPEC).
pub const NEXT_PROGRAM: i32 = TC_ACT_UNSPEC;

#[inline(always)]
pub fn act(ctx: &TcContext, verdict: Verdict, reason: PacketReason) -> i32 {
    if let Some(packets) = PACKETS.get_ptr_mut(reason.index() as u32) {
        // SAFETY: a per-CPU cell; programs on one CPU do not interrupt each other at this hook.
        unsafe { *packets += 1 };
    }
    trace::say(verdict, reason);
    match verdict {
        Verdict::Pass(_) => {
            capture::sample(ctx.skb.skb, reason, false);
            NEXT_PROGRAM
        }
        Verdict::Drop(_) => {
            capture::sample(ctx.skb.skb, reason, true);
            debug!(ctx, "dropped a packet of {} bytes, reason {}", ctx.len(), reason.index() as u32);
            TC_ACT_SHOT
        }
        Verdict::Take(_) => TC_ACT_SHOT,
        // SAFETY: a helper with plain arguments.
        Verdict::Redirect { interface } | Verdict::Report { interface, .. } => unsafe {
            bpf_redirect(interface, 0) as i32
        },
        Verdict::Resolve { interface, next_hop } => {
            // It was there a moment ago.
            let Some(next_hop) = NEXT_HOPS.get(next_hop) else { return TC_ACT_SHOT };
            let mut neighbour = neighbour(next_hop);
            let len = size_of::<bpf_redir_neigh>() as i32;
            // SAFETY: the parameters live on the stack and are `len` bytes long.
            unsafe { bpf_redirect_neigh(interface, &mut neighbour, len, 0) as i32 }
        }
    }
}

/// The kernel's word for a neighbour.
#[inline(always)]
fn neighbour(next_hop: &NextHop) -> bpf_redir_neigh {
    // An IPv4 address lies in the first word of the other's place.
    let ipv6_nh = [
        next_hop.address[0].get(),
        next_hop.address[1].get(),
        next_hop.address[2].get(),
        next_hop.address[3].get(),
    ];
    bpf_redir_neigh {
        nh_family: next_hop.family.get(),
        __bindgen_anon_1: bpf_redir_neigh__bindgen_ty_1 { ipv6_nh },
    }
}
