//! A bench for single packets: one flow in memory, a packet builder, and a reader of what comes out.

#![allow(dead_code, reason = "each test binary uses its part of the bench")]

pub mod case;
pub mod check;
pub mod error;
pub mod fragment;
pub mod ip;
pub mod model;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};

use router_common::abi::flow::{FLAG_DIRECT, FLAG_IPV6, FLAG_LIVE, FLAG_TIMESTAMPS, Flow, Translation};
use router_common::abi::key::{FlowKey, FlowRef, Side, words_of};
use router_common::abi::next_hop::{AF_INET, AF_INET6, NextHop};
use router_common::path::memory::{Frame, MemoryFlows, Merged, StoppedClock};
use router_common::path::{self, Verdict};
use router_common::wire::checksum::{self, Diff};
use router_common::wire::tcp::ACK;

use ip::{Ends, Ip};

pub const CLIENT_ISN_DELTA: u32 = 70_000;
pub const INSTANCE_ISN_DELTA: u32 = 0xffff_f000;
pub const CLIENT_SEQ_CUT: u32 = 4_900;
pub const INSTANCE_ACK_CUT: u32 = CLIENT_SEQ_CUT + CLIENT_ISN_DELTA;
pub const TO_CLIENT: usize = 1;
pub const TO_INSTANCE: usize = 2;
pub const TO_CLIENT_INTERFACE: u32 = 11;
pub const TO_INSTANCE_INTERFACE: u32 = 12;
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const INSTANCE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Of both ways out.
pub const MTU: u32 = 1_500;
/// The clock stands at 5 s.
pub const NOW: u64 = 5_000_000_000;

/// Sees a table and the frame that it is about to meet.
pub type Witness = Box<dyn Fn(&MemoryFlows, &[u8])>;

thread_local! {
    static WITNESS: RefCell<Option<Witness>> = const { RefCell::new(None) };
}

/// From now on shows every packet on this thread's benches to `witness`, before it is carried.
pub fn show_to(witness: Witness) {
    WITNESS.set(Some(witness));
}

#[derive(Debug)]
pub struct Bench {
    pub ip: Ip,
    pub flows: MemoryFlows,
}

#[derive(Debug)]
pub struct Outcome {
    pub verdict: Verdict,
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

impl Bench {
    /// A flow whose sockets are closed.
    pub fn direct(ip: Ip) -> Self {
        Self::with(ip, FLAG_LIVE | FLAG_DIRECT | FLAG_TIMESTAMPS)
    }

    /// A flow whose head is sent and not yet acknowledged.
    pub fn in_custody(ip: Ip) -> Self {
        Self::with(ip, FLAG_LIVE | FLAG_TIMESTAMPS)
    }

    pub fn with(ip: Ip, flags: u32) -> Self {
        let Ends { client, vip, source, instance } = ip.ends();
        let flow = Flow::default();
        fill(&flow.translations[0], CLIENT_ISN_DELTA, [client, vip, source, instance]);
        fill(&flow.translations[1], INSTANCE_ISN_DELTA, [instance, source, vip, client]);
        flow.translations[0].next_hop.set(TO_INSTANCE as u32);
        flow.translations[1].next_hop.set(TO_CLIENT as u32);
        flow.translations[0].seq_cut.set(CLIENT_SEQ_CUT);
        flow.translations[1].ack_cut.set(INSTANCE_ACK_CUT);
        flow.progress[1].max_ack.set(INSTANCE_ACK_CUT - 200);
        flow.progress[1].window_edge.set(INSTANCE_ACK_CUT + 65_535);
        flow.progress[0].max_seq.set(CLIENT_SEQ_CUT);
        let client_ack = 800u32.wrapping_add(INSTANCE_ISN_DELTA);
        flow.translations[0].ack_cut.set(client_ack);
        flow.progress[0].max_ack.set(client_ack);
        flow.progress[0].window_edge.set(client_ack.wrapping_add(65_535));
        flow.progress[1].max_seq.set(800);
        let flows = MemoryFlows::default();
        flows.keys.borrow_mut().insert(key(client, vip), FlowRef::new(0, Side::Client));
        flows.keys.borrow_mut().insert(key(instance, source), FlowRef::new(0, Side::Instance));
        let bench = Self { ip, flows: MemoryFlows { flows: vec![flow], next_hops: next_hops(ip), ..flows } };
        for side in [Side::Client, Side::Instance] {
            bench.set_traits(side, flags, 0, 0);
        }
        bench
    }

