//! What must hold for any Layer-4 packet and any tables: of bytes, of the tables, and of XDP, which may do nothing else than TC.

use std::collections::{HashMap, HashSet};

use router_common::abi::balance::{BUCKET_FLOWS, Flow, FlowId, Mode, TAG_LIVE, TAG_STATE};
use router_common::abi::key::address_of;
use router_common::abi::reason::PacketReason;
use router_common::abi::shared::Shared32;
use router_common::abi::xdp::Interface;
use router_common::path::Verdict;
use router_common::path::answer_budget::AnswerBudget;
use router_common::path::balance::memory::MemoryTables;
use router_common::path::balance::table::{Key, ReplyKey, places};
use router_common::path::balance::{self, Outcome};
use router_common::path::memory::Frame;
use router_common::path::parse::Version;
use router_common::path::too_long;
use router_common::path::xdp::{self, Interfaces, Ready};
use router_common::wire::checksum;
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;
use router_common::wire::{PROTOCOL_TCP, PROTOCOL_UDP};

use super::frames::{self, End, addresses_of, ends_of, icmp_error};
use super::ip::Ip;
use super::{CLIENT_MAC, INSTANCE_MAC};

const TTL: u8 = 64;
/// Nanoseconds; every budget for answers is full then.
const NOW: u64 = 5_000_000_000;

/// Carries a packet and checks everything about it. Returns what [`balance::carry`] does, and the frame as it is then.
///
/// # Panics
/// If something does not hold.
pub fn carry_and_check(tables: &MemoryTables, frame: &[u8]) -> (Option<Outcome>, Vec<u8>) {
    let before = tables.clone();
    let mut packet = Frame(frame.to_vec());
    let outcome = balance::carry(&mut packet, tables);
    let after = packet.0;
    match outcome.map(|outcome| (outcome.verdict(), outcome.reason)) {
        Some((Verdict::Redirect { .. } | Verdict::Resolve { .. }, reason)) => {
            let ip = Ip::of(frame).expect("only IP is sent on");
            match reason {
                PacketReason::L4ErrorForwarded => error_is_right(ip, frame, &after),
                PacketReason::L4Answered => answer_is_right(ip, tables, frame, &after),
                // Either side's.
                PacketReason::L4EndingOutOfWindow if after[..6] != INSTANCE_MAC => {
                    answer_is_right(ip, tables, frame, &after);
                }
                PacketReason::L4EchoAnswered => {
                    assert_eq!(after.len(), frame.len(), "nobody hears more than was sent")
                }
                _ => packet_is_right(ip, tables, frame, &after),
            }
        }
        _ => assert_eq!(after, frame, "what is not sent on does not change"),
    }
    if let Some(mtu) = outcome.and_then(Outcome::mtu_to_tell) {
        sender_is_told_rightly(frame, mtu);
    }
    tables_are_whole(tables);
    let (stored, more) = (stored(&before), stored(tables));
    if outcome.is_none_or(|outcome| outcome.reason == PacketReason::L4Forwarded) {
        assert!(more <= stored, "{outcome:?} has stored a flow");
    }
    xdp_does_nothing_else(&before, frame, outcome, &after, tables);
    (outcome, after)
}

fn stored(tables: &MemoryTables) -> usize {
    let tags = tables.flows.iter().flat_map(|bucket| &bucket.tags);
    tags.filter(|tag| tag.get() & TAG_STATE == TAG_LIVE).count()
}

fn address(words: &[Shared32; 4], ip: Ip) -> std::net::IpAddr {
    address_of(words.each_ref().map(Shared32::get), ip == Ip::V6)
}

/// All flows that packets find, wherever they lie.
fn live(tables: &MemoryTables) -> impl Iterator<Item = &Flow> {
    let places = tables.flows.iter().flat_map(|bucket| bucket.tags.iter().zip(&bucket.flows));
    places.filter(|(tag, _)| tag.get() & TAG_STATE == TAG_LIVE).map(|(_, flow)| flow)
}

