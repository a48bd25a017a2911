//! THE ROUTE OF A PACKET WITHOUT A SOCKET: `handshake → first packets to the daemon → bind → send`. Read [`carry`] first.
//!
//! A client's SYN is answered by a SYN cookie (RFC 4987 §3.6), so nothing is remembered of it. Who completes the handshake is remembered as an
//! [`Embryo`]. What it sends first, as far as its window reaches, goes to the daemon and is *not acknowledged*: custody stays with the client, which will send it again. The
//! daemon chooses an instance, lays what that is to get into [`Stash`]es, one for each segment, and sends it a SYN. The instance's SYN-ACK is turned into those
//! segments, and from then on the flow is one like any other (`path`).
//!
//! Whatever does not fit that order is the stack's, or the client sends it again.

mod bind;
mod embryo;
pub mod handshake;
pub mod own;
pub mod ports;
pub mod ring;

use super::Verdict;
use super::custody::{Keeper, keeper};
use super::family::{Family, split};
use super::parse::{self, Segment};
use super::ports::Packet;
use super::sequence::Passage;
use crate::abi::binding::{ARRIVAL_REFUSED, BoundEndpoint};
use crate::abi::flow::{FLAG_BINDING, FLAG_IPV6, FLAG_STASH, Flow};
use crate::abi::key::Side;
use crate::abi::reason::PacketReason;
use crate::wire::ethernet::Ethernet;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
pub use bind::send;
use own::Sending;
use ports::Bindings;

/// A daemon that has died is waited for as long, in ns: its clients send again what nobody has acknowledged. Later they are told that there is nobody.
const RETURN_PATIENCE: u64 = 5_000_000_000;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Verdict(Verdict),
    /// What is stashed for the flow in this slot leaves in its place; [`send`] does that.
    Send {
        slot: u32,
        occasion: Occasion,
    },
}

/// Why an instance is sent what was stashed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// It has answered.
    Bound,
    /// It has not acknowledged all, and a packet has shown that somebody waits for that.
    Repeated,
}

/// Carries a packet that no flow could. `None`: it is none of ours, and the stack takes it, unchanged.
#[inline(always)]
pub fn carry<I: Sending, P: Packet, B: Bindings<I, P>>(packet: &mut P, bindings: &B) -> Option<Verdict> {
    Some(match step::<I, P, B>(packet, bindings)? {
        Step::Verdict(verdict) => verdict,
        Step::Send { slot, occasion } => send::<I, P, B>(packet, bindings, slot, occasion),
    })
}

/// The first half of [`carry`].
#[inline(always)]
pub fn step<I: Sending, P: Packet, B: Bindings<I, P>>(packet: &mut P, bindings: &B) -> Option<Step> {
    let (key, segment) = parse::arrived::<I, P>(packet).ok()?;
    let unattended = bindings.now().saturating_sub(bindings.settings()?.attended_until.get());
    if let Some(found) = bindings.find(&key) {
        let flow = bindings.flow(found.slot())?;
        return match found.side() {
            Side::Client => {
                let forsaken = unattended > RETURN_PATIENCE;
                from_client::<I, P, B>(packet, bindings, (flow, found.slot()), &key, &segment, forsaken)
            }
            Side::Instance => from_instance::<I, P, B>(packet, bindings, flow, found.slot(), &segment),
        };
    }
    let listener = bindings.listener(&endpoint::<I, P>(packet)?)?;
    if unattended > 0 {
        let is_known = !segment.has(SYN)
            && bindings.embryo(&key).is_some_and(|known| embryo::is_waiting(&known, &segment));
        return Some(Step::Verdict(if is_known && unattended <= RETURN_PATIENCE {
            Verdict::Drop(PacketReason::BindingHeld)
        } else {
            Verdict::Pass(PacketReason::BindingUnattended)
        }));
    }
    let verdict = match segment.flags & (SYN | ACK | FIN | RST) {
        SYN => handshake::answer::<I, P, B>(packet, bindings, &segment, listener),
        flags if flags & SYN == 0 => embryo::carry::<I, P, B>(packet, bindings, &key, &segment, listener),
        _ => None,
    };
    verdict.map(Step::Verdict)
}