    /// Sets flags, but for that of the family, and window scales of a sender.
    pub fn set_traits(&self, side: Side, flags: u32, sender_scale: u8, our_scale: u8) {
        let family = if self.ip == Ip::V6 { FLAG_IPV6 } else { 0 };
        let traits = Translation::pack_traits(flags | family, sender_scale, our_scale);
        self.flow().translation(side).traits.set(traits);
    }

    /// A flow whose sockets are closed, and in slot 1 the flow that turns the client's packets back into what they were.
    pub fn mirrored(ip: Ip) -> Self {
        let Ends { client, vip, source, instance } = ip.ends();
        let mut bench = Self::direct(ip);
        let flow = bench.flow().clone();
        fill(&flow.translations[0], CLIENT_ISN_DELTA.wrapping_neg(), [source, instance, client, vip]);
        fill(&flow.translations[1], INSTANCE_ISN_DELTA.wrapping_neg(), [vip, client, instance, source]);
        bench.flows.keys.borrow_mut().insert(key(source, instance), FlowRef::new(1, Side::Client));
        for (side, delta) in [(Side::Client, 77u32), (Side::Instance, 99)] {
            bench.flow().progress(side).timestamp_delta.set(delta);
            flow.progress(side).timestamp_delta.set(delta.wrapping_neg());
        }
        bench.flows.flows.push(flow);
        bench
    }

    pub fn flow(&self) -> &Flow {
        &self.flows.flows[0]
    }

    /// A packet of the flow.
    pub fn by_client(&self) -> TcpPacket {
        TcpPacket::from_client(self.ip)
    }

    /// A packet of the flow.
    pub fn by_instance(&self) -> TcpPacket {
        TcpPacket::from_instance(self.ip)
    }

    pub fn carry(&self, packet: TcpPacket) -> Outcome {
        self.carry_frame(packet.build())
    }

    pub fn carry_frame(&self, before: Vec<u8>) -> Outcome {
        WITNESS.with_borrow(|witness| {
            if let Some(witness) = witness {
                witness(&self.flows, &before);
            }
        });
        let mut frame = Frame(before.clone());
        let verdict = path::carry(&mut frame, &self.flows, &StoppedClock(NOW));
        Outcome { verdict, before, after: frame.0 }
    }

