//! Errors about packets that did not arrive: `find by the inner header → judge → translate → forward`.
//!
//! A router on one leg has met a packet that we had translated, and sends its beginning back to us. Who sent it is behind the other leg, and knows it by
//! other addresses, ports and numbers: both headers are turned back into that leg's. Only with its errors does a sender learn of an MTU on the way
//! (RFC 1191, RFC 8201).
//!
//! Anybody can send an error in any router's name. It is believed only if the sequence number that it shows is on its way (RFC 5927 §4.1).

use super::Verdict;
use super::family::Family;
use super::forward;
use super::ports::{Flows, Keys, Packet};
use super::reporting::Reporting;
use crate::abi::flow::{FLAG_DIRECT, FLAG_IPV6, FLAG_LIVE, Flow};
use crate::abi::key::{FlowRef, Side};
use crate::abi::next_hop::NextHop;
use crate::abi::reason::PacketReason;
use crate::abi::shared::Shared32;
use crate::wire::checksum::Diff;
use crate::wire::ethernet::Ethernet;
use crate::wire::icmp::Icmp;
use crate::wire::tcp::{seq_before, seq_before_eq};
use crate::wire::{Net16, Net32, PROTOCOL_TCP, Wire};

/// An error about a TCP or UDP packet, with as much of that packet as every router sends back (RFC 792).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorHeaders<I> {
    pub ethernet: Ethernet,
    pub ip: I,
    pub icmp: Icmp,
    pub inner: I,
    pub inner_ports: Net32,
    pub inner_seq: Net32,
}

// SAFETY: a sequence of `Wire` types.
unsafe impl<I: Wire> Wire for ErrorHeaders<I> {}

/// The rest of the inner TCP header, which most routers send back too.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct InnerRest {
    ack: Net32,
    offset_flags_window: Net32,
    checksum: Net16,
}

// SAFETY: a sequence of `Wire` types.
unsafe impl Wire for InnerRest {}

/// The second half of the inner UDP header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct InnerUdp {
    length: Net16,
    checksum: Net16,
}

// SAFETY: a sequence of `Wire` types.
unsafe impl Wire for InnerUdp {}

impl<I: Family> ErrorHeaders<I> {
    pub const ICMP: usize = Ethernet::LEN + I::LEN;
    const UDP: usize = Self::LEN - size_of::<InnerUdp>();
    const CHECKSUM: usize = Self::ICMP + 2;
    pub const LEN: usize = {
        assert!(size_of::<Self>() == Self::ICMP + Icmp::LEN + I::LEN + 8);
        size_of::<Self>()
    };
    pub const WITH_REST: usize = Self::LEN + size_of::<InnerRest>();
}

/// Carries an ICMP message. Whatever is not an error about a flow's packet is the stack's.
#[inline(always)]
pub fn carry<I: Reporting, P: Packet, F: Flows + Keys<I::Key>>(packet: &mut P, flows: &F) -> Verdict {
    match packet.view::<I>(Ethernet::LEN).map(I::leads_to_icmp) {
        Some(Ok(())) => packet.make_linear(ErrorHeaders::<I>::WITH_REST),
        Some(Err(reason)) => return Verdict::Pass(reason),
        None => return Verdict::Pass(PacketReason::Truncated),
    }
    let (key, seq) = match about::<I, P>(packet) {
        Ok(read) => read,
        Err(reason) => return Verdict::Pass(reason),
    };
    let Some(found) = flows.find(&key) else {
        return Verdict::Pass(PacketReason::NoFlow);
    };
    let Some(flow) = flows.flow(found.slot()) else {
        return Verdict::Pass(PacketReason::StaleSlot);
    };
    if let Err(verdict) = judge::<I>(flow, found, seq) {
        return verdict;
    }
    let index = flow.translation(found.side()).next_hop.get();
    let Some(next_hop) = flows.next_hop(index) else {
        return Verdict::Pass(PacketReason::NextHopUnresolved);
    };
    if !translate::<I, P>(packet, flow, found.side(), next_hop) {
        return Verdict::Drop(PacketReason::WriteFailed);
    }
    forward::report(index, next_hop, PacketReason::ErrorForwarded)
}

/// The tuple of packets that come from where the packet was to go that did not arrive; and its sequence number.
#[inline(always)]
pub fn about<I: Reporting, P: Packet>(packet: &P) -> Result<(I::Key, u32), PacketReason> {
    packet.view::<I>(Ethernet::LEN).ok_or(PacketReason::Truncated)?.leads_to_icmp()?;
    let icmp: &Icmp = packet.view(ErrorHeaders::<I>::ICMP).ok_or(PacketReason::Truncated)?;
    if !I::is_error(icmp) {
        return Err(PacketReason::NotTcp);
    }
    let headers = packet.view::<ErrorHeaders<I>>(0).ok_or(PacketReason::Truncated)?;
    let available = packet.len() - Ethernet::LEN;
    let length = headers.ip.length(available);
    if length > available || length < ErrorHeaders::<I>::LEN - Ethernet::LEN {
        return Err(PacketReason::Truncated);
    }
    headers.inner.leads_to_tcp()?;
    if !packet.is_for_this_host() {
        return Err(PacketReason::OtherHost);
    }
    Ok((headers.inner.key_back(headers.inner_ports), headers.inner_seq.get()))
}

