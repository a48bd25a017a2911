//! What XDP carries: the same route, as far as it goes without the stack.
//!
//! XDP is a short cut. Whatever it cannot carry to the end, it leaves unchanged and uncounted to the stack, where the TC programs meet the packet
//! and do everything that they do without XDP. So it must be known before the first change that the way out is open:
//! [`Ready`] hides next hops that are not.
//!
//! What both routes note of a packet that XDP leaves is harmless to be noted twice: marks of what was acknowledged, and a flow's state.

use super::balance::encapsulate::Outer;
use super::balance::table::ReplyKey;
use super::balance::tables::Tables;
use super::balance::{self, datagram};
use super::family::Family;
use super::fragment::{Datagram, DatagramKey};
use super::parse::{self, Version};
use super::ports::{Clock, Flows, Fragments, Keys, Packet};
use super::{Rare, Verdict, answer_budget::AnswerBudget};
use crate::abi::balance as abi;
use crate::abi::flow::Flow;
use crate::abi::key::FlowRef;
use crate::abi::next_hop::NextHop;
use crate::abi::reason::{PacketReason, XdpReason};
use crate::abi::shared::Shared32;
use crate::abi::xdp::Interface;
use crate::wire::checksum;
use crate::wire::ethernet::Ethernet;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::Ipv6;
use crate::wire::{Net16, PROTOCOL_TCP, PROTOCOL_UDP};

/// The interfaces that XDP knows.
pub trait Interfaces {
    fn interface(&self, index: u32) -> Option<&Interface>;
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The stack takes it, unchanged.
    Pass(XdpReason),
    Drop(PacketReason),
    /// It leaves by this interface.
    Redirect {
        interface: u32,
        reason: PacketReason,
    },
}

/// Whether a frame to this Ethernet address is for the interface alone.
#[inline(always)]
pub fn is_for(ethernet: &Ethernet, interface: &Interface) -> bool {
    let [first, second, _] = &ethernet.addresses;
    let own = interface.ethernet[1].get().to_ne_bytes();
    first.raw() == interface.ethernet[0].get() && second.0[..2] == own[..2]
}

/// Which version of IP a frame carries that may have a way through XDP. The first step of both routes.
#[inline(always)]
pub fn arriving<P: Packet>(packet: &P) -> Result<Version, XdpReason> {
    let version = parse::arriving(packet).map_err(|_| XdpReason::NotCarried)?;
    let partial = match version {
        Version::V4 => leaves_checksum_out::<Ipv4, P>(packet),
        Version::V6 => leaves_checksum_out::<Ipv6, P>(packet),
    };
    if partial { Err(XdpReason::PartialChecksum) } else { Ok(version) }
}

/// Carries a frame of a handed-off connection that carries this family.
#[inline(always)]
pub fn carry_as<I: Family, P: Packet, F: Flows + Keys<I::Key>, C: Clock, N: Interfaces>(
    packet: &mut P,
    flows: &Ready<F, N>,
    clock: &C,
) -> Outcome {
    match super::carry_as::<I, P, _, C>(packet, flows, clock) {
        Ok(verdict) => outcome(verdict, verdict.reason()),
        Err(Rare::TooLong { .. }) => Outcome::Pass(XdpReason::TooLong),
        Err(_) => Outcome::Pass(XdpReason::NotCarried),
    }
}

/// Carries a frame of a Layer-4 listener that carries this family. `None` if it is not one's; it is then unchanged.
#[inline(always)]
pub fn balance_as<I: Outer, P: Packet, T: Tables, N: Interfaces>(
    packet: &mut P,
    tables: &Ready<T, N>,
) -> Option<Outcome> {
    match balance::carry_ordinary::<I, P, _>(packet, tables) {
        Ok(found) => {
            let found = found?;
            if found.mtu_to_tell().is_some() {
                return Some(Outcome::Pass(XdpReason::TooLong));
            }
            Some(outcome(found.verdict(), found.reason))
        }
        Err(_) => Some(Outcome::Pass(XdpReason::NotCarried)),
    }
}

