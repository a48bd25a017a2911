//! What clients send first in several segments, and what instances get of that.

use router_common::abi::binding::{
    ARRIVAL_BOUND, ARRIVAL_UNFIT, BoundListener, EMBRYO_DONE, EMBRYO_TAKEN, MAX_TOLD,
};
use router_common::abi::reason::PacketReason::{self, *};
use router_common::path::Verdict;
use router_common::path::memory::{Frame, StoppedClock};
use router_common::wire::tcp::{ACK, RST, SYN};

use super::world::*;

const WINDOW: u16 = 6_000;
const PART: usize = 1_000;

/// A client that may send several segments, and has shaken hands.
struct Several {
    world: World,
    answer: Segment,
}

impl Several {
    fn new() -> Self {
        let listener = Some(BoundListener { max_segment: 1460, window: WINDOW });
        let world = World { listener, ..World::new() };
        let answer = world.shake_hands(USUAL);
        assert_eq!(answer.window, WINDOW);
        Self { world, answer }
    }

    /// A segment so far behind the first byte.
    fn segment(&self, offset: usize, payload: &[u8]) -> Frame {
        let seq = CLIENT_SEQ.wrapping_add(1 + offset as u32);
        client(ACK, seq, self.answer.seq.wrapping_add(1), echoing(&self.answer), payload)
    }

    fn say(&self, offset: usize, length: usize) -> Option<Verdict> {
        self.world.meet(&self.segment(offset, &vec![b'x'; length])).0
    }

    /// How much the daemon has from the first byte on.
    fn told(&self) -> u32 {
        let embryo = self.world.embryo().unwrap();
        embryo.told.wrapping_sub(embryo.seq)
    }

    /// Lets the daemon bind a request of three parts, which the instance is to get in three.
    fn bind(&self) -> Vec<u8> {
        let bytes: Vec<u8> = (0..3 * PART).map(|at| at as u8).collect();
        let parts: Vec<&[u8]> = bytes.chunks(PART).collect();
        self.world.bind_segments(ALL, 9, bytes.len(), &parts);
        bytes
    }

    /// What leaves towards the instance when the router meets this.
    fn sent(&self, frame: &Frame, reason: PacketReason) -> Vec<Segment> {
        let (verdict, last) = self.world.meet(frame);
        assert_eq!(verdict.map(Verdict::reason), Some(reason));
        let copies = self.world.copies.take();
        copies.iter().chain([&last]).map(Segment::of).collect()
    }
}

fn taken() -> Option<Verdict> {
    Some(Verdict::Take(BindingTaken))
}

fn held() -> Option<Verdict> {
    Some(Verdict::Drop(BindingHeld))
}

#[test]
fn each_segment_is_told_once_and_what_came_ahead_once_more() {
    let client = Several::new();
    assert_eq!(client.say(0, PART), taken());
    assert_eq!(client.say(0, PART), held(), "a repetition");
    // The third comes before the second.
    assert_eq!(client.say(2 * PART, PART), taken());
    assert_eq!(client.told(), PART as u32);
    assert_eq!(client.say(PART, PART), taken());
    assert_eq!(client.told(), 2 * PART as u32);
    assert_eq!(client.say(PART / 2, PART), held(), "of two known ones");
    assert_eq!(client.say(2 * PART, PART), taken());
    assert_eq!(client.told(), 3 * PART as u32);
    assert_eq!(client.say(2 * PART, PART), held());
    // An overlap brings the rest.
    assert_eq!(client.say(2 * PART + 500, PART), taken());
    assert_eq!(client.told(), 3 * PART as u32 + 500);
    assert_eq!(client.world.told.take().len(), 5);
    assert_eq!(client.world.embryo().unwrap().state, EMBRYO_TAKEN);
}

#[test]
fn the_worker_that_has_the_first_segment_gets_all_whatever_processor_meets_them() {
    let client = Several::new();
    for number in 0..4 {
        client.world.processor.set(PROCESSOR + number as u32);
        assert_eq!(client.say(number * PART, PART), taken(), "the ring is always the same");
    }
}