/// To an instance.
fn packet_is_right(ip: Ip, tables: &MemoryTables, before: &[u8], after: &[u8]) {
    assert_eq!(after[..6], INSTANCE_MAC);
    let header = ip.header();
    if after.len() == before.len() + header {
        assert_eq!(after[14 + header..], before[14..], "what is wrapped does not change");
        assert_eq!(ip.header_error(after), 0);
        let inner = ip.length_of(before).unwrap_or(before.len() - 14);
        assert_eq!(ip.length_of(after), Some(inner + header), "the outer length");
        assert_eq!((after[ip.ttl()], after[ip.protocol()]), (TTL, if ip == Ip::V4 { 4 } else { 41 }));
        let (source, destination) = addresses_of(ip, after);
        assert_eq!(source, super::source(ip));
        assert!((1..=super::INSTANCES).any(|number| destination == super::instance(ip, number)));
        return;
    }
    if after[12..] == before[12..] {
        // Only the link-layer addresses are new.
        return;
    }
    translated_rightly(ip, before, after);
    let Some((client, vip, protocol)) = ends_of(before).filter(|_| is_whole(ip, before)) else { return };
    let (source, destination, _) = ends_of(after).expect("as before");
    let is_its = |flow: &&Flow| {
        let service = &tables.services[flow.service() as usize];
        flow.client_port() == client.1.to_be()
            && address(&flow.client, ip) == client.0
            && service.port.get() == packed(vip, protocol)
    };
    let flows: Vec<&Flow> = live(tables).filter(is_its).collect();
    let [flow] = flows[..] else { panic!("a client has {} flows from one port", flows.len()) };
    let instance = &tables.instances[flow.instance() as usize];
    assert_eq!(destination, (address(&instance.address, ip), u16::from_be(instance.port.get() as u16)));
    let seen = match flow.source_port() {
        0 => client,
        port => (address(&instance.source, ip), u16::from_be(port)),
    };
    assert_eq!(source, seen);
}

fn packed(end: End, protocol: u8) -> u32 {
    router_common::abi::balance::Endpoint::pack_port(end.1.to_be(), protocol, end.0.is_ipv6())
}

/// To a client.
fn answer_is_right(ip: Ip, tables: &MemoryTables, before: &[u8], after: &[u8]) {
    assert_eq!(after[..6], CLIENT_MAC, "where the client's packets come from");
    translated_rightly(ip, before, after);
    assert_eq!(addresses_of(ip, after).0, super::vip(ip));
    let Some((instance, seen, _)) = ends_of(before).filter(|_| is_whole(ip, before)) else { return };
    let (vip, client, protocol) = ends_of(after).expect("as before");
    let is_its = |flow: &&Flow| {
        let to = &tables.instances[flow.instance() as usize];
        let port = if flow.source_port() == 0 { flow.client_port() } else { flow.source_port() };
        address(&flow.client, ip) == client.0
            && flow.client_port() == client.1.to_be()
            && to.port.get() == packed(instance, protocol)
            && address(&to.address, ip) == instance.0
            && port == seen.1.to_be()
            && tables.services[flow.service() as usize].port.get() == packed(vip, protocol)
    };
    assert_eq!(live(tables).filter(is_its).count(), 1, "it is the answer of exactly one flow");
}

/// Whether a packet is no fragment.
fn is_whole(ip: Ip, frame: &[u8]) -> bool {
    ip == Ip::V6 || frame[20] & 0x3f == 0 && frame[21] == 0
}

