//! Heads that are refused, and those that wait behind others.

use std::io::{Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use router::proxy::http::fields::Framing;
use router::proxy::http::scan::HeadLimits;
use router::proxy::{http, refuse};
use router_common::abi::reason::RefuseReason;

use super::*;
use crate::actors::*;
use crate::corpus;

#[test]
fn what_the_listener_refuses_in_a_first_head_it_refuses_in_a_second_one_too() {
    let seen = Arc::default();
    let proxy = each([named("ok", &seen)]).start();
    let mut tried = 0;
    // Every mutation would take long; their number shares no factor with the step.
    let heads = corpus::classics().into_iter().chain(corpus::mutations().into_iter().step_by(7));
    for bytes in heads {
        let refused = match http::read(&bytes, &HeadLimits::default()) {
            Ok(Some((head, _))) => head.path().err(),
            Ok(None) => continue,
            Err(reason) => Some(reason),
        };
        let Some(reason) = refused else { continue };
        tried += 1;
        let first = b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut client = proxy.connect();
        // Behind the response, and in the same segment as the first.
        if tried % 2 == 0 {
            client.write_all(&[first, &bytes[..]].concat()).unwrap();
            assert_eq!(read_response(&mut client), "ok");
        } else {
            client.write_all(first).unwrap();
            assert_eq!(read_response(&mut client), "ok");
            client.write_all(&bytes).unwrap();
        }
        let answer = read_head(&mut client);
        let wanted = refuse::status(reason).unwrap().to_string();
        assert_eq!(status_of(&answer), wanted, "{reason:?}: {}", bytes.escape_ascii());
    }
    assert!(tried > 200, "only {tried}");
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|head| head.starts_with("GET /first ")), "a hostile head went through");
    assert_eq!(seen.len(), tried);
}

#[test]
fn a_request_hidden_behind_an_ambiguous_body_never_reaches_an_instance() {
    let seen = Arc::default();
    let proxy = each([named("ok", &seen)]).start();
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for body in
        ["0\n\r\n", "1\r\nab\r\n0\r\n\r\n", "0 \r\n\r\n", "0\r\nA : b\r\n\r\n", "5;\n\r\nhello\r\n0\r\n\r\n"]
    {
        let mut client = proxy.connect();
        let head = "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.write_all(format!("{head}{body}{smuggled}").as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ended = client.read_to_end(&mut answer);
    }
    proxy.wait_until_idle();
    assert!(seen.lock().unwrap().iter().all(|head| !head.contains("smuggled")), "{seen:?}");
    assert_eq!(proxy.counters().refused.get(RefuseReason::BadRequest), 5);
}

#[test]
fn every_head_that_is_let_through_is_read_alike_by_the_library() {
    let proxy = each([keep_alive()]).start();
    let mut tried = 0;
    for bytes in corpus::classics() {
        let Ok(Some((head, length))) = http::read(&bytes, &HeadLimits::default()) else { continue };
        if head.path().is_err() || length != bytes.len() || head.fields.framing != Framing::NoBody {
            continue;
        }
        let mut client = proxy.connect();
        client.write_all(&bytes).unwrap();
        let answer = read_head(&mut client);
        // Characters that RFC 3986 does not allow are refused, and counted.
        let odd = head.raw_path.contains(['<', '>', '`']);
        assert_eq!(status_of(&answer), if odd { "400" } else { "200" }, "{}", bytes.escape_ascii());
        tried += usize::from(!odd);
    }
    assert!(tried > 50, "only {tried}");
    drop(proxy);
}

#[test]
fn a_second_head_that_never_ends_is_timed_out_and_an_unused_connection_is_not() {
    let proxy =
        each([keep_alive()]).with(|settings| settings.header_timeout = Duration::from_millis(300)).start();
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    read_response(&mut client);
    thread::sleep(Duration::from_millis(600));
    send_get(&mut client, "/again");
    assert!(read_response(&mut client).starts_with("GET /again "), "between requests it may rest");
    client.write_all(b"GET /half HT").unwrap();
    assert_eq!(status_of(&read_head(&mut client)), "408");
    assert_eq!(proxy.counters().refused.get(RefuseReason::HeaderTimeout), 1);
    drop(client);
    proxy.wait_until_idle();
    assert_eq!((proxy.context.heads.heads(), proxy.context.heads.memory()), (0, 0));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let proxy = each([keep_alive()]).start();
    let mut client = proxy.connect();
    let requests: String =
        (0..20).map(|number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    client.write_all(requests.as_bytes()).unwrap();
    for number in 0..20 {
        assert!(read_response(&mut client).starts_with(&format!("GET /{number} ")));
    }
    finish(&client);
    assert_eq!(read_to_end(&mut client), "");
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().requests.get(), 20);
}

#[test]
fn pipelining_can_be_refused_without_harm_to_clients_that_wait() {
    let proxy = each([keep_alive()]).with(|settings| settings.pipelining = false).start();
    let mut client = proxy.connect();
    for _ in 0..20 {
        send_get(&mut client, "/");
        read_response(&mut client);
    }
    assert_eq!(proxy.counters().pipelined.get(), 0);
    client.write_all("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2).as_bytes()).unwrap();
    read_response(&mut client);
    assert_eq!(status_of(&read_head(&mut client)), "400");
    assert_eq!(proxy.counters().refused.get(RefuseReason::Pipelined), 1);
}
