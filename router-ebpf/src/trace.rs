//! Answers to the question where a packet would go (`routerctl where`).

use aya_ebpf::Global;
use router_common::abi::reason::PacketReason;
use router_common::abi::trace::SaidVerdict;
use router_common::path::Verdict;

use crate::maps::TRACE;

/// Whether this program is only asked, and sees no real packet. A constant to the kernel, which removes what is never reached.
#[unsafe(no_mangle)]
static TRACING: Global<u8> = Global::new(0);

/// Says what becomes of the packet, if that is the question. The answer to an earlier one has been erased.
#[inline(always)]
pub fn say(verdict: Verdict, reason: PacketReason) {
    if TRACING.load() == 0 {
        return;
    }
    let Some(said) = TRACE.get(0) else { return };
    said.reason.set(reason.index() as u32);
    // What a verdict does not have is not written: whatever lies in a register for it, the verifier refuses to read it.
    match verdict {
        Verdict::Pass(_) => said.verdict.set(SaidVerdict::Pass as u32),
        Verdict::Drop(_) | Verdict::Take(_) => said.verdict.set(SaidVerdict::Drop as u32),
        Verdict::Redirect { interface } => {
            said.interface.set(interface);
            said.verdict.set(SaidVerdict::Redirect as u32);
        }
        Verdict::Resolve { interface, next_hop } => {
            said.interface.set(interface);
            said.next_hop.set(next_hop);
            said.verdict.set(SaidVerdict::Resolve as u32);
        }
        Verdict::Report { interface, .. } => {
            said.interface.set(interface);
            said.verdict.set(SaidVerdict::Report as u32);
        }
    }
}
