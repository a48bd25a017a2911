//! From a verdict to what the kernel shall do, counted by reason.

use core::mem::size_of;

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC, bpf_redir_neigh};
use aya_ebpf::helpers::{bpf_redirect, bpf_redirect_neigh};
use aya_ebpf::programs::TcContext;
use aya_log_ebpf::debug;
use router_common::path::Verdict;

use crate::maps::PACKETS;

/// Whatever else is attached to the hook sees the packet next, then the stack (TCX_NEXT, TC_ACT_UNSPEC).
pub const NEXT_PROGRAM: i32 = TC_ACT_UNSPEC;

const AF_INET: u32 = 2;

#[inline(always)]
pub fn act(ctx: &TcContext, verdict: Verdict) -> i32 {
    let reason = verdict.reason();
    if let Some(packets) = PACKETS.get_ptr_mut(reason.index() as u32) {
        // SAFETY: a per-CPU cell; programs on one CPU do not interrupt each other at this hook.
        unsafe { *packets += 1 };
    }
    match verdict {
        Verdict::Pass(_) => NEXT_PROGRAM,
        Verdict::Drop(_) => {
            debug!(ctx, "dropped a packet of {} bytes, reason {}", ctx.len(), reason.index() as u32);
            TC_ACT_SHOT
        }
        // SAFETY: a helper with plain arguments.
        Verdict::Redirect { interface } => unsafe { bpf_redirect(interface, 0) as i32 },
        Verdict::Resolve { interface, address } => {
            // SAFETY: a plain structure for which all-zero is a valid value.
            let mut neighbour: bpf_redir_neigh = unsafe { core::mem::zeroed() };
            neighbour.nh_family = AF_INET;
            neighbour.__bindgen_anon_1.ipv4_nh = address;
            let len = size_of::<bpf_redir_neigh>() as i32;
            // SAFETY: the parameters live on the stack and are `len` bytes long.
            unsafe { bpf_redirect_neigh(interface, &mut neighbour, len, 0) as i32 }
        }
    }
}