    /// Carries a frame that was put together from packets, the longest of which had `part` bytes of payload.
    pub fn carry_merged(&self, before: Vec<u8>, part: u32) -> Outcome {
        let mut frame = Merged(Frame(before.clone()), part);
        let verdict = path::carry(&mut frame, &self.flows, &StoppedClock(NOW));
        Outcome { verdict, before, after: frame.0.0 }
    }
}

fn key(source: SocketAddr, destination: SocketAddr) -> FlowKey {
    FlowKey::tcp(source, destination).expect("one family")
}

/// Writes the new addresses, their difference from the old, and the ports.
pub fn fill_addresses(translation: &Translation, old: [SocketAddr; 2], new: [SocketAddr; 2]) {
    let mut diff = Diff::default();
    for ((old, new), place) in old.iter().zip(&new).zip([&translation.source, &translation.destination]) {
        let words = words_of(old.ip()).into_iter().zip(words_of(new.ip()));
        for ((old, new), word) in words.zip(place) {
            diff.replace(old, new);
            word.set(new);
        }
    }
    translation.address_diff.set(diff.fold());
    let [a, b] = new.map(|end| end.port().to_be_bytes());
    translation.ports.set(u32::from_ne_bytes([a[0], a[1], b[0], b[1]]));
}

fn fill(
    translation: &Translation,
    seq_delta: u32,
    [old_source, old_destination, source, destination]: [SocketAddr; 4],
) {
    fill_addresses(translation, [old_source, old_destination], [source, destination]);
    translation.seq_delta.set(seq_delta);
}

/// Both ways out, at the indexes `TO_CLIENT` and `TO_INSTANCE`.
pub fn next_hops(ip: Ip) -> Vec<NextHop> {
    let Ends { client, instance, .. } = ip.ends();
    vec![
        NextHop::default(),
        next_hop(TO_CLIENT_INTERFACE, client, CLIENT_MAC),
        next_hop(TO_INSTANCE_INTERFACE, instance, INSTANCE_MAC),
    ]
}

fn next_hop(interface: u32, address: SocketAddr, mac: [u8; 6]) -> NextHop {
    let hop = NextHop::default();
    hop.interface.set(interface);
    hop.resolved.set(1);
    hop.mtu.set(MTU);
    hop.family.set(if address.is_ipv4() { AF_INET } else { AF_INET6 });
    for (place, word) in hop.address.iter().zip(words_of(address.ip())) {
        place.set(word);
    }
    let both = [mac, OWN_MAC].concat();
    for (word, bytes) in hop.ethernet.iter().zip(both.chunks_exact(4)) {
        word.set(u32::from_ne_bytes(bytes.try_into().unwrap()));
    }
    hop
}

/// A packet to be built. Whatever is not said is ordinary.
#[derive(Clone, Debug)]
pub struct TcpPacket {
    ip: Ip,
    source: SocketAddr,
    destination: SocketAddr,
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
}

impl TcpPacket {
    fn new(ip: Ip, source: SocketAddr, destination: SocketAddr) -> Self {
        Self {
            ip,
            source,
            destination,
            seq: 5_000,
            ack: 900,
            flags: ACK,
            window: 500,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    pub fn from_client(ip: Ip) -> Self {
        Self::new(ip, ip.ends().client, ip.ends().vip)
    }

    pub fn from_instance(ip: Ip) -> Self {
        Self::new(ip, ip.ends().instance, ip.ends().source)
    }

    /// The tuple of a packet in the other direction.
    pub fn reversed(self) -> Self {
        Self { source: self.destination, destination: self.source, ..self }
    }

    pub fn source_port(mut self, port: u16) -> Self {
        self.source.set_port(port);
        self
    }

    pub fn seq(mut self, seq: u32) -> Self {
        self.seq = seq;
        self
    }

    pub fn ack(mut self, ack: u32) -> Self {
        self.ack = ack;
        self
    }

    pub fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    pub fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }

    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    pub fn timestamps(mut self, value: u32, echo: u32) -> Self {
        self.options.extend([1, 1, 8, 10]);
        self.options.extend(value.to_be_bytes());
        self.options.extend(echo.to_be_bytes());
        self
    }

    pub fn sack(mut self, blocks: &[(u32, u32)]) -> Self {
        self.options.extend([1, 1, 5, 2 + 8 * blocks.len() as u8]);
        for (left, right) in blocks {
            self.options.extend(left.to_be_bytes());
            self.options.extend(right.to_be_bytes());
        }
        self
    }

    /// Option bytes as they are; a multiple of four.
    pub fn raw_options(mut self, options: &[u8]) -> Self {
        self.options.extend(options);
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let mut frame = [OWN_MAC, CLIENT_MAC].concat();
        frame.extend(self.ip.ethertype());
        let length = self.ip.header() + 20 + self.options.len() + self.payload.len();
        let length = self.ip.length_to_write(length);
        match self.ip {
            Ip::V4 => {
                frame.extend([0x45, 0]);
                frame.extend(length);
                frame.extend([0x12, 0x34, 0x40, 0, 57, 6, 0, 0]);
            }
            Ip::V6 => {
                frame.extend([0x60, 0x0b, 0xee, 0xf1]);
                frame.extend(length);
                frame.extend([6, 57]);
            }
        }
        for end in [self.source, self.destination] {
            match end.ip() {
                IpAddr::V4(address) => frame.extend(address.octets()),
                IpAddr::V6(address) => frame.extend(address.octets()),
            }
        }
        frame.extend(self.source.port().to_be_bytes());
        frame.extend(self.destination.port().to_be_bytes());
        frame.extend(self.seq.to_be_bytes());
        frame.extend(self.ack.to_be_bytes());
        frame.extend([((5 + self.options.len() / 4) << 4) as u8, self.flags]);
        frame.extend(self.window.to_be_bytes());
        frame.extend([0, 0, 0, 0]);
        frame.extend(&self.options);
        frame.extend(&self.payload);
        set_checksums(&mut frame);
        frame
    }
}

/// Computes the checksums of an unpadded TCP packet over all of it.
pub fn set_checksums(frame: &mut [u8]) {
    let ip = Ip::of(frame).expect("an IP packet");
    if ip == Ip::V4 {
        frame[24..26].fill(0);
        let checksum = ip.header_error(frame).to_ne_bytes();
        frame[24..26].copy_from_slice(&checksum);
    }
    let at = ip.tcp() + 16;
    frame[at..at + 2].fill(0);
    let checksum = tcp_sum(ip, frame).to_ne_bytes();
    frame[at..at + 2].copy_from_slice(&checksum);
}

/// Sets the checksums of `after` such that they are as right, or as wrong by as much, as those of `before`.
pub fn keep_checksum_error(before: &[u8], after: &mut [u8]) {
    let ip = Ip::of(before).expect("an IP packet");
    if ip == Ip::V4 {
        keep_sum(before, after, 24, &|frame| ip.header_error(frame));
    }
    keep_sum(before, after, ip.tcp() + 16, &|frame| tcp_sum(ip, frame));
}

/// Sets the checksum at `at` such that the sum is in `after` what it is in `before`.
pub fn keep_sum(before: &[u8], after: &mut [u8], at: usize, sum: &dyn Fn(&[u8]) -> u16) {
    let error = sum(before);
    after[at..at + 2].fill(0);
    // The complement of a sum is its negative. Of the two zeros, a checksum is the one that a sender would write.
    let checksum = !checksum::full(&[sum(after).to_ne_bytes(), (!error).to_ne_bytes()].concat(), 0);
    let checksum = if checksum == 0xffff { 0 } else { checksum };
    after[at..at + 2].copy_from_slice(&checksum.to_ne_bytes());
}

/// What the checksums of a frame, the IP header's and TCP's, are wrong by: 0 where they hold.
pub fn checksum_errors(frame: &[u8]) -> [u16; 2] {
    let ip = Ip::of(frame).expect("an IP packet");
    [ip.header_error(frame), tcp_sum(ip, frame)]
}

fn tcp_sum(ip: Ip, frame: &[u8]) -> u16 {
    let end = ip.length_of(frame).map_or(frame.len(), |length| 14 + length);
    let length = (end - ip.tcp()) as u32;
    // Both pseudo-headers have the same sum: what one holds beyond the other is 0.
    let mut pseudo = frame[ip.addresses()].to_vec();
    pseudo.extend([0, 0, 0, frame[ip.protocol()]]);
    pseudo.extend(length.to_be_bytes());
    checksum::full(&frame[ip.tcp()..end], !checksum::full(&pseudo, 0) as u64)
}

/// What a receiver reads.
#[derive(Debug)]
pub struct Parsed {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub ttl: u8,
    pub options: Vec<u8>,
    pub timestamps: Option<(u32, u32)>,
    pub sack: Vec<(u32, u32)>,
    pub payload: Vec<u8>,
    pub ethernet_destination: [u8; 6],
    pub checksums_hold: bool,
}

impl Outcome {
    /// Reads the packet with an independent parser.
    pub fn parsed(&self) -> Parsed {
        use etherparse::{NetSlice, SlicedPacket, TcpOptionElement, TransportSlice};
        let sliced = SlicedPacket::from_ethernet(&self.after).expect("a translated packet parses");
        let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("not TCP") };
        let (source, destination, ttl): (IpAddr, IpAddr, u8) = match &sliced.net {
            Some(NetSlice::Ipv4(ip)) => {
                let header = ip.header();
                (header.source_addr().into(), header.destination_addr().into(), header.ttl())
            }
            Some(NetSlice::Ipv6(ip)) => {
                let header = ip.header();
                (header.source_addr().into(), header.destination_addr().into(), header.hop_limit())
            }
            _ => panic!("not IP"),
        };
        let mut timestamps = None;
        let mut sack = Vec::new();
        for option in tcp.options_iterator() {
            match option.expect("a well-formed option") {
                TcpOptionElement::Timestamp(value, echo) => timestamps = Some((value, echo)),
                TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
                    sack.push(first);
                    sack.extend(rest.iter().flatten());
                }
                _ => {}
            }
        }
        Parsed {
            source: SocketAddr::new(source, tcp.source_port()),
            destination: SocketAddr::new(destination, tcp.destination_port()),
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            window: tcp.window_size(),
            ttl,
            options: tcp.options().to_vec(),
            timestamps,
            sack,
            payload: tcp.payload().to_vec(),
            ethernet_destination: self.after[..6].try_into().unwrap(),
            checksums_hold: checksum_errors(&self.after) == [0, 0],
        }
    }
}
