//! Fragments of a flow's segments: `first: the ordinary stations → remember` and `later: recall → readdress → account → forward`.
//!
//! Only the first fragment has a TCP header. What changes in a translation lies in that header and in the IP header, so the checksum stays right without the
//! other fragments being seen, and these need new addresses only. The first one's datagram is remembered for them. Where nothing is remembered, because
//! fragments overtook one another or belong to no flow, the stack gets them, as it gets the first one of what is no flow's.

use super::family::Family;
use super::first_fragment::{FragmentV4, FragmentV6};
use super::ports::{Clock, Flows, Keys, Packet};
use super::{Verdict, account, carry_as, forward};
use crate::abi::flow::{FLAG_IPV6, FLAG_LIVE, Translation};
use crate::abi::key::{FlowRef, Side};
use crate::abi::reason::PacketReason;
use crate::wire::checksum::Diff;
use crate::wire::ethernet::Ethernet;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::{FRAGMENT, Ipv6};
use crate::wire::tcp::Tcp;
use crate::wire::{Net32, PROTOCOL_TCP};

/// How long later fragments are waited for, in ms. Short, since IPv4 has only 65,536 names for datagrams (RFC 4963).
pub const PATIENCE: u32 = 2_000;

/// No slot has so high a number.
const NO_FLOW: u32 = u32::MAX;

/// What the fragments of one datagram have in common. Numbers as they lie in the packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatagramKey {
    /// IPv4 uses the first word.
    pub source: [u32; 4],
    pub destination: [u32; 4],
    pub identification: u32,
    /// 4 or 6 in the lowest eight bits, the protocol in the next.
    pub version_and_protocol: u32,
}

impl DatagramKey {
    /// IANA's number of what the datagram carries.
    #[inline(always)]
    pub const fn protocol(&self) -> u8 {
        (self.version_and_protocol >> 8) as u8
    }
}

/// The flow of a datagram whose first fragment was translated.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// A [`FlowRef`].
    pub flow: u32,
    /// When the first fragment came: monotonic ms, wrapping.
    pub seen: u32,
}

/// A version of IP that may be fragmented.
pub trait Fragmented: Family {
    /// The headers of a fragment.
    type Fragment: Family<Key = Self::Key>;

    /// Whether a fragment follows this header.
    fn is_fragment(&self) -> bool;

    /// The datagram of a fragment; `None` where IP options come first.
    fn datagram(header: &Self::Fragment) -> Option<DatagramKey>;

    /// Whether a datagram begins with this fragment.
    fn is_first(header: &Self::Fragment) -> bool;

    /// Whether the source and the destination of packets in the other direction, as they leave, are this datagram's destination and source.
    fn answers(key: &DatagramKey, back: &Translation) -> bool;
}

impl Fragmented for Ipv4 {
    type Fragment = FragmentV4;

    #[inline(always)]
    fn is_fragment(&self) -> bool {
        self.is_fragment()
    }

    #[inline(always)]
    fn datagram(FragmentV4(ip): &FragmentV4) -> Option<DatagramKey> {
        if ip.version_ihl != Self::VERSION_4_NO_OPTIONS {
            return None;
        }
        let (source, destination) = ip.addresses();
        let identification = ip.identification.raw() as u32;
        let version_and_protocol = 4 | (ip.protocol as u32) << 8;
        Some(DatagramKey { source, destination, identification, version_and_protocol })
    }

    #[inline(always)]
    fn is_first(FragmentV4(ip): &FragmentV4) -> bool {
        ip.is_first_fragment()
    }

    #[inline(always)]
    fn answers(key: &DatagramKey, back: &Translation) -> bool {
        key.source[0] == back.destination[0].get() && key.destination[0] == back.source[0].get()
    }
}

impl Fragmented for Ipv6 {
    type Fragment = FragmentV6;

    #[inline(always)]
    fn is_fragment(&self) -> bool {
        self.is_version_6() && self.next_header == FRAGMENT
    }

    #[inline(always)]
    fn datagram(FragmentV6 { ip, fragment }: &FragmentV6) -> Option<DatagramKey> {
        let (source, destination) = ip.addresses();
        let identification = fragment.identification.raw();
        let version_and_protocol = 6 | (fragment.next_header as u32) << 8;
        Some(DatagramKey { source, destination, identification, version_and_protocol })
    }

    #[inline(always)]
    fn is_first(FragmentV6 { fragment, .. }: &FragmentV6) -> bool {
        fragment.is_first()
    }

    #[inline(always)]
    fn answers(key: &DatagramKey, back: &Translation) -> bool {
        (0..4).all(|word| {
            key.source[word] == back.destination[word].get()
                && key.destination[word] == back.source[word].get()
        })
    }
}

/// What is to be done with a fragment.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// It is the stack's.
    Pass(PacketReason),
    First,
    Later,
}

/// Carries a fragment.
#[inline(always)]
pub fn carry<I: Fragmented, P: Packet, F: Flows + Keys<I::Key>, C: Clock>(
    packet: &mut P,
    flows: &F,
    clock: &C,
) -> Verdict {
    let take = |packet: &mut P, step| take::<I, P, F, C>(packet, flows, clock, step);
    let is_forwarded =
        |verdict: &Verdict| matches!(verdict, Verdict::Redirect { .. } | Verdict::Resolve { .. });
    conduct::<I, P, F, C, Verdict>(packet, flows, clock, take, is_forwarded)
}