#[test]
fn nothing_is_told_that_lies_behind_the_window_or_before_the_first_byte() {
    let client = Several::new();
    let (window, long, early) =
        (usize::from(WINDOW), Some(Verdict::Drop(BindingTooLong)), PART.wrapping_neg());
    assert_eq!(client.say(window - PART, PART + 1), long);
    assert_eq!(client.say(window, PART), Some(Verdict::Drop(BindingOutOfOrder)));
    assert_eq!(client.say(early, PART / 2), Some(Verdict::Drop(BindingOutOfOrder)));
    // All that the window lets in may come in one packet, put together on its way up.
    assert_eq!(client.say(0, window), taken());
    assert_eq!(client.told(), u32::from(WINDOW));
}

#[test]
fn a_client_that_speaks_byte_by_byte_or_always_ahead_is_not_listened_to_for_ever() {
    for ahead in [0, 1] {
        let client = Several::new();
        for byte in 0..usize::from(MAX_TOLD) {
            assert_eq!(client.say(byte + ahead, 1), taken());
        }
        let next = usize::from(MAX_TOLD) + ahead;
        assert_eq!(client.say(next, 1), Some(Verdict::Drop(BindingTooMany)));
        assert_eq!(client.world.told.take().len(), usize::from(MAX_TOLD));
    }
}

#[test]
fn a_full_ring_forgets_no_segment() {
    let client = Several::new();
    assert_eq!(client.say(0, PART), taken());
    client.world.ring_is_full.set(true);
    assert_eq!(client.say(PART, PART), Some(Verdict::Drop(BindingRingFull)));
    client.world.ring_is_full.set(false);
    assert_eq!(client.say(PART, PART), taken());
}

#[test]
fn the_next_daemon_is_told_everything_anew() {
    let client = Several::new();
    client.say(0, PART);
    client.say(PART, PART);
    client.world.settings.generation.set(3);
    // What comes first need not be the first byte.
    assert_eq!(client.say(PART, PART), taken());
    assert_eq!(client.told(), 0);
    assert_eq!(client.say(0, PART), taken());
    assert_eq!(client.told(), PART as u32);
}

#[test]
fn a_client_that_gives_up_in_the_middle_of_its_head_is_nobodys() {
    let client = Several::new();
    client.say(0, PART);
    let reset = |offset| world_reset(&client, offset);
    assert_eq!(reset(0), Some(Verdict::Take(BindingClosed)), "a guess");
    assert_eq!(client.world.embryo().unwrap().state, EMBRYO_TAKEN);
    assert_eq!(reset(PART), Some(Verdict::Take(BindingClosed)));
    assert_eq!(client.world.embryo().unwrap().state, EMBRYO_DONE);
}

fn world_reset(of: &Several, offset: usize) -> Option<Verdict> {
    let seq = CLIENT_SEQ.wrapping_add(1 + offset as u32);
    of.world.meet(&client(RST | ACK, seq, of.answer.seq.wrapping_add(1), echoing(&of.answer), b"")).0
}

#[test]
fn the_instances_answer_becomes_all_segments_in_their_order() {
    let client = Several::new();
    client.say(0, 3 * PART);
    let bytes = client.bind();
    let sent = client.sent(&answer_of_instance(), Bound);
    assert_eq!(sent.len(), 3);
    for (number, segment) in sent.iter().enumerate() {
        assert_eq!(segment.seq, OUR_SEQ + 1 + (number * PART) as u32);
        assert_eq!(segment.payload, bytes[number * PART..][..PART]);
        assert_eq!((segment.timestamp, segment.ack), (Some(4_000), INSTANCE_SEQ + 1));
    }
    assert!(client.world.is_live());
}

