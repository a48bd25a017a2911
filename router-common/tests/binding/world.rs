//! A router between one client and one instance: both, and the daemon, are played by the tests, on the host's build of delayed binding.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;

use router_common::abi::binding::{
    AGREED_SACK, AGREED_SCALING, AGREED_TIMESTAMPS, BindingSettings, BoundEndpoint, BoundListener,
    EMBRYO_TAKEN, Embryo, Stash,
};
use router_common::abi::flow::{FLAG_BINDING, FLAG_LIVE, Flow, Translation};
use router_common::abi::key::{FlowKey, FlowKeyV4, FlowRef, Side, words_of};
use router_common::abi::next_hop::NextHop;
use router_common::abi::reason::PacketReason::*;
use router_common::abi::shared::Shared32;
use router_common::path::answer_budget::AnswerBudget;
use router_common::path::binding::own::{Content, Own};
use router_common::path::binding::ports::{Bindings, Socket};
use router_common::path::fragment::{Datagram, DatagramKey};
use router_common::path::memory::{Frame, MemoryFlows, StoppedClock};
use router_common::path::parse::{Headers, parse};
use router_common::path::ports::{Clock, Flows, Fragments, Keys, Packet};
use router_common::path::{Verdict, binding, carry};
use router_common::wire::checksum::{self, Diff};
use router_common::wire::ipv4::Ipv4;
use router_common::wire::tcp::{ACK, SYN, Tcp};
use router_common::wire::{bytes_of, ethernet::Ethernet};

/// Of a host with several workers.
const RINGS: u32 = 5;
/// Meets all packets, unless a story says otherwise.
pub const PROCESSOR: u32 = 12;
/// That of this processor.
const RING: u32 = 2;

pub const NOW: u64 = 5_000_000_000;
pub const COOKIE: u32 = 0x1234_5600;
pub const CLIENT_SEQ: u32 = 0xffff_ffe0;
pub const OUR_SEQ: u32 = 70_000;
pub const INSTANCE_SEQ: u32 = 900_000;
pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
pub const TO_INSTANCE: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.77.1.2\r\n\r\n";

/// What the daemon was told.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    Arrived { bytes: Vec<u8>, embryo: Embryo },
    Event(u32, u32),
}

/// A router between one client and one instance.
pub struct World {
    pub flows: MemoryFlows,
    pub clock: StoppedClock,
    pub settings: BindingSettings,
    pub listener: Option<BoundListener>,
    pub embryos: RefCell<HashMap<FlowKey, Embryo>>,
    pub stashes: Vec<Stash>,
    pub told: RefCell<Vec<Told>>,
    pub ring_is_full: Cell<bool>,
    pub socket: Cell<Socket>,
    /// Meets the next packet.
    pub processor: Cell<u32>,
    /// What left while the packet itself went on.
    pub copies: RefCell<Vec<Frame>>,
}

impl World {
    pub fn new() -> Self {
        let settings = BindingSettings::default();
        settings.attended_until.set(NOW + 1);
        settings.generation.set(1);
        settings.rings.set(RINGS);
        let next_hop = NextHop::default();
        next_hop.interface.set(7);
        next_hop.resolved.set(1);
        next_hop.ethernet[0].set(0x0101_0101);
        let flows = MemoryFlows {
            flows: vec![Flow::default()],
            next_hops: vec![NextHop::default(), next_hop.clone(), next_hop],
            ..MemoryFlows::default()
        };
        Self {
            flows,
            clock: StoppedClock(NOW),
            settings,
            listener: Some(BoundListener { max_segment: 1460, window: 1460 }),
            embryos: RefCell::default(),
            stashes: (0..4).map(|_| Stash::default()).collect(),
            told: RefCell::default(),
            ring_is_full: Cell::new(false),
            socket: Cell::new(Socket::None),
            processor: Cell::new(PROCESSOR),
            copies: RefCell::default(),
        }
    }

