//! The way out.

use super::Verdict;
use crate::abi::next_hop::NextHop;

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
