//! A client that has completed the handshake, until its first packet is with the daemon.

use super::super::Verdict;
use super::super::options::locate;
use super::super::parse::{Headers, Segment};
use super::super::ports::Packet;
use super::back;
use super::handshake::agreed;
use super::own::{Content, Own, Sending, ports_back};
use super::ports::Bindings;
use super::ring;
use crate::abi::binding::{ARRIVAL_BYTES, EMBRYO_CLOSED, EMBRYO_DONE, EMBRYO_OPEN, EMBRYO_TAKEN, Embryo};
use crate::abi::reason::PacketReason;
use crate::wire::tcp::{ACK, FIN, RST, Tcp};

/// Carries a packet to a listener that belongs to no flow. `None`: the stack's.
#[inline(always)]
pub fn carry<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &mut P,
    bindings: &B,
    key: &I::Key,
    segment: &Segment,
) -> Option<Verdict> {
    let mut embryo = match bindings.embryo(key) {
        Some(embryo) if is_of(&embryo, segment) => embryo,
        _ if !segment.has(ACK) || segment.has(RST) => return None,
        // Of a connection that began with a socket, or was given one. It may be so new that its packets acknowledge a cookie still.
        _ if bindings.has_socket(packet) => return None,
        _ if bindings.acknowledges_cookie(packet) => hatch::<I, P, B>(packet, bindings, key, segment)?,
        _ => return Some(reply::<I, P>(packet, segment, 0, RST, PacketReason::BindingBadCookie)),
    };
    let generation = bindings.settings()?.generation.get();
    match embryo.state {
        EMBRYO_OPEN => {}
        // An earlier daemon had it and has died: the client sends again what nobody has acknowledged.
        EMBRYO_TAKEN if embryo.generation != generation => {}
        EMBRYO_TAKEN => return Some(Verdict::Drop(PacketReason::BindingHeld)),
        EMBRYO_CLOSED if segment.payload == 0 && !segment.has(RST) => {
            return Some(Verdict::Take(PacketReason::BindingClosed));
        }
        _ => return None,
    }
    if segment.has(RST) {
        // Anything else in the window is a guess (RFC 5961 §3.2).
        if segment.seq == embryo.seq {
            embryo.state = EMBRYO_DONE;
            bindings.remember_embryo(key, &embryo);
        }
        return Some(Verdict::Take(PacketReason::BindingClosed));
    }
    if segment.seq != embryo.seq {
        if segment.seq.wrapping_add(1) == embryo.seq && !segment.has(FIN) {
            // A keep-alive (RFC 9293 §3.8.4).
            return Some(reply::<I, P>(packet, segment, embryo.seq, ACK, PacketReason::BindingKeptAlive));
        }
        return Some(Verdict::Drop(PacketReason::BindingOutOfOrder));
    }
    if segment.payload == 0 {
        if !segment.has(FIN) {
            return Some(Verdict::Take(PacketReason::BindingOpened));
        }
        embryo.state = EMBRYO_CLOSED;
        bindings.remember_embryo(key, &embryo);
        let ack = embryo.seq.wrapping_add(1);
        return Some(reply::<I, P>(packet, segment, ack, FIN | ACK, PacketReason::BindingClosed));
    }
    let offset = Headers::<I>::LEN - Tcp::LEN;
    let length = Tcp::LEN + segment.options_len + segment.payload as usize;
    if length > ARRIVAL_BYTES {
        return Some(Verdict::Drop(PacketReason::BindingTooLong));
    }
    let Headers { ip, tcp, .. } = packet.view::<Headers<I>>(0)?;
    let (client, _) = ip.addresses();
    let ring = ring::of::<I>(client, tcp.ports.raw() as u16, bindings.settings()?.rings.get());
    let before = embryo;
    embryo.state = EMBRYO_TAKEN;
    embryo.generation = generation;
    // First: once the daemon has the packet, it may note what becomes of this client, which must not be overwritten.
    bindings.remember_embryo(key, &embryo);
    if !bindings.arrived(packet, ring, offset..offset + length, &embryo) {
        bindings.remember_embryo(key, &before);
        return Some(Verdict::Drop(PacketReason::BindingRingFull));
    }
    Some(Verdict::Take(PacketReason::BindingTaken))
}

/// Whether somebody is to take this packet, or has it and may have died with it.
#[inline(always)]
pub fn is_waiting(embryo: &Embryo, segment: &Segment) -> bool {
    is_of(embryo, segment) && (embryo.state == EMBRYO_OPEN || embryo.state == EMBRYO_TAKEN)
}

/// Whether a packet is of this connection, and not of one before or after it on the same tuple.
#[inline(always)]
fn is_of(embryo: &Embryo, segment: &Segment) -> bool {
    segment.has(ACK)
        && (segment.ack == embryo.ack
            || embryo.state == EMBRYO_CLOSED && segment.ack == embryo.ack.wrapping_add(1))
        || segment.flags & (ACK | RST) == RST && segment.seq == embryo.seq
}

/// An embryo from a packet that acknowledges our cookie.
#[inline(always)]
fn hatch<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &P,
    bindings: &B,
    key: &I::Key,
    segment: &Segment,
) -> Option<Embryo> {
    let echo = echo(packet, segment)?;
    let (agreed, scale) = agreed(echo);
    let ack = segment.ack;
    let smallest = bindings.smallest_cookie(packet)?;
    // The cookie's low 24 bits grow with the index of the segment. A minute later the smallest one is another; then a usual one is taken.
    let index = ack.wrapping_sub(1).wrapping_sub(smallest) & 0xff_ffff;
    let segment_size = match index {
        0 => I::SEGMENTS[0],
        2 => I::SEGMENTS[2],
        3 => I::SEGMENTS[3],
        _ => I::SEGMENTS[1],
    };
    let embryo = Embryo {
        state: EMBRYO_OPEN,
        generation: 0,
        seq: segment.seq,
        ack,
        echo,
        segment: segment_size,
        scale,
        agreed,
    };
    bindings.remember_embryo(key, &embryo);
    Some(embryo)
}

/// The timestamp that the packet echoes; 0 if it has none.
#[inline(always)]
fn echo<P: Packet>(packet: &P, segment: &Segment) -> Option<u32> {
    if segment.options_len == 0 {
        return Some(0);
    }
    let scratch = packet.load_options(segment.options_at, segment.options_len)?;
    locate(scratch);
    if scratch.malformed.get() != 0 {
        return None;
    }
    match scratch.timestamps.get() as usize {
        0 => Some(0),
        at => Some(u32::from_be(scratch.word(at + 4))),
    }
}

/// The packet becomes our answer to it, without data.
#[inline(always)]
fn reply<I: Sending, P: Packet>(
    packet: &mut P,
    segment: &Segment,
    ack: u32,
    flags: u8,
    reason: PacketReason,
) -> Verdict {
    let interface = packet.interface();
    let (Some(Headers { ip, tcp, .. }), Some(ethernet)) = (packet.view::<Headers<I>>(0), back(packet)) else {
        return Verdict::Drop(PacketReason::Truncated);
    };
    let (source, destination) = ip.addresses();
    let content = Content {
        ethernet,
        source: destination,
        destination: source,
        ports: ports_back(tcp.ports.raw()),
        seq: segment.ack,
        ack,
        flags,
        window: u16::MAX,
        payload: 0,
        payload_sum: 0,
    };
    if packet.become_frame(&Own::<I, 0>::new(&content, [])) {
        Verdict::Report { interface, reason }
    } else {
        Verdict::Drop(PacketReason::WriteFailed)
    }
}
