//! THE PACKET'S ROUTE: `parse → flow lookup → custody → translate → account → forward`. Read this file top to bottom.
//!
//! The functions are generic over the narrow traits of [`ports`], so that the kernel programs and the host tests run the
//! same code. Two rules hold throughout:
//!
//! - A packet is not changed until every check has passed: what goes up to the stack leaves byte-identical.
//! - Every verdict has a [`PacketReason`], and the entry point counts it.

pub mod account;
pub mod custody;
pub mod forward;
#[cfg(feature = "user")]
pub mod memory;
pub mod options;
pub mod parse;
pub mod ports;
pub mod sequence;
pub mod stray_ending;
pub mod syn_options;
pub mod translate;

use crate::abi::flow::FLAG_LIVE;
use crate::abi::reason::PacketReason;
use ports::{Clock, Flows, Packet};

/// What the entry point shall do with the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The stack takes it, unchanged.
    Pass(PacketReason),
    Drop(PacketReason),
    /// Send it out by this interface; its Ethernet header is complete.
    Redirect {
        interface: u32,
    },
    /// Send it out by this interface and let the kernel find the link-layer address of `address` (network byte order).
    Resolve {
        interface: u32,
        address: u32,
    },
}

impl Verdict {
    pub const fn reason(self) -> PacketReason {
        match self {
            Verdict::Pass(reason) | Verdict::Drop(reason) => reason,
            Verdict::Redirect { .. } => PacketReason::Forwarded,
            Verdict::Resolve { .. } => PacketReason::NextHopUnresolved,
        }
    }
}

/// Carries one received packet.
#[inline(always)]
pub fn carry<P: Packet, F: Flows, C: Clock>(packet: &mut P, flows: &F, clock: &C) -> Verdict {
    let segment = match parse::arrived(packet) {
        Ok(segment) => segment,
        Err(reason) => return Verdict::Pass(reason),
    };
    let Some(found) = flows.find(&segment.key) else {
        return Verdict::Pass(PacketReason::NoFlow);
    };
    let Some(flow) = flows.flow(found.slot()) else {
        return Verdict::Pass(PacketReason::StaleSlot);
    };
    let passage = sequence::Passage::new(flow, found.side(), &segment);
    if passage.traits & FLAG_LIVE == 0 {
        return Verdict::Pass(PacketReason::StaleSlot);
    }
    if account::ended(&passage, &segment) {
        flows.forget(&segment.key);
        return Verdict::Pass(PacketReason::TupleReused);
    }
    if let custody::Keeper::Ours(verdict) = custody::keeper(&passage, &segment) {
        account::acknowledged(&passage, &segment);
        return verdict;
    }
    let Some(next_hop) = flows.next_hop(passage.next_hop()) else {
        return Verdict::Pass(PacketReason::NextHopUnresolved);
    };
    if let Err(verdict) = translate::translate(packet, &passage, &segment, next_hop, clock) {
        return verdict;
    }
    account::translated(&passage, &segment, clock.coarse_now());
    forward::forward(next_hop)
}
