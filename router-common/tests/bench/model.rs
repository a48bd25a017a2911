//! What the packet path is expected to do, written down once more and plainly: the packet is taken apart by another parser, built anew,
//! and its checksums are computed over all bytes. Slow, without any trick, and therefore easy to believe.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice, TcpHeaderSlice, err,
};
use router_common::abi::flow::{
    FLAG_DIRECT, FLAG_ERASE_TIMESTAMPS, FLAG_IPV6, FLAG_LIVE, FLAG_TIMESTAMPS, Flow,
};
use router_common::abi::key::{FlowKey, Side};
use router_common::abi::reason::PacketReason;
use router_common::path::Verdict;
use router_common::path::memory::MemoryFlows;

use super::error;
use super::fragment;
use super::ip::Ip;

/// What is believed beyond a window or beyond what was seen sent.
pub const SLACK: u32 = 1 << 20;

/// The words of a flow that the path writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    pub last_seen: u64,
    pub packets: u64,
    pub bytes: u64,
    pub max_ack: u32,
    pub max_seq: u32,
    pub window_edge: u32,
    pub fin_end: u32,
    pub fin_seen: u32,
    pub rst_seen: u32,
    pub timestamp_delta: u32,
}

impl Marks {
    /// In the order of `Side`.
    pub fn of(flow: &Flow) -> [Self; 2] {
        [&flow.progress[0], &flow.progress[1]].map(|progress| Self {
            last_seen: progress.last_seen.get(),
            packets: progress.packets.get(),
            bytes: progress.bytes.get(),
            max_ack: progress.max_ack.get(),
            max_seq: progress.max_seq.get(),
            window_edge: progress.window_edge.get(),
            fin_end: progress.fin_end.get(),
            fin_seen: progress.fin_seen.get(),
            rst_seen: progress.rst_seen.get(),
            timestamp_delta: progress.timestamp_delta.get(),
        })
    }
}

/// What is expected of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub verdict: Verdict,
    pub frame: Vec<u8>,
    /// `None` where no flow was met.
    pub marks: Option<[Marks; 2]>,
}

/// `a` lies before `b`: by at most half of the space.
pub fn before(a: u32, b: u32) -> bool {
    (1..=1 << 31).contains(&b.wrapping_sub(a))
}

pub fn not_behind(a: u32, b: u32) -> bool {
    !before(b, a)
}

/// A packet that may belong to a flow.
struct Parts<'a> {
    ip: Ip,
    source: IpAddr,
    destination: IpAddr,
    tcp: TcpHeaderSlice<'a>,
    datagram_length: usize,
    payload_length: u32,
}

fn take_apart(frame: &[u8]) -> Result<Parts<'_>, PacketReason> {
    let ethernet = Ethernet2HeaderSlice::from_slice(frame).map_err(|_| PacketReason::Truncated)?;
    let datagram = &frame[14..];
    let (ip, source, destination) = match ethernet.ether_type() {
        EtherType::IPV4 | EtherType::IPV6 if ethernet.destination()[0] & 1 != 0 => {
            return Err(PacketReason::Multicast);
        }
        EtherType::IPV4 => read_ipv4(datagram)?,
        EtherType::IPV6 => read_ipv6(datagram)?,
        _ => return Err(PacketReason::NotIp),
    };
    let tcp = match TcpHeaderSlice::from_slice(&datagram[ip.header()..]) {
        Ok(tcp) => tcp,
        Err(err::tcp::HeaderSliceError::Content(_)) => return Err(PacketReason::BadTcpOptions),
        Err(err::tcp::HeaderSliceError::Len(_)) => return Err(PacketReason::Truncated),
    };
    let longest = 65_535 + if ip == Ip::V6 { 40 } else { 0 };
    let datagram_length = match ip.length_of(frame) {
        None if datagram.len() > longest => datagram.len(),
        length => length.unwrap_or(0),
    };
    let headers = ip.header() + tcp.slice().len();
    if datagram_length > datagram.len() || datagram_length < headers {
        return Err(PacketReason::Truncated);
    }
    let payload_length = (datagram_length - headers) as u32;
    Ok(Parts { ip, source, destination, tcp, datagram_length, payload_length })
}