/// Only link-layer addresses, time to live, addresses, ports and checksums are new, and the checksums are as right as they were.
fn translated_rightly(ip: Ip, before: &[u8], after: &[u8]) {
    assert_eq!(before.len(), after.len());
    assert_eq!(after[ip.ttl()], TTL);
    assert_eq!(ip.header_error(before), ip.header_error(after), "the header's checksum");
    let (carried, transport) = match (ip, before[ip.protocol()]) {
        (Ip::V6, 44) => (before[ip.tcp()], frames::transport_of_fragment(ip)),
        (_, protocol) => (protocol, ip.tcp()),
    };
    let begins = match ip {
        Ip::V4 => before[20] & 0x1f == 0 && before[21] == 0,
        Ip::V6 if transport == ip.tcp() => true,
        Ip::V6 => before[ip.tcp() + 2] == 0 && before[ip.tcp() + 3] & 0xf8 == 0,
    };
    let sum_at = transport + if carried == PROTOCOL_TCP { 16 } else { 6 };
    let mut may_change = vec![ip.addresses(), ip.ttl()..ip.ttl() + 1, 0..12];
    if ip == Ip::V4 {
        may_change.push(24..26);
    }
    if begins {
        may_change.extend([transport..transport + 4, sum_at..sum_at + 2]);
        let is_without = carried == PROTOCOL_UDP && before[sum_at..sum_at + 2] == [0; 2];
        let sum = |frame: &[u8]| {
            let covered =
                [&frame[ip.addresses()], &frame[transport..transport + 4], &frame[sum_at..sum_at + 2]];
            checksum::full(&covered.concat(), 0)
        };
        if is_without {
            assert_eq!(after[sum_at..sum_at + 2], [0; 2], "without a checksum as before");
        } else {
            assert_eq!(sum(before), sum(after), "the transport's checksum");
            assert!(carried != PROTOCOL_UDP || after[sum_at..sum_at + 2] != [0; 2]);
        }
    }
    for (at, (old, new)) in before.iter().zip(after).enumerate() {
        assert!(old == new || may_change.iter().any(|range| range.contains(&at)), "byte {at} is another");
    }
}

fn error_is_right(ip: Ip, before: &[u8], after: &[u8]) {
    let header = ip.header();
    if after.len() == before.len() + header {
        assert_eq!(after[14 + header..], before[14..], "what is wrapped does not change");
        assert_eq!(ip.header_error(after), 0);
        return;
    }
    assert_eq!(before.len(), after.len());
    assert_eq!(ip.header_error(before), ip.header_error(after), "the header's checksum");
    assert_eq!(icmp_error(ip, before), icmp_error(ip, after), "ICMP's checksum");
    assert_eq!(before[ip.tcp()..ip.tcp() + 2], after[ip.tcp()..ip.tcp() + 2], "what it tells");
    assert_eq!(before[ip.tcp() + 4..ip.tcp() + 8], after[ip.tcp() + 4..ip.tcp() + 8], "what it tells");
    let inner = |frame: &[u8]| ip.header_error(&[&[0; 14], &frame[ip.tcp() + 8..]].concat());
    assert_eq!(inner(before), inner(after), "the inner header's checksum");
}

fn sender_is_told_rightly(frame: &[u8], mtu: u32) {
    let ip = Ip::of(frame).expect("only IP is too long");
    let mut packet = Frame(frame.to_vec());
    let budget = AnswerBudget::default();
    let verdict = match ip {
        Ip::V4 => too_long::answer::<Ipv4, _>(&mut packet, mtu, Some(&budget), NOW),
        Ip::V6 => too_long::answer::<Ipv6, _>(&mut packet, mtu, Some(&budget), NOW),
    };
    let answer = packet.0;
    assert!(matches!(verdict, Verdict::Report { .. }), "{verdict:?}");
    assert_eq!((ip.header_error(&answer), icmp_error(ip, &answer)), (0, 0));
    let ((from, to), (source, destination)) = (addresses_of(ip, frame), addresses_of(ip, &answer));
    assert_eq!((source, destination), (to, from));
    assert_eq!(answer[ip.tcp() + 6..ip.tcp() + 8], (mtu as u16).to_be_bytes());
}

