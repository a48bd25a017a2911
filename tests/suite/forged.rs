//! Segments at a bad moment or with wrong numbers, some of them forged: a flow is neither lost nor leaked.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, sleep};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use support::forger::{ACK, FIN, Forger, Numbers, RST, SYN, Segment, numbers};
use support::lab::{Family, Host};
use support::scene::pattern;
use support::{Connection, Entry, Scene, peer};

const NOTHING: &[u8] = b"";
/// Far outside every window.
const FAR: u32 = 1 << 29;
/// Inside of it, but not where the next byte goes.
const NEAR: u32 = 10_000;

support::over_both_families! {
    wrong_numbers_from_either_side_end_nothing
    a_reset_with_the_right_number_ends_the_connection_and_its_flow
    data_behind_a_fin_changes_nothing
    errors_about_what_was_never_sent_change_nothing
    a_segment_in_fragments_reaches_the_instance_if_its_first_comes_first
    connections_that_end_while_they_are_handed_off_leave_nothing
    a_client_with_a_closed_window_gets_everything_once_it_reads
}

/// A connection that is carried by its flow alone.
fn settled(scene: &Scene) -> Connection {
    let mut connection = scene.connect(Entry::Handoff);
    connection.get("/files/64k").unwrap();
    scene.router.eventually(Duration::from_secs(5), "nothing is in custody", |_| {
        scene.flow_of(&connection)["state"] == "direct"
    });
    connection
}

/// Forges in the client's name, and in the instance's.
fn forgers(scene: &Scene, connection: &Connection) -> (Forger, Forger) {
    let flow = scene.flow_of(connection);
    let address = |name: &str| -> SocketAddr { flow[name].as_str().unwrap().parse().unwrap() };
    let client = Forger::new(&scene.lab, Host::Client, address("client"), address("vip"));
    let instance = Forger::new(&scene.lab, Host::Backend(1), address("instance_address"), address("source"));
    (client, instance)
}

fn assert_goes_on(scene: &Scene, connection: &mut Connection, after: &str) {
    sleep(Duration::from_millis(30));
    let reply = connection.get("/files/64k").unwrap_or_else(|error| panic!("{after}: {error}"));
    assert_eq!(reply.body.len(), 64 << 10, "{after}");
    assert_eq!(scene.flow_of(connection)["state"], "direct", "{after}");
    assert_eq!((scene.flows(None).len(), scene.sessions()), (1, 1), "{after}");
}

/// What a blind sender may try, from numbers that he does not know.
fn wrong(numbers: Numbers) -> Vec<(&'static str, Segment<'static>)> {
    let Numbers { next, expected } = numbers;
    let segment = |flags, seq, ack, payload| Segment { flags, seq, ack, payload };
    vec![
        ("a reset far away", segment(RST, next.wrapping_add(FAR), 0, NOTHING)),
        ("a reset long ago", segment(RST, next.wrapping_sub(FAR), 0, NOTHING)),
        ("a reset in the window", segment(RST, next.wrapping_add(NEAR), 0, NOTHING)),
        ("a FIN far away", segment(FIN | ACK, next.wrapping_add(FAR), expected, NOTHING)),
        ("a FIN long ago", segment(FIN | ACK, next.wrapping_sub(FAR), expected, NOTHING)),
        (
            "an acknowledgement of what was never sent",
            segment(ACK, next, expected.wrapping_add(FAR), NOTHING),
        ),
        ("an acknowledgement of long ago", segment(ACK, next, expected.wrapping_sub(FAR), NOTHING)),
        ("data far away", segment(ACK, next.wrapping_add(FAR), expected, b"injected")),
        ("data of long ago", segment(ACK, next.wrapping_sub(NEAR), expected, b"injected")),
        ("a SYN", segment(SYN, next.wrapping_add(FAR), 0, NOTHING)),
        ("a SYN in the window", segment(SYN, next.wrapping_add(NEAR), 0, NOTHING)),
        ("a SYN-ACK", segment(SYN | ACK, next.wrapping_sub(1), expected, NOTHING)),
    ]
}

