//! Clients that take their time, say more than they may, or ask for another protocol.

use std::io::{Read, Write};
use std::time::Duration;

use support::lab::{Host, Lab};
use support::router::configuration;
use support::scene::PEER_PORT;
use support::{Connection, Entry, Peer, Router, Scene, TestLab, peer};

use crate::heads::tell_head;

#[test]
#[ignore = "needs root"]
fn a_web_socket_is_handed_off_at_once_and_h2c_is_not_offered_to_instances() {
    let scene = Scene::with_backends(1);
    let _peer = Peer::start(&scene.lab, 1, PEER_PORT, |mut stream| {
        let head = String::from_utf8_lossy(&peer::read_head(&mut stream)?).into_owned();
        let upgrade = head.lines().find(|line| line.to_lowercase().starts_with("upgrade:"));
        let said = upgrade.unwrap_or("no upgrade");
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{said}", said.len())?;
        let mut echo = [0; 5];
        stream.read_exact(&mut echo)?;
        stream.write_all(&echo)
    });
    let request = |fields: &str| format!("GET /peer HTTP/1.1\r\nHost: lab\r\n{fields}\r\n\r\n");
    let mut connection = scene.connect(Entry::Auto);
    connection.send(request("Connection: Upgrade\r\nUpgrade: websocket")).unwrap();
    assert_eq!(connection.reply().unwrap().body, b"Upgrade: websocket");
    scene.flow_of(&connection);
    connection.send("frame").unwrap();
    assert_eq!(connection.receive(5).unwrap(), b"frame");

    for entry in [Entry::Handoff, Entry::Auto, Entry::Relay] {
        let mut connection = scene.connect(entry);
        let fields = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA";
        connection.send(request(fields)).unwrap();
        assert_eq!(connection.reply().unwrap().body, b"no upgrade", "{entry:?}");
    }
}

#[test]
#[ignore = "needs root"]
fn an_expectation_reaches_the_instance_before_any_answer() {
    let scene = Scene::with_backends(1);
    let _peer = Peer::start(&scene.lab, 1, PEER_PORT, tell_head);
    for entry in [Entry::Handoff, Entry::Auto, Entry::Relay] {
        let mut connection = scene.connect(entry);
        let head = "PUT /peer HTTP/1.1\r\nHost: lab\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        connection.send(head).unwrap();
        let reply = connection.reply().unwrap();
        assert_eq!(reply.status, 200, "{entry:?}: the instance's own answer, and none of the router");
        assert!(reply.text().contains("\r\nExpect: 100-continue\r\n"), "{entry:?}: {}", reply.text());
    }
}

/// A listener that is stricter than the default, and a tenth as patient.
fn strict(lab: &Lab) -> String {
    const REST: &str = r#"[[listener]]
name = "web"
address = "10.77.1.10:80"
offload = "handoff"
header_timeout = "1s"
pipelining = false

[[pool]]
name = "web"

[[pool.instance]]
name = "web1"
address = "10.77.2.11:80"

[default_rule]
pools = ["web"]
"#;
    configuration(lab, "", "", REST)
}

const TARGET: &str = "10.77.1.10:80";

#[test]
#[ignore = "needs root"]
fn many_slow_heads_take_bounded_memory_and_keep_nobody_else_out() {
    const MANY: usize = 1500;
    let lab = TestLab::with_backends(1);
    let router = Router::start(&lab, &strict(&lab));
    let memory = || -> u64 {
        let metrics = router.metrics();
        let line = metrics.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        line.unwrap().parse().unwrap()
    };
    let before = memory();
    // Each may be refused at once, since one client has a limited number of places; none is ever answered with 200.
    let many: Vec<Connection> = (0..MANY)
        .map(|_| {
            let mut connection = Connection::open(&lab, Host::Client, TARGET).unwrap();
            let _ = connection.send(format!("GET / HTTP/1.1\r\nX-Padding: {}", "a".repeat(16_000)));
            connection
        })
        .collect();
    let grown = memory().saturating_sub(before);
    assert!(grown < 128 << 20, "half-read heads took {grown} bytes");
    // Another client, here one on the instances' side, is served meanwhile.
    let mut other = Connection::open(&lab, Host::Backend(1), TARGET).unwrap();
    assert_eq!(other.get("/").unwrap().status, 200);
    drop(other);

    // They stay open here, and the router's own deadline ends them.
    router.eventually(Duration::from_secs(20), "all are given up", |router| {
        router.ctl(["status"])["connections"]["open"] == 0
    });
    let refused = router.ctl(["status"])["refused"].clone();
    let count = |reason: &str| refused[reason].as_u64().unwrap_or(0);
    let known = count("header_timeout") + count("too_many_heads") + count("client_gone");
    assert_eq!(known, MANY as u64, "every one has its reason: {refused}");
    assert!(count("header_timeout") > 0 && count("too_many_heads") > 0, "{refused}");
    drop(many);
}

#[test]
#[ignore = "needs root"]
fn pipelined_requests_are_refused_where_the_listener_says_so() {
    let lab = TestLab::with_backends(1);
    let router = Router::start(&lab, &strict(&lab));
    let one = "GET / HTTP/1.1\r\nHost: lab\r\n\r\n";
    let mut connection = Connection::open(&lab, Host::Client, TARGET).unwrap();
    connection.send(one.repeat(2)).unwrap();
    assert_eq!(connection.reply().unwrap().status, 400);
    assert_eq!(connection.receive_all().unwrap_or_default(), b"");
    assert_eq!(router.ctl(["status"])["refused"]["pipelined"], 1);
    let mut connection = Connection::open(&lab, Host::Client, TARGET).unwrap();
    connection.send(one).unwrap();
    assert_eq!(connection.reply().unwrap().status, 200);
}