/// A packet of a client whose flow is not carried on by itself. `forsaken`: its daemon does not come back.
#[inline(always)]
fn from_client<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &mut P,
    bindings: &B,
    (flow, slot): (&Flow, u32),
    key: &I::Key,
    segment: &Segment,
    forsaken: bool,
) -> Option<Step> {
    let passage = Passage::new(flow, Side::Client, segment);
    if is_unbound::<I>(&passage) {
        if forsaken {
            // The stack resets the connection.
            return Some(Step::Verdict(Verdict::Pass(PacketReason::BindingUnattended)));
        }
        if segment.has(RST) && segment.seq == passage.sender.max_seq.get() {
            passage.sender.rst_seen.set(1);
            return Some(Step::Verdict(Verdict::Take(PacketReason::BindingClosed)));
        }
        let verdict = embryo::early::<I, P, B>(packet, bindings, key, segment)?;
        if let (Verdict::Take(_), Some(stash)) = (verdict, bind::stash::<I, P, B>(bindings, flow)) {
            stash.early.set(1);
        }
        return Some(Step::Verdict(verdict));
    }
    repeat::<I>(&passage, slot, segment)
}

/// A packet of an instance whose flow is not carried on by itself.
#[inline(always)]
fn from_instance<I: Sending, P: Packet, B: Bindings<I, P>>(
    packet: &mut P,
    bindings: &B,
    flow: &Flow,
    slot: u32,
    segment: &Segment,
) -> Option<Step> {
    let passage = Passage::new(flow, Side::Instance, segment);
    if !is_unbound::<I>(&passage) {
        return repeat::<I>(&passage, slot, segment);
    }
    let stash = bind::stash::<I, P, B>(bindings, flow)?;
    // An answer to our SYN, or the stack says that there is no such connection.
    if !segment.has(ACK) || segment.ack != stash.seq.get() {
        return None;
    }
    if segment.has(RST) {
        return Some(Step::Verdict(if bindings.tell(stash.ring.get(), ARRIVAL_REFUSED, slot) {
            Verdict::Take(PacketReason::BindingRefused)
        } else {
            Verdict::Drop(PacketReason::BindingRingFull)
        }));
    }
    if !segment.has(SYN) || passage.receiver.rst_seen.get() != 0 {
        return None;
    }
    Some(match bind::bind::<I, P, B>(packet, bindings, flow, slot, stash, segment) {
        Ok(()) => Step::Send { slot, occasion: Occasion::Bound },
        Err(verdict) => Step::Verdict(verdict),
    })
}

/// A packet that belongs to whoever answers for the stashes of a bound flow: nobody but we.
#[inline(always)]
fn repeat<I: Sending>(passage: &Passage<'_>, slot: u32, segment: &Segment) -> Option<Step> {
    if !passage.is_live_in::<I>() || !passage.has(FLAG_STASH) {
        return None;
    }
    match keeper(passage, segment) {
        Keeper::Ours(Verdict::Pass(PacketReason::CustodyRetransmit)) => {
            Some(Step::Send { slot, occasion: Occasion::Repeated })
        }
        Keeper::Ours(Verdict::Pass(PacketReason::CustodyAck)) => {
            Some(Step::Verdict(Verdict::Take(PacketReason::CustodyAck)))
        }
        _ => None,
    }
}

#[inline(always)]
fn is_unbound<I: Family>(passage: &Passage<'_>) -> bool {
    let wanted = FLAG_BINDING | if I::IS_IPV6 { FLAG_IPV6 } else { 0 };
    passage.traits & (FLAG_BINDING | FLAG_IPV6) == wanted
}

/// Where the packet goes.
#[inline(always)]
fn endpoint<I: Family, P: Packet>(packet: &P) -> Option<BoundEndpoint> {
    let parse::Headers { ip, tcp, .. } = packet.view::<parse::Headers<I>>(0)?;
    let (_, address) = ip.addresses();
    let (_, port) = split(tcp.ports);
    Some(BoundEndpoint { address, port, is_ipv6: I::IS_IPV6 as u16 })
}

/// The Ethernet addresses of a frame to whoever sent this one.
#[inline(always)]
fn back<P: Packet>(packet: &P) -> Option<[u32; 3]> {
    let ethernet: &Ethernet = packet.view(0)?;
    let [a, b, c] = ethernet.back().addresses;
    Some([a.raw(), b.raw(), c.raw()])
}