#[test]
fn what_the_instance_has_acknowledged_is_not_sent_again() {
    let client = Several::new();
    client.say(0, 3 * PART);
    client.bind();
    client.world.meet(&answer_of_instance());
    client.world.copies.take();
    let acknowledge =
        |bytes: usize| instance(ACK, INSTANCE_SEQ + 1, OUR_SEQ + 1 + bytes as u32, Options::default(), b"");
    for (acknowledged, segments) in [(0, 3), (PART - 1, 3), (PART, 2), (2 * PART + 1, 1)] {
        assert_eq!(client.world.meet(&acknowledge(acknowledged)).0, Some(Verdict::Take(CustodyAck)));
        let sent = client.sent(&client.segment(0, &[b'x'; PART]), BindingResent);
        assert_eq!(sent.len(), segments, "{acknowledged} bytes are acknowledged");
        assert_eq!(sent.last().unwrap().seq, OUR_SEQ + 1 + 2 * PART as u32);
    }
    let (verdict, all) = client.world.meet(&acknowledge(3 * PART));
    assert_eq!(verdict.map(Verdict::reason), Some(Forwarded));
    assert_eq!(Segment::of(&all).ack, CLIENT_SEQ.wrapping_add(1 + 3 * PART as u32));
}

#[test]
fn an_instance_that_takes_less_than_was_laid_out_is_told_of() {
    let options = Options { clock: INSTANCE_CLOCK, echo: 4_000, scale: Some(7), ..USUAL };
    let mut small = instance(SYN | ACK, INSTANCE_SEQ, OUR_SEQ + 1, options, b"");
    let at = small.0.windows(4).position(|option| option == [2, 4, 0x05, 0xb4]).unwrap();
    // One byte less than a part and its timestamps.
    small.0[at + 2..at + 4].copy_from_slice(&(PART as u16 + 11).to_be_bytes());
    set_window(&mut small, 60_000);
    let mut narrow = answer_of_instance();
    set_window(&mut narrow, 3 * PART as u16 - 1);
    for answer in [small, narrow] {
        let client = Several::new();
        client.say(0, 3 * PART);
        client.bind();
        client.world.told.take();
        assert_eq!(client.world.meet(&answer).0, Some(Verdict::Take(BindingUnfit)));
        assert_eq!(client.world.told.take(), [Told::Event(ARRIVAL_UNFIT, 0)]);
        assert!(!client.world.is_live());
    }
}

#[test]
fn what_a_client_sends_before_its_instance_answers_is_told_and_the_binding_too() {
    let client = Several::new();
    client.say(0, 3 * PART);
    client.bind();
    client.world.told.take();
    assert_eq!(client.say(2 * PART, PART), held(), "known");
    assert_eq!(client.say(3 * PART, PART), taken());
    assert_eq!(client.say(3 * PART, PART), held(), "known as well");
    assert!(matches!(&client.world.told.take()[..], [Told::Arrived { .. }]));
    client.sent(&answer_of_instance(), Bound);
    assert_eq!(client.world.told.take(), [Told::Event(ARRIVAL_BOUND, 0)]);
    // From now on it goes to the instance by itself.
    assert_eq!(client.say(3 * PART, PART).map(Verdict::reason), Some(Forwarded));
}

#[test]
fn a_segment_that_overtakes_the_first_packet_is_neither_told_nor_reset() {
    let world = World::new();
    let (_, answer) = world.meet(&client(SYN, CLIENT_SEQ, 0, USUAL, b""));
    let client = Several { answer: Segment::of(&answer), world };
    assert_eq!(client.say(PART, PART), Some(Verdict::Drop(BindingOutOfOrder)));
    assert!(client.world.embryo().is_none());
    // A client that speaks so late has no connection.
    let clock = StoppedClock(NOW + 2_000_000_000);
    let later = Several { world: World { clock, ..World::new() }, ..client };
    later.world.settings.attended_until.set(u64::MAX);
    assert_eq!(later.say(PART, PART).map(Verdict::reason), Some(BindingBadCookie));
}
