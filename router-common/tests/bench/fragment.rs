//! What is expected of fragments: a first one is carried as the same packet would be that is no fragment, a later one follows it.

use std::net::IpAddr;

use router_common::abi::flow::{FLAG_IPV6, FLAG_LIVE};
use router_common::abi::key::{FlowRef, Side, words_of};
use router_common::abi::reason::PacketReason;
use router_common::path::Verdict;
use router_common::path::fragment::{DatagramKey, PATIENCE};
use router_common::path::memory::MemoryFlows;

use super::ip::Ip;
use super::keep_sum;
use super::model::{Expected, Marks, expect, read_addresses};

const HEADER_V6: usize = 8;

/// Which datagram a fragment of TCP belongs to, and whether it is the first of it.
pub fn datagram(ip: Ip, frame: &[u8]) -> Option<(DatagramKey, bool)> {
    let (source, destination) = read_addresses(ip, frame);
    let is_whole = frame.len() >= ip.tcp() + HEADER_V6 * usize::from(ip == Ip::V6);
    let field = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (identification, is_first) = match ip {
        Ip::V4 => (u32::from(u16::from_ne_bytes([frame[18], frame[19]])), field(20) & 0x3fff == 0x2000),
        Ip::V6 if !is_whole || frame[ip.tcp()] != 6 => return None,
        Ip::V6 => {
            let word = frame[ip.tcp() + 4..ip.tcp() + 8].try_into().unwrap();
            (u32::from_ne_bytes(word), field(ip.tcp() + 2) & 0xfff8 == 0)
        }
    };
    let words = |address: IpAddr| words_of(address);
    let version_and_protocol = if ip == Ip::V4 { 4 } else { 6 } | 6 << 8;
    let key = DatagramKey {
        source: words(source),
        destination: words(destination),
        identification,
        version_and_protocol,
    };
    Some((key, is_first))
}

/// What is to happen to a fragment.
pub fn expect_fragment(table: &MemoryFlows, ip: Ip, frame: &[u8], now: u64) -> Expected {
    let stays = |reason| Expected { verdict: Verdict::Pass(reason), frame: frame.to_vec(), marks: None };
    if ip == Ip::V6 && frame.len() < ip.tcp() + HEADER_V6 {
        return stays(PacketReason::Truncated);
    }
    match datagram(ip, frame) {
        None => stays(PacketReason::Fragment),
        Some((_, true)) => expect_first(table, ip, frame, now),
        Some((key, false)) => expect_later(table, ip, frame, &key, now),
    }
}

fn expect_first(table: &MemoryFlows, ip: Ip, frame: &[u8], now: u64) -> Expected {
    let extra = if ip == Ip::V6 { HEADER_V6 } else { 0 };
    // A way out for the packet without the header that makes it a fragment.
    let table = table.clone();
    for hop in table.next_hops.iter().filter(|hop| hop.mtu.get() != 0) {
        hop.mtu.set(hop.mtu.get() - extra as u32);
    }
    let expected = expect(&table, &without(ip, frame), now);
    let carried = matches!(expected.verdict, Verdict::Redirect { .. } | Verdict::Resolve { .. });
    let mut marks = expected.marks;
    if carried && extra > 0 {
        let old = Marks::of(&table.flows[0]);
        for (marks, old) in marks.iter_mut().flatten().zip(&old) {
            if marks.packets != old.packets {
                marks.bytes = marks.bytes.wrapping_add(extra as u64);
            }
        }
    }
    let (verdict, out) = match expected.verdict {
        Verdict::Redirect { .. } | Verdict::Resolve { .. } => {
            (expected.verdict, with(ip, frame, &expected.frame))
        }
        Verdict::Report { reason: PacketReason::TooLong, .. } => {
            (Verdict::Drop(PacketReason::TooLongUnanswered), frame.to_vec())
        }
        other => (other, frame.to_vec()),
    };
    Expected { verdict, frame: out, marks }
}

