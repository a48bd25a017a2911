//! ICMP errors: drawn from bytes, and what is expected of each.

use std::net::{IpAddr, SocketAddr};

use arbitrary::{Arbitrary, Unstructured};
use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::{Icmpv4Type, Icmpv6Type, NetSlice, SlicedPacket, TransportSlice};
use router_common::abi::flow::{FLAG_DIRECT, FLAG_IPV6, FLAG_LIVE};
use router_common::abi::key::{FlowKey, Side};
use router_common::abi::reason::PacketReason;
use router_common::path::Verdict;
use router_common::path::memory::{Frame, MemoryFlows};
use router_common::wire::checksum;

use super::case::{Distance, FlowPlan};
use super::ip::Ip;
use super::model::{before, not_behind, read, read_header, write};
use super::{Outcome, keep_sum};

const ICMP: usize = 8;

/// One flow, and errors about its packets. Either version of IP may carry them.
#[derive(Arbitrary, Clone, Debug)]
pub struct ErrorCase {
    pub flow: FlowPlan,
    pub errors: Vec<ErrorPlan>,
}

impl ErrorCase {
    /// Any bytes are a case; where they end, everything is zero.
    pub fn draw(bytes: &[u8]) -> Self {
        Self::arbitrary_take_rest(Unstructured::new(bytes)).expect("plain data can always be drawn")
    }
}

/// An error that comes from the leg of one side, about a packet that was sent there.
#[derive(Arbitrary, Clone, Debug)]
pub struct ErrorPlan {
    pub from_instance: bool,
    kind: Kind,
    code: u8,
    rest: u32,
    reporter: [u8; 4],
    ttl: u8,
    seq: Distance,
    ack: u32,
    flags: u8,
    window: u16,
    /// Bytes of the inner TCP header and payload beyond the first 8.
    more: Vec<u8>,
    oddity: Oddity,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    Unreachable,
    TooBig,
    TimeExceeded,
    ParameterProblem,
    Any(u8),
}

/// What may be wrong with it.
#[derive(Arbitrary, Clone, Debug)]
enum Oddity {
    None,
    TruncatedTo(u16),
    Byte { at: u8, value: u8 },
    Inner { at: u8, value: u8 },
    Length(u16),
    Checksum(u16),
    Padded(u8),
    OtherPort(u16),
}

impl ErrorPlan {
    /// The frame; one without oddity is a valid error.
    pub fn frame(&self, ip: Ip, flow: &FlowPlan) -> Vec<u8> {
        let side = if self.from_instance { Side::Instance } else { Side::Client };
        let [client, vip, source, instance] = flow.ends(ip);
        let (ours, peer) = if self.from_instance { (source, instance) } else { (vip, client) };
        let (_, sent) = flow.landmarks(side);
        let mut tcp = [ours.port().to_be_bytes(), peer.port().to_be_bytes()].concat();
        tcp.extend(self.seq.from(sent).to_be_bytes());
        let mut more = self.ack.to_be_bytes().to_vec();
        more.extend([0x50, self.flags]);
        more.extend(self.window.to_be_bytes());
        more.extend(&self.more);
        tcp.extend(&more[..self.more.len().min(more.len())]);

        let mut original = header(ip, 6, 57, [ours.ip(), peer.ip()], 20 + 1_000);
        original.extend(tcp);
        let mut frame = about(ip, &original, self.reporter(ip), ours.ip(), self.icmp(ip));
        frame[ip.ttl()] = self.ttl;
        set_checksums(ip, &mut frame);
        self.make_odd(ip, &mut frame);
        frame
    }

    fn reporter(&self, ip: Ip) -> IpAddr {
        let [a, b, c, d] = self.reporter;
        match ip {
            Ip::V4 => self.reporter.into(),
            Ip::V6 => [0x20, a, b, c, d, a, 1, 2, 3, 4, 5, 6, 7, 8, 9, b].into(),
        }
    }

    fn icmp(&self, ip: Ip) -> [u8; ICMP] {
        let kinds = match ip {
            Ip::V4 => [3, 3, 11, 12],
            Ip::V6 => [1, 2, 3, 4],
        };
        let kind = match self.kind {
            Kind::Unreachable => kinds[0],
            Kind::TooBig => kinds[1],
            Kind::TimeExceeded => kinds[2],
            Kind::ParameterProblem => kinds[3],
            Kind::Any(kind) => kind,
        };
        let [a, b, c, d] = self.rest.to_be_bytes();
        [kind, self.code, 0, 0, a, b, c, d]
    }