    /// As the hook does it: the ingress of flows, then what begins connections.
    pub fn meet(&self, frame: &Frame) -> (Option<Verdict>, Frame) {
        let mut out = frame.clone();
        match carry(&mut out, &self.flows, &self.clock) {
            Verdict::Pass(_) => {
                assert_eq!(out, *frame, "what passes is not changed");
                let verdict = binding::carry::<Ipv4, _, _>(&mut out, self);
                if matches!(verdict, None | Some(Verdict::Pass(_) | Verdict::Drop(_) | Verdict::Take(_))) {
                    assert_eq!(out, *frame, "{verdict:?}");
                }
                (verdict, out)
            }
            verdict => (Some(verdict), out),
        }
    }

    pub fn embryo(&self) -> Option<Embryo> {
        self.embryos.borrow().get(&FlowKey::V4(client_key())).copied()
    }

    /// The client's handshake, up to the packet that completes it.
    pub fn shake_hands(&self, options: Options) -> Segment {
        let (verdict, answer) = self.meet(&client(SYN, CLIENT_SEQ, 0, options, b""));
        assert_eq!(verdict.map(Verdict::reason), Some(BindingSynAnswered));
        let answer = Segment::of(&answer);
        assert_eq!(
            (answer.flags, answer.seq, answer.ack),
            (SYN | ACK, COOKIE | 3, CLIENT_SEQ.wrapping_add(1))
        );
        assert!(self.embryo().is_none(), "nothing is remembered of a SYN");
        let echo = Options { echo: answer.timestamp.unwrap_or(0), ..options };
        let (verdict, _) =
            self.meet(&client(ACK, CLIENT_SEQ.wrapping_add(1), answer.seq.wrapping_add(1), echo, b""));
        assert_eq!(verdict, Some(Verdict::Take(BindingOpened)));
        answer
    }

    pub fn request(&self, answer: &Segment) -> Frame {
        client(ACK, CLIENT_SEQ.wrapping_add(1), answer.seq.wrapping_add(1), echoing(answer), REQUEST)
    }

    /// What the daemon does with a request.
    pub fn bind(&self, agreed: u8, scale: u8) {
        self.bind_segments(agreed, scale, REQUEST.len(), &[TO_INSTANCE]);
    }

    /// The same for one of so many bytes, of which the instance is to get these segments.
    pub fn bind_segments(&self, agreed: u8, scale: u8, request: usize, segments: &[&[u8]]) {
        let embryo = self.embryo().expect("the client has completed the handshake");
        let (flow, stash) = (&self.flows.flows[0], &self.stashes[0]);
        let mut seq = OUR_SEQ + 1;
        for (index, (stash, segment)) in self.stashes.iter().zip(segments).enumerate() {
            for (word, bytes) in stash.bytes.iter().zip(segment.chunks(8)) {
                let mut padded = [0; 8];
                padded[..bytes.len()].copy_from_slice(bytes);
                word.set(u64::from_ne_bytes(padded));
            }
            stash.length.set(segment.len() as u32);
            stash.sum.set(u32::from(!checksum::full(segment, 0)));
            stash.seq.set(seq);
            seq += segment.len() as u32;
            stash.next.set(if index + 1 < segments.len() { index as u32 + 2 } else { 0 });
        }
        stash.total.set(seq - OUR_SEQ - 1);
        stash.ring.set(RING);
        stash.timestamp.set(4_000);
        stash.client_ack.set(embryo.ack);
        stash.client_echo.set(embryo.echo);
        stash.window.set(500);
        stash.agreed.set(u32::from(agreed) | u32::from(scale) << 8);
        let end = embryo.seq.wrapping_add(request as u32);
        let our_end = seq;
        let [from_client, from_instance] = &flow.translations;
        direct(
            from_client,
            ([10, 77, 1, 2], [10, 77, 1, 10]),
            ([10, 77, 2, 1], [10, 77, 2, 11]),
            (20_000, 8080),
        );
        direct(
            from_instance,
            ([10, 77, 2, 11], [10, 77, 2, 1]),
            ([10, 77, 1, 10], [10, 77, 1, 2]),
            (80, 40_000),
        );
        from_client.seq_delta.set(our_end.wrapping_sub(end));
        from_client.ack_cut.set(embryo.ack.wrapping_sub(1));
        from_client.seq_cut.set(end);
        from_client.next_hop.set(2);
        from_instance.ack_cut.set(our_end - 1);
        from_instance.next_hop.set(1);
        flow.progress[0].max_seq.set(end);
        flow.progress[0].max_ack.set(embryo.ack);
        flow.progress[0].window_edge.set(embryo.ack.wrapping_add(500 << scale));
        flow.progress[0].timestamp_delta.set(4_000u32.wrapping_sub(CLIENT_CLOCK));
        flow.progress[0].stash.set(1);
        for translation in &flow.translations {
            translation.traits.set(FLAG_BINDING);
        }
        let mut keys = self.flows.keys.borrow_mut();
        keys.insert(FlowKey::V4(client_key()), FlowRef::new(0, Side::Client));
        keys.insert(FlowKey::V4(instance_key()), FlowRef::new(0, Side::Instance));
    }

