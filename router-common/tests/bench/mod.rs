//! A bench for single packets: one flow in memory, a packet builder, and a reader of what comes out.

#![allow(dead_code, reason = "each test binary uses its part of the bench")]

pub mod case;
pub mod check;
pub mod model;

use std::cell::RefCell;

use router_common::abi::flow::{FLAG_DIRECT, FLAG_LIVE, FLAG_TIMESTAMPS, Flow, Translation};
use router_common::abi::key::{FlowKey, FlowRef, Side};
use router_common::abi::next_hop::NextHop;
use router_common::path::memory::{Frame, MemoryFlows, StoppedClock};
use router_common::path::{self, Verdict};
use router_common::wire::checksum::{self, Diff};
use router_common::wire::tcp::ACK;

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
pub const HEADERS: usize = 54;
/// The clock stands at 5 s.
pub const NOW: u64 = 5_000_000_000;

const CLIENT: &str = "10.77.1.2:40000";
const VIP: &str = "10.77.1.10:80";
const SOURCE: &str = "10.77.2.1:20000";
const INSTANCE: &str = "10.77.2.11:80";

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
    pub fn direct() -> Self {
        Self::with(FLAG_LIVE | FLAG_DIRECT | FLAG_TIMESTAMPS)
    }

    /// A flow whose head is sent and not yet acknowledged.
    pub fn in_custody() -> Self {
        Self::with(FLAG_LIVE | FLAG_TIMESTAMPS)
    }

    pub fn with(flags: u32) -> Self {
        let flow = Flow::default();
        fill(&flow.translations[0], CLIENT_ISN_DELTA, [CLIENT, VIP, SOURCE, INSTANCE]);
        fill(&flow.translations[1], INSTANCE_ISN_DELTA, [INSTANCE, SOURCE, VIP, CLIENT]);
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
        for translation in &flow.translations {
            translation.traits.set(Translation::pack_traits(flags, 0, 0));
        }
        let flows = MemoryFlows::default();
        flows.keys.borrow_mut().insert(key(CLIENT, VIP), FlowRef::new(0, Side::Client));
        flows.keys.borrow_mut().insert(key(INSTANCE, SOURCE), FlowRef::new(0, Side::Instance));
        Self { flows: MemoryFlows { flows: vec![flow], next_hops: next_hops(), ..flows } }
    }

    /// A flow whose sockets are closed, and in slot 1 the flow that turns the client's packets back into what they were.
    pub fn mirrored() -> Self {
        let mut bench = Self::direct();
        let flow = bench.flow().clone();
        fill(&flow.translations[0], CLIENT_ISN_DELTA.wrapping_neg(), [SOURCE, INSTANCE, CLIENT, VIP]);
        fill(&flow.translations[1], INSTANCE_ISN_DELTA.wrapping_neg(), [VIP, CLIENT, INSTANCE, SOURCE]);
        bench.flows.keys.borrow_mut().insert(key(SOURCE, INSTANCE), FlowRef::new(1, Side::Client));
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
}

fn key(source: &str, destination: &str) -> FlowKey {
    FlowKey::tcp(source.parse().unwrap(), destination.parse().unwrap())
}

fn fill(
    translation: &Translation,
    seq_delta: u32,
    [old_source, old_destination, source, destination]: [&str; 4],
) {
    let (old, new) = (key(old_source, old_destination), key(source, destination));
    translation.source[0].set(new.source);
    translation.destination[0].set(new.destination);
    let [a, b] = [new.source_port, new.destination_port].map(u16::to_ne_bytes);
    translation.ports.set(u32::from_ne_bytes([a[0], a[1], b[0], b[1]]));
    translation.seq_delta.set(seq_delta);
    let mut diff = Diff::default();
    diff.replace(old.source, new.source);
    diff.replace(old.destination, new.destination);
    translation.address_diff.set(diff.fold());
}

/// Both ways out, at the indexes `TO_CLIENT` and `TO_INSTANCE`.
pub fn next_hops() -> Vec<NextHop> {
    vec![
        NextHop::default(),
        next_hop(TO_CLIENT_INTERFACE, [10, 77, 1, 2], CLIENT_MAC),
        next_hop(TO_INSTANCE_INTERFACE, [10, 77, 2, 11], INSTANCE_MAC),
    ]
}

