//! Delayed binding between a client, an instance and a daemon that are played here, on the host's build of the path.

mod heads;
mod world;

use router_common::abi::binding::{ARRIVAL_REFUSED, EMBRYO_DONE, EMBRYO_OPEN, EMBRYO_TAKEN};
use router_common::abi::reason::PacketReason::*;
use router_common::path::Verdict;
use router_common::path::binding::ports::Socket;
use router_common::path::memory::{Frame, StoppedClock};
use router_common::wire::tcp::{ACK, FIN, RST, SYN};
use world::*;

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
    assert_eq!(world.told.take(), [Told::Event(ARRIVAL_REFUSED, 0)]);
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
    assert_eq!(say(ACK, seq.wrapping_sub(5), ack, b"before").0, Some(Verdict::Drop(BindingOutOfOrder)));
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
    for socket in [Socket::Live, Socket::Ended] {
        world.socket.set(socket);
        assert_eq!(forged(ACK, REQUEST).0, None);
    }
    assert!(world.embryo().is_none());
}

#[test]
fn a_client_of_a_socket_does_not_become_one_without_while_that_lives() {
    let world = World::new();
    let syn = client(SYN, CLIENT_SEQ, 0, USUAL, b"");
    let (_, answer) = world.meet(&syn);
    let request = world.request(&Segment::of(&answer));
    world.socket.set(Socket::Live);
    assert_eq!(world.meet(&request).0, None, "sent again, when it is long forgotten that it was a cookie's");
    assert_eq!(world.meet(&syn).0, None, "the stack challenges it");
    assert!(world.embryo().is_none());
    world.socket.set(Socket::Ended);
    let (verdict, _) = world.meet(&syn);
    assert_eq!(verdict.map(Verdict::reason), Some(BindingSynAnswered));
    assert_eq!(world.meet(&request).0, Some(Verdict::Take(BindingTaken)));
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
