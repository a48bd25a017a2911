//! THE PACKET'S ROUTE: `parse → flow lookup → custody → translate → account → forward`. Read this file top to bottom.
//!
//! The functions are generic over the narrow traits of [`ports`], so that the kernel programs and the host tests run the
//! same code, and over the [`Family`], so that IPv4 and IPv6 do. Two rules hold throughout:
//!
//! - A packet is not changed until every check has passed: what goes up to the stack leaves byte-identical.
//! - Every verdict has a [`PacketReason`], and the entry point counts it.

pub mod account;
pub mod custody;
pub mod family;
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

use crate::abi::reason::PacketReason;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::Ipv6;
use family::Family;
use parse::Version;
use ports::{Clock, Flows, Keys, Packet};

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
    /// Send it out by this interface and let the kernel find the link-layer address of the neighbour, which is the next hop of this index.
    Resolve {
        interface: u32,
        next_hop: u32,
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
    match parse::arriving(packet) {
        Ok(Version::V4) => carry_as::<Ipv4, P, F, C>(packet, flows, clock),
        Ok(Version::V6) => carry_as::<Ipv6, P, F, C>(packet, flows, clock),
        Err(reason) => Verdict::Pass(reason),
    }
}

#[inline(always)]
fn carry_as<I: Family, P: Packet, F: Flows + Keys<I::Key>, C: Clock>(
    packet: &mut P,
    flows: &F,
    clock: &C,
) -> Verdict {
    let (key, segment) = match parse::arrived::<I, P>(packet) {
        Ok(parsed) => parsed,
        Err(reason) => return Verdict::Pass(reason),
    };
    let Some(found) = flows.find(&key) else {
        return Verdict::Pass(PacketReason::NoFlow);
    };
    let Some(flow) = flows.flow(found.slot()) else {
        return Verdict::Pass(PacketReason::StaleSlot);
    };
    let passage = sequence::Passage::new(flow, found.side(), &segment);
    if !passage.is_live_in::<I>() {
        return Verdict::Pass(PacketReason::StaleSlot);
    }
    if account::ended(&passage, &segment) {
        flows.forget(&key);
        return Verdict::Pass(PacketReason::TupleReused);
    }
    if let custody::Keeper::Ours(verdict) = custody::keeper(&passage, &segment) {
        account::acknowledged(&passage, &segment);
        return verdict;
    }
    let Some(next_hop) = flows.next_hop(passage.next_hop()) else {
        return Verdict::Pass(PacketReason::NextHopUnresolved);
    };
    if let Err(verdict) = translate::translate::<I, P, C>(packet, &passage, &segment, next_hop, clock) {
        return verdict;
    }
    account::translated(&passage, &segment, clock.coarse_now());
    forward::forward(passage.next_hop(), next_hop)
}
