//! Answers to the question where a packet would go (`routerctl where`).

use aya_ebpf::Global;
use router_common::abi::reason::PacketReason;
use router_common::abi::trace::SaidVerdict;
use router_common::path::Verdict;

use crate::maps::TRACE;

/// Whether this program is only asked, and sees no real packet. A constant to the kernel, which removes what is never reached.
#[unsafe(no_mangle)]
static TRACING: Global<u8> = Global::new(0);

/// Says what becomes of the packet, if that is the question.
#[inline(always)]
pub fn say(verdict: Verdict, reason: PacketReason) {
    if TRACING.load() == 0 {
        return;
    }
    let Some(said) = TRACE.get(0) else { return };
    let (what, interface, next_hop) = match verdict {
        Verdict::Pass(_) => (SaidVerdict::Pass, 0, 0),
        Verdict::Drop(_) => (SaidVerdict::Drop, 0, 0),
        Verdict::Redirect { interface } => (SaidVerdict::Redirect, interface, 0),
        Verdict::Resolve { interface, next_hop } => (SaidVerdict::Resolve, interface, next_hop),
        Verdict::Report { interface, .. } => (SaidVerdict::Report, interface, 0),
    };
    said.verdict.set(what as u32);
    said.reason.set(reason.index() as u32);
    said.interface.set(interface);
    said.next_hop.set(next_hop);
}