#[inline(always)]
fn outcome(verdict: Verdict, reason: PacketReason) -> Outcome {
    match verdict {
        Verdict::Pass(PacketReason::NextHopUnresolved) | Verdict::Drop(PacketReason::L4NoRoute) => {
            Outcome::Pass(XdpReason::NoWayOut)
        }
        Verdict::Pass(_) => Outcome::Pass(XdpReason::NotCarried),
        Verdict::Drop(reason) | Verdict::Take(reason) => Outcome::Drop(reason),
        Verdict::Redirect { interface } | Verdict::Report { interface, .. } => {
            Outcome::Redirect { interface, reason }
        }
        // It was resolved when the route began.
        Verdict::Resolve { .. } => Outcome::Drop(PacketReason::XdpWayLost),
    }
}

/// Whether the checksum of TCP or UDP is left to a network card (`CHECKSUM_PARTIAL`): its place then holds the sum of the pseudo-header. Frames of virtual
/// interfaces may come like that, and nothing beside the bytes tells XDP of it. One in 65,536 other packets looks the same, and takes the slower way.
#[inline(always)]
fn leaves_checksum_out<I: Family, P: Packet>(packet: &P) -> bool {
    let Some(datagram::Headers { ip, .. }) = packet.view::<datagram::Headers<I>>(0) else { return false };
    let (protocol, at) = match ip.carries() {
        Some(PROTOCOL_TCP) => (PROTOCOL_TCP, datagram::Headers::<I>::TCP_CHECKSUM),
        Some(PROTOCOL_UDP) => (PROTOCOL_UDP, datagram::Headers::<I>::UDP_CHECKSUM),
        _ => return false,
    };
    let available = packet.len() - Ethernet::LEN;
    let length = ip.length(available).wrapping_sub(I::LEN) as u32;
    let (source, destination) = ip.addresses();
    let mut sum = length.to_be() as u64 + (protocol as u32).to_be() as u64;
    for word in source.into_iter().chain(destination) {
        sum += word as u64;
    }
    packet.view::<Net16>(at).is_some_and(|found| found.raw() == !checksum::of_sum(sum))
}

/// The flow table, or the tables of Layer-4 listeners, with those ways out alone that XDP can take.
///
/// By value: in the kernel all of this takes no memory, and so is no argument of any function.
#[derive(Clone, Copy, Debug)]
pub struct Ready<T, N> {
    pub inner: T,
    pub interfaces: N,
}

impl<T, N: Interfaces> Ready<T, N> {
    #[inline(always)]
    fn sends(&self, interface: u32) -> bool {
        self.interfaces.interface(interface).is_some_and(|interface| interface.sends.get() != 0)
    }

    #[inline(always)]
    fn is_open(&self, next_hop: &NextHop) -> bool {
        next_hop.resolved.get() != 0 && next_hop.mtu.get() != 0 && self.sends(next_hop.interface.get())
    }
}

impl<K, T: Keys<K>, N: Interfaces> Keys<K> for Ready<T, N> {
    #[inline(always)]
    fn find(&self, key: &K) -> Option<FlowRef> {
        self.inner.find(key)
    }

    /// The TC program meets the same packet and forgets the key.
    #[inline(always)]
    fn forget(&self, _: &K) {}
}

/// Fragments are the TC program's.
impl<T, N: Interfaces> Fragments for Ready<T, N> {
    #[inline(always)]
    fn remember(&self, _: &DatagramKey, _: &Datagram) {}

    #[inline(always)]
    fn recall(&self, _: &DatagramKey) -> Option<Datagram> {
        None
    }

    #[inline(always)]
    fn forget_datagram(&self, _: &DatagramKey) {}
}

impl<T: Flows, N: Interfaces> Flows for Ready<T, N> {
    #[inline(always)]
    fn flow(&self, slot: u32) -> Option<&Flow> {
        self.inner.flow(slot)
    }

    #[inline(always)]
    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        self.inner.next_hop(index).filter(|next_hop| self.is_open(next_hop))
    }

    #[inline(always)]
    fn answer_budget(&self) -> Option<&AnswerBudget> {
        None
    }
}

