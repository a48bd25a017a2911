//! Connections that the router has handed to the kernel programs: what goes in comes out, in both directions and to the end,
//! whether a connection is handed off with its first request or in mid-stream, and also when packets get lost.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;
use support::counters::checksum_errors;
use support::lab::{Family, Host};
use support::scene::{is_prefix, pattern};
use support::{Connection, Curl, Entry, Peer, Scene, UnrulyCable, peer};

const MEGABYTE: u64 = 1 << 20;

support::over_both_families! {
    two_hundred_megabytes_arrive_whole_in_both_directions
    large_files_arrive_whole_though_one_packet_in_fifty_is_lost_at_both_ends
    large_files_arrive_whole_though_packets_come_twice_or_late
    five_requests_share_a_connection_and_a_flow
    however_a_connection_ends_the_other_side_learns_it_and_nothing_is_left
    a_client_on_the_gateway_itself_is_relayed_since_its_packets_meet_no_program
}

/// Sends a file of this many megabytes down and up over each listener, and shows that flows of the kernel carried the bytes.
fn transfers(scene: &Scene, megabytes: u64) {
    let length = megabytes * MEGABYTE;
    let directory = scene.lab.state_dir();
    let original = directory.join("files/200m");
    let (received, sent) = (directory.join("received"), directory.join("sent"));
    io::copy(&mut File::open(&original).unwrap().take(length), &mut File::create(&sent).unwrap()).unwrap();

    for entry in Entry::OFFLOADING {
        let began = Instant::now();
        let range = format!("0-{}", length - 1);
        let down = Curl::for_files(&scene.lab).arg("--range").arg(range);
        assert_eq!(down.download(scene.url(entry, "/files/200m"), &received), Ok(206), "{entry:?}");
        let down_took = began.elapsed();
        assert!(is_prefix(&received, length, &original).unwrap(), "{entry:?}: the file arrives changed");
        assert_carried(scene, "bytes_to_client", length);

        let began = Instant::now();
        let up = Curl::for_files(&scene.lab).upload(&sent, scene.url(entry, "/upload/copy"));
        assert!(matches!(up, Ok(201 | 204)), "{entry:?}: {up:?}");
        let stored = scene.lab.host_dir(Host::Backend(1)).join("upload/copy");
        println!("{entry:?}: {megabytes} MB down in {down_took:.1?}, up in {:.1?}", began.elapsed());
        assert!(is_prefix(&stored, length, &original).unwrap(), "{entry:?}: the upload arrives changed");
        assert_carried(scene, "bytes_to_instance", length);
        fs::remove_file(stored).unwrap();
    }
    assert_eq!(scene.carried(), (4, 0), "handed off and relayed");
    scene.comes_to_rest();
}

/// The latest flow has carried these bytes, but for the few that were on their way before it was handed off.
fn assert_carried(scene: &Scene, direction: &str, length: u64) {
    let flows = scene.flows(None);
    let carried: Vec<u64> = flows.iter().map(|flow| flow[direction].as_u64().unwrap()).collect();
    assert!(carried.iter().any(|bytes| *bytes > length - MEGABYTE), "{direction}: {carried:?} of {length}");
}

fn two_hundred_megabytes_arrive_whole_in_both_directions(family: Family) {
    let scene = Scene::over(family);
    transfers(&scene, 200);
    scene.assert_no_segment_was_spoiled();
}

fn large_files_arrive_whole_though_one_packet_in_fifty_is_lost_at_both_ends(family: Family) {
    let scene = Scene::over(family);
    scene.lose(20);
    transfers(&scene, 50);
    let lost = [Host::Client, Host::Backend(1)].map(|host| scene.lab.discarded(host));
    println!("{lost:?} packets were lost");
    assert!(lost.iter().all(|packets| *packets > 10), "{lost:?} packets were lost");
    scene.assert_no_segment_was_spoiled();
}

fn large_files_arrive_whole_though_packets_come_twice_or_late(family: Family) {
    let scene = Scene::over(family);
    let cable = UnrulyCable::lay(&scene.lab, 10);
    transfers(&scene, 20);
    let (twice, late) = cable.misdeeds();
    println!("{twice} packets came twice, {late} late");
    assert!(twice > 100 && late > 100, "{twice} packets came twice, {late} late");
    // What came so late that newer timestamps have been seen is discarded rightly (PAWS).
    for host in [Host::Client, Host::Gateway, Host::Backend(1)] {
        assert_eq!(checksum_errors(&scene.lab, host), 0, "on {host}");
    }
}