    fn make_odd(&self, ip: Ip, frame: &mut Vec<u8>) {
        let inner = ip.tcp() + ICMP;
        match self.oddity {
            Oddity::None => {}
            Oddity::TruncatedTo(len) => frame.truncate(usize::from(len) % (frame.len() + 1)),
            Oddity::Byte { at, value } => {
                let at = usize::from(at) % frame.len();
                frame[at] = value;
            }
            Oddity::Inner { at, value } => {
                let at = inner + usize::from(at) % (frame.len() - inner);
                frame[at] = value;
            }
            Oddity::Length(length) => frame[ip.length_field()].copy_from_slice(&length.to_be_bytes()),
            Oddity::Checksum(sum) => frame[ip.tcp() + 2..ip.tcp() + 4].copy_from_slice(&sum.to_ne_bytes()),
            Oddity::Padded(len) => frame.resize(frame.len() + usize::from(len), 0x55),
            Oddity::OtherPort(port) => {
                let at = inner + ip.header();
                frame[at..at + 2].copy_from_slice(&port.to_ne_bytes());
            }
        }
    }
}

/// An IP header with a valid checksum.
fn header(ip: Ip, protocol: u8, ttl: u8, [source, destination]: [IpAddr; 2], behind: usize) -> Vec<u8> {
    let length = ip.length_to_write(ip.header() + behind);
    let mut header = match ip {
        Ip::V4 => [&[0x45, 0][..], &length, &[0x12, 0x34, 0x40, 0, ttl, protocol, 0, 0]].concat(),
        Ip::V6 => [&[0x60, 0, 0, 0][..], &length, &[protocol, ttl]].concat(),
    };
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => header.extend(address.octets()),
            IpAddr::V6(address) => header.extend(address.octets()),
        }
    }
    if ip == Ip::V4 {
        let sum = checksum::full(&header, 0).to_ne_bytes();
        header[10..12].copy_from_slice(&sum);
    }
    header
}

impl Ip {
    /// A router's error about a packet that begins like `original` and is longer than the MTU of its way.
    pub fn too_big(self, original: &[u8], from: IpAddr, to: IpAddr, mtu: u16) -> Vec<u8> {
        let [kind, code] = match self {
            Self::V4 => [3, 4],
            Self::V6 => [2, 0],
        };
        let [high, low] = mtu.to_be_bytes();
        about(self, original, from, to, [kind, code, 0, 0, 0, 0, high, low])
    }
}

/// An error about a packet that begins like `original`.
pub fn about(ip: Ip, original: &[u8], from: IpAddr, to: IpAddr, icmp: [u8; ICMP]) -> Vec<u8> {
    let protocol = if ip == Ip::V4 { 1 } else { 58 };
    let mut frame = [&super::OWN_MAC[..], &super::CLIENT_MAC, &ip.ethertype()].concat();
    frame.extend(header(ip, protocol, 60, [from, to], ICMP + original.len()));
    frame.extend(icmp);
    frame.extend(original);
    set_checksums(ip, &mut frame);
    frame
}

fn set_checksums(ip: Ip, frame: &mut [u8]) {
    if ip == Ip::V4 {
        frame[24..26].fill(0);
        let sum = ip.header_error(frame).to_ne_bytes();
        frame[24..26].copy_from_slice(&sum);
    }
    let at = ip.tcp() + 2;
    frame[at..at + 2].fill(0);
    let sum = icmp_sum(ip, frame).to_ne_bytes();
    frame[at..at + 2].copy_from_slice(&sum);
}

/// The complement of ICMP's sum: 0 where its checksum holds.
pub fn icmp_sum(ip: Ip, frame: &[u8]) -> u16 {
    let end = ip.length_of(frame).map_or(frame.len(), |length| 14 + length);
    let mut pseudo = Vec::new();
    if ip == Ip::V6 {
        pseudo.extend(&frame[ip.addresses()]);
        pseudo.extend([0, 0, 0, 58]);
        pseudo.extend(((end - ip.tcp()) as u32).to_be_bytes());
    }
    checksum::full(&frame[ip.tcp()..end], !checksum::full(&pseudo, 0) as u64)
}

/// What its receiver reads.
#[derive(Debug)]
pub struct Error {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// If it says that a packet was too big.
    pub mtu: Option<u32>,
    pub original: Vec<u8>,
    pub checksums_hold: bool,
}