fn wrong_numbers_from_either_side_end_nothing(family: Family) {
    let scene = Scene::over(family);
    let mut connection = settled(&scene);
    let (client, instance) = forgers(&scene, &connection);
    for round in 0..wrong(numbers(connection.stream()).unwrap()).len() {
        let (what, segment) = wrong(numbers(connection.stream()).unwrap())[round];
        client.send(segment);
        assert_goes_on(&scene, &mut connection, &format!("{what} from the client"));
    }
    // The instance's numbers are unknown here; what it has sent and got tells the distance from zero.
    for number in 0..64_u32 {
        let seq = number << 26;
        for flags in [RST, RST | ACK, FIN | ACK, SYN, SYN | ACK, ACK] {
            instance.send(Segment { flags, seq, ack: seq ^ FAR, payload: NOTHING });
        }
    }
    assert_goes_on(&scene, &mut connection, "blind guesses from the instance");
    drop(connection);
    scene.comes_to_rest();
}

fn a_reset_with_the_right_number_ends_the_connection_and_its_flow(family: Family) {
    let scene = Scene::over(family);
    let mut connection = settled(&scene);
    let (client, _) = forgers(&scene, &connection);
    let Numbers { next, .. } = numbers(connection.stream()).unwrap();
    client.send(Segment { flags: RST, seq: next, ack: 0, payload: NOTHING });
    scene.comes_to_rest();
    assert_eq!(connection.get("/").unwrap_err().kind(), ErrorKind::ConnectionReset);
}