fn five_requests_share_a_connection_and_a_flow(family: Family) {
    let scene = Scene::over(family);
    for permille in [0, 20] {
        scene.lose(permille);
        for entry in Entry::OFFLOADING {
            let mut connection = scene.connect(entry);
            let mut sources = Vec::new();
            for number in 1..=5 {
                let reply = connection.get("/again").unwrap().text();
                assert!(reply.contains(&format!("request-on-connection: {number}\n")), "{reply}");
                sources.extend(reply.lines().find_map(|line| line.strip_prefix("peer: ")).map(str::to_owned));
                // `auto` hands off with the second request.
                if number >= 2 {
                    let flow = scene.flow_of(&connection);
                    let source: SocketAddr = flow["source"].as_str().unwrap().parse().unwrap();
                    // nginx writes IPv6 addresses without brackets.
                    assert_eq!(format!("{}:{}", source.ip(), source.port()), sources[0], "{entry:?}");
                }
            }
            assert_eq!(sources.len(), 5);
            assert!(sources.iter().all(|source| *source == sources[0]), "{sources:?}");
        }
    }
    assert_eq!(scene.carried(), (4, 0));
    scene.lose(0);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

/// How the instance saw a connection end, by the name that the client gave it.
type Endings = Arc<Mutex<HashMap<String, Result<(), ErrorKind>>>>;

/// An instance that ends connections as it is asked to: `/peer/ACTION/NAME`.
fn obliging_instance(scene: &Scene) -> (Peer, Endings) {
    let endings = Endings::default();
    let noted = Arc::clone(&endings);
    let peer = scene.peer(move |mut stream| {
        let mut name = String::new();
        let ending = oblige(&mut stream, &mut name).map_err(|error| error.kind());
        noted.lock().unwrap().insert(name, ending);
        Ok(())
    });
    (peer, endings)
}

fn oblige(stream: &mut TcpStream, name: &mut String) -> io::Result<()> {
    loop {
        let mut first = [0];
        if stream.read(&mut first)? == 0 {
            return Ok(());
        }
        let head = peer::read_head(stream)?;
        let head = String::from_utf8_lossy(&head);
        let mut path = head.split(' ').nth(1).unwrap_or_default().split('/').skip(2);
        let action = path.next().unwrap_or_default().to_owned();
        *name = path.next().unwrap_or_default().to_owned();
        match action.as_str() {
            "answer" => {
                let body = pattern(100_000);
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
                stream.write_all(&body)?;
            }
            "close" => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
                stream.write_all(&pattern(300_000))?;
                stream.shutdown(Shutdown::Write)?;
            }
            "abort" => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")?;
                SockRef::from(&*stream).set_linger(Some(Duration::ZERO))?;
                return Ok(());
            }
            "until-the-end" => {
                let mut received = Vec::new();
                stream.read_to_end(&mut received)?;
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", received.len())?;
                stream.write_all(&received)?;
                return stream.shutdown(Shutdown::Write);
            }
            _ => return Err(ErrorKind::Unsupported.into()),
        }
    }
}

/// The ways in which a connection ends.
const ENDINGS: [&str; 6] = [
    "client-closes-first",
    "instance-closes-first",
    "client-aborts",
    "client-aborts-in-mid-response",
    "instance-aborts",
    "client-half-closes",
];

/// Ends one connection in one way, and says what the client must see.
fn end(scene: &Scene, mut connection: Connection, way: &str, name: &str) {
    let body = pattern(100_000);
    let reply = connection.get(&format!("/peer/answer/{name}")).unwrap();
    assert!(reply.body == body, "{name}: the body arrives changed");
    // In mid-stream the long response was reason enough.
    scene.flow_of(&connection);
    let request = |action: &str| format!("GET /peer/{action}/{name} HTTP/1.1\r\nHost: lab\r\n\r\n");
    match way {
        "client-closes-first" => drop(connection),
        "instance-closes-first" => {
            let reply = connection.get(&format!("/peer/close/{name}")).unwrap();
            assert!(reply.body == pattern(300_000), "{name}: {} bytes arrive", reply.body.len());
        }
        "client-aborts" => connection.reset().unwrap(),
        "client-aborts-in-mid-response" => {
            connection.send(request("answer")).unwrap();
            connection.receive(1000).unwrap();
            connection.reset().unwrap();
        }
        "instance-aborts" => {
            connection.send(request("abort")).unwrap();
            let error = connection.receive_all().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{name}");
        }
        "client-half-closes" => {
            let sent = pattern(500_000);
            connection.send(request("until-the-end")).unwrap();
            connection.send(&sent).unwrap();
            connection.end().unwrap();
            assert!(connection.reply().unwrap().body == sent, "{name}: not everything comes back");
            assert_eq!(connection.receive_all().unwrap(), b"", "{name}");
        }
        _ => unreachable!("{way}"),
    }
}

fn however_a_connection_ends_the_other_side_learns_it_and_nothing_is_left(family: Family) {
    let scene = Scene::over(family);
    let (_peer, endings) = obliging_instance(&scene);
    for permille in [0, 20] {
        scene.lose(permille);
        let began = Instant::now();
        thread::scope(|threads| {
            for entry in Entry::OFFLOADING {
                for way in ENDINGS {
                    let name = format!("{way}-{entry:?}-{permille}");
                    let scene = &scene;
                    threads.spawn(move || end(scene, scene.connect(entry), way, &name));
                }
            }
        });
        println!("all endings at {permille} ‰ loss took {:.1?}", began.elapsed());
    }
    let expected = 2 * 2 * ENDINGS.len();
    assert_eq!(scene.carried(), (expected as u64, 0));
    scene.router.eventually(Duration::from_secs(20), "the instance sees every ending", |_| {
        endings.lock().unwrap().len() == expected
    });
    scene.comes_to_rest();
    for (name, ending) in &*endings.lock().unwrap() {
        let wanted = if name.starts_with("client-aborts") { Err(ErrorKind::ConnectionReset) } else { Ok(()) };
        assert_eq!(*ending, wanted, "{name}");
    }
    scene.assert_no_segment_was_spoiled();
}

fn a_client_on_the_gateway_itself_is_relayed_since_its_packets_meet_no_program(family: Family) {
    let scene = Scene::over(family);
    let reply = Curl::on(&scene.lab, Host::Gateway).get(scene.url(Entry::Handoff, "/files/64k"));
    assert_eq!((reply.status, reply.body.len()), (200, 64 << 10));
    assert_eq!(scene.carried(), (0, 1), "handed off and relayed");
    assert_eq!(scene.metric("router_relayed_total{reason=\"not_attached\"}"), 1);
}