impl<T: Tables, N: Interfaces> Tables for Ready<T, N> {
    #[inline(always)]
    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        self.inner.next_hop(index).filter(|next_hop| self.is_open(next_hop))
    }

    #[inline(always)]
    fn reaches(&self, instance: u32) -> bool {
        self.inner
            .instance(instance)
            .is_some_and(|instance| Tables::next_hop(self, instance.next_hop.get()).is_some())
    }

    #[inline(always)]
    fn sends_by(&self, interface: u32) -> bool {
        self.sends(interface)
    }

    #[inline(always)]
    fn settings(&self) -> Option<&abi::Settings> {
        self.inner.settings()
    }

    #[inline(always)]
    fn endpoints(&self, bucket: u32) -> Option<&abi::EndpointBucket> {
        self.inner.endpoints(bucket)
    }

    #[inline(always)]
    fn service(&self, index: u32) -> Option<&abi::Service> {
        self.inner.service(index)
    }

    #[inline(always)]
    fn instance(&self, index: u32) -> Option<&abi::Instance> {
        self.inner.instance(index)
    }

    #[inline(always)]
    fn tunnel(&self, index: u32) -> Option<&abi::Tunnel> {
        self.inner.tunnel(index)
    }

    #[inline(always)]
    fn group(&self, index: u32) -> Option<&abi::Group> {
        self.inner.group(index)
    }

    #[inline(always)]
    fn ring(&self, chunk: u32) -> Option<&abi::RingChunk> {
        self.inner.ring(chunk)
    }

    #[inline(always)]
    fn flows(&self, bucket: u32) -> Option<&abi::FlowBucket> {
        self.inner.flows(bucket)
    }

    #[inline(always)]
    fn replies(&self, bucket: u32) -> Option<&abi::ReplyBucket> {
        self.inner.replies(bucket)
    }

    #[inline(always)]
    fn rule(&self, key: &abi::RuleKey) -> Option<u32> {
        self.inner.rule(key)
    }

    #[inline(always)]
    fn affinity(&self, key: &abi::AffinityKey) -> Option<abi::Affinity> {
        self.inner.affinity(key)
    }

    #[inline(always)]
    fn remember(&self, key: &abi::AffinityKey, affinity: abi::Affinity) {
        self.inner.remember(key, affinity);
    }

    #[inline(always)]
    fn new_flows(&self) -> Option<&abi::NewFlows> {
        self.inner.new_flows()
    }

    #[inline(always)]
    fn link(&self, interface: u32) -> Option<&abi::Link> {
        self.inner.link(interface)
    }

    #[inline(always)]
    fn swap_if(&self, word: &Shared32, old: u32, new: u32) -> u32 {
        self.inner.swap_if(word, old, new)
    }

    #[inline(always)]
    fn add(&self, word: &Shared32, count: u32) {
        self.inner.add(word, count);
    }

    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        self.inner.opaque(number)
    }

    #[inline(always)]
    fn ticks(&self) -> u32 {
        self.inner.ticks()
    }

    /// Fragments are the TC program's.
    #[inline(always)]
    fn recall(&self, _: &DatagramKey) -> Option<abi::Course> {
        None
    }

    #[inline(always)]
    fn note(&self, _: &DatagramKey, _: abi::Course) {}

    #[inline(always)]
    fn target(&self, address: &[u32; 4], port: u32) -> u32 {
        self.inner.target(address, port)
    }

    #[inline(always)]
    fn flow_of(&self, client: &[u32; 4], origin: u32) -> Option<abi::FlowId> {
        self.inner.flow_of(client, origin)
    }

    #[inline(always)]
    fn answered(&self, datagram: &datagram::Datagram, instance: u32) -> Option<abi::FlowId> {
        self.inner.answered(datagram, instance)
    }

    #[inline(always)]
    fn claim(&self, hash: u64) -> Option<abi::FlowId> {
        self.inner.claim(hash)
    }

    #[inline(always)]
    fn enter(&self, answers: &ReplyKey, id: abi::FlowId) -> bool {
        self.inner.enter(answers, id)
    }
}