fn a_segment_in_fragments_reaches_the_instance_if_its_first_comes_first(family: Family) {
    let scene = Scene::over(family);
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let _peer = scene.peer(move |mut stream| {
        peer::read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
        let mut bytes = [0; 40];
        stream.read_exact(&mut bytes)?;
        tell.lock().unwrap().send(bytes).map_err(std::io::Error::other)
    });
    let mut connection = scene.connect(Entry::Handoff);
    assert_eq!(connection.get("/peer/").unwrap().body, b"ok");
    scene.router.eventually(Duration::from_secs(5), "nothing is in custody", |_| {
        scene.flow_of(&connection)["state"] == "direct"
    });
    let (client, _) = forgers(&scene, &connection);
    let Numbers { next, expected } = numbers(connection.stream()).unwrap();
    let payload = *b"forty bytes, of which 8 come with TCP's.";
    let segment = Segment { flags: ACK, seq: next, ack: expected, payload: &payload };
    let before = scene.packets("fragment");
    client.send_in_fragments(segment, 7, false);
    scene.router.eventually(Duration::from_secs(5), "the later one is counted", |_| {
        scene.packets("fragment") == before + 1
    });
    // The first was forwarded; its rest comes again with it.
    assert!(told.recv_timeout(Duration::from_millis(300)).is_err(), "half of it is nothing");
    client.send_in_fragments(segment, 8, true);
    assert_eq!(told.recv_timeout(Duration::from_secs(10)).unwrap(), payload);
    assert_eq!(scene.packets("fragment"), before + 1);
    // The client's kernel knows nothing of the forty bytes, so it cannot end this.
    client.send(Segment { flags: RST, seq: next.wrapping_add(40), ack: 0, payload: NOTHING });
    drop(connection);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

/// The MTU that the instance has learnt for its way to the router, as `ip route get` shows it.
fn learnt_mtu(scene: &Scene) -> String {
    let source = scene.family.source().to_string();
    let output = scene.lab.command(Host::Backend(1), "ip").args(["route", "get", &source]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().skip_while(|word| *word != "mtu").nth(1).unwrap_or("none").to_owned()
}

fn errors_about_what_was_never_sent_change_nothing(family: Family) {
    let scene = Scene::over(family);
    let mut connection = settled(&scene);
    let (client, _) = forgers(&scene, &connection);
    let Numbers { expected, .. } = numbers(connection.stream()).unwrap();
    let guesses = [1, NEAR, FAR, 1 << 31]
        .into_iter()
        .flat_map(|by| [expected.wrapping_add(by), expected.wrapping_sub(by)]);
    let mut told = 0;
    for seq in guesses.chain((0..64).map(|number| number << 26)).filter(|seq| *seq != expected) {
        client.complain(seq, Some(1_290));
        client.complain(seq, None);
        told += 2;
    }
    assert_goes_on(&scene, &mut connection, "blind errors");
    assert_eq!(scene.packets("error_out_of_window"), told);
    assert_eq!((scene.packets("error_forwarded"), learnt_mtu(&scene).as_str()), (0, "none"));

    // Who sees the numbers is believed, as a router on the way must be. A port that cannot be reached ends no established connection (RFC 1122 §4.2.3.9).
    let Numbers { expected, .. } = numbers(connection.stream()).unwrap();
    client.complain(expected, None);
    client.complain(expected, Some(1_290));
    assert_goes_on(&scene, &mut connection, "errors with the right number");
    assert_eq!((scene.packets("error_forwarded"), learnt_mtu(&scene).as_str()), (2, "1290"));
    drop(connection);
    scene.comes_to_rest();
}

fn data_behind_a_fin_changes_nothing(family: Family) {
    let scene = Scene::over(family);
    // Reads to the client's end, and takes its time to answer.
    let _peer = scene.peer(|mut stream| {
        let mut received = Vec::new();
        stream.read_to_end(&mut received)?;
        sleep(Duration::from_millis(300));
        write!(stream, "HTTP/1.1 200 OK\r\n\r\n{} bytes", received.len())?;
        stream.write_all(&pattern(1 << 20))
    });
    let mut connection = scene.connect(Entry::Handoff);
    let request = "GET /peer/ HTTP/1.1\r\nHost: lab\r\n\r\n";
    connection.send(request).unwrap();
    scene.router.eventually(Duration::from_secs(5), "nothing is in custody", |_| {
        scene.flow_of(&connection)["state"] == "direct"
    });
    let (client, _) = forgers(&scene, &connection);
    let Numbers { next, expected } = numbers(connection.stream()).unwrap();
    connection.end().unwrap();
    sleep(Duration::from_millis(50));
    // In the FIN's own place Linux resets the connection, forwarded or not.
    for (offset, payload) in [(1, &b"more"[..]), (NEAR, b"later")] {
        client.send(Segment { flags: ACK, seq: next.wrapping_add(offset), ack: expected, payload });
    }
    let reply = connection.reply().unwrap();
    let forwarded = format!("X-Forwarded-For: {}\r\n", family.address(Host::Client));
    let wanted = format!("{} bytes", request.len() + forwarded.len());
    assert!(reply.body.starts_with(wanted.as_bytes()), "{}", String::from_utf8_lossy(&reply.body[..20]));
    assert!(reply.body[wanted.len()..] == pattern(1 << 20), "{} bytes", reply.body.len());
    drop(connection);
    scene.comes_to_rest();
}

/// 400 connections that end at once, 25 × `step` after their request, or anywhere between.
fn end_at_many_moments(scene: &Scene, step: Duration) {
    let request = "GET /files/64k HTTP/1.1\r\nHost: lab\r\n\r\n";
    thread::scope(|threads| {
        for client in 0..4 {
            threads.spawn(move || {
                for number in 0..100 {
                    let entry = Entry::OFFLOADING[number % 2];
                    let mut connection = scene.connect(entry);
                    connection.send(request).unwrap();
                    sleep(step * (number as u32 / 4));
                    match (number + client) % 3 {
                        0 => connection.reset().unwrap(),
                        1 => drop(connection),
                        _ => {
                            connection.end().unwrap();
                            let all = connection.receive_all().unwrap();
                            assert!(all.len() > 64 << 10, "{entry:?}: {} bytes", all.len());
                        }
                    }
                }
            });
        }
    });
}

fn connections_that_end_while_they_are_handed_off_leave_nothing(family: Family) {
    let scene = Scene::over(family);
    // How long after the request is at the moment of the handoff depends on the machine: longer and longer, until many were handed off.
    for step in [40, 80, 160, 320, 640].map(Duration::from_micros) {
        end_at_many_moments(&scene, step);
        if scene.carried().0 > 100 {
            break;
        }
    }
    scene.comes_to_rest();
    assert_eq!(scene.router.ctl(["status"])["connections"]["open"], 0);
    let (handed_off, relayed) = scene.carried();
    println!("{handed_off} handed off, {relayed} relayed");
    assert!(handed_off > 100);
    scene.assert_no_segment_was_spoiled();
}

fn a_client_with_a_closed_window_gets_everything_once_it_reads(family: Family) {
    let scene = Scene::over(family);
    for entry in [Entry::Handoff, Entry::Auto, Entry::Relay] {
        let address = scene.address(entry);
        let connect = || {
            let socket =
                Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            // A connect waits as long as writing may.
            socket.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
            socket.connect(&address.into()).unwrap();
            TcpStream::from(socket)
        };
        let mut stream = scene.lab.inside(Host::Client, connect).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let body = pattern(1 << 20);
        let head =
            format!("PUT /upload/{entry:?} HTTP/1.1\r\nHost: lab\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
        let request = format!("GET /upload/{entry:?} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        // Its window is full and closed by now.
        sleep(Duration::from_millis(1500));
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert!(received.ends_with(&body), "{entry:?}: {} bytes", received.len());
    }
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}