/// Source and destination of a header that leads to TCP.
pub fn read_header(ip: Ip, header: &[u8]) -> Result<(IpAddr, IpAddr), PacketReason> {
    let (_, source, destination) = match ip {
        Ip::V4 => read_ipv4(header)?,
        Ip::V6 => read_ipv6(header)?,
    };
    Ok((source, destination))
}

/// Source and destination of a frame, whatever its header leads to.
pub fn read_addresses(ip: Ip, frame: &[u8]) -> (IpAddr, IpAddr) {
    match ip {
        Ip::V4 => {
            let ip = Ipv4HeaderSlice::from_slice(&frame[14..34]).expect("it has a header");
            (ip.source_addr().into(), ip.destination_addr().into())
        }
        Ip::V6 => {
            let ip = Ipv6HeaderSlice::from_slice(&frame[14..54]).expect("it has a header");
            (ip.source_addr().into(), ip.destination_addr().into())
        }
    }
}

type Addresses = (Ip, IpAddr, IpAddr);

fn read_ipv4(datagram: &[u8]) -> Result<Addresses, PacketReason> {
    if datagram.len() < 20 {
        return Err(PacketReason::Truncated);
    }
    // A header with options may reach beyond the frame.
    let ip = match Ipv4HeaderSlice::from_slice(datagram) {
        Ok(ip) if ip.ihl() == 5 => ip,
        _ => return Err(PacketReason::IpOptions),
    };
    if ip.protocol() != IpNumber::TCP {
        return Err(PacketReason::NotTcp);
    }
    if ip.is_fragmenting_payload() {
        return Err(PacketReason::Fragment);
    }
    Ok((Ip::V4, ip.source_addr().into(), ip.destination_addr().into()))
}

fn read_ipv6(datagram: &[u8]) -> Result<Addresses, PacketReason> {
    if datagram.len() < 40 {
        return Err(PacketReason::Truncated);
    }
    let Ok(ip) = Ipv6HeaderSlice::from_slice(datagram) else { return Err(PacketReason::NotIp) };
    match ip.next_header() {
        IpNumber::TCP => Ok((Ip::V6, ip.source_addr().into(), ip.destination_addr().into())),
        IpNumber::IPV6_FRAGMENTATION_HEADER => Err(PacketReason::Fragment),
        // Encrypted, or anything at all.
        IpNumber::ENCAPSULATING_SECURITY_PAYLOAD
        | IpNumber::EXPERIMENTAL_AND_TESTING_0
        | IpNumber::EXPERIMENTAL_AND_TESTING_1 => Err(PacketReason::NotTcp),
        other if other.is_ipv6_ext_header_value() => Err(PacketReason::ExtensionHeader),
        _ => Err(PacketReason::NotTcp),
    }
}

/// The options as (kind, offset of the value, length of the value); `None` where the length of one is impossible.
pub fn walk(options: &[u8]) -> Option<Vec<(u8, usize, usize)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < options.len() && options[at] != 0 {
        if options[at] == 1 {
            at += 1;
            continue;
        }
        let length = usize::from(*options.get(at + 1)?);
        if length < 2 || at + length > options.len() {
            return None;
        }
        found.push((options[at], at + 2, length - 2));
        at += length;
    }
    Some(found)
}

/// Of repeated options the last counts.
fn last(options: &[(u8, usize, usize)], fits: impl Fn(u8, usize) -> bool) -> Option<(usize, usize)> {
    let mut matching = options.iter().filter(|(kind, _, length)| fits(*kind, *length));
    matching.next_back().map(|(_, at, length)| (*at, *length))
}

pub fn read(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
}