    pub fn is_live(&self) -> bool {
        self.flows.flows[0].translations[0].traits.get() & FLAG_LIVE != 0
    }
}

pub const CLIENT_CLOCK: u32 = 100;
pub const INSTANCE_CLOCK: u32 = 77_000;

/// Options of a segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub timestamps: bool,
    pub sack: bool,
    pub scale: Option<u8>,
    pub clock: u32,
    pub echo: u32,
}

pub const USUAL: Options =
    Options { timestamps: true, sack: true, scale: Some(9), clock: CLIENT_CLOCK, echo: 0 };

pub fn echoing(answer: &Segment) -> Options {
    match answer.timestamp {
        Some(echo) => Options { timestamps: true, clock: CLIENT_CLOCK + 1, echo, ..Options::default() },
        None => Options::default(),
    }
}

impl Options {
    pub fn words(self, syn: bool) -> Vec<u32> {
        let mut bytes = Vec::new();
        if syn {
            bytes.extend([2, 4, 0x05, 0xb4]);
        }
        if syn && self.sack {
            bytes.extend([4, 2]);
        } else {
            bytes.extend([1, 1]);
        }
        if self.timestamps {
            bytes.extend([8, 10]);
            bytes.extend(self.clock.to_be_bytes());
            bytes.extend(self.echo.to_be_bytes());
        } else {
            bytes.extend([1, 1]);
        }
        if let (true, Some(scale)) = (syn, self.scale) {
            bytes.extend([1, 3, 3, scale]);
        }
        bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
    }
}

