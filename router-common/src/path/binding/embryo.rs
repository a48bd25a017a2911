//! A client that has completed the handshake, until what it sends first is with the daemon.
//!
//! That may be several segments, in any order. The daemon puts them together; what is kept here tells a repetition from news.

use super::super::Verdict;
use super::super::options::locate;
use super::super::parse::{Headers, Segment};
use super::super::ports::Packet;
use super::back;
use super::handshake::{agreed, clock};
use super::own::{Content, Own, Sending, ports_back};
use super::ports::{Bindings, Socket};
use super::ring;
use crate::abi::binding::{
    BoundListener, EMBRYO_CLOSED, EMBRYO_DONE, EMBRYO_OPEN, EMBRYO_TAKEN, Embryo, LARGE_ARRIVAL_BYTES,
    MAX_TOLD,
};
use crate::abi::reason::PacketReason;
use crate::wire::tcp::{ACK, FIN, RST, Tcp, seq_before_eq};

/// Carries a packet to a listener that belongs to no flow. `None`: the stack's.
#[inline(always)]
pub fn carry<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &mut P,
    bindings: &B,
    key: &I::Key,
    segment: &Segment,
    listener: BoundListener,
) -> Option<Verdict> {
    let mut embryo = match bindings.embryo(key) {
        Some(embryo) if is_of(&embryo, segment) => embryo,
        _ if !segment.has(ACK) || segment.has(RST) => return None,
        _ => {
            let socket = bindings.socket(packet);
            if socket == Socket::Live {
                // Of a connection that began with a socket, or was given one. It may be so new that its packets acknowledge a cookie still.
                return None;
            }
            let acknowledges_cookie = bindings.acknowledges_cookie(packet);
            let echo = echo(packet, segment)?;
            if acknowledges_cookie {
                hatch::<I, P, B>(packet, bindings, key, segment, (echo, listener))?
            } else if socket == Socket::Ended {
                return None;
            } else if segment.payload != 0 && is_young(echo, clock(bindings.settings()?, bindings.now())) {
                // It may have overtaken the first packet, with which alone the cookie can be checked. The client sends it again.
                return Some(Verdict::Drop(PacketReason::BindingOutOfOrder));
            } else {
                return Some(reply::<I, P>(packet, segment, 0, RST, PacketReason::BindingBadCookie));
            }
        }
    };
    let generation = bindings.settings()?.generation.get();
    match embryo.state {
        EMBRYO_OPEN => {}
        // An earlier daemon had it and has died: the client sends again what nobody has acknowledged.
        EMBRYO_TAKEN if embryo.generation != generation => forget_told(&mut embryo),
        EMBRYO_TAKEN => {}
        EMBRYO_CLOSED if segment.payload == 0 && !segment.has(RST) => {
            return Some(Verdict::Take(PacketReason::BindingClosed));
        }
        _ => return None,
    }
    if segment.has(RST) {
        // Anything else in the window is a guess (RFC 5961 §3.2).
        if segment.seq == embryo.told {
            embryo.state = EMBRYO_DONE;
            bindings.remember_embryo(key, &embryo);
        }
        return Some(Verdict::Take(PacketReason::BindingClosed));
    }
    if segment.payload != 0 {
        return Some(tell::<I, P, B>(packet, bindings, key, segment, embryo, generation));
    }
    if embryo.state == EMBRYO_TAKEN {
        return Some(Verdict::Drop(PacketReason::BindingHeld));
    }
    if segment.seq != embryo.seq {
        if segment.seq.wrapping_add(1) == embryo.seq && !segment.has(FIN) {
            // A keep-alive (RFC 9293 §3.8.4).
            return Some(reply::<I, P>(packet, segment, embryo.seq, ACK, PacketReason::BindingKeptAlive));
        }
        return Some(Verdict::Drop(PacketReason::BindingOutOfOrder));
    }
    if !segment.has(FIN) {
        return Some(Verdict::Take(PacketReason::BindingOpened));
    }
    embryo.state = EMBRYO_CLOSED;
    bindings.remember_embryo(key, &embryo);
    let ack = embryo.seq.wrapping_add(1);
    Some(reply::<I, P>(packet, segment, ack, FIN | ACK, PacketReason::BindingClosed))
}

/// Data of a client whose instance has not answered. The daemon has bound what came before.
#[inline(always)]
pub fn early<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &P,
    bindings: &B,
    key: &I::Key,
    segment: &Segment,
) -> Option<Verdict> {
    let generation = bindings.settings()?.generation.get();
    let held = Some(Verdict::Drop(PacketReason::BindingHeld));
    if segment.payload == 0 || segment.has(RST) {
        return held;
    }
    match bindings.embryo(key) {
        Some(embryo)
            if is_of(&embryo, segment) && embryo.state == EMBRYO_TAKEN && embryo.generation == generation =>
        {
            Some(tell::<I, P, B>(packet, bindings, key, segment, embryo, generation))
        }
        _ => held,
    }
}

/// Tells the daemon what it does not have.
#[inline(always)]
fn tell<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &P,
    bindings: &B,
    key: &I::Key,
    segment: &Segment,
    mut embryo: Embryo,
    generation: u32,
) -> Verdict {
    let start = Headers::<I>::LEN - Tcp::LEN;
    let before = embryo;
    let offset = segment.seq.wrapping_sub(embryo.seq);
    if offset >= embryo.window as u32 {
        return Verdict::Drop(PacketReason::BindingOutOfOrder);
    }
    let length = Tcp::LEN + segment.options_len + segment.payload as usize;
    if offset + segment.payload > embryo.window as u32 || length > LARGE_ARRIVAL_BYTES {
        return Verdict::Drop(PacketReason::BindingTooLong);
    }
    let end = segment.seq.wrapping_add(segment.payload);
    if seq_before_eq(end, embryo.told) {
        return Verdict::Drop(PacketReason::BindingHeld);
    }
    if embryo.segments >= MAX_TOLD {
        return Verdict::Drop(PacketReason::BindingTooMany);
    }
    if seq_before_eq(segment.seq, embryo.told) {
        // What has come ahead of its turn is told anew when it is repeated.
        embryo.told = end;
    }
    if embryo.segments == 0 {
        embryo.ring = ring::of(bindings.processor(), bindings.settings().map_or(0, |all| all.rings.get()));
    }
    embryo.segments += 1;
    embryo.state = EMBRYO_TAKEN;
    embryo.generation = generation;
    // First: once the daemon has the packet, it may note what becomes of this client, which must not be overwritten.
    bindings.remember_embryo(key, &embryo);
    if !bindings.arrived(packet, embryo.ring.into(), start..start + length, &embryo) {
        bindings.remember_embryo(key, &before);
        return Verdict::Drop(PacketReason::BindingRingFull);
    }
    Verdict::Take(PacketReason::BindingTaken)
}

#[inline(always)]
fn forget_told(embryo: &mut Embryo) {
    embryo.told = embryo.seq;
    embryo.segments = 0;
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
    (echo, listener): (u32, BoundListener),
) -> Option<Embryo> {
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
        told: segment.seq,
        segment: segment_size,
        window: listener.window,
        scale,
        agreed,
        segments: 0,
        ring: 0,
    };
    bindings.remember_embryo(key, &embryo);
    Some(embryo)
}

/// Whether our timestamp that is echoed is no older than a client's first timer, in ms (RFC 6298 §2).
#[inline(always)]
fn is_young(echo: u32, now: u32) -> bool {
    const FIRST_TIMER: u32 = 1_000;

    echo != 0 && now.wrapping_sub(echo) < FIRST_TIMER
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
