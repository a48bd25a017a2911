//! THE LAYER-4 PACKET'S ROUTE: `read → endpoint → flow, or placement → rewrite → forward`. Read this file top to bottom.
//!
//! A packet to a VIP belongs to a client's flow; a packet from an instance may be an answer. Anything else is none of this route's
//! business and goes on to the flows that began in user space. No step needs user space: what decides lies in tables that the
//! daemon has built.
//!
//! What is rare (ICMP errors, fragments) leaves it for a route of its own ([`Rare`]), which the kernel programs follow out of line.
//!
//! As everywhere on the packet path, a packet is not changed until every check has passed.

pub mod answer;
mod client;
pub mod datagram;
mod echo;
pub mod encapsulate;
mod error;
mod fragment;
pub mod hash;
mod lifetime;
#[cfg(feature = "user")]
pub mod memory;
pub mod place;
mod rewrite;
mod sequence;
mod source_port;
pub mod table;
pub mod tables;
mod tunnel;

use super::Verdict;
use super::parse::{self, Version};
use super::ports::Packet;
use crate::abi::balance::{ENDPOINT_BUCKETS, Endpoint, Target};
use crate::abi::next_hop::NextHop;
use crate::abi::reason::PacketReason;
use crate::wire::ethernet::Ethernet;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::Ipv6;
use datagram::Datagram;
use encapsulate::Outer;
use tables::Tables;

/// What becomes of a packet, and why.
///
/// Every field always has a value. In an enum what a variant does not have would be undefined, and the compiler may then take whatever lies in a
/// register for it, which the verifier refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    action: Action,
    interface: u32,
    next_hop: u32,
    pub reason: PacketReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Pass,
    Drop,
    Redirect,
    Resolve,
    Tell,
}

impl Outcome {
    /// The stack takes it, unchanged: nobody listens there, so it answers with a reset or an ICMP error.
    #[inline(always)]
    pub const fn pass(reason: PacketReason) -> Self {
        Self { action: Action::Pass, interface: 0, next_hop: 0, reason }
    }

    #[inline(always)]
    pub const fn drop(reason: PacketReason) -> Self {
        Self { action: Action::Drop, interface: 0, next_hop: 0, reason }
    }

    /// It leaves by this interface, its Ethernet header complete.
    #[inline(always)]
    pub const fn redirect(interface: u32, reason: PacketReason) -> Self {
        Self { action: Action::Redirect, interface, next_hop: 0, reason }
    }

    /// It leaves by the next hop of this index.
    #[inline(always)]
    pub fn forward(index: u32, next_hop: &NextHop, reason: PacketReason) -> Self {
        let action = if next_hop.resolved.get() != 0 { Action::Redirect } else { Action::Resolve };
        Self { action, interface: next_hop.interface.get(), next_hop: index, reason }
    }

    /// It is too long: its sender is to be told of this MTU, in bytes. See [`too_long`](super::too_long).
    #[inline(always)]
    pub const fn tell(mtu: u32) -> Self {
        Self { action: Action::Tell, interface: mtu, next_hop: 0, reason: PacketReason::TooLong }
    }

    #[inline(always)]
    pub const fn is_dropped(self) -> bool {
        matches!(self.action, Action::Drop)
    }

    /// The MTU that the sender is to be told of.
    #[inline(always)]
    pub const fn mtu_to_tell(self) -> Option<u32> {
        match self.action {
            Action::Tell => Some(self.interface),
            _ => None,
        }
    }

    /// Of a packet that is too long: what remains if nobody can be told.
    #[inline(always)]
    pub const fn verdict(self) -> Verdict {
        let Self { action, interface, next_hop, reason } = self;
        match action {
            Action::Pass => Verdict::Pass(reason),
            Action::Drop | Action::Tell => Verdict::Drop(reason),
            Action::Redirect => Verdict::Redirect { interface },
            Action::Resolve => Verdict::Resolve { interface, next_hop },
        }
    }
}

/// What leaves the ordinary route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rare {
    /// An ICMP message.
    Icmp,
    Fragment,
}

/// Carries a packet of a Layer-4 listener. `None` if it is not one's; it is then unchanged.
#[inline(always)]
pub fn carry<P: Packet, T: Tables>(packet: &mut P, tables: &T) -> Option<Outcome> {
    match parse::arriving(packet) {
        Ok(Version::V4) => carry_as::<Ipv4, P, T>(packet, tables),
        Ok(Version::V6) => carry_as::<Ipv6, P, T>(packet, tables),
        Err(_) => None,
    }
}

/// The same for a packet whose Ethernet header names this family.
#[inline(always)]
fn carry_as<I: Outer, P: Packet, T: Tables>(packet: &mut P, tables: &T) -> Option<Outcome> {
    match carry_ordinary::<I, P, T>(packet, tables) {
        Ok(outcome) => outcome,
        Err(rare) => carry_rare::<I, P, T>(packet, tables, rare),
    }
}

/// Carries a packet that has left the ordinary route.
#[inline(always)]
pub fn carry_rare<I: Outer, P: Packet, T: Tables>(packet: &mut P, tables: &T, rare: Rare) -> Option<Outcome> {
    match rare {
        Rare::Icmp => match echo::carry::<I, P, T>(packet, tables) {
            Some(outcome) => Some(outcome),
            None => error::carry::<I, P, T>(packet, tables),
        },
        Rare::Fragment => fragment::carry::<I, P, T>(packet, tables),
    }
}

/// The ordinary route of a packet whose Ethernet header names this family, as far as it goes along.
#[inline(always)]
pub fn carry_ordinary<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
) -> Result<Option<Outcome>, Rare> {
    if tables.settings().is_none_or(|settings| settings.endpoints.get() == 0) {
        return Ok(None);
    }
    let Some(datagram) = &Datagram::read::<I, P>(packet) else {
        return match packet.view::<I>(Ethernet::LEN) {
            Some(ip) if ip.is_fragment() => Err(Rare::Fragment),
            Some(ip) if ip.leads_to_icmp().is_ok() => Err(Rare::Icmp),
            _ => Ok(None),
        };
    };
    if !packet.is_for_this_host() {
        return Ok(None);
    }
    let port = |port| Endpoint::pack_port(port, datagram.protocol, I::IS_IPV6);
    let to = tables.target(&datagram.destination, port(datagram.destination_port));
    if let Some(Target::Service(service)) = Target::unpack(to) {
        return Ok(Some(client::carry::<I, P, T>(packet, tables, datagram, service)));
    }
    let from = tables.target(&datagram.source, port(datagram.source_port));
    Ok(match Target::unpack(from) {
        Some(Target::Instance(instance)) => answer::carry::<I, P, T>(packet, tables, datagram, instance),
        _ => None,
    })
}

/// The packed target of an endpoint. Addresses are compared whole: all but the first word of those of IPv4 are 0.
#[inline(always)]
pub fn target<T: Tables>(tables: &T, address: &[u32; 4], port: u32) -> u32 {
    let Some(settings) = tables.settings() else { return Target::NONE };
    // 1 or 2.
    let half = settings.endpoints.get() & 1 ^ 1;
    let hash = hash::of(settings.endpoint_seeds[half as usize].get(), address, port);
    let bucket = hash::scale((hash >> 32) as u32, ENDPOINT_BUCKETS) + half * ENDPOINT_BUCKETS;
    if let Some(bucket) = tables.endpoints(bucket) {
        for endpoint in &bucket.endpoints {
            if endpoint.port.get() == port && table::same::<Ipv6>(&endpoint.address, address) {
                return endpoint.target.get();
            }
        }
    }
    Target::NONE
}