/// The packet as if it were whole.
fn without(ip: Ip, frame: &[u8]) -> Vec<u8> {
    let mut plain = frame.to_vec();
    match ip {
        Ip::V4 => {
            plain[20..22].fill(0);
            keep_sum(frame, &mut plain, 24, &|frame| ip.header_error(frame));
        }
        Ip::V6 => {
            plain.drain(ip.tcp()..ip.tcp() + HEADER_V6);
            plain[ip.protocol()] = 6;
            let length = u16::from_be_bytes([frame[18], frame[19]]);
            if length >= HEADER_V6 as u16 {
                plain[18..20].copy_from_slice(&(length - HEADER_V6 as u16).to_be_bytes());
            }
        }
    }
    plain
}

/// The translated packet as the fragment that it is.
fn with(ip: Ip, fragment: &[u8], translated: &[u8]) -> Vec<u8> {
    let mut out = translated.to_vec();
    match ip {
        Ip::V4 => {
            out[20..22].copy_from_slice(&fragment[20..22]);
            keep_sum(fragment, &mut out, 24, &|frame| ip.header_error(frame));
        }
        Ip::V6 => {
            let header = &fragment[ip.tcp()..ip.tcp() + HEADER_V6];
            out.splice(ip.tcp()..ip.tcp(), header.iter().copied());
            out[ip.protocol()] = 44;
            out[18..20].copy_from_slice(&fragment[18..20]);
        }
    }
    out
}

fn expect_later(table: &MemoryFlows, ip: Ip, frame: &[u8], key: &DatagramKey, now: u64) -> Expected {
    let stays = |verdict| Expected { verdict, frame: frame.to_vec(), marks: None };
    let unknown = Verdict::Pass(PacketReason::Fragment);
    let Some(datagram) = table.datagrams.borrow().get(key).copied() else { return stays(unknown) };
    let found = FlowRef(datagram.flow);
    let flow = &table.flows[found.slot() as usize];
    let translation = flow.translation(found.side());
    let back = flow.translation(if found.side() == Side::Client { Side::Instance } else { Side::Client });
    let flags = translation.traits.get();
    let words = ip.address() / 4;
    let same = |address: &[u32; 4], place: &[router_common::abi::shared::Shared32; 4]| {
        (0..words).all(|word| address[word] == place[word].get())
    };
    let age = ((now / 1_000_000) as u32).wrapping_sub(datagram.seen);
    if flags & FLAG_LIVE == 0
        || (flags & FLAG_IPV6 != 0) != (ip == Ip::V6)
        || !same(&key.source, &back.destination)
        || !same(&key.destination, &back.source)
        || age > PATIENCE
    {
        return stays(unknown);
    }
    let headers = ip.header() + if ip == Ip::V6 { HEADER_V6 } else { 0 };
    let longest = 65_535 + if ip == Ip::V6 { 40 } else { 0 };
    let available = frame.len() - 14;
    let length = match ip.length_of(frame) {
        None if available > longest => available,
        None if ip == Ip::V6 => 40,
        length => length.unwrap_or(0),
    };
    if length > available || length < headers {
        return stays(Verdict::Pass(PacketReason::Truncated));
    }
    let hop = &table.next_hops[translation.next_hop.get() as usize];
    if hop.mtu.get() != 0 && length > hop.mtu.get() as usize {
        return stays(Verdict::Drop(PacketReason::TooLongUnanswered));
    }
    let mut out = frame.to_vec();
    for (at, word) in hop.ethernet.iter().enumerate() {
        out[4 * at..4 * at + 4].copy_from_slice(&word.get().to_ne_bytes());
    }
    out[ip.ttl()] = 64;
    let addresses = translation.source[..words].iter().chain(&translation.destination[..words]);
    let addresses: Vec<u8> = addresses.flat_map(|word| word.get().to_ne_bytes()).collect();
    out[ip.addresses()].copy_from_slice(&addresses);
    if ip == Ip::V4 {
        keep_sum(frame, &mut out, 24, &|frame| ip.header_error(frame));
    }
    let mut marks = Marks::of(flow);
    let own = &mut marks[found.side() as usize];
    own.last_seen = now;
    own.packets = own.packets.wrapping_add(1);
    own.bytes = own.bytes.wrapping_add(length as u64);
    let interface = hop.interface.get();
    let verdict = if hop.resolved.get() != 0 {
        Verdict::Redirect { interface }
    } else {
        Verdict::Resolve { interface, next_hop: translation.next_hop.get() }
    };
    Expected { verdict, frame: out, marks: Some(marks) }
}
