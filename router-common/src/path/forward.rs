//! The way out.

use super::Verdict;
use crate::abi::next_hop::NextHop;
use crate::abi::reason::PacketReason;

/// Where an error leaves the host.
#[inline(always)]
pub fn report(index: u32, next_hop: &NextHop, reason: PacketReason) -> Verdict {
    match forward(index, next_hop) {
        Verdict::Redirect { interface } => Verdict::Report { interface, reason },
        unresolved => unresolved,
    }
}

/// Where a translated packet leaves the host: by the next hop of this index.
#[inline(always)]
pub fn forward(index: u32, next_hop: &NextHop) -> Verdict {
    let interface = next_hop.interface.get();
    if next_hop.resolved.get() != 0 {
        Verdict::Redirect { interface }
    } else {
        Verdict::Resolve { interface, next_hop: index }
    }
}
