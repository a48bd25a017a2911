//! Delayed binding between a client, an instance and a daemon that are played here, on the host's build of the path.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;

use router_common::abi::binding::{
    AGREED_SACK, AGREED_SCALING, AGREED_TIMESTAMPS, BindingSettings, BoundEndpoint, BoundListener,
    EMBRYO_DONE, EMBRYO_OPEN, EMBRYO_TAKEN, Embryo, Stash,
};
use router_common::abi::flow::{FLAG_BINDING, FLAG_LIVE, Flow, Translation};
use router_common::abi::key::{FlowKey, FlowKeyV4, FlowRef, Side, words_of};
use router_common::abi::next_hop::NextHop;
use router_common::abi::reason::PacketReason::*;
use router_common::abi::shared::Shared32;
use router_common::path::answer_budget::AnswerBudget;
use router_common::path::binding::own::{Content, Own};
use router_common::path::binding::ports::Bindings;
use router_common::path::binding::ring;
use router_common::path::fragment::{Datagram, DatagramKey};
use router_common::path::memory::{Frame, MemoryFlows, StoppedClock};
use router_common::path::parse::{Headers, parse};
use router_common::path::ports::{Clock, Flows, Fragments, Keys, Packet};
use router_common::path::{Verdict, binding, carry};
use router_common::wire::checksum::{self, Diff};
use router_common::wire::ipv4::Ipv4;
use router_common::wire::tcp::{ACK, FIN, RST, SYN, Tcp};
use router_common::wire::{bytes_of, ethernet::Ethernet};

const NOW: u64 = 5_000_000_000;
const COOKIE: u32 = 0x1234_5600;
const CLIENT_SEQ: u32 = 0xffff_ffe0;
const OUR_SEQ: u32 = 70_000;
const INSTANCE_SEQ: u32 = 900_000;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const TO_INSTANCE: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.77.1.2\r\n\r\n";

/// What the daemon was told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Arrived { bytes: Vec<u8>, embryo: Embryo },
    Refused(u32),
}

/// Of a host with several workers.
const RINGS: u32 = 5;

/// A router between one client and one instance.
struct World {
    flows: MemoryFlows,
    clock: StoppedClock,
    settings: BindingSettings,
    listener: Option<BoundListener>,
    embryos: RefCell<HashMap<FlowKey, Embryo>>,
    stashes: Vec<Stash>,
    told: RefCell<Vec<Told>>,
    ring_is_full: Cell<bool>,
    has_socket: Cell<bool>,
}

