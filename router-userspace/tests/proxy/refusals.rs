//! Requests that the router answers itself: the client really reads the answer, whatever it is still sending.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use router::core::pool::OnUnavailable;
use router_common::abi::reason::RefuseReason;

use crate::actors::*;

#[test]
fn each_refusal_has_its_status_and_is_counted() {
    let proxy = proxy([echo_head()]).with(|settings| settings.head.head = 16 * 1024).start();
    let long_target = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(9000));
    let large_head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(17_000));
    let many_fields = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(101));
    let cases: &[(&[u8], &str, RefuseReason)] = &[
        (b"GET / HTTP/1.1\r\n\r\n", "400", RefuseReason::BadRequest),
        (b"GET / HTTP/1.1\nHost: a\n\n", "400", RefuseReason::BadRequest),
        (b"GET /a%2f../b HTTP/1.1\r\nHost: a\r\n\r\n", "400", RefuseReason::AmbiguousPath),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400", RefuseReason::TlsOnHttp),
        (b"GET /old\r\n", "400", RefuseReason::Http09),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", "405", RefuseReason::MethodNotAllowed),
        (long_target.as_bytes(), "414", RefuseReason::UriTooLong),
        (large_head.as_bytes(), "431", RefuseReason::HeadTooLarge),
        (many_fields.as_bytes(), "431", RefuseReason::HeadTooLarge),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505", RefuseReason::Http2Preface),
        (b"GET / HTTP/1.9\r\nHost: a\r\n\r\n", "505", RefuseReason::HttpVersion),
    ];
    for (request, status, reason) in cases {
        let before = proxy.counters().refused.get(*reason);
        let response = proxy.ask(request);
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{}: {response:?}", reason.name());
        assert!(response.contains("Connection: close\r\n"));
        assert_eq!(proxy.counters().refused.get(*reason), before + 1, "{}", reason.name());
    }
    assert!(proxy.counters().requests.get() > 0);
    proxy.wait_until_idle();
}

#[test]
fn the_answer_is_read_even_by_a_client_that_sends_a_body_first() {
    let proxy = proxy([]).start();
    let mut client = proxy.connect();
    client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n").unwrap();
    // No RST may overtake the answer while this is under way.
    client.write_all(&vec![b'x'; 500_000]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let response = read_to_end(&mut client);
    assert!(response.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{response:?}");
}

#[test]
fn no_instance_means_503_and_when_to_come_again() {
    let proxy = proxy([]).with(|settings| settings.retry_after = Duration::from_secs(7)).start();
    let response = proxy.ask(get("/"));
    assert!(response.starts_with("HTTP/1.1 503 "));
    assert!(response.contains("\r\nRetry-After: 7\r\n"));
    assert_eq!(proxy.counters().refused.get(RefuseReason::Unavailable), 1);
    let head_only = proxy.ask("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head_only.ends_with("\r\n\r\n"), "the answer to HEAD has no body: {head_only:?}");
}

#[test]
fn no_instance_may_mean_a_reset() {
    let mut setup = proxy([]);
    setup.on_unavailable = Some(OnUnavailable::Reset);
    let proxy = setup.start();
    let mut client = proxy.connect();
    client.write_all(get("/").as_bytes()).unwrap();
    assert_eq!(read_until_broken(&mut client), (vec![], Some(ErrorKind::ConnectionReset)));
}

#[test]
fn no_instance_may_mean_silence() {
    let mut setup = proxy([]);
    setup.on_unavailable = Some(OnUnavailable::Silent);
    let proxy = setup.start();
    let mut client = proxy.connect();
    client.write_all(get("/").as_bytes()).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "neither an answer nor an end");
    assert_eq!(proxy.counters().refused.get(RefuseReason::Unavailable), 1);
    drop(client);
    proxy.wait_until_idle();
}
