//! Connections that never have a socket on the gateway: what goes in comes out, instances are tried until one serves, and what cannot be bound is
//! served all the same.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;
use support::lab::{Family, Host};
use support::scene::is_prefix;
use support::{Connection, Curl, Entry, Peer, Scene, peer};

const MEGABYTE: u64 = 1 << 20;

support::over_both_families! {
    a_connection_is_bound_and_nothing_is_left_of_it
    large_files_arrive_whole_in_both_directions
    large_files_arrive_whole_though_one_packet_in_fifty_is_lost_at_both_ends
    what_cannot_be_bound_is_served_by_a_socket
    segments_are_as_large_by_a_socket_as_without_one
    an_instance_that_refuses_is_replaced_and_the_client_does_not_notice
    a_request_whose_daemon_was_killed_is_answered_by_the_next_one_or_told
    thousands_of_short_connections_leave_nothing
}

fn a_connection_is_bound_and_nothing_is_left_of_it(family: Family) {
    let scene = Scene::binding(family, 1, "");
    scene.warm_up();
    let before = scene.bound();
    let mut connection = scene.connect(Entry::Bind);
    for number in 1..=3 {
        let reply = connection.get("/again").unwrap().text();
        assert!(reply.contains(&format!("request-on-connection: {number}\n")), "{reply}");
        // Only the first head passes the daemon, as with every connection that is handed off.
        let client = family.address(Host::Client);
        assert_eq!(reply.contains(&format!("x-forwarded-for: {client}\n")), number == 1, "{reply}");
    }
    let flow = scene.flow_of(&connection);
    assert_eq!(flow["vip"].as_str().unwrap(), scene.address(Entry::Bind).to_string());
    scene.become_bound(before, 1);
    assert_eq!(scene.sessions(), 1);
    drop(connection);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

/// Sends a file of this many megabytes down and up.
fn transfers(scene: &Scene, megabytes: u64) {
    let length = megabytes * MEGABYTE;
    let directory = scene.lab.state_dir();
    let original = directory.join("files/200m");
    let (received, sent) = (directory.join("received"), directory.join("sent"));
    io::copy(&mut io::Read::take(File::open(&original).unwrap(), length), &mut File::create(&sent).unwrap())
        .unwrap();
    let range = format!("0-{}", length - 1);
    let down = Curl::for_files(&scene.lab).arg("--range").arg(range);
    assert_eq!(down.download(scene.url(Entry::Bind, "/files/200m"), &received), Ok(206));
    assert!(is_prefix(&received, length, &original).unwrap(), "the file arrives changed");
    let up = Curl::for_files(&scene.lab).upload(&sent, scene.url(Entry::Bind, "/upload/copy"));
    assert!(matches!(up, Ok(201 | 204)), "{up:?}");
    let stored = scene.lab.host_dir(Host::Backend(1)).join("upload/copy");
    assert!(is_prefix(&stored, length, &original).unwrap(), "the upload arrives changed");
    fs::remove_file(stored).unwrap();
}

fn large_files_arrive_whole_in_both_directions(family: Family) {
    let scene = Scene::binding(family, 1, "");
    scene.warm_up();
    let before = scene.bound();
    transfers(&scene, 200);
    scene.become_bound(before, 2);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

fn large_files_arrive_whole_though_one_packet_in_fifty_is_lost_at_both_ends(family: Family) {
    let scene = Scene::binding(family, 1, "");
    scene.warm_up();
    scene.lose(20);
    for _ in 0..4 {
        transfers(&scene, 10);
    }
    let lost = [Host::Client, Host::Backend(1)].map(|host| scene.lab.discarded(host));
    assert!(lost.iter().all(|packets| *packets > 10), "{lost:?} packets were lost");
    scene.lose(0);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

fn what_cannot_be_bound_is_served_by_a_socket(family: Family) {
    let scene = Scene::binding(family, 1, "");
    scene.warm_up();
    let before = scene.bound();

    // The second half of a head comes late.
    let mut slow = scene.connect(Entry::Bind);
    slow.send("GET /slow HTTP/1.1\r\n").unwrap();
    scene.router.eventually(Duration::from_secs(10), "the first half is with a socket", |_| {
        scene.unbound("head_incomplete") == 1
    });
    slow.send("Host: a\r\n\r\n").unwrap();
    assert_eq!(slow.reply().unwrap().status, 200);

    // One that is longer than what clients send at once, because of large cookies.
    let mut long = scene.connect(Entry::Bind);
    let cookies = format!("Cookie: c={}\r\n", "x".repeat(4_000)).repeat(5);
    long.send(format!("GET /long HTTP/1.1\r\nHost: a\r\n{cookies}\r\n")).unwrap();
    assert_eq!(long.reply().unwrap().status, 200);
    assert_eq!(scene.unbound("head_incomplete"), 2);

    // A client that has nothing more to say.
    let mut last = scene.connect(Entry::Bind);
    last.send("GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    last.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(last.reply().unwrap().status, 200);

    // What must be refused is answered whole.
    let mut bad = scene.connect(Entry::Bind);
    bad.send("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n").unwrap();
    assert_eq!(bad.reply().unwrap().status, 400);
    assert_eq!(scene.unbound("bad_head"), 1);
    assert!(scene.bound() - before <= 1, "the one that closed may have been bound before its end came");
    drop((slow, long, last, bad));
    scene.comes_to_rest();
}

/// An instance that answers with the size of its own segments.
fn rules_with_one_that_tells_its_segments(family: Family) -> String {
    let address = SocketAddr::new(family.address(Host::Backend(1)), TELLING_PORT);
    format!(
        r#"[[pool]]
name = "telling"
[[pool.instance]]
name = "telling"
address = "{address}"

[[rule]]
name = "telling"
match = 'PathPrefix("/segments")'
pool = "telling"

"#
    )
}

fn segments_are_as_large_by_a_socket_as_without_one(family: Family) {
    let scene = Scene::binding(family, 1, &rules_with_one_that_tells_its_segments(family));
    let _peer = Peer::start_over(family, &scene.lab, 1, TELLING_PORT, |mut stream| {
        peer::read_head(&mut stream)?;
        let size = SockRef::from(&stream).tcp_mss()?.to_string();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{size}", size.len())
    });
    scene.warm_up();
    let told = |pieces: [&str; 2]| {
        let mut connection = scene.connect(Entry::Bind);
        let sockets = scene.unbound("head_incomplete");
        connection.send(pieces[0]).unwrap();
        if !pieces[1].is_empty() {
            scene.router.eventually(Duration::from_secs(10), "the first piece is with a socket", |_| {
                scene.unbound("head_incomplete") > sockets
            });
            connection.send(pieces[1]).unwrap();
        }
        connection.reply().unwrap().text().parse::<u32>().unwrap()
    };
    let (start, rest) = ("GET /segments HTTP/1.1\r\n", "Host: a\r\n\r\n");
    let whole = format!("{start}{rest}");
    // A cookie that is acknowledged in another minute than it was made has forgotten the size, and a usual one is taken.
    let pairs = [(); 3].map(|()| (told([&whole, ""]), told([start, rest])));
    assert!(pairs.iter().any(|(bound, socket)| bound == socket && *bound > 1_300), "{pairs:?}");
    scene.comes_to_rest();
}

const TELLING_PORT: u16 = 8083;
const ALIVE_PORT: u16 = 8082;

/// A pool of an instance that refuses and one that serves; all others of the scene are as they are.
fn rules_with_a_dead_instance(family: Family) -> String {
    let address = |port| SocketAddr::new(family.address(Host::Backend(1)), port);
    let (dead, alive, gone) = (address(9), address(ALIVE_PORT), address(10));
    format!(
        r#"[[pool]]
name = "half"
method = "round-robin"
[[pool.instance]]
name = "dead"
address = "{dead}"
[[pool.instance]]
name = "alive"
address = "{alive}"

[[pool]]
name = "dead"
[[pool.instance]]
name = "gone"
address = "{gone}"

[[rule]]
name = "half"
match = 'PathPrefix("/half")'
pool = "half"

[[rule]]
name = "dead"
match = 'PathPrefix("/dead")'
pool = "dead"

"#
    )
}

fn an_instance_that_refuses_is_replaced_and_the_client_does_not_notice(family: Family) {
    let scene = Scene::binding(family, 1, &rules_with_a_dead_instance(family));
    let _peer = Peer::start_over(family, &scene.lab, 1, ALIVE_PORT, |mut stream| {
        peer::read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    });
    scene.warm_up();
    let before = scene.bound();
    for number in 0..6 {
        let reply = Curl::new(&scene.lab).get(scene.url(Entry::Bind, &format!("/half/{number}")));
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    scene.become_bound(before, 6);
    assert!(scene.packets("binding_refused") > 0, "one of two instances refuses");
    // Where nobody serves, the client is told.
    let reply = Curl::new(&scene.lab).get(scene.url(Entry::Bind, "/dead"));
    assert_eq!(reply.status, 503, "{reply:?}");
    scene.comes_to_rest();
}

fn a_request_whose_daemon_was_killed_is_answered_by_the_next_one_or_told(family: Family) {
    // The daemon must not give the instance up before it dies itself.
    let mut scene = Scene::binding(family, 1, "connect_timeout = \"20s\"\n");
    scene.warm_up();
    let asking = scene.url(Entry::Bind, "/patient");
    // Nothing reaches the instance: its connection is not bound while the daemon dies.
    scene.lab.lose(Host::Backend(1), 1_000).unwrap();
    let curl = Curl::new(&scene.lab);
    let client = thread::spawn(move || curl.get(asking));
    scene.router.eventually(Duration::from_secs(10), "the request waits for its instance", |_| {
        scene.packets("binding_held") > 0
    });
    let began = Instant::now();
    scene.router.kill();
    scene.lab.lose(Host::Backend(1), 0).unwrap();
    scene.router.restart();
    let reply = client.join().unwrap();
    // A daemon that takes more than some seconds to come back finds a client that was told that there is nobody.
    const RESET: i32 = 56;
    assert!(reply.status == 200 || reply.exit_code == RESET, "{reply:?}");
    println!("after {:?}: {} {}", began.elapsed(), reply.status, reply.exit_code);
    scene.comes_to_rest();
}

fn thousands_of_short_connections_leave_nothing(family: Family) {
    const CONNECTIONS: usize = 2_000;
    const CLIENTS: usize = 8;

    let scene = Scene::binding(family, 1, "");
    scene.warm_up();
    let before = scene.bound();
    let (address, lab) = (scene.address(Entry::Bind).to_string(), &scene.lab);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for number in 0..CONNECTIONS / CLIENTS {
                    let mut connection = Connection::open(lab, Host::Client, &address).unwrap();
                    let request = format!("GET /{number} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                    connection.send(request).unwrap();
                    assert_eq!(connection.reply().unwrap().status, 200);
                }
            });
        }
    });
    scene.comes_to_rest();
    let bound = scene.bound() - before;
    assert!(bound > CONNECTIONS as u64 * 9 / 10, "{bound} of {CONNECTIONS} were bound");
    scene.assert_no_segment_was_spoiled();
}
