//! THE PACKET'S ROUTE: `parse → flow lookup → custody → translate → account → forward`. Read this file top to bottom.
//!
//! Packets that are rare leave it for a route of their own ([`Rare`]). The kernel programs follow those out of line, so that ordinary packets
//! do not pay for them.
//!
//! The functions are generic over the narrow traits of [`ports`], so that the kernel programs and the host tests run the
//! same code, and over the [`Family`], so that IPv4 and IPv6 do. Two rules hold throughout:
//!
//! - A packet is not changed until every check has passed: what goes up to the stack leaves byte-identical.
//! - Every verdict has a [`PacketReason`], and the entry point counts it.

pub mod account;
pub mod answer_budget;
pub mod balance;
pub mod binding;
pub mod custody;
pub mod family;
pub mod first_fragment;
pub mod forward;
pub mod fragment;
pub mod icmp_error;
#[cfg(feature = "user")]
pub mod memory;
pub mod options;
pub mod parse;
pub mod ports;
pub mod reporting;
pub mod sequence;
pub mod stray_ending;
pub mod sum;
pub mod syn_options;
pub mod too_long;
pub mod translate;
pub mod transparent;
pub mod xdp;

use crate::abi::flow::FLAG_BINDING;
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
    /// It has arrived: what it says is known now, and nothing of it goes on.
    Take(PacketReason),
    /// Send it out by this interface; its Ethernet header is complete.
    Redirect {
        interface: u32,
    },
    /// Send it out by this interface and let the kernel find the link-layer address of the neighbour, which is the next hop of this index.
    Resolve {
        interface: u32,
        next_hop: u32,
    },
    /// Send it out by this interface: it answers a sender.
    Report {
        interface: u32,
        reason: PacketReason,
    },
}

/// What leaves the ordinary route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rare {
    /// An ICMP message.
    Icmp(Version),
    /// A fragment, of TCP or, in IPv6, of anything.
    Fragment(Version),
    /// A flow's packet that is longer than the MTU of its way out, in bytes.
    TooLong { version: Version, mtu: u32 },
}

impl Verdict {
    pub const fn reason(self) -> PacketReason {
        match self {
            Verdict::Pass(reason)
            | Verdict::Drop(reason)
            | Verdict::Take(reason)
            | Verdict::Report { reason, .. } => reason,
            Verdict::Redirect { .. } => PacketReason::Forwarded,
            Verdict::Resolve { .. } => PacketReason::NextHopUnresolved,
        }
    }
}

/// Carries one received packet.
#[inline(always)]
pub fn carry<P: Packet, F: Flows, C: Clock>(packet: &mut P, flows: &F, clock: &C) -> Verdict {
    match carry_ordinary(packet, flows, clock) {
        Ok(verdict) => verdict,
        Err(rare) => carry_rare(packet, flows, clock, rare),
    }
}

/// Carries a packet that has left the ordinary route.
#[inline(always)]
pub fn carry_rare<P: Packet, F: Flows, C: Clock>(
    packet: &mut P,
    flows: &F,
    clock: &C,
    rare: Rare,
) -> Verdict {
    match rare {
        Rare::Icmp(Version::V4) => icmp_error::carry::<Ipv4, P, F>(packet, flows),
        Rare::Icmp(Version::V6) => icmp_error::carry::<Ipv6, P, F>(packet, flows),
        Rare::Fragment(Version::V4) => fragment::carry::<Ipv4, P, F, C>(packet, flows, clock),
        Rare::Fragment(Version::V6) => fragment::carry::<Ipv6, P, F, C>(packet, flows, clock),
        Rare::TooLong { version: Version::V4, mtu } => {
            too_long::answer::<Ipv4, P>(packet, mtu, flows.answer_budget(), clock.coarse_now())
        }
        Rare::TooLong { version: Version::V6, mtu } => {
            too_long::answer::<Ipv6, P>(packet, mtu, flows.answer_budget(), clock.coarse_now())
        }
    }
}

/// The ordinary route, as far as the packet goes along.
#[inline(always)]
pub fn carry_ordinary<P: Packet, F: Flows, C: Clock>(
    packet: &mut P,
    flows: &F,
    clock: &C,
) -> Result<Verdict, Rare> {
    match parse::arriving(packet) {
        Ok(Version::V4) => carry_as::<Ipv4, P, F, C>(packet, flows, clock),
        Ok(Version::V6) => carry_as::<Ipv6, P, F, C>(packet, flows, clock),
        Err(reason) => Ok(Verdict::Pass(reason)),
    }
}

#[inline(always)]
fn carry_as<I: Family, P: Packet, F: Flows + Keys<I::Key>, C: Clock>(
    packet: &mut P,
    flows: &F,
    clock: &C,
) -> Result<Verdict, Rare> {
    let (key, segment) = match parse::arrived::<I, P>(packet) {
        Ok(parsed) => parsed,
        // Not TCP: the error about a packet that is not, may be about one that is.
        Err(PacketReason::NotTcp) => return Err(Rare::Icmp(I::VERSION)),
        Err(PacketReason::Fragment) => return Err(Rare::Fragment(I::VERSION)),
        Err(reason) => return Ok(Verdict::Pass(reason)),
    };
    let Some(found) = flows.find(&key) else {
        return Ok(Verdict::Pass(PacketReason::NoFlow));
    };
    let Some(flow) = flows.flow(found.slot()) else {
        return Ok(Verdict::Pass(PacketReason::StaleSlot));
    };
    let passage = sequence::Passage::new(flow, found.side(), &segment);
    if !passage.is_live_in::<I>() {
        let unbound = passage.has(FLAG_BINDING);
        return Ok(Verdict::Pass(if unbound { PacketReason::Binding } else { PacketReason::StaleSlot }));
    }
    if account::ended(&passage, &segment) {
        flows.forget(&key);
        return Ok(Verdict::Pass(PacketReason::TupleReused));
    }
    if let custody::Keeper::Ours(verdict) = custody::keeper(&passage, &segment) {
        account::acknowledged(&passage, &segment);
        return Ok(verdict);
    }
    let Some(next_hop) = flows.next_hop(passage.next_hop()) else {
        return Ok(Verdict::Pass(PacketReason::NextHopUnresolved));
    };
    let mtu = next_hop.mtu.get();
    if too_long::exceeds::<I, P>(packet, &segment, mtu) {
        return Err(Rare::TooLong { version: I::VERSION, mtu });
    }
    if let Err(verdict) = translate::translate::<I, P, C>(packet, &passage, &segment, next_hop, clock) {
        return Ok(verdict);
    }
    account::translated(&passage, &segment, clock.coarse_now());
    Ok(forward::forward(passage.next_hop(), next_hop))
}
