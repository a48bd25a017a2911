//! How first requests arrive: slowly, in pieces, too many at once, with more behind them.

use std::cell::Cell;
use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use router::proxy::budget::BudgetLimits;
use router_common::abi::reason::RefuseReason;

use crate::actors::*;

#[test]
fn a_head_may_arrive_byte_by_byte() {
    let proxy = proxy([echo_head()]).with(|settings| settings.forwarded_for = false).start();
    let mut client = proxy.connect();
    for byte in get("/slow").bytes() {
        client.write_all(&[byte]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(read_to_end(&mut client).ends_with(&get("/slow")));
    assert_eq!((proxy.context.heads.heads(), proxy.context.heads.memory()), (0, 0));
}

#[test]
fn the_deadline_is_absolute_however_busy_the_client_seems() {
    let proxy =
        proxy([echo_head()]).with(|settings| settings.header_timeout = Duration::from_millis(400)).start();
    let mut client = proxy.connect();
    let mut trickling = client.try_clone().unwrap();
    let began = Instant::now();
    thread::spawn(move || {
        let mut rest = "GET / HTTP/1.1\r\nHost: a.example\r\nX-Slow: ".bytes().chain(std::iter::repeat(b'x'));
        while trickling.write_all(&[rest.next().unwrap()]).is_ok() && began.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    let took = began.elapsed();
    assert!((Duration::from_millis(390)..Duration::from_secs(2)).contains(&took), "{took:?}");
    assert_eq!(proxy.counters().refused.get(RefuseReason::HeaderTimeout), 1);
}

#[test]
fn a_connection_that_was_opened_ahead_and_never_used_is_closed_without_a_word() {
    let proxy =
        proxy([echo_head()]).with(|settings| settings.header_timeout = Duration::from_millis(200)).start();
    assert_eq!(proxy.ask(""), "");
    assert_eq!(proxy.counters().refused.get(RefuseReason::HeaderTimeout), 1);
}

#[test]
fn a_client_that_leaves_before_its_head_is_complete_is_counted() {
    let proxy = proxy([echo_head()]).start();
    let mut client = proxy.connect();
    client.write_all(b"GET / HT").unwrap();
    drop(client);
    eventually("it is counted", || proxy.counters().refused.get(RefuseReason::ClientGone) == 1);
    proxy.wait_until_idle();
}

#[test]
fn one_client_cannot_hold_every_place_for_half_read_heads() {
    let mut setup = proxy([echo_head()]);
    setup.budget = BudgetLimits { heads: 100, heads_per_client: 2, memory: 1 << 20 };
    let proxy = setup.start();
    let mut half_read: Vec<_> = (0..2).map(|_| proxy.connect()).collect();
    for client in &mut half_read {
        client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    }
    eventually("both are being read", || proxy.context.heads.heads() == 2);
    assert_every_further_half_is_refused(&proxy);
    eventually("a head that comes whole needs no place", || proxy.ask(get("/")).starts_with("HTTP/1.1 200 "));
    drop(half_read);
    eventually("the places are free again", || proxy.context.heads.heads() == 0);
    assert_eq!(proxy.context.heads.memory(), 0);
}

#[test]
fn half_read_heads_share_a_bounded_memory() {
    let mut setup = proxy([echo_head()]);
    setup.budget = BudgetLimits { heads: 100, heads_per_client: 100, memory: 8192 };
    let proxy = setup.start();
    let mut first = proxy.connect();
    first.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    first.write_all(&[b'x'; 5000]).unwrap();
    eventually("the first fills the memory", || proxy.context.heads.memory() == 8192);
    assert_every_further_half_is_refused(&proxy);
}

/// Tries until one is told why: a connection that is accepted before its first byte has come is closed without a word, as
/// one that a browser has opened ahead would be. Each of them is counted.
fn assert_every_further_half_is_refused(proxy: &Proxy) {
    let tried = Cell::new(0);
    eventually("half a head is refused with a word", || {
        tried.set(tried.get() + 1);
        told_that_there_is_no_place(proxy)
    });
    assert_eq!(proxy.counters().refused.get(RefuseReason::TooManyHeads), tried.get());
}

/// Whether half a head is answered by 503.
fn told_that_there_is_no_place(proxy: &Proxy) -> bool {
    let mut client = proxy.connect();
    let mut answer = Vec::new();
    client.write_all(b"GET / HTTP/1.1\r\n").and_then(|()| client.read_to_end(&mut answer).map(drop)).is_ok()
        && answer.starts_with(b"HTTP/1.1 503 ")
}

#[test]
fn bytes_behind_the_head_go_on_verbatim_and_further_requests_are_counted() {
    let instance = instance(|mut connection| {
        let mut all = Vec::new();
        connection.read_to_end(&mut all).unwrap();
        connection.write_all(&all).unwrap();
    });
    let proxy = proxy([instance]).with(|settings| settings.forwarded_for = false).start();
    let pipelined = format!("{0}{0}garbage", get("/twice"));
    let mut client = proxy.connect();
    client.write_all(pipelined.as_bytes()).unwrap();
    finish(&client);
    assert_eq!(read_to_end(&mut client), pipelined);
    assert_eq!(proxy.counters().pipelined.get(), 1);

    let body = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\n\r\nbody";
    let mut client = proxy.connect();
    client.write_all(body.as_bytes()).unwrap();
    finish(&client);
    assert_eq!(read_to_end(&mut client), body);
    assert_eq!(proxy.counters().pipelined.get(), 1, "a body is no further request");
}

#[test]
fn a_listener_can_refuse_pipelined_requests() {
    let proxy = proxy([echo_head()]).with(|settings| settings.pipelining = false).start();
    assert!(proxy.ask(get("/").repeat(2)).starts_with("HTTP/1.1 400 "));
    assert_eq!(proxy.counters().refused.get(RefuseReason::Pipelined), 1);
    assert!(proxy.ask(get("/")).starts_with("HTTP/1.1 200 "));
}

#[test]
fn an_expectation_is_the_instances_to_answer() {
    let instance = instance(|mut connection| {
        let head = read_head(&mut connection);
        assert!(head.contains("Expect: 100-continue"));
        connection.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        let mut body = [0; 4];
        connection.read_exact(&mut body).unwrap();
        respond(&mut connection, std::str::from_utf8(&body).unwrap());
    });
    let proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client
        .write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        .unwrap();
    assert_eq!(read_head(&mut client), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"data").unwrap();
    assert_eq!(read_response(&mut client), "data");
}

#[test]
fn http_0_9_is_served_where_the_listener_allows_it() {
    let instance = instance(|mut connection| {
        let mut line = [0; 12];
        connection.read_exact(&mut line).unwrap();
        connection.write_all(&line).unwrap();
    });
    let proxy = proxy([instance]).with(|settings| settings.head.http09 = true).start();
    assert_eq!(proxy.ask("GET /old/x\r\n"), "GET /old/x\r\n");
}