impl Outcome {
    /// Reads the error with an independent parser.
    pub fn error(&self) -> Error {
        let sliced = SlicedPacket::from_ethernet(&self.after).expect("an error parses");
        let (source, destination) = match &sliced.net {
            Some(NetSlice::Ipv4(ip)) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            Some(NetSlice::Ipv6(ip)) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            _ => panic!("not IP"),
        };
        let (mtu, original) = match &sliced.transport {
            Some(TransportSlice::Icmpv4(icmp)) => {
                let mtu = match icmp.icmp_type() {
                    Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::FragmentationNeeded {
                        next_hop_mtu,
                    }) => Some(next_hop_mtu.into()),
                    _ => None,
                };
                (mtu, icmp.payload())
            }
            Some(TransportSlice::Icmpv6(icmp)) => {
                let mtu = match icmp.icmp_type() {
                    Icmpv6Type::PacketTooBig { mtu } => Some(mtu),
                    _ => None,
                };
                (mtu, icmp.payload())
            }
            _ => panic!("not ICMP"),
        };
        let ip = Ip::of(&self.after).expect("it is IP");
        let checksums_hold = (ip.header_error(&self.after), icmp_sum(ip, &self.after)) == (0, 0);
        Error { source, destination, mtu, original: original.to_vec(), checksums_hold }
    }
}

/// What is to become of a packet that is not TCP.
pub fn expect(table: &MemoryFlows, ip: Ip, frame: &[u8]) -> (Verdict, Vec<u8>) {
    match judged(table, ip, frame) {
        Ok((near, slot)) => translated(table, ip, frame, near, slot),
        Err(verdict) => (verdict, frame.to_vec()),
    }
}

/// The side from which an error comes that is to be translated, as an index, and the slot of its flow.
fn judged(table: &MemoryFlows, ip: Ip, frame: &[u8]) -> Result<(usize, usize), Verdict> {
    let pass = |reason| Err(Verdict::Pass(reason));
    let (protocol, kinds) = match ip {
        Ip::V4 => (1, [3, 11, 12, 12]),
        Ip::V6 => (58, [1, 2, 3, 4]),
    };
    if frame[ip.protocol()] != protocol {
        return pass(PacketReason::NotTcp);
    }
    if ip == Ip::V4 && u16::from_be_bytes([frame[20], frame[21]]) & 0x3fff != 0 {
        return pass(PacketReason::Fragment);
    }
    let (icmp, inner) = (ip.tcp(), ip.tcp() + ICMP);
    if frame.len() < inner {
        return pass(PacketReason::Truncated);
    }
    if !kinds.contains(&frame[icmp]) {
        return pass(PacketReason::NotTcp);
    }
    let tcp = inner + ip.header();
    let end = 14 + length(ip, frame);
    if frame.len() < tcp + 8 || end > frame.len() || end < tcp + 8 {
        return pass(PacketReason::Truncated);
    }
    let (source, destination) = match read_header(ip, &frame[inner..tcp]) {
        Ok(ends) => ends,
        Err(reason) => return pass(reason),
    };
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    // A packet in the other direction would have it the other way round.
    let key = FlowKey::tcp(SocketAddr::new(destination, port(tcp + 2)), SocketAddr::new(source, port(tcp)));
    let Some(found) = table.keys.borrow().get(&key.expect("one family")).copied() else {
        return pass(PacketReason::NoFlow);
    };
    let flow = &table.flows[found.slot() as usize];
    let (near, far) = if found.side() == Side::Client { (0, 1) } else { (1, 0) };
    let flags = flow.translations[near].traits.get();
    if flags & FLAG_LIVE == 0 || (flags & FLAG_IPV6 != 0) != (ip == Ip::V6) {
        return pass(PacketReason::StaleSlot);
    }
    let seq = read(frame, tcp + 4);
    if flags & FLAG_DIRECT == 0 && before(seq, flow.translations[near].ack_cut.get()) {
        return pass(PacketReason::CustodyError);
    }
    let sent = flow.progress[far].max_seq.get().wrapping_add(flow.translations[far].seq_delta.get());
    if before(seq, flow.progress[near].max_ack.get()) || before(sent, seq) {
        return Err(Verdict::Drop(PacketReason::ErrorOutOfWindow));
    }
    assert!(not_behind(flow.progress[near].max_ack.get(), seq));
    Ok((near, found.slot() as usize))
}

