//! What requests and responses hold arrives at the other side.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use router_common::abi::reason::InterimEvent;

use super::*;
use crate::actors::*;

#[test]
fn a_client_that_says_it_is_done_still_gets_its_answer() {
    let instance = instance(|mut connection| {
        let head = read_head(&mut connection);
        thread::sleep(Duration::from_millis(50));
        respond(&mut connection, &head);
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    send_get(&mut client, "/last");
    finish(&client);
    assert!(read_to_end(&mut client).contains("GET /last "));
    proxy.wait_until_idle();
}

#[test]
fn fields_of_the_connection_stay_on_it_and_the_client_is_named_on_every_request() {
    let proxy = each([keep_alive()]).with(|settings| settings.forwarded_for = true).start();
    let mut client = proxy.connect();
    for _ in 0..2 {
        client
            .write_all(
                b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 1\r\nX-End: 2\r\n\r\n",
            )
            .unwrap();
        let seen = read_response(&mut client);
        assert!(
            seen.contains("X-Forwarded-For: 192.0.2.1, 127.0.0.1\r\n") && seen.contains("X-End: 2\r\n"),
            "{seen}"
        );
        assert!(!seen.contains("Hop") && !seen.contains("Keep-Alive"), "{seen}");
    }
}

#[test]
fn bodies_and_trailers_pass_in_both_directions() {
    let instance = instance(|mut connection| {
        let head = read_head(&mut connection);
        assert!(head.to_ascii_lowercase().contains("transfer-encoding: chunked"), "{head}");
        let mut body = Vec::new();
        let mut byte = [0];
        while !body.ends_with(b"X-Sum: 9\r\n\r\n") {
            connection.read_exact(&mut byte).unwrap();
            body.push(byte[0]);
        }
        connection
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Back\r\n\r\n4\r\nback\r\n0\r\nX-Back: 1\r\n\r\n")
            .unwrap();
        let _ended = connection.read(&mut byte);
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    client
        .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 9\r\n\r\n")
        .unwrap();
    let head = read_head(&mut client);
    assert_eq!(status_of(&head), "200");
    let body = read_head(&mut client);
    assert!(
        body.contains("back\r\n0\r\n") && body.to_ascii_lowercase().ends_with("x-back: 1\r\n\r\n"),
        "{body}"
    );
}

#[test]
fn responses_without_a_body_leave_the_connection_in_step() {
    let instance = instance(|mut connection| {
        loop {
            let head = read_head(&mut connection);
            let response = match head.split(' ').nth(1) {
                Some("/head") => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
                Some("/204") => "HTTP/1.1 204 No Content\r\n\r\n",
                Some("/304") => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n",
                Some("/empty") => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                Some(_) => "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nend",
                None => return,
            };
            connection.write_all(response.as_bytes()).unwrap();
        }
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    client.write_all(b"HEAD /head HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(read_head(&mut client).to_ascii_lowercase().contains("content-length: 1000"));
    for (path, status) in [("/204", "204"), ("/304", "304"), ("/empty", "200")] {
        send_get(&mut client, path);
        assert_eq!(status_of(&read_head(&mut client)), status);
    }
    send_get(&mut client, "/");
    assert_eq!(read_response(&mut client), "end");
}

#[test]
fn an_old_client_gets_an_end_it_can_see() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        connection
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nold\r\n0\r\n\r\n")
            .unwrap();
        let _ended = connection.read(&mut [0]);
    });
    let proxy = each([instance]).start();
    let answer = proxy.ask("GET / HTTP/1.0\r\n\r\n");
    assert!(answer.ends_with("\r\n\r\nold"), "{answer}");
    assert!(!answer.to_ascii_lowercase().contains("chunked"), "{answer}");
}

#[test]
fn an_old_client_may_keep_its_connection() {
    let proxy = each([keep_alive()]).start();
    let mut client = proxy.connect();
    for number in 0..3 {
        let request = format!("GET /{number} HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
        client.write_all(request.as_bytes()).unwrap();
        assert!(read_response(&mut client).starts_with(&format!("GET /{number} ")));
    }
}

#[test]
fn a_client_that_expects_to_be_told_to_go_on_is_told() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        let mut body = [0; 4];
        connection.read_exact(&mut body).unwrap();
        respond(&mut connection, std::str::from_utf8(&body).unwrap());
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    client
        .write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        .unwrap();
    assert_eq!(status_of(&read_head(&mut client)), "100");
    client.write_all(b"body").unwrap();
    assert_eq!(read_response(&mut client), "body");
}

#[test]
fn early_hints_reach_the_client_before_the_response_is_there() {
    let (go_on, told) = mpsc::channel();
    let told = Mutex::new(told);
    let instance = instance(move |mut connection| {
        loop {
            let head = read_head(&mut connection);
            if head.is_empty() {
                return;
            }
            let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n";
            connection.write_all(hints.as_bytes()).unwrap();
            told.lock().unwrap().recv_timeout(PATIENCE).expect("the client has the hints");
            let rest = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            connection.write_all(rest.as_bytes()).unwrap();
        }
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    // One after the other, and three at once on the same connections.
    for rounds in [1, 1, 3] {
        (0..rounds).for_each(|_| send_get(&mut client, "/"));
        for _ in 0..rounds {
            assert_eq!(read_head(&mut client), "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n");
            go_on.send(()).unwrap();
            assert_eq!(read_head(&mut client), "HTTP/1.1 102 Processing\r\n\r\n");
            assert_eq!(read_response(&mut client), "ok");
        }
    }
    drop(client);
    let event = |event| proxy.counters().interim.get(event);
    assert_eq!((event(InterimEvent::Forwarded), event(InterimEvent::OldClient)), (10, 0));

    go_on.send(()).unwrap();
    let answer = proxy.ask("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") || answer.starts_with("HTTP/1.0 200 "), "{answer}");
    assert_eq!((event(InterimEvent::Forwarded), event(InterimEvent::OldClient)), (10, 2));
    proxy.wait_until_idle();
}

#[test]
fn of_interim_responses_that_nobody_reads_only_so_many_wait_and_each_is_whole() {
    const HEADS: usize = 2_000;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        let hints = format!("HTTP/1.1 103 Early Hints\r\nLink: {}\r\n\r\n", "x".repeat(8_000));
        for _ in 0..HEADS {
            connection.write_all(hints.as_bytes()).unwrap();
        }
        respond(&mut connection, "ok");
        count.store(1, Ordering::Relaxed);
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    eventually("the instance has said everything", || sent.load(Ordering::Relaxed) == 1);
    let answer = read_to_end(&mut client);
    let (hints, last) = answer.rsplit_once("HTTP/1.1 200 OK\r\n").expect("the response");
    assert!(last.ends_with("ok"), "{last}");
    let whole = format!("HTTP/1.1 103 Early Hints\r\nLink: {}\r\n\r\n", "x".repeat(8_000));
    assert!(hints.replace(&whole, "").is_empty(), "every head is whole");
    let event = |event| proxy.counters().interim.get(event) as usize;
    let (forwarded, dropped) = (event(InterimEvent::Forwarded), event(InterimEvent::ClientBehind));
    assert_eq!((hints.len() / whole.len(), forwarded + dropped), (forwarded, HEADS));
    assert!(dropped > 0, "the client's buffers took all");
    proxy.wait_until_idle();
}

#[test]
fn an_answer_before_the_end_of_the_body_reaches_the_client() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        connection
            .write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .unwrap();
        // Closes in order once the other side has gone.
        finish(&connection);
        let mut rest = [0; 4096];
        while matches!(connection.read(&mut rest), Ok(1..)) {}
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    client.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n").unwrap();
    client.write_all(&[0; 1000]).unwrap();
    assert_eq!(status_of(&read_head(&mut client)), "413");
    drop(client);
    proxy.wait_until_idle();
}