impl World {
    fn new() -> Self {
        let settings = BindingSettings::default();
        settings.rings.set(RINGS);
        settings.attended_until.set(NOW + 1);
        settings.generation.set(1);
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
            stashes: vec![Stash::default()],
            told: RefCell::default(),
            ring_is_full: Cell::new(false),
            has_socket: Cell::new(false),
        }
    }

    /// As the hook does it: the ingress of flows, then what begins connections.
    fn meet(&self, frame: &Frame) -> (Option<Verdict>, Frame) {
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

    fn embryo(&self) -> Option<Embryo> {
        self.embryos.borrow().get(&FlowKey::V4(client_key())).copied()
    }

    /// The client's handshake, up to the packet that completes it.
    fn shake_hands(&self, options: Options) -> Segment {
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

    fn request(&self, answer: &Segment) -> Frame {
        client(ACK, CLIENT_SEQ.wrapping_add(1), answer.seq.wrapping_add(1), echoing(answer), REQUEST)
    }

    /// What the daemon does with a first packet.
    fn bind(&self, agreed: u8, scale: u8) {
        let embryo = self.embryo().expect("the client has completed the handshake");
        let (flow, stash) = (&self.flows.flows[0], &self.stashes[0]);
        for (word, bytes) in stash.bytes.iter().zip(TO_INSTANCE.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.set(u64::from_ne_bytes(padded));
        }
        stash.length.set(TO_INSTANCE.len() as u32);
        stash.sum.set(u32::from(!checksum::full(TO_INSTANCE, 0)));
        stash.seq.set(OUR_SEQ + 1);
        stash.timestamp.set(4_000);
        stash.client_ack.set(embryo.ack);
        stash.client_echo.set(embryo.echo);
        stash.window.set(500);
        stash.agreed.set(u32::from(agreed) | u32::from(scale) << 8);
        let end = embryo.seq.wrapping_add(REQUEST.len() as u32);
        let our_end = OUR_SEQ + 1 + TO_INSTANCE.len() as u32;
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

    fn is_live(&self) -> bool {
        self.flows.flows[0].translations[0].traits.get() & FLAG_LIVE != 0
    }
}

const CLIENT_CLOCK: u32 = 100;
const INSTANCE_CLOCK: u32 = 77_000;

/// Options of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    timestamps: bool,
    sack: bool,
    scale: Option<u8>,
    clock: u32,
    echo: u32,
}

const USUAL: Options = Options { timestamps: true, sack: true, scale: Some(9), clock: CLIENT_CLOCK, echo: 0 };

fn echoing(answer: &Segment) -> Options {
    match answer.timestamp {
        Some(echo) => Options { timestamps: true, clock: CLIENT_CLOCK + 1, echo, ..Options::default() },
        None => Options::default(),
    }
}

impl Options {
    fn words(self, syn: bool) -> Vec<u32> {
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
struct Segment {
    source: u32,
    destination: u32,
    flags: u8,
    seq: u32,
    ack: u32,
    window: u16,
    timestamp: Option<u32>,
    echo: Option<u32>,
    options: Vec<u8>,
    payload: Vec<u8>,
}

impl Segment {
    /// # Panics
    /// If a checksum or length is wrong.
    fn of(frame: &Frame) -> Self {
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

fn address(bytes: [u8; 4]) -> [u32; 4] {
    [u32::from_ne_bytes(bytes), 0, 0, 0]
}

fn ports(source: u16, destination: u16) -> u32 {
    let ([a, b], [c, d]) = (source.to_be_bytes(), destination.to_be_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

fn frame(
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

fn client(flags: u8, seq: u32, ack: u32, options: Options, payload: &[u8]) -> Frame {
    let words = options.words(flags & SYN != 0);
    frame(([10, 77, 1, 2], [10, 77, 1, 10]), (40_000, 80), flags, seq, ack, words, payload)
}

fn instance(flags: u8, seq: u32, ack: u32, options: Options, payload: &[u8]) -> Frame {
    let words = options.words(flags & SYN != 0);
    frame(([10, 77, 2, 11], [10, 77, 2, 1]), (8080, 20_000), flags, seq, ack, words, payload)
}

/// The ring that tells of this client, of those that are read here.
fn client_ring() -> u32 {
    let key = client_key();
    ring::of::<Ipv4>([key.source, 0, 0, 0], key.source_port, RINGS)
}

fn client_key() -> FlowKeyV4 {
    parse::<Ipv4, _>(&client(ACK, 0, 0, Options::default(), b"")).unwrap().0
}

fn instance_key() -> FlowKeyV4 {
    parse::<Ipv4, _>(&instance(ACK, 0, 0, Options::default(), b"")).unwrap().0
}

fn direct(translation: &Translation, old: ([u8; 4], [u8; 4]), new: ([u8; 4], [u8; 4]), between: (u16, u16)) {
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
fn answer_of_instance() -> Frame {
    let options = Options { clock: INSTANCE_CLOCK, echo: 4_000, scale: Some(7), ..USUAL };
    instance(SYN | ACK, INSTANCE_SEQ, OUR_SEQ + 1, options, b"")
}

const ALL: u8 = AGREED_TIMESTAMPS | AGREED_SACK | AGREED_SCALING;

#[test]
fn a_connection_begins_without_a_socket_and_becomes_a_flow() {
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    assert!(answer.options.windows(4).any(|option| option == [1, 3, 3, 7]), "{:?}", answer.options);
    assert_eq!((answer.window, answer.echo), (1460, Some(CLIENT_CLOCK)));

    let (verdict, _) = world.meet(&world.request(&answer));
    assert_eq!(verdict, Some(Verdict::Take(BindingTaken)));
    let embryo = world.embryo().unwrap();
    assert_eq!((embryo.state, embryo.segment, embryo.scale, embryo.agreed), (EMBRYO_TAKEN, 1460, 9, ALL));
    let told = world.told.take();
    assert!(matches!(&told[..], [Told::Arrived { bytes, .. }] if bytes.ends_with(REQUEST)), "{told:?}");
    // The client repeats itself while the daemon thinks.
    assert_eq!(world.meet(&world.request(&answer)).0, Some(Verdict::Drop(BindingHeld)));

    world.bind(ALL, 9);
    assert_eq!(world.meet(&world.request(&answer)).0, Some(Verdict::Drop(BindingHeld)));
    let (verdict, first) = world.meet(&answer_of_instance());
    assert_eq!(verdict, Some(Verdict::Report { interface: 7, reason: Bound }));
    let first = Segment::of(&first);
    assert_eq!(first.payload, TO_INSTANCE);
    assert_eq!((first.seq, first.ack), (OUR_SEQ + 1, INSTANCE_SEQ + 1));
    assert_eq!((first.timestamp, first.echo), (Some(4_000), Some(INSTANCE_CLOCK)));
    assert_eq!((first.source, first.destination), (0x0a4d_0201, 0x0a4d_020b));
    assert_eq!(first.window, 500, "the instance scales the window as the client does");
    assert!(world.is_live());
    assert_eq!(world.embryo().unwrap().state, EMBRYO_DONE);

    // The response goes to the client by itself, and acknowledges the head that the client sent.
    let end = OUR_SEQ + 1 + TO_INSTANCE.len() as u32;
    let options = Options { timestamps: true, clock: INSTANCE_CLOCK + 5, echo: 4_000, ..Options::default() };
    let (verdict, response) =
        world.meet(&instance(ACK, INSTANCE_SEQ + 1, end, options, b"HTTP/1.1 200 OK\r\n\r\n"));
    assert_eq!(verdict.map(Verdict::reason), Some(Forwarded));
    let response = Segment::of(&response);
    assert_eq!(response.seq, answer.seq.wrapping_add(1));
    assert_eq!(response.ack, CLIENT_SEQ.wrapping_add(1 + REQUEST.len() as u32));
    assert_eq!(response.timestamp, answer.timestamp.map(|stamp| stamp + 5), "our clock goes on");
    assert_eq!(response.echo, Some(CLIENT_CLOCK));
}

#[test]
fn what_the_instance_has_not_acknowledged_is_sent_again_whoever_repeats_himself() {
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    world.meet(&world.request(&answer));
    world.bind(ALL, 9);
    world.meet(&answer_of_instance());
    let more = [REQUEST, b"more"].concat();
    let longer = client(ACK, CLIENT_SEQ.wrapping_add(1), answer.seq.wrapping_add(1), echoing(&answer), &more);
    for frame in [world.request(&answer), answer_of_instance(), longer] {
        let (verdict, again) = world.meet(&frame);
        assert_eq!(verdict.map(Verdict::reason), Some(BindingResent));
        let again = Segment::of(&again);
        assert_eq!((again.payload, again.seq), (TO_INSTANCE.to_vec(), OUR_SEQ + 1));
    }
    // Part of it means nothing to the client.
    let part = instance(ACK, INSTANCE_SEQ + 1, OUR_SEQ + 10, Options::default(), b"");
    assert_eq!(world.meet(&part).0, Some(Verdict::Take(CustodyAck)));
    // All of it ends our custody: what the client repeats is translated, and the instance has it already.
    let all = OUR_SEQ + 1 + TO_INSTANCE.len() as u32;
    let (verdict, _) = world.meet(&instance(ACK, INSTANCE_SEQ + 1, all, Options::default(), b""));
    assert_eq!(verdict.map(Verdict::reason), Some(Forwarded));
    assert_eq!(world.meet(&world.request(&answer)).0.map(Verdict::reason), Some(Forwarded));
}

#[test]
fn options_that_one_side_lacks_do_not_reach_it() {
    // Without timestamps nothing can be remembered of the others.
    let world = World::new();
    let bare = Options { timestamps: false, ..USUAL };
    let answer = world.shake_hands(bare);
    assert_eq!(answer.timestamp, None);
    assert!(!answer.options.windows(2).any(|option| option == [4, 2] || option == [3, 3]), "{answer:?}");
    world.meet(&world.request(&answer));
    assert_eq!(world.embryo().unwrap().agreed, 0);
    world.bind(0, 0);
    let (_, first) = world.meet(&instance(SYN | ACK, INSTANCE_SEQ, OUR_SEQ + 1, Options::default(), b""));
    assert_eq!(Segment::of(&first).timestamp, None);

    // An instance without timestamps gets none.
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    world.meet(&world.request(&answer));
    world.bind(ALL, 9);
    let (verdict, first) =
        world.meet(&instance(SYN | ACK, INSTANCE_SEQ, OUR_SEQ + 1, Options::default(), b""));
    assert_eq!(verdict.map(Verdict::reason), Some(Bound));
    let first = Segment::of(&first);
    assert_eq!((first.timestamp, first.payload), (None, TO_INSTANCE.to_vec()));
    assert_eq!(first.window, u16::MAX, "without a scale the window is cut");
    let ack = client(
        ACK,
        CLIENT_SEQ.wrapping_add(1 + REQUEST.len() as u32),
        answer.seq.wrapping_add(1),
        echoing(&answer),
        b"",
    );
    let (verdict, ack) = world.meet(&ack);
    assert_eq!(verdict.map(Verdict::reason), Some(Forwarded));
    assert_eq!(Segment::of(&ack).timestamp, None);
}

#[test]
fn a_client_that_comes_twice_on_a_tuple_is_told_apart_by_the_cookie() {
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    world.meet(&world.request(&answer));
    world.bind(ALL, 9);
    world.meet(&answer_of_instance());
    // The flow is over and gone. What comes late is nobody's, and leads to no second request.
    world.flows.keys.borrow_mut().clear();
    assert_eq!(world.meet(&world.request(&answer)).0, None);
    assert_eq!(world.told.take().len(), 1);
}

#[test]
fn a_request_that_a_dead_daemon_had_is_told_to_the_next_one() {
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    world.meet(&world.request(&answer));
    world.settings.generation.set(3);
    assert_eq!(world.meet(&world.request(&answer)).0, Some(Verdict::Take(BindingTaken)));
    assert_eq!(world.told.take().len(), 2);
}

#[test]
fn without_a_daemon_the_stack_decides() {
    let world = World::new();
    world.settings.attended_until.set(NOW - 1);
    let syn = client(SYN, CLIENT_SEQ, 0, USUAL, b"");
    assert_eq!(world.meet(&syn).0, Some(Verdict::Pass(BindingUnattended)));
    // Who waits for an answer is not sent away at once: a daemon may come back.
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    world.meet(&world.request(&answer));
    for (since, expected) in
        [(1, Verdict::Drop(BindingHeld)), (6_000_000_000, Verdict::Pass(BindingUnattended))]
    {
        let now = World { clock: StoppedClock(NOW + since), embryos: world.embryos.clone(), ..World::new() };
        now.settings.attended_until.set(NOW);
        assert_eq!(now.meet(&world.request(&answer)).0, Some(expected));
        assert_eq!(now.meet(&syn).0, Some(Verdict::Pass(BindingUnattended)));
        now.bind(ALL, 9);
        assert_eq!(now.meet(&world.request(&answer)).0, Some(expected));
    }
    let nobody = World { listener: None, ..World::new() };
    assert_eq!(nobody.meet(&syn).0, None);
}

#[test]
fn a_full_ring_loses_nothing() {
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    world.ring_is_full.set(true);
    assert_eq!(world.meet(&world.request(&answer)).0, Some(Verdict::Drop(BindingRingFull)));
    assert_eq!(world.embryo().unwrap().state, EMBRYO_OPEN);
    world.ring_is_full.set(false);
    assert_eq!(world.meet(&world.request(&answer)).0, Some(Verdict::Take(BindingTaken)));
}

#[test]
fn an_instance_that_refuses_is_told_of_and_the_client_is_not() {
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    world.meet(&world.request(&answer));
    world.bind(ALL, 9);
    world.told.take();
    let refusal = |ack| instance(RST | ACK, 0, ack, Options::default(), b"");
    assert_eq!(world.meet(&refusal(OUR_SEQ + 2)).0, None, "not an answer to our SYN");
    assert_eq!(world.meet(&refusal(OUR_SEQ + 1)).0, Some(Verdict::Take(BindingRefused)));
    assert_eq!(world.told.take(), [Told::Refused(0)]);
    assert!(!world.is_live());
}

#[test]
fn a_client_that_leaves_before_the_instance_answers_leaves_nothing() {
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    world.meet(&world.request(&answer));
    world.bind(ALL, 9);
    let end = CLIENT_SEQ.wrapping_add(1 + REQUEST.len() as u32);
    let reset = |seq| client(RST, seq, 0, Options::default(), b"");
    assert_eq!(world.meet(&reset(end.wrapping_add(9))).0, Some(Verdict::Drop(BindingHeld)), "a guess");
    assert_eq!(world.flows.flows[0].progress[0].rst_seen.get(), 0);
    assert_eq!(world.meet(&reset(end)).0, Some(Verdict::Take(BindingClosed)));
    // The instance's answer goes to the stack, which resets a connection that it does not know.
    assert_eq!(world.meet(&answer_of_instance()).0, None);
    assert!(!world.is_live());
}

#[test]
fn clients_that_say_nothing_are_answered_without_a_socket() {
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    let (seq, ack) = (CLIENT_SEQ.wrapping_add(1), answer.seq.wrapping_add(1));
    let say = |flags, seq, ack, bytes: &[u8]| world.meet(&client(flags, seq, ack, echoing(&answer), bytes));
    let (verdict, alive) = say(ACK, seq.wrapping_sub(1), ack, b"");
    assert_eq!(verdict.map(Verdict::reason), Some(BindingKeptAlive));
    let alive = Segment::of(&alive);
    assert_eq!((alive.flags, alive.seq, alive.ack), (ACK, ack, seq));
    assert_eq!(say(ACK, seq.wrapping_add(5), ack, b"later").0, Some(Verdict::Drop(BindingOutOfOrder)));
    let (verdict, closed) = say(FIN | ACK, seq, ack, b"");
    assert_eq!(verdict.map(Verdict::reason), Some(BindingClosed));
    let closed = Segment::of(&closed);
    assert_eq!((closed.flags, closed.seq, closed.ack), (FIN | ACK, ack, seq.wrapping_add(1)));
    assert_eq!(say(ACK, seq.wrapping_add(1), ack.wrapping_add(1), b"").0, Some(Verdict::Take(BindingClosed)));
    assert!(world.told.take().is_empty());
}

#[test]
fn whoever_acknowledges_no_cookie_is_reset_unless_a_socket_knows_it() {
    let world = World::new();
    let forged = |flags, bytes| world.meet(&client(flags, 5, 6, Options::default(), bytes));
    for bytes in [b"".as_slice(), REQUEST] {
        let (verdict, reset) = forged(ACK, bytes);
        assert_eq!(verdict.map(Verdict::reason), Some(BindingBadCookie));
        let reset = Segment::of(&reset);
        assert_eq!((reset.flags, reset.seq), (RST, 6), "the number that it expects");
    }
    assert_eq!(forged(RST | ACK, b"").0, None, "a reset is not answered");
    assert_eq!(forged(FIN, b"").0, None);
    world.has_socket.set(true);
    assert_eq!(forged(ACK, REQUEST).0, None);
    // Nor does one that has a socket become a client without, when it is long forgotten that it was one.
    let (_, answer) = world.meet(&client(SYN, CLIENT_SEQ, 0, USUAL, b""));
    assert_eq!(world.meet(&world.request(&Segment::of(&answer))).0, None);
    assert!(world.embryo().is_none());
}

#[test]
fn a_syn_with_data_is_the_stacks() {
    let world = World::new();
    let fast_open = client(SYN, CLIENT_SEQ, 0, USUAL, b"early");
    assert_eq!(world.meet(&fast_open).0, Some(Verdict::Pass(BindingSynWithData)));
}

#[test]
fn the_first_packet_may_complete_the_handshake() {
    let world = World::new();
    let (_, answer) = world.meet(&client(SYN, CLIENT_SEQ, 0, USUAL, b""));
    let answer = Segment::of(&answer);
    assert_eq!(world.meet(&world.request(&answer)).0, Some(Verdict::Take(BindingTaken)));
}

#[test]
fn frames_are_cut_off_anywhere_without_harm() {
    let world = World::new();
    let answer = world.shake_hands(USUAL);
    world.meet(&world.request(&answer));
    world.bind(ALL, 9);
    for frame in [client(SYN, CLIENT_SEQ, 0, USUAL, b""), world.request(&answer), answer_of_instance()] {
        for length in 0..frame.0.len() {
            let (verdict, _) = world.meet(&Frame(frame.0[..length].to_vec()));
            assert!(matches!(verdict, None | Some(Verdict::Drop(_))), "{length}: {verdict:?}");
        }
    }
}

impl Bindings<Ipv4, Frame> for World {
    fn settings(&self) -> Option<&BindingSettings> {
        Some(&self.settings)
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

    fn has_socket(&self, _: &Frame) -> bool {
        self.has_socket.get()
    }

    fn smallest_cookie(&self, _: &Frame) -> Option<u32> {
        Some(COOKIE)
    }

    fn arrived(&self, packet: &Frame, ring: u32, bytes: Range<usize>, embryo: &Embryo) -> bool {
        assert_eq!(ring, client_ring());
        if self.ring_is_full.get() {
            return false;
        }
        let noted = self.embryos.borrow().get(&FlowKey::V4(client_key())).copied();
        assert_eq!(noted.map(|embryo| embryo.state), Some(EMBRYO_TAKEN), "the daemon may note what follows");
        let bytes = packet.0[bytes].to_vec();
        self.told.borrow_mut().push(Told::Arrived { bytes, embryo: *embryo });
        true
    }

    fn refused(&self, ring: u32, slot: u32) -> bool {
        assert_eq!(ring, client_ring(), "whoever has bound the flow is told");
        self.told.borrow_mut().push(Told::Refused(slot));
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