/// Whether a flow's sender is to hear of the loss of its packet with this sequence number, as it was on the leg of the error's side.
#[inline(always)]
fn judge<I: Family>(flow: &Flow, found: FlowRef, seq: u32) -> Result<(), Verdict> {
    let (near, far) = sides(found.side());
    let translation = &flow.translations[near];
    let traits = translation.traits.get();
    if traits & (FLAG_LIVE | FLAG_IPV6) != I::LIVE {
        return Err(Verdict::Pass(PacketReason::StaleSlot));
    }
    if traits & FLAG_DIRECT == 0 && seq_before(seq, translation.ack_cut.get()) {
        return Err(Verdict::Pass(PacketReason::CustodyError));
    }
    let acknowledged = flow.progress[near].max_ack.get();
    let sent = flow.progress[far].max_seq.get().wrapping_add(flow.translations[far].seq_delta.get());
    if seq_before_eq(acknowledged, seq) && seq_before_eq(seq, sent) {
        Ok(())
    } else {
        Err(Verdict::Drop(PacketReason::ErrorOutOfWindow))
    }
}

/// Indexes of the side from which the error comes, and of the other, which sent the packet.
#[inline(always)]
fn sides(side: Side) -> (usize, usize) {
    match side {
        Side::Client => (0, 1),
        Side::Instance => (1, 0),
    }
}

/// Rewrites everything. Returns false where the packet refused a change.
#[inline(always)]
fn translate<I: Reporting, P: Packet>(packet: &mut P, flow: &Flow, side: Side, next_hop: &NextHop) -> bool {
    let (near, far) = sides(side);
    let translation = &flow.translations[near];
    let retold = Retold {
        ethernet: [next_hop.ethernet[0].get(), next_hop.ethernet[1].get(), next_hop.ethernet[2].get()],
        source: &translation.source,
        destination: &translation.destination,
        ports: translation.ports.get().rotate_left(16),
        protocol: PROTOCOL_TCP,
        seq_delta: flow.translations[far].seq_delta.get().wrapping_neg(),
        ack_delta: translation.seq_delta.get(),
    };
    retell::<I, P>(packet, &retold)
}

/// An error as its receiver understands it.
#[derive(Debug)]
pub struct Retold<'a> {
    /// Ethernet addresses, in the order of the header.
    pub ethernet: [u32; 3],
    /// Whom the error comes from: whom its receiver has sent the packet to.
    pub source: &'a [Shared32; 4],
    pub destination: &'a [Shared32; 4],
    /// The packet's ports, as they lay in it when its sender sent it.
    pub ports: u32,
    /// Of the packet: TCP or UDP.
    pub protocol: u8,
    /// What its sender's sequence and acknowledgement numbers are further by.
    pub seq_delta: u32,
    pub ack_delta: u32,
}

/// Rewrites both headers and the checksums. Returns false where the packet refused a change.
#[inline(always)]
pub fn retell<I: Reporting, P: Packet>(packet: &mut P, retold: &Retold<'_>) -> bool {
    let Some(headers) = packet.view_mut::<ErrorHeaders<I>>(0) else { return false };
    for (word, new) in headers.ethernet.addresses.iter_mut().zip(retold.ethernet) {
        word.set_raw(new);
    }
    // The error now comes from the address that its receiver sent the packet to.
    let outer = headers.ip.replace_addresses(retold.source, retold.destination);
    let header = headers.ip.refresh(outer);

    let addresses = headers.inner.replace_addresses(retold.destination, retold.source);
    let mut rest = headers.inner.balance(addresses);
    let mut inner = Diff::default();
    inner.replace(headers.inner_ports.raw(), retold.ports);
    headers.inner_ports.set_raw(retold.ports);
    if retold.protocol == PROTOCOL_TCP {
        let seq = headers.inner_seq.get().wrapping_add(retold.seq_delta).to_be();
        inner.replace(headers.inner_seq.raw(), seq);
        headers.inner_seq.set_raw(seq);
        if is_whole::<I, P>(packet)
            && let Some(tcp) = packet.view_mut::<InnerRest>(ErrorHeaders::<I>::LEN)
        {
            let ack = tcp.ack.get().wrapping_add(retold.ack_delta).to_be();
            inner.replace(tcp.ack.raw(), ack);
            tcp.ack.set_raw(ack);
            let old = tcp.checksum.raw();
            let mut covered = inner;
            covered.add(addresses);
            tcp.checksum.set_raw(covered.apply(old));
            inner.replace16(old, tcp.checksum.raw());
        }
    } else if let Some(udp) = packet.view_mut::<InnerUdp>(ErrorHeaders::<I>::UDP) {
        let old = udp.checksum.raw();
        // 0 says that there is none (RFC 768).
        if old != 0 {
            let mut covered = inner;
            covered.add(addresses);
            let new = covered.apply(old);
            udp.checksum.set_raw(if new == 0 { !0 } else { new });
            inner.replace16(old, udp.checksum.raw());
        }
    }
    rest.add(inner);
    let pseudo = if I::ICMP_HAS_PSEUDO_HEADER { outer } else { Diff::default() };
    packet.fix_checksum(ErrorHeaders::<I>::CHECKSUM, pseudo, rest, header)
}

/// Whether the inner TCP header up to its checksum is part of the datagram.
#[inline(always)]
fn is_whole<I: Family, P: Packet>(packet: &P) -> bool {
    let available = packet.len() - Ethernet::LEN;
    let Some(ip) = packet.view::<I>(Ethernet::LEN) else { return false };
    ip.length(available) >= ErrorHeaders::<I>::WITH_REST - Ethernet::LEN
}
