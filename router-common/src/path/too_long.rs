//! Packets longer than their way out takes: their sender is told of the MTU, as a router does (RFC 1191 §4, RFC 4443 §3.2).
//!
//! The stack cannot do this for us: it would take a packet to the VIP for its own, and reset a connection that it does not know.
//! Packets are not fragmented, even where IPv4 would permit it: senders of TCP set "don't fragment".

use super::Verdict;
use super::answer_budget::AnswerBudget;
use super::family::Family;
use super::parse::{Headers, Segment};
use super::ports::Packet;
use super::reporting::Reporting;
use crate::abi::reason::PacketReason;
use crate::wire::ethernet::Ethernet;
use crate::wire::icmp::Icmp;
use crate::wire::tcp::Tcp;
use crate::wire::{Net32, Wire};

/// The error: as much of the packet as TCP needs to know its own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Answer<I> {
    ethernet: Ethernet,
    ip: I,
    icmp: Icmp,
    original: Original<I>,
}

/// What the error shows of the packet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Original<I> {
    ip: I,
    tcp: Tcp,
}

// SAFETY: a sequence of `Wire` types.
unsafe impl<I: Wire> Wire for Answer<I> {}
// SAFETY: as above.
unsafe impl<I: Wire> Wire for Original<I> {}

/// The MTU, in bytes, if the packet, or a part of those that it was put together from, exceeds that. An MTU of 0 is not known.
#[inline(always)]
pub fn exceeds<I: Family, P: Packet>(packet: &P, segment: &Segment, mtu: u32) -> bool {
    segment.length > mtu && mtu != 0 && longest::<I, P>(packet, segment) > mtu
}

/// Bytes, from the IP header on, of the longest packet that leaves: one that was put together is taken apart again.
#[inline(always)]
fn longest<I: Family, P: Packet>(packet: &P, segment: &Segment) -> u32 {
    match packet.part_size() {
        0 => segment.length,
        part => (I::LEN + Tcp::LEN + segment.options_len) as u32 + part,
    }
}

/// The packet becomes the error about itself, and goes back to where it came from.
#[inline(always)]
pub fn answer<I: Reporting, P: Packet>(
    packet: &mut P,
    mtu: u32,
    budget: Option<&AnswerBudget>,
    now: u64,
) -> Verdict {
    if !budget.is_some_and(|budget| budget.spend(now)) {
        return Verdict::Drop(PacketReason::TooLongUnanswered);
    }
    let interface = packet.interface();
    let Some(Headers { ethernet, ip, tcp }) = packet.view::<Headers<I>>(0) else {
        return Verdict::Drop(PacketReason::Truncated);
    };
    let len = Icmp::LEN + size_of::<Original<I>>();
    let mut sum = ip.icmp_pseudo_sum(len);
    // In the packet: the kernel's verifier wants memory on the stack to be aligned, which no header is.
    for word in 0..size_of::<Original<I>>() / 4 {
        let Some(word) = packet.view::<Net32>(Ethernet::LEN + 4 * word) else {
            return Verdict::Drop(PacketReason::Truncated);
        };
        sum += word.raw() as u64;
    }
    let answer = Answer {
        ethernet: ethernet.back(),
        ip: ip.back(len),
        icmp: I::too_long(mtu, sum),
        original: Original { ip: *ip, tcp: *tcp },
    };
    if packet.become_frame(&answer) {
        Verdict::Report { interface, reason: PacketReason::TooLong }
    } else {
        Verdict::Drop(PacketReason::WriteFailed)
    }
}