pub fn write(frame: &mut [u8], at: usize, value: u32) {
    frame[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// What is to happen to `frame` in this table at this moment (ns).
pub fn expect(table: &MemoryFlows, frame: &[u8], now: u64) -> Expected {
    let stays = |verdict, marks| Expected { verdict, frame: frame.to_vec(), marks };
    let parts = match take_apart(frame) {
        Ok(parts) => parts,
        Err(PacketReason::NotTcp) => {
            let ip = Ip::of(frame).expect("it was read as IP");
            let (verdict, frame) = error::expect(table, ip, frame);
            return Expected { verdict, frame, marks: None };
        }
        Err(PacketReason::Fragment) => {
            let ip = Ip::of(frame).expect("it was read as IP");
            return fragment::expect_fragment(table, ip, frame, now);
        }
        Err(reason) => return stays(Verdict::Pass(reason), None),
    };
    let ip = parts.ip;
    let key = FlowKey::tcp(
        SocketAddr::new(parts.source, parts.tcp.source_port()),
        SocketAddr::new(parts.destination, parts.tcp.destination_port()),
    );
    let key = key.expect("one family");
    let Some(found) = table.keys.borrow().get(&key).copied() else {
        return stays(Verdict::Pass(PacketReason::NoFlow), None);
    };
    let flow = &table.flows[found.slot() as usize];
    let (own, other) = match found.side() {
        Side::Client => (0, 1),
        Side::Instance => (1, 0),
    };
    let translation = &flow.translations[own];
    let traits = translation.traits.get();
    let has = |flag: u32| traits & flag == flag;
    let mut marks = Marks::of(flow);
    if !has(FLAG_LIVE) || has(FLAG_IPV6) != (ip == Ip::V6) {
        return stays(Verdict::Pass(PacketReason::StaleSlot), Some(marks));
    }

    let tcp = &parts.tcp;
    let seq_delta = translation.seq_delta.get();
    let ack_delta = flow.translations[other].seq_delta.get();
    let (seq, ack) = (tcp.sequence_number(), tcp.acknowledgment_number());
    let end = seq
        .wrapping_add(parts.payload_length)
        .wrapping_add(u32::from(tcp.syn()))
        .wrapping_add(u32::from(tcp.fin()));
    let scale_of = |at: u32| u64::from(traits >> at & 15);
    let window_bytes = u64::from(tcp.window_size()) << scale_of(8);

    if tcp.syn() && !tcp.ack() {
        let reset = marks.iter().any(|marks| marks.rst_seen != 0);
        let finished = marks.iter().all(|marks| marks.fin_seen != 0);
        if reset || finished {
            return stays(Verdict::Pass(PacketReason::TupleReused), Some(marks));
        }
    }

    // An acknowledgement is believed if it can be true.
    let in_custody = !has(FLAG_DIRECT);
    let acknowledge = |marks: &mut [Marks; 2]| {
        if !tcp.ack() || before(ack, marks[own].max_ack) {
            return;
        }
        let sent = marks[other].max_seq.wrapping_add(ack_delta);
        let by_us = in_custody && not_behind(ack, translation.ack_cut.get());
        if not_behind(ack, sent.wrapping_add(SLACK)) || by_us {
            marks[own].max_ack = ack;
            let edge = ack.wrapping_add(window_bytes as u32);
            if before(marks[own].window_edge, edge) {
                marks[own].window_edge = edge;
            }
        }
    };

    if in_custody {
        let cut = translation.seq_cut.get();
        let unacknowledged = before(marks[other].max_ack, cut.wrapping_add(seq_delta));
        let starts_in_head = end != seq && before(seq, cut);
        let pure_ack = parts.payload_length == 0 && tcp.ack() && !tcp.syn() && !tcp.fin() && !tcp.rst();
        let verdict = if starts_in_head && unacknowledged {
            Some(if not_behind(end, cut) {
                Verdict::Pass(PacketReason::CustodyRetransmit)
            } else {
                Verdict::Drop(PacketReason::StraddlesHead)
            })
        } else if pure_ack && not_behind(ack, translation.ack_cut.get()) {
            Some(Verdict::Pass(PacketReason::CustodyAck))
        } else {
            None
        };
        if let Some(verdict) = verdict {
            acknowledge(&mut marks);
            return stays(verdict, Some(marks));
        }
    }

    let hop = &table.next_hops[translation.next_hop.get() as usize];
    let mtu = hop.mtu.get();
    if mtu != 0 && parts.datagram_length > mtu as usize {
        let (verdict, frame) = error::expect_too_long(ip, frame, mtu);
        return Expected { verdict, frame, marks: Some(marks) };
    }

    let Some(options) = walk(tcp.options()) else {
        return stays(Verdict::Drop(PacketReason::BadTcpOptions), Some(marks));
    };
    let mut out = frame.to_vec();
    let options_at = ip.options();
    if let Some((at, _)) = last(&options, |kind, length| kind == 8 && length == 8) {
        let at = options_at + at;
        if has(FLAG_ERASE_TIMESTAMPS) {
            out[at - 2..at + 8].fill(1);
        } else if has(FLAG_TIMESTAMPS) {
            let (value, echo) = (read(frame, at), read(frame, at + 4));
            if marks[own].timestamp_delta == 0 {
                let clock = (now / 1_000_000) as u32;
                let ours = clock.wrapping_add(translation.clock_offset.get()).wrapping_add(1);
                marks[own].timestamp_delta = ours.wrapping_sub(value).max(1);
            }
            write(&mut out, at, value.wrapping_add(marks[own].timestamp_delta));
            let back = marks[other].timestamp_delta;
            let known = tcp.ack() && back != 0 && echo != 0;
            write(&mut out, at + 4, if known { echo.wrapping_sub(back) } else { 0 });
        }
    }
    if let Some((at, length)) = last(&options, |kind, length| kind == 5 && length >= 8 && length % 8 == 0) {
        for at in (options_at + at..options_at + at + length).step_by(4) {
            write(&mut out, at, read(frame, at).wrapping_sub(ack_delta));
        }
    }

    for (at, word) in hop.ethernet.iter().enumerate() {
        out[4 * at..4 * at + 4].copy_from_slice(&word.get().to_ne_bytes());
    }
    out[ip.ttl()] = 64;
    let words =
        translation.source[..ip.address() / 4].iter().chain(&translation.destination[..ip.address() / 4]);
    let addresses: Vec<u8> = words.flat_map(|word| word.get().to_ne_bytes()).collect();
    out[ip.addresses()].copy_from_slice(&addresses);
    let tcp_at = ip.tcp();
    out[tcp_at..tcp_at + 4].copy_from_slice(&translation.ports.get().to_ne_bytes());
    write(&mut out, tcp_at + 4, seq.wrapping_add(seq_delta));
    if tcp.ack() {
        write(&mut out, tcp_at + 8, ack.wrapping_sub(ack_delta));
    }
    let rescaled = (window_bytes >> scale_of(16)).min(65_535) as u16;
    let window = if tcp.window_size() != 0 { rescaled.max(1) } else { 0 };
    out[tcp_at + 14..tcp_at + 16].copy_from_slice(&window.to_be_bytes());
    super::keep_checksum_error(frame, &mut out);

    marks[own].last_seen = now;
    marks[own].packets = marks[own].packets.wrapping_add(1);
    marks[own].bytes = marks[own].bytes.wrapping_add(parts.datagram_length as u64);
    acknowledge(&mut marks);
    let translated_end = end.wrapping_add(seq_delta);
    if tcp.rst() {
        if seq == marks[own].max_seq || seq.wrapping_add(seq_delta) == marks[other].max_ack {
            marks[own].rst_seen = 1;
        }
    } else if !tcp.syn() && not_behind(translated_end, marks[other].window_edge.wrapping_add(SLACK)) {
        if before(marks[own].max_seq, end) {
            marks[own].max_seq = end;
            let fin_end = marks[own].fin_end;
            let believed = not_behind(fin_end.wrapping_add(seq_delta), marks[other].max_ack);
            if marks[own].fin_seen != 0 && before(fin_end, end) && !believed {
                marks[own].fin_seen = 0;
            }
        }
        if tcp.fin() && not_behind(marks[other].max_ack, translated_end) {
            marks[own].fin_end = end;
            marks[own].fin_seen = 1;
        }
    }
    let interface = hop.interface.get();
    let verdict = if hop.resolved.get() != 0 {
        Verdict::Redirect { interface }
    } else {
        Verdict::Resolve { interface, next_hop: translation.next_hop.get() }
    };
    Expected { verdict, frame: out, marks: Some(marks) }
}