/// Every flow lies where it is looked for, once, and is found by its answers; nothing else is found.
fn tables_are_whole(tables: &MemoryTables) {
    let mut overflown: HashMap<u32, u32> = HashMap::new();
    let mut keys = HashSet::new();
    let mut answered = HashSet::new();
    for (bucket, content) in (0..).zip(&tables.flows) {
        for place in 0..BUCKET_FLOWS {
            let (tag, flow) = (content.tags[place].get(), &content.flows[place]);
            if tag == 0 {
                continue;
            }
            let client = flow.client.each_ref().map(Shared32::get);
            let key = Key { client, origin: flow.origin.get() };
            let (first, second, wanted) = places(key.hash(&tables.settings), tables.flows.len() as u32);
            assert_eq!(tag & !TAG_STATE, wanted, "the tag of a flow");
            assert!([first, second].contains(&bucket), "a flow lies in a strange bucket");
            if bucket != first {
                *overflown.entry(first).or_default() += 1;
            }
            if tag & TAG_STATE == TAG_LIVE {
                assert!(keys.insert((client, key.origin)), "a client's flow is stored twice");
            }
            let mode =
                Mode::of(tables.services[flow.service() as usize].mode.get()).expect("it is a service");
            if !mode.sees_answers() {
                continue;
            }
            let answers = match flow.source_port() {
                0 => ReplyKey { to: client, port: flow.client_port().into(), instance: flow.instance() },
                port => ReplyKey { to: [0; 4], port: port.into(), instance: flow.instance() },
            };
            let (at, tag) = answers.place(&tables.settings);
            let word = tag | FlowId { bucket, place: place as u32 }.pack();
            let refs = &tables.replies[at as usize].refs;
            assert_eq!(refs.iter().filter(|cell| cell.get() == word).count(), 1, "its answers find a flow");
            answered.insert((at, word));
        }
    }
    for (bucket, content) in (0..).zip(&tables.flows) {
        assert_eq!(content.overflow.get(), overflown.get(&bucket).copied().unwrap_or(0), "the overflow");
    }
    let held = (0..)
        .zip(&tables.replies)
        .flat_map(|(at, bucket)| bucket.refs.iter().map(move |cell| (at, cell.get())));
    for (at, word) in held.filter(|(_, word)| *word != 0) {
        assert!(answered.contains(&(at, word)), "a reference to no flow");
    }
}

/// Every interface sends what XDP gives to it.
struct AllSend(Interface);

impl Interfaces for AllSend {
    fn interface(&self, _: u32) -> Option<&Interface> {
        Some(&self.0)
    }
}

/// What XDP does not leave to TC, it does as TC would have done it.
fn xdp_does_nothing_else(
    before: &MemoryTables,
    frame: &[u8],
    outcome: Option<Outcome>,
    after: &[u8],
    tables: &MemoryTables,
) {
    let mut packet = Frame(frame.to_vec());
    let interfaces = AllSend(Interface::default());
    interfaces.0.sends.set(1);
    let ready = Ready { inner: before.clone(), interfaces };
    let met = match xdp::arriving(&packet) {
        Ok(Version::V4) => xdp::balance_as::<Ipv4, _, _, _>(&mut packet, &ready),
        Ok(Version::V6) => xdp::balance_as::<Ipv6, _, _, _>(&mut packet, &ready),
        Err(_) => None,
    };
    match met {
        None | Some(xdp::Outcome::Pass(_)) => assert_eq!(packet.0, frame, "what XDP leaves does not change"),
        Some(xdp::Outcome::Drop(reason)) => {
            assert_eq!(outcome.map(|outcome| outcome.verdict()), Some(Verdict::Drop(reason)));
            assert_eq!(packet.0, frame);
        }
        Some(xdp::Outcome::Redirect { interface, reason }) => {
            let at_tc = outcome.expect("TC takes it too");
            assert_eq!((at_tc.verdict(), at_tc.reason), (Verdict::Redirect { interface }, reason));
            assert_eq!(packet.0, after);
            assert_eq!(words(&ready.inner), words(tables), "XDP leaves other tables than TC");
        }
    }
}

/// Everything that packets write into the tables.
fn words(tables: &MemoryTables) -> Vec<u64> {
    let mut words = Vec::new();
    for bucket in &tables.flows {
        words.push(bucket.overflow.get().into());
        for (tag, flow) in bucket.tags.iter().zip(&bucket.flows) {
            let of_flow =
                [tag, &flow.origin, &flow.target, &flow.last_seen, &flow.born, &flow.state, &flow.neighbour];
            words.extend(of_flow.into_iter().chain(&flow.client).map(|word| u64::from(word.get())));
            let halves = [&flow.neighbour_end, &flow.client_next, &flow.interface, &flow.instance_next];
            words.extend(halves.map(|half| u64::from(half.get())));
            words.extend([flow.bytes_to_instance.get(), flow.bytes_to_client.get()]);
        }
    }
    let replies = tables.replies.iter().flat_map(|bucket| &bucket.refs);
    let links = tables.links.iter().flat_map(|link| &link.address);
    let tunnels = tables.tunnels.iter().flat_map(|tunnel| [&tunnel.path_mtu, &tunnel.told]);
    words.extend(replies.chain(links).chain(tunnels).map(|word| u64::from(word.get())));
    words
}