/// A segment as somebody who gets it reads it.
#[derive(Debug)]
pub struct Segment {
    pub source: u32,
    pub destination: u32,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub timestamp: Option<u32>,
    pub echo: Option<u32>,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Segment {
    /// # Panics
    /// If a checksum or length is wrong.
    pub fn of(frame: &Frame) -> Self {
        let (_, segment) = parse::<Ipv4, _>(frame).expect("it is TCP");
        let ip: &Ipv4 = frame.view(Ethernet::LEN).unwrap();
        let bytes = &frame.0[Ethernet::LEN + Ipv4::LEN..];
        assert_eq!(frame.0.len(), Ethernet::LEN + segment.length as usize);
        assert_eq!(checksum::full(&frame.0[Ethernet::LEN..][..Ipv4::LEN], 0), 0, "the header's checksum");
        let pseudo = u64::from(ip.source.raw())
            + u64::from(ip.destination.raw())
            + u64::from((bytes.len() as u32).to_be())
            + u64::from(6u32.to_be());
        assert_eq!(checksum::full(bytes, pseudo), 0, "the segment's checksum");
        let (options, payload) = bytes[Tcp::LEN..].split_at(segment.options_len);
        let at = options.windows(2).position(|kind| kind == [8, 10]);
        let word = |at: usize| u32::from_be_bytes(options[at..at + 4].try_into().unwrap());
        Self {
            source: ip.source.get(),
            destination: ip.destination.get(),
            flags: segment.flags,
            seq: segment.seq,
            ack: segment.ack,
            window: segment.window,
            timestamp: at.map(|at| word(at + 2)),
            echo: at.map(|at| word(at + 6)),
            options: options.to_vec(),
            payload: payload.to_vec(),
        }
    }
}

pub fn address(bytes: [u8; 4]) -> [u32; 4] {
    [u32::from_ne_bytes(bytes), 0, 0, 0]
}

pub fn ports(source: u16, destination: u16) -> u32 {
    let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

pub fn frame(
    ends: ([u8; 4], [u8; 4]),
    between: (u16, u16),
    flags: u8,
    seq: u32,
    ack: u32,
    options: Vec<u32>,
    payload: &[u8],
) -> Frame {
    let content = Content {
        ethernet: [0x0202_0202, 0x0303_0202, 0x0303_0303],
        source: address(ends.0),
        destination: address(ends.1),
        ports: ports(between.0, between.1),
        seq,
        ack,
        flags,
        window: 500,
        payload: payload.len(),
        payload_sum: u32::from(!checksum::full(payload, 0)),
    };
    macro_rules! with {
        ($($words:literal)*) => {
            match options.len() {
                $($words => bytes_of(&Own::<Ipv4, $words>::new(&content, options.try_into().unwrap())).to_vec(),)*
                words => panic!("{words} words of options"),
            }
        };
    }
    let mut bytes = with!(1 2 3 4 5);
    bytes.extend_from_slice(payload);
    Frame(bytes)
}

pub fn client(flags: u8, seq: u32, ack: u32, options: Options, payload: &[u8]) -> Frame {
    let words = options.words(flags & SYN != 0);
    frame(([10, 77, 1, 2], [10, 77, 1, 10]), (40_000, 80), flags, seq, ack, words, payload)
}

pub fn instance(flags: u8, seq: u32, ack: u32, options: Options, payload: &[u8]) -> Frame {
    let words = options.words(flags & SYN != 0);
    frame(([10, 77, 2, 11], [10, 77, 2, 1]), (8080, 20_000), flags, seq, ack, words, payload)
}

pub fn client_key() -> FlowKeyV4 {
    parse::<Ipv4, _>(&client(ACK, 0, 0, Options::default(), b"")).unwrap().0
}

pub fn instance_key() -> FlowKeyV4 {
    parse::<Ipv4, _>(&instance(ACK, 0, 0, Options::default(), b"")).unwrap().0
}

pub fn direct(
    translation: &Translation,
    old: ([u8; 4], [u8; 4]),
    new: ([u8; 4], [u8; 4]),
    between: (u16, u16),
) {
    let mut diff = Diff::default();
    for (place, old, new) in [(&translation.source, old.0, new.0), (&translation.destination, old.1, new.1)] {
        let (old, new) = (address(old)[0], address(new)[0]);
        diff.replace(old, new);
        place[0].set(new);
    }
    translation.address_diff.set(diff.fold());
    translation.ports.set(ports(between.0, between.1));
}

/// A SYN-ACK of an instance that agrees to everything.
pub fn answer_of_instance() -> Frame {
    let options = Options { clock: INSTANCE_CLOCK, echo: 4_000, scale: Some(7), ..USUAL };
    let mut answer = instance(SYN | ACK, INSTANCE_SEQ, OUR_SEQ + 1, options, b"");
    set_window(&mut answer, 60_000);
    answer
}

/// Nobody looks at the checksum.
pub fn set_window(segment: &mut Frame, window: u16) {
    let at = Headers::<Ipv4>::LEN - Tcp::LEN + 14;
    segment.0[at..at + 2].copy_from_slice(&window.to_be_bytes());
}

pub const ALL: u8 = AGREED_TIMESTAMPS | AGREED_SACK | AGREED_SCALING;

impl Bindings<Ipv4, Frame> for World {
    fn settings(&self) -> Option<&BindingSettings> {
        Some(&self.settings)
    }

    fn processor(&self) -> u32 {
        self.processor.get()
    }

    fn listener(&self, endpoint: &BoundEndpoint) -> Option<BoundListener> {
        let vip = words_of("10.77.1.10".parse().unwrap());
        let ours = BoundEndpoint { address: vip, port: 80u16.to_be(), is_ipv6: 0 };
        self.listener.filter(|_| *endpoint == ours)
    }

    fn embryo(&self, key: &FlowKeyV4) -> Option<Embryo> {
        self.embryos.borrow().get(&FlowKey::V4(*key)).copied()
    }

    fn remember_embryo(&self, key: &FlowKeyV4, embryo: &Embryo) {
        self.embryos.borrow_mut().insert(FlowKey::V4(*key), *embryo);
    }

    fn stash(&self, index: u32) -> Option<&Stash> {
        self.stashes.get(index as usize)
    }

    /// With the index of the greatest segment.
    fn cookie(&self, _: &Frame, _: usize) -> Option<u32> {
        Some(COOKIE | 3)
    }

    fn acknowledges_cookie(&self, packet: &Frame) -> bool {
        packet.view::<Headers<Ipv4>>(0).is_some_and(|headers| {
            headers.tcp.ack.get() == (COOKIE | 3) + 1 && headers.tcp.seq.get() == CLIENT_SEQ.wrapping_add(1)
        })
    }

    fn socket(&self, _: &Frame) -> Socket {
        self.socket.get()
    }

    fn smallest_cookie(&self, _: &Frame) -> Option<u32> {
        Some(COOKIE)
    }

    fn arrived(&self, packet: &Frame, ring: u32, bytes: Range<usize>, embryo: &Embryo) -> bool {
        assert_eq!(ring, RING);
        if self.ring_is_full.get() {
            return false;
        }
        let noted = self.embryos.borrow().get(&FlowKey::V4(client_key())).copied();
        assert_eq!(noted.map(|embryo| embryo.state), Some(EMBRYO_TAKEN), "the daemon may note what follows");
        let bytes = packet.0[bytes].to_vec();
        self.told.borrow_mut().push(Told::Arrived { bytes, embryo: *embryo });
        true
    }

    fn tell(&self, ring: u32, event: u32, slot: u32) -> bool {
        assert_eq!(ring, RING, "whoever has bound the flow is told");
        self.told.borrow_mut().push(Told::Event(event, slot));
        true
    }

    fn send_copy(&self, packet: &mut Frame, interface: u32) -> bool {
        assert_eq!(interface, 7);
        self.copies.borrow_mut().push(packet.clone());
        true
    }

    fn append(&self, packet: &mut Frame, offset: usize, stash: &Stash) -> bool {
        assert_eq!(packet.0.len(), offset);
        let bytes = stash.bytes.iter().flat_map(|word| word.get().to_ne_bytes());
        packet.0.extend(bytes.take(stash.length.get() as usize));
        true
    }
}

impl Keys<FlowKeyV4> for World {
    fn find(&self, key: &FlowKeyV4) -> Option<FlowRef> {
        self.flows.find(key)
    }

    fn forget(&self, key: &FlowKeyV4) {
        self.flows.forget(key);
    }
}

impl Keys<router_common::abi::key::FlowKeyV6> for World {
    fn find(&self, key: &router_common::abi::key::FlowKeyV6) -> Option<FlowRef> {
        self.flows.find(key)
    }

    fn forget(&self, key: &router_common::abi::key::FlowKeyV6) {
        self.flows.forget(key);
    }
}

impl Flows for World {
    fn flow(&self, slot: u32) -> Option<&Flow> {
        self.flows.flow(slot)
    }

    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        self.flows.next_hop(index)
    }

    fn answer_budget(&self) -> Option<&AnswerBudget> {
        self.flows.answer_budget()
    }
}

impl Fragments for World {
    fn remember(&self, key: &DatagramKey, datagram: &Datagram) {
        self.flows.remember(key, datagram);
    }

    fn recall(&self, key: &DatagramKey) -> Option<Datagram> {
        self.flows.recall(key)
    }

    fn forget_datagram(&self, key: &DatagramKey) {
        self.flows.forget_datagram(key);
    }
}

impl Clock for World {
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn coarse_now(&self) -> u64 {
        self.clock.coarse_now()
    }

    fn fix_once(&self, cell: &Shared32, value: u32) -> u32 {
        self.clock.fix_once(cell, value)
    }
}