/// Bytes from the IP header on.
fn length(ip: Ip, frame: &[u8]) -> usize {
    let longest = 65_535 + if ip == Ip::V6 { 40 } else { 0 };
    match ip.length_of(frame) {
        None if frame.len() - 14 > longest => frame.len() - 14,
        None if ip == Ip::V6 => 40,
        length => length.unwrap_or(0),
    }
}

fn translated(table: &MemoryFlows, ip: Ip, frame: &[u8], near: usize, slot: usize) -> (Verdict, Vec<u8>) {
    let flow = &table.flows[slot];
    let translation = &flow.translations[near];
    let hop = &table.next_hops[translation.next_hop.get() as usize];
    let mut out = frame.to_vec();
    for (at, word) in hop.ethernet.iter().enumerate() {
        out[4 * at..4 * at + 4].copy_from_slice(&word.get().to_ne_bytes());
    }
    let words = ip.address() / 4;
    let bytes = |words: &[router_common::abi::shared::Shared32]| -> Vec<u8> {
        words.iter().flat_map(|word| word.get().to_ne_bytes()).collect()
    };
    let (source, destination) =
        (bytes(&translation.source[..words]), bytes(&translation.destination[..words]));
    out[ip.ttl()] = 64;
    out[ip.addresses()].copy_from_slice(&[&source[..], &destination].concat());
    let inner = ip.tcp() + ICMP;
    let tcp = inner + ip.header();
    out[tcp - 2 * ip.address()..tcp].copy_from_slice(&[destination, source].concat());
    let [a, b, c, d] = translation.ports.get().to_ne_bytes();
    out[tcp..tcp + 4].copy_from_slice(&[c, d, a, b]);
    let seq_delta = flow.translations[1 - near].seq_delta.get();
    write(&mut out, tcp + 4, read(frame, tcp + 4).wrapping_sub(seq_delta));

    if ip == Ip::V4 {
        keep_sum(frame, &mut out, 24, &|frame| ip.header_error(frame));
        keep_sum(frame, &mut out, inner + 10, &|frame| checksum::full(&frame[inner..tcp], 0));
    }
    if length(ip, frame) >= tcp + 18 - 14 {
        let ack = read(frame, tcp + 8).wrapping_add(translation.seq_delta.get());
        write(&mut out, tcp + 8, ack);
        // What was cut off the packet does not change.
        keep_sum(frame, &mut out, tcp + 16, &|frame| {
            checksum::full(&frame[tcp - 2 * ip.address()..tcp + 18], 0)
        });
    }
    keep_sum(frame, &mut out, ip.tcp() + 2, &|frame| icmp_sum(ip, frame));
    let interface = hop.interface.get();
    let verdict = if hop.resolved.get() != 0 {
        Verdict::Report { interface, reason: PacketReason::ErrorForwarded }
    } else {
        Verdict::Resolve { interface, next_hop: translation.next_hop.get() }
    };
    (verdict, out)
}

/// What is to become of a packet longer than `mtu`.
pub fn expect_too_long(ip: Ip, frame: &[u8], mtu: u32) -> (Verdict, Vec<u8>) {
    let mut icmp = match ip {
        Ip::V4 => [3, 4, 0, 0, 0, 0, 0, 0],
        Ip::V6 => [2, 0, 0, 0, 0, 0, 0, 0],
    };
    icmp[4..].copy_from_slice(&mtu.to_be_bytes());
    let addresses = &frame[ip.addresses()];
    let address = |bytes: &[u8]| -> IpAddr {
        match ip {
            Ip::V4 => <[u8; 4]>::try_from(bytes).unwrap().into(),
            Ip::V6 => <[u8; 16]>::try_from(bytes).unwrap().into(),
        }
    };
    let (source, destination) = addresses.split_at(ip.address());
    let original = &frame[14..ip.tcp() + 20];
    let mut answer = about(ip, original, address(destination), address(source), icmp);
    answer[..12].copy_from_slice(&[&frame[6..12], &frame[..6]].concat());
    match ip {
        Ip::V4 => {
            answer[15] = 0xc0;
            answer[18..20].fill(0);
        }
        Ip::V6 => answer[14..16].copy_from_slice(&[0x6c, 0]),
    }
    answer[ip.ttl()] = 64;
    set_checksums(ip, &mut answer);
    (Verdict::Report { interface: Frame::INTERFACE, reason: PacketReason::TooLong }, answer)
}