fn next_hop(interface: u32, address: [u8; 4], mac: [u8; 6]) -> NextHop {
    let hop = NextHop::default();
    hop.interface.set(interface);
    hop.resolved.set(1);
    hop.address.set(u32::from_ne_bytes(address));
    let both = [mac, OWN_MAC].concat();
    for (word, bytes) in hop.ethernet.iter().zip(both.chunks_exact(4)) {
        word.set(u32::from_ne_bytes(bytes.try_into().unwrap()));
    }
    hop
}

/// A packet to be built. Whatever is not said is ordinary.
#[derive(Clone, Debug)]
pub struct TcpPacket {
    source: std::net::SocketAddrV4,
    destination: std::net::SocketAddrV4,
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
}

impl TcpPacket {
    fn new(source: &str, destination: &str) -> Self {
        Self {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            seq: 5_000,
            ack: 900,
            flags: ACK,
            window: 500,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    pub fn from_client() -> Self {
        Self::new(CLIENT, VIP)
    }

    pub fn from_instance() -> Self {
        Self::new(INSTANCE, SOURCE)
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
        frame.extend([8, 0]);
        let length = (40 + self.options.len() + self.payload.len()) as u16;
        frame.extend([0x45, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([0x12, 0x34, 0x40, 0, 57, 6, 0, 0]);
        frame.extend(self.source.ip().octets());
        frame.extend(self.destination.ip().octets());
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

/// Computes both checksums of an unpadded TCP packet over all of it.
pub fn set_checksums(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let checksum = ip_sum(frame).to_ne_bytes();
    frame[24..26].copy_from_slice(&checksum);
    frame[50..52].fill(0);
    let checksum = tcp_sum(frame).to_ne_bytes();
    frame[50..52].copy_from_slice(&checksum);
}

/// Sets both checksums of `after` such that they are as right, or as wrong by as much, as those of `before`.
pub fn keep_checksum_error(before: &[u8], after: &mut [u8]) {
    for (at, sum) in [(24, ip_sum as fn(&[u8]) -> u16), (50, tcp_sum)] {
        let error = sum(before);
        after[at..at + 2].fill(0);
        // The complement of a sum is its negative. Of the two zeros, a checksum is the one that a sender would write.
        let checksum = !checksum::full(&[sum(after).to_ne_bytes(), (!error).to_ne_bytes()].concat(), 0);
        let checksum = if checksum == 0xffff { 0 } else { checksum };
        after[at..at + 2].copy_from_slice(&checksum.to_ne_bytes());
    }
}

/// What both checksums of a frame are wrong by: 0 where they hold.
pub fn checksum_errors(frame: &[u8]) -> [u16; 2] {
    [ip_sum(frame), tcp_sum(frame)]
}

fn ip_sum(frame: &[u8]) -> u16 {
    checksum::full(&frame[14..34], 0)
}

fn tcp_sum(frame: &[u8]) -> u16 {
    let end = match u16::from_be_bytes([frame[16], frame[17]]) {
        // More than 64 KiB.
        0 => frame.len(),
        length => 14 + usize::from(length),
    };
    let length = (end - 34) as u16;
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend([0, frame[23]]);
    pseudo.extend(length.to_be_bytes());
    checksum::full(&frame[34..end], !checksum::full(&pseudo, 0) as u64)
}

/// What a receiver reads.
#[derive(Debug)]
pub struct Parsed {
    pub source: String,
    pub destination: String,
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
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (&sliced.net, &sliced.transport)
        else {
            panic!("not TCP over IPv4");
        };
        let header = ip.header();
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
            source: format!("{}:{}", header.source_addr(), tcp.source_port()),
            destination: format!("{}:{}", header.destination_addr(), tcp.destination_port()),
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            window: tcp.window_size(),
            ttl: header.ttl(),
            options: tcp.options().to_vec(),
            timestamps,
            sack,
            payload: tcp.payload().to_vec(),
            ethernet_destination: self.after[..6].try_into().unwrap(),
            checksums_hold: checksum_errors(&self.after) == [0, 0],
        }
    }
}
