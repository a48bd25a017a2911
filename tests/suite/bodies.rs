//! Requests that do not come as one head and one body, one after the other.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use support::counters::counter;
use support::lab::{Family, Host};
use support::scene::pattern;
use support::{Entry, Peer, Scene, peer};

const ENTRIES: [Entry; 3] = [Entry::Handoff, Entry::Auto, Entry::Relay];

support::over_both_families! {
    pipelined_requests_are_answered_in_order_by_one_instance
    a_head_and_a_body_in_one_segment_arrive_whole
    a_head_in_pieces_and_a_slow_body_arrive_whole
    a_response_may_come_before_the_request_has_ended
    a_client_may_be_told_to_continue_before_it_sends_its_body
    no_sender_waits_for_a_time_out_because_of_a_handoff
}

/// Answers a `PUT` with its body when it has come whole, or at once with `early`, and takes the body afterwards.
fn serve(mut stream: TcpStream) -> io::Result<()> {
    loop {
        let head = String::from_utf8_lossy(&peer::read_head(&mut stream)?).into_owned();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        if head.contains(" /peer/early ") {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly")?;
            stream.read_exact(&mut body)?;
            continue;
        }
        stream.read_exact(&mut body)?;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
        stream.write_all(&body)?;
    }
}

fn scene(family: Family) -> (Scene, Peer) {
    let scene = Scene::over(family);
    let peer = scene.peer(serve);
    (scene, peer)
}

fn put(path: &str, length: usize) -> Vec<u8> {
    format!("PUT {path} HTTP/1.1\r\nHost: lab\r\nContent-Length: {length}\r\n\r\n").into_bytes()
}

fn pipelined_requests_are_answered_in_order_by_one_instance(family: Family) {
    let (scene, _peer) = scene(family);
    for entry in ENTRIES {
        let mut connection = scene.connect(entry);
        let all: String =
            (1..=20).map(|number| format!("GET /page-{number} HTTP/1.1\r\nHost: lab\r\n\r\n")).collect();
        connection.send(all).unwrap();
        for number in 1..=20 {
            let reply = connection.reply().unwrap().text();
            assert!(reply.contains(&format!("request: GET /page-{number} HTTP/1.1\n")), "{entry:?}: {reply}");
            assert!(reply.contains(&format!("request-on-connection: {number}\n")), "{entry:?}: {reply}");
        }
    }
    assert_eq!(scene.metric("router_pipelined_total"), 3);
    scene.assert_no_segment_was_spoiled();
}

fn a_head_and_a_body_in_one_segment_arrive_whole(family: Family) {
    let (scene, _peer) = scene(family);
    for entry in ENTRIES {
        // From a body that the first read takes whole to one that it does not.
        for length in [1, 1_000, 20_000, 60_000, 300_000] {
            let body = pattern(length);
            let mut connection = scene.connect(entry);
            connection.send([put("/peer/whole", length), body.clone()].concat()).unwrap();
            assert!(connection.reply().unwrap().body == body, "{entry:?}, {length} bytes");
            // And once more, on the way that the connection has taken meanwhile.
            connection.send([put("/peer/whole", length), body.clone()].concat()).unwrap();
            assert!(connection.reply().unwrap().body == body, "{entry:?}, {length} bytes again");
        }
    }
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

fn a_head_in_pieces_and_a_slow_body_arrive_whole(family: Family) {
    let (scene, _peer) = scene(family);
    std::thread::scope(|threads| {
        for entry in ENTRIES {
            let scene = &scene;
            threads.spawn(move || {
                let body = pattern(2_000);
                let mut connection = scene.connect(entry);
                let head = put("/peer/slow", body.len());
                for piece in head.chunks(7).chain(body.chunks(50)) {
                    connection.send(piece).unwrap();
                    sleep(Duration::from_millis(20));
                }
                assert!(connection.reply().unwrap().body == body, "{entry:?}");
            });
        }
    });
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

/// The response comes before the request has ended, and the connection goes on after both.
fn is_answered_early(scene: &Scene, entry: Entry) {
    let body = pattern(1_000_000);
    let mut connection = scene.connect(entry);
    connection.send(put("/peer/early", body.len())).unwrap();
    connection.send(&body[..100_000]).unwrap();
    assert_eq!(connection.reply().unwrap().body, b"early");
    // The rest follows only now, so the response has come before the end of the request.
    connection.send(&body[100_000..]).unwrap();
    // The instance has taken every byte of it, or it would misread what follows.
    connection.send([put("/peer/whole", 3), b"end".to_vec()].concat()).unwrap();
    assert_eq!(connection.reply().unwrap().body, b"end", "{entry:?}");
}

fn a_response_may_come_before_the_request_has_ended(family: Family) {
    let (scene, _peer) = scene(family);
    for entry in ENTRIES {
        is_answered_early(&scene, entry);
    }
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

fn a_client_may_be_told_to_continue_before_it_sends_its_body(family: Family) {
    let scene = Scene::over(family);
    let _peer = scene.peer(|mut stream| {
        peer::read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        let mut body = [0; 9];
        stream.read_exact(&mut body)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")?;
        stream.write_all(&body)
    });
    for entry in ENTRIES {
        let mut connection = scene.connect(entry);
        let head = "PUT /peer/ HTTP/1.1\r\nHost: lab\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n";
        connection.send(head).unwrap();
        assert_eq!(connection.receive(25).unwrap(), b"HTTP/1.1 100 Continue\r\n\r\n", "{entry:?}");
        connection.send("the whole").unwrap();
        assert_eq!(connection.reply().unwrap().body, b"the whole", "{entry:?}");
    }
    scene.assert_no_segment_was_spoiled();
}

/// What a client has sent before the handoff and what it may go on sending must fit the instance's window, and must not reach the instance before the
/// handshake is complete. Otherwise it is discarded, nobody is told, and the client waits for its retransmission time-out.
fn no_sender_waits_for_a_time_out_because_of_a_handoff(family: Family) {
    const ROUNDS: u64 = 10;
    let (scene, _peer) = scene(family);
    let timeouts = || [Host::Client, Host::Backend(1)].map(|host| counter(&scene.lab, host, "TCPTimeouts"));
    let before = timeouts();
    for entry in Entry::OFFLOADING {
        for _ in 0..ROUNDS {
            is_answered_early(&scene, entry);
        }
    }
    let happened: u64 = timeouts().iter().zip(before).map(|(after, before)| after - before).sum();
    // A machine that stands still for 200 ms causes one by itself.
    assert!(happened <= ROUNDS / 5, "{happened} retransmission time-outs");
    assert_eq!(scene.metric("router_handoffs_total"), 2 * ROUNDS);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}
