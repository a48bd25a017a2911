//! Echo requests (ping) to VIPs: `read → whose address → judge → answer`.
//!
//! Whoever watches a VIP by ping learns whether its listeners have instances. The answer is the request with its addresses exchanged: it is as
//! long as that, and goes to the neighbour that the request came from, so nobody can be made to hear more than was sent.

use super::Outcome;
use super::encapsulate::Outer;
use super::tables::Tables;
use crate::abi::balance::{Endpoint, Target};
use crate::abi::reason::PacketReason;
use crate::path::ports::Packet;
use crate::path::sum;
use crate::wire::Wire;
use crate::wire::checksum::{self, Diff};
use crate::wire::ethernet::Ethernet;
use crate::wire::icmp::Icmp;

/// The headers of an ICMP message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Headers<I> {
    ethernet: Ethernet,
    ip: I,
    icmp: Icmp,
}

// SAFETY: a sequence of `Wire` types.
unsafe impl<I: Wire> Wire for Headers<I> {}

impl<I: Outer> Headers<I> {
    const LEN: usize = size_of::<Self>();
    const ICMP: usize = Ethernet::LEN + I::LEN;
    const CHECKSUM: usize = Self::ICMP + 2;
}

/// Longest request that is answered here, in bytes from the IP header on: what a network of jumbo frames carries.
const LONGEST: usize = 9_216;
const _: () = assert!(LONGEST <= sum::LONGEST);

/// `None` if this is no echo request to a VIP; it is then unchanged.
#[inline(never)]
pub fn carry<I: Outer, P: Packet, T: Tables>(packet: &mut P, tables: &T) -> Option<Outcome> {
    packet.make_linear(Headers::<I>::LEN);
    let headers = packet.view::<Headers<I>>(0)?;
    headers.ip.leads_to_icmp().ok()?;
    let [request, reply] = I::ECHO;
    if headers.icmp.kind != request || headers.icmp.code != 0 {
        return None;
    }
    let available = packet.len() - Ethernet::LEN;
    let length = headers.ip.length(available);
    if length > available || length < Headers::<I>::LEN - Ethernet::LEN || !packet.is_for_this_host() {
        return None;
    }
    let (source, destination) = headers.ip.addresses();
    if !is_answered::<I, T>(tables, &destination)? {
        return Some(Outcome::drop(PacketReason::L4EchoUnavailable));
    }
    if length > LONGEST {
        return Some(Outcome::pass(PacketReason::L4EchoTooLong));
    }
    if !headers.ethernet.is_from_a_host() || !I::is_unicast(&source) || source == destination {
        return Some(Outcome::drop(PacketReason::L4EchoMalformed));
    }
    let len = length - I::LEN;
    let pseudo = headers.ip.icmp_pseudo_sum(len);
    let sum = packet.sum(Headers::<I>::ICMP, len);
    if sum.is_none_or(|sum| checksum::of_sum(sum + pseudo) != 0) {
        return Some(Outcome::drop(PacketReason::L4EchoMalformed));
    }
    Some(match answer::<I, P>(packet, [request, reply]) {
        true => Outcome::redirect(packet.interface(), PacketReason::L4EchoAnswered),
        false => Outcome::drop(PacketReason::WriteFailed),
    })
}

/// What becomes of a fragment of an ICMP message; `None` if it is to no VIP. The stack puts it together, and answers if the VIP is an address of this host.
#[inline(always)]
pub fn fragment<I: Outer, T: Tables>(tables: &T, destination: &[u32; 4]) -> Option<Outcome> {
    Some(match is_answered::<I, T>(tables, destination)? {
        true => Outcome::pass(PacketReason::L4EchoTooLong),
        false => Outcome::drop(PacketReason::L4EchoUnavailable),
    })
}

/// `None` if the address is no VIP, or none whose echo requests are the router's business.
#[inline(always)]
fn is_answered<I: Outer, T: Tables>(tables: &T, address: &[u32; 4]) -> Option<bool> {
    let port = Endpoint::pack_port(0, I::ICMP, I::IS_IPV6);
    match Target::unpack(tables.target(address, port)) {
        Some(Target::Vip { echo }) => Some(echo),
        _ => None,
    }
}

#[inline(always)]
fn answer<I: Outer, P: Packet>(packet: &mut P, [request, reply]: [u8; 2]) -> bool {
    let Some(Headers { ethernet, ip, icmp }) = packet.view_mut::<Headers<I>>(0) else { return false };
    *ethernet = ethernet.back();
    ip.turn_back();
    let header = ip.refresh(Diff::default());
    icmp.kind = reply;
    let mut kind = Diff::default();
    kind.replace16(u16::from_ne_bytes([request, 0]), u16::from_ne_bytes([reply, 0]));
    packet.fix_checksum(Headers::<I>::CHECKSUM, Diff::default(), kind, header)
}
