//! Whatever is sent to the control socket gets a clear 4xx, costs bounded memory and keeps no operator out.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use hyper::Method;
use router::control::Timeouts;
use router::control::protocol::MAX_BODY_BYTES;
use router::control::server::MAX_CONNECTIONS;
use router_common::abi::reason::ControlReason;

use crate::daemon::{Daemon, PATIENCE};

const QUESTION: &str = r#"{"listener": "web", "client": "10.1.2.3"}"#;

#[test]
fn a_body_that_is_no_question_is_answered_with_the_place_of_the_mistake() {
    let daemon = Daemon::start();
    assert_eq!(daemon.post("/v1/explain", QUESTION).status, 200, "the good one, for comparison");
    for (body, error) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("{", "EOF while parsing an object at line 1 column 1"),
        ("listener=web", "expected value at line 1 column 1"),
        ("[]", "invalid length 0"),
        ("{}", "missing field `listener`"),
        (r#"{"listener": "web"}"#, "missing field `client`"),
        (r#"{"listener": "web", "client": "home"}"#, "invalid IP address syntax at line 1 column"),
        (r#"{"listener": "web", "client": 7}"#, "invalid type: integer `7`"),
        (r#"{"listener": "web", "client": "10.1.2.3", "pth": "/"}"#, "unknown field `pth`, expected one of"),
        (r#"{"listener": "web", "client": "10.1.2.3"} more"#, "trailing characters"),
        (r#"{"listener": "web", "listener": "web", "client": "10.1.2.3"}"#, "duplicate field `listener`"),
        (r#"{"listener": "web", "client": "10.1.2.3", "headers": [{"name": "a"}]}"#, "missing field `value`"),
        (r#"{"listener": "ewb", "client": "10.1.2.3"}"#, "there is no listener \"ewb\""),
        (r#"{"listener": "web", "client": "10.1.2.3", "http_version": "2"}"#, "http_version is \"2\""),
        (
            r#"{"listener": "web", "client": "10.1.2.3", "path": "/ HTTP/1.1\r\nX: y"}"#,
            "contains a line break",
        ),
    ] {
        let answer = daemon.post("/v1/explain", body);
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        let (said, help) = answer.error();
        assert!(said.contains(error), "{body}: {said}");
        assert!(!help.is_empty());
    }
    let not_text = daemon.post("/v1/explain", &b"{\"listener\": \"\xff\xfe\"}"[..]);
    assert_eq!(not_text.status, 400);
    let deep = daemon.post("/v1/explain", "[".repeat(100_000));
    assert_eq!(deep.status, 400, "nesting does not exhaust the stack");
}

#[test]
fn a_huge_body_is_refused_without_being_read() {
    let daemon = Daemon::start();
    let answer = daemon.post("/v1/explain", vec![b' '; MAX_BODY_BYTES + 1]);
    assert_eq!((answer.status, answer.error().0.as_str()), (413, "the body is longer than 131072 bytes"));
    assert_eq!(
        daemon.post("/v1/explain", vec![b' '; MAX_BODY_BYTES]).status,
        400,
        "the longest is read, and empty"
    );

    // A length that only claims to be huge, and a body without a length.
    let mut stream = daemon.connect();
    stream.write_all(b"POST /v1/explain HTTP/1.1\r\nHost: r\r\nContent-Length: 99999999999\r\n\r\n").unwrap();
    assert!(first_line(&mut stream).starts_with("HTTP/1.1 413 "));
    let mut stream = daemon.connect();
    stream.write_all(b"POST /v1/explain HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    for _ in 0..64 {
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    assert!(first_line(&mut stream).starts_with("HTTP/1.1 413 "));
}

#[test]
fn heads_that_are_too_long_or_no_http_are_answered_and_closed() {
    let daemon = Daemon::start();
    let mut stream = daemon.connect();
    let head = format!("GET /v1/status HTTP/1.1\r\nHost: r\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
    let _ = stream.write_all(head.as_bytes());
    assert!(first_line(&mut stream).starts_with("HTTP/1.1 431 "));
    let mut stream = daemon.connect();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").unwrap();
    assert!(first_line(&mut stream).starts_with("HTTP/1.1 400 "));
}

#[test]
fn unknown_paths_and_wrong_methods_are_told_apart() {
    let daemon = Daemon::start();
    for path in ["/", "/v1", "/v1/", "/v2/status", "/v1/status/", "/v1/../etc/passwd", "/metrics/x"] {
        let answer = daemon.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.error().0.contains(path), "{answer:?}");
        assert_eq!(answer.headers["router-control-version"], "1");
    }
    let answer = daemon.ask(Method::DELETE, "/v1/status", "");
    assert_eq!((answer.status, answer.error().0.as_str()), (405, "/v1/status does not take DELETE"));
    assert_eq!(answer.headers["allow"], "GET,HEAD");
    let answer = daemon.get("/v1/explain");
    assert_eq!((answer.status, answer.headers["allow"].as_str()), (405, "POST"));
}

#[test]
fn an_operator_gets_in_while_others_hold_every_connection() {
    let daemon = Daemon::start();
    let idle: Vec<_> = (0..MAX_CONNECTIONS).map(|_| daemon.connect()).collect();
    let mut turned_away = daemon.connect();
    turned_away.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut answer = String::new();
    turned_away.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("too many control connections are open"), "{answer}");
    assert_eq!(daemon.state.counters.control_closed.get(ControlReason::TurnedAway), 1);

    // Whoever has been idle for a second makes room.
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(daemon.get("/v1/status").status, 200);
    assert_eq!(daemon.get("/v1/status").status, 200);
    eventually(&daemon, ControlReason::MadeRoom);
    drop(idle);
}

#[test]
fn a_client_that_does_not_read_its_answers_is_let_go() {
    let timeouts = Timeouts { write: Duration::from_millis(200), ..Timeouts::default() };
    let daemon = Daemon::with(|settings| settings.timeouts = timeouts);
    let mut deaf = daemon.connect();
    deaf.set_nonblocking(true).unwrap();
    // Far more than the buffers of both sides hold, unless the server takes it all.
    let sent =
        (0..100_000).take_while(|_| deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: r\r\n\r\n").is_ok());
    assert!(sent.count() < 100_000, "neither side's buffers fill up");
    eventually(&daemon, ControlReason::AnswerUnread);

    deaf.set_nonblocking(false).unwrap();
    let mut rest = Vec::new();
    // What was on its way still comes, then the end or a reset: requests were left unread.
    let _ = deaf.read_to_end(&mut rest);
    assert!(rest.starts_with(b"HTTP/1.1 200 "));
    assert_eq!(daemon.get("/healthz").status, 200);
}

/// Waits until the server has closed a connection for this reason.
fn eventually(daemon: &Daemon, reason: ControlReason) {
    let began = Instant::now();
    while daemon.state.counters.control_closed.get(reason) == 0 {
        assert!(began.elapsed() < PATIENCE, "no connection was closed for {}", reason.name());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn idle_connections_and_slow_heads_end_at_the_deadline() {
    let timeouts = Timeouts { head: Duration::from_millis(300), ..Timeouts::default() };
    let daemon = Daemon::with(|settings| settings.timeouts = timeouts);
    let mut idle = daemon.connect();
    let mut slow = daemon.connect();
    slow.write_all(b"GET /v1/sta").unwrap();
    let mut kept_alive = daemon.connect();
    kept_alive.write_all(b"GET /healthz HTTP/1.1\r\nHost: r\r\n\r\n").unwrap();
    let mut body = daemon.connect();
    body.write_all(b"POST /v1/explain HTTP/1.1\r\nHost: r\r\nContent-Length: 10\r\n\r\n{").unwrap();

    for (stream, expected) in
        [(&mut idle, ""), (&mut slow, ""), (&mut kept_alive, "HTTP/1.1 200 "), (&mut body, "HTTP/1.1 408 ")]
    {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        let said = String::from_utf8_lossy(&rest);
        assert!(said.starts_with(expected) && (said.is_empty() || !expected.is_empty()), "{said}");
    }
    assert_eq!(daemon.state.counters.control_closed.get(ControlReason::HeadTimeout), 3);
}

fn first_line(stream: &mut std::os::unix::net::UnixStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 512];
    while !answer.contains(&b'\n') {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&buffer[..length]),
            Err(error) => panic!("no answer: {error}"),
        }
    }
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}