/// Decides on the step, has it taken, and remembers the datagram of a first fragment that was forwarded. A datagram's name may have been used before: what is
/// remembered of it ends with its first fragment.
///
/// How a step is taken, and what comes of it, is the caller's: the kernel programs give each a stack frame of its own.
#[inline(always)]
pub fn conduct<I: Fragmented, P: Packet, F: Flows + Keys<I::Key>, C: Clock, T>(
    packet: &mut P,
    flows: &F,
    clock: &C,
    take: impl Fn(&mut P, Step) -> T,
    is_forwarded: impl Fn(&T) -> bool,
) -> T {
    packet.make_linear(Ethernet::LEN + I::Fragment::LEN);
    let Some(header) = packet.view::<I::Fragment>(Ethernet::LEN) else {
        return take(packet, Step::Pass(PacketReason::Truncated));
    };
    let Some(datagram) = I::datagram(header).filter(|datagram| datagram.protocol() == PROTOCOL_TCP) else {
        return take(packet, Step::Pass(PacketReason::Fragment));
    };
    if header.leads_to_tcp().is_err() {
        return take(packet, Step::Later);
    }
    packet.make_linear(Ethernet::LEN + I::Fragment::LEN + Tcp::LEN);
    // Not an `Option`: what it leaves undefined would be copied along, and the kernel's verifier refuses that.
    let flow = packet
        .view::<Net32>(Ethernet::LEN + I::Fragment::LEN)
        .zip(packet.view::<I::Fragment>(Ethernet::LEN))
        .and_then(|(ports, header)| flows.find(&header.key(*ports)))
        .map_or(NO_FLOW, |FlowRef(flow)| flow);
    flows.forget_datagram(&datagram);
    let taken = take(packet, Step::First);
    if flow != NO_FLOW && is_forwarded(&taken) {
        flows.remember(&datagram, &Datagram { flow, seen: milliseconds(clock) });
    }
    taken
}

/// Takes one step.
#[inline(always)]
pub fn take<I: Fragmented, P: Packet, F: Flows + Keys<I::Key>, C: Clock>(
    packet: &mut P,
    flows: &F,
    clock: &C,
    step: Step,
) -> Verdict {
    match step {
        Step::Pass(reason) => Verdict::Pass(reason),
        Step::First => match carry_as::<I::Fragment, P, F, C>(packet, flows, clock) {
            Ok(verdict) => verdict,
            // Its sender would believe no MTU: it has fragmented the packet, or a router has.
            Err(_) => Verdict::Drop(PacketReason::TooLongUnanswered),
        },
        Step::Later => later::<I, P, F, C>(packet, flows, clock),
    }
}

#[inline(always)]
fn later<I: Fragmented, P: Packet, F: Flows + Keys<I::Key>, C: Clock>(
    packet: &mut P,
    flows: &F,
    clock: &C,
) -> Verdict {
    const UNKNOWN: Verdict = Verdict::Pass(PacketReason::Fragment);
    let header = packet.view::<I::Fragment>(Ethernet::LEN);
    let Some(datagram) = header.and_then(I::datagram) else { return UNKNOWN };
    let Some(Datagram { flow, seen }) = flows.recall(&datagram) else { return UNKNOWN };
    let found = FlowRef(flow);
    let Some(flow) = flows.flow(found.slot()) else { return UNKNOWN };
    let (own, other) = match found.side() {
        Side::Client => (0, 1),
        Side::Instance => (1, 0),
    };
    let translation = &flow.translations[own];
    let is_flow_s = translation.traits.get() & (FLAG_LIVE | FLAG_IPV6) == I::LIVE
        && I::answers(&datagram, &flow.translations[other]);
    if !is_flow_s || milliseconds(clock).wrapping_sub(seen) > PATIENCE {
        return UNKNOWN;
    }
    let available = packet.len() - Ethernet::LEN;
    let Some(header) = packet.view::<I::Fragment>(Ethernet::LEN) else { return UNKNOWN };
    let length = header.length(available);
    if length > available || length < I::Fragment::LEN {
        return Verdict::Pass(PacketReason::Truncated);
    }
    if !packet.is_for_this_host() {
        return Verdict::Pass(PacketReason::OtherHost);
    }
    let index = translation.next_hop.get();
    let Some(next_hop) = flows.next_hop(index) else {
        return Verdict::Pass(PacketReason::NextHopUnresolved);
    };
    let mtu = next_hop.mtu.get();
    if mtu != 0 && length as u32 > mtu {
        return Verdict::Drop(PacketReason::TooLongUnanswered);
    }
    let Some(ethernet) = packet.view_mut::<Ethernet>(0) else {
        return Verdict::Drop(PacketReason::WriteFailed);
    };
    for (word, new) in ethernet.addresses.iter_mut().zip(&next_hop.ethernet) {
        word.set_raw(new.get());
    }
    let Some(header) = packet.view_mut::<I::Fragment>(Ethernet::LEN) else {
        return Verdict::Drop(PacketReason::WriteFailed);
    };
    let addresses = Diff::from_folded(translation.address_diff.get());
    if let Some(change) = header.readdress(translation, addresses) {
        packet.fix_sum(change);
    }
    account::sent_on(&flow.progress[own], length as u32, clock.coarse_now());
    forward::forward(index, next_hop)
}

#[inline(always)]
fn milliseconds<C: Clock>(clock: &C) -> u32 {
    (clock.coarse_now() / 1_000_000) as u32
}
