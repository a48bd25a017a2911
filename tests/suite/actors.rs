//! The actors of the other stories, told by plain routing: what they show of a router must be the router's doing.

use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

use support::counters::{checksum_errors, counter, paws_drops};
use support::lab::Host;
use support::{Connection, Peer, TestLab, peer};

#[test]
#[ignore = "needs root"]
fn a_connection_carries_several_requests() {
    let lab = TestLab::with_backends(1);
    let mut connection = Connection::open(&lab, Host::Client, "10.77.2.11:80").unwrap();
    for number in 1..=5 {
        let reply = connection.get("/again").unwrap();
        assert!(reply.text().contains(&format!("request-on-connection: {number}\n")), "{}", reply.text());
    }
    assert_eq!(
        connection.get("/files/64k").unwrap().body,
        fs::read(lab.state_dir().join("files/64k")).unwrap()
    );
}

#[test]
#[ignore = "needs root"]
fn an_instance_closes_first_or_answers_after_the_end() {
    let lab = TestLab::with_backends(1);
    let closing = Peer::start(&lab, 1, 8081, |stream| peer::close_first(stream, b"all of it"));
    let mut connection = Connection::open(&lab, Host::Client, &closing.address().to_string()).unwrap();
    assert_eq!(connection.get("/").unwrap().body, b"all of it");
    assert_eq!(connection.receive_all().unwrap(), b"");
    assert_eq!(closing.accepted(), 1);

    let patient = Peer::start(&lab, 1, 8082, peer::answer_at_the_end);
    let mut connection = Connection::open(&lab, Host::Client, &patient.address().to_string()).unwrap();
    connection.send("PUT / HTTP/1.1\r\n\r\nhalf of ").unwrap();
    connection.send("the talk").unwrap();
    connection.end().unwrap();
    assert_eq!(connection.reply().unwrap().body, b"half of the talk");
}

#[test]
#[ignore = "needs root"]
fn a_late_acknowledger_receives_everything_and_a_reset_is_seen() {
    let lab = TestLab::with_backends(1);
    let body = vec![7; 3 << 20];
    let late = Peer::start(&lab, 1, 8083, |stream| peer::acknowledge_late(stream, 3 << 20));
    let mut connection = Connection::open(&lab, Host::Client, &late.address().to_string()).unwrap();
    connection.send("PUT / HTTP/1.1\r\n\r\n").unwrap();
    connection.send(&body).unwrap();
    assert!(connection.reply().unwrap().body == body);

    let (seen, ending) = std::sync::mpsc::channel();
    let seen = std::sync::Mutex::new(seen);
    let waiting = Peer::start(&lab, 1, 8084, move |mut stream| {
        let end = peer::read_head(&mut stream).map_err(|error| error.kind());
        seen.lock().unwrap().send(end).map_err(std::io::Error::other)
    });
    let connection = Connection::open(&lab, Host::Client, &waiting.address().to_string()).unwrap();
    connection.reset().unwrap();
    assert_eq!(ending.recv_timeout(Duration::from_secs(30)).unwrap(), Err(ErrorKind::ConnectionReset));
}

#[test]
#[ignore = "needs root"]
fn counters_are_those_of_the_host_that_is_asked() {
    let lab = TestLab::with_backends(1);
    let opened = |host| counter(&lab, host, "ActiveOpens");
    let (client, gateway) = (opened(Host::Client), opened(Host::Gateway));
    for _ in 0..3 {
        Connection::open(&lab, Host::Client, "10.77.2.11:80").unwrap();
    }
    assert_eq!((opened(Host::Client), opened(Host::Gateway)), (client + 3, gateway));
    assert_eq!((paws_drops(&lab, Host::Client), checksum_errors(&lab, Host::Client)), (0, 0));
}
