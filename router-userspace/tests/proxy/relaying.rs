//! What a relayed connection does when its two sides behave in every order.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use router_common::abi::reason::{RefuseReason, RelayReason};

use crate::actors::*;
use crate::splicer::Splicer;

const UPLOAD: &str = "POST /up HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn a_request_arrives_as_it_was_sent_but_for_the_clients_address() {
    let proxy = proxy([echo_head()]).start();
    let request =
        "GET /a//b?x=%20 HTTP/1.1\r\nhOsT: a.example\r\nX-Odd:\t value \r\nConnection: close\r\n\r\n";
    let response = proxy.ask(request);
    let head = response.split_once("\r\n\r\n").unwrap().1;
    let expected = request.replace("close\r\n\r\n", "close\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n");
    assert_eq!(head, expected);
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().relayed.get(RelayReason::NoDatapath), 1);
}

#[test]
fn without_forwarded_for_every_byte_is_the_clients() {
    let proxy = proxy([echo_head()]).with(|settings| settings.forwarded_for = false).start();
    assert!(proxy.ask(get("/x")).ends_with(&get("/x")));
}

#[test]
fn the_client_may_finish_first() {
    let instance = instance(|mut connection| {
        let mut all = Vec::new();
        connection.read_to_end(&mut all).unwrap();
        connection.write_all(format!("got {}", all.len()).as_bytes()).unwrap();
    });
    let proxy = proxy([instance]).with(|settings| settings.forwarded_for = false).start();
    let mut client = proxy.connect();
    client.write_all(UPLOAD.as_bytes()).unwrap();
    client.write_all(&[b'x'; 100_000]).unwrap();
    finish(&client);
    assert_eq!(read_to_end(&mut client), format!("got {}", UPLOAD.len() + 100_000));
    proxy.wait_until_idle();
}

#[test]
fn the_instance_may_finish_first_and_go_on_reading() {
    let (received, receiver) = mpsc::channel();
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        connection.write_all(b"early answer").unwrap();
        finish(&connection);
        let mut rest = Vec::new();
        connection.read_to_end(&mut rest).unwrap();
        received.send(rest).unwrap();
    });
    let proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client.write_all(UPLOAD.as_bytes()).unwrap();
    assert_eq!(read_to_end(&mut client), "early answer");
    client.write_all(b"still here").unwrap();
    finish(&client);
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), b"still here");
    proxy.wait_until_idle();
}

#[test]
fn when_the_client_aborts_so_does_the_instances_connection() {
    let (ended, receiver) = mpsc::channel();
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        connection.write_all(b"begun").unwrap();
        ended.send(read_until_broken(&mut connection).1).unwrap();
    });
    let proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client.write_all(UPLOAD.as_bytes()).unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    abort(client);
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), Some(ErrorKind::ConnectionReset));
    proxy.wait_until_idle();
}

#[test]
fn when_the_instance_aborts_the_client_gets_what_was_sent_and_then_a_reset() {
    let body = pattern(200_000);
    let sent = body.clone();
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        connection.write_all(&sent).unwrap();
        // The proxy has to have it all: an RST discards what it has not received.
        thread::sleep(Duration::from_millis(300));
        abort(connection);
    });
    let proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client.write_all(get("/").as_bytes()).unwrap();
    thread::sleep(Duration::from_millis(600));
    let (received, ended) = read_until_broken(&mut client);
    assert_eq!(ended, Some(ErrorKind::ConnectionReset), "a truncated response must not look complete");
    assert!(received == body, "{} of {} bytes", received.len(), body.len());
    proxy.wait_until_idle();
}

#[test]
fn a_response_that_a_reset_cuts_short_never_looks_complete() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        connection.write_all(b"HTTP/1.0 200 OK\r\n\r\nbegun").unwrap();
        abort(connection);
    });
    let proxy = proxy([instance]).start();
    for _ in 0..200 {
        let mut client = proxy.connect();
        client.write_all(get("/").as_bytes()).unwrap();
        let (received, ended) = read_until_broken(&mut client);
        // If the reset overtook everything, the client is told so by a complete answer of the router's.
        let told = received.starts_with(b"HTTP/1.1 502 ");
        assert!(ended == Some(ErrorKind::ConnectionReset) || told, "{ended:?} after {received:?}");
    }
    proxy.wait_until_idle();
}

#[test]
fn a_client_that_finishes_after_its_second_request_is_still_answered() {
    let proxy = proxy([keep_alive()]).flows(Arc::new(Splicer::default())).start();
    for _ in 0..50 {
        let mut client = proxy.connect();
        send_get(&mut client, "/1");
        read_response(&mut client);
        send_get(&mut client, "/2");
        finish(&client);
        assert!(read_to_end(&mut client).contains("GET /2 "));
    }
    proxy.wait_until_idle();
}

#[test]
fn an_instance_that_answers_before_it_has_read_everything_is_heard() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        connection.write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n").unwrap();
        // Closes with unread bytes, which sends an RST.
    });
    let proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client.write_all(UPLOAD.as_bytes()).unwrap();
    for _ in 0..20 {
        // Fails once the proxy has given up on the upload, which is as it should be.
        let _ = client.write(&[b'x'; 65_536]);
    }
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    drop(client);
    proxy.wait_until_idle();
}

#[test]
fn a_slow_reader_slows_the_writer_and_loses_nothing() {
    const LENGTH: usize = 64 * 1024 * 1024;
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        for chunk in pattern(LENGTH).chunks(65_536) {
            connection.write_all(chunk).unwrap();
            count.fetch_add(chunk.len(), Ordering::Relaxed);
        }
    });
    let proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client.write_all(get("/").as_bytes()).unwrap();
    let mut before = usize::MAX;
    let began = Instant::now();
    while written.load(Ordering::Relaxed) != before && began.elapsed() < PATIENCE {
        before = written.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(200));
    }
    assert!(before < LENGTH / 2, "{before} bytes are on their way to a client that reads nothing");
    let mut received = Vec::with_capacity(LENGTH);
    client.read_to_end(&mut received).unwrap();
    assert!(received == pattern(LENGTH));
    drop(client);
    proxy.wait_until_idle();
}

#[test]
fn both_directions_at_once_do_not_block_each_other() {
    const LENGTH: usize = 8 * 1024 * 1024;
    let instance = instance(|connection| {
        let mut reader = connection.try_clone().unwrap();
        let mut writer = connection;
        read_head(&mut reader);
        let copying = thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all.len()
        });
        writer.write_all(&pattern(LENGTH)).unwrap();
        assert_eq!(copying.join().unwrap(), LENGTH);
        finish(&writer);
    });
    let proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client.write_all(UPLOAD.as_bytes()).unwrap();
    let mut uploading = client.try_clone().unwrap();
    let upload = thread::spawn(move || {
        uploading.write_all(&vec![7; LENGTH]).unwrap();
        finish(&uploading);
    });
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    upload.join().unwrap();
    assert!(received == pattern(LENGTH));
    proxy.wait_until_idle();
}

#[test]
fn a_connection_on_which_nothing_moves_is_reset() {
    let (ended, receiver) = mpsc::channel();
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        connection.write_all(b"begun").unwrap();
        ended.send(read_until_broken(&mut connection).1).unwrap();
    });
    let proxy = proxy([instance]).with(|settings| settings.idle_timeout = Duration::from_millis(300)).start();
    let mut client = proxy.connect();
    client.write_all(get("/").as_bytes()).unwrap();
    let began = Instant::now();
    let (received, ended) = read_until_broken(&mut client);
    assert_eq!((received.as_slice(), ended), (&b"begun"[..], Some(ErrorKind::ConnectionReset)));
    assert!(began.elapsed() >= Duration::from_millis(290), "{:?}", began.elapsed());
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), Some(ErrorKind::ConnectionReset));
    proxy.wait_until_idle();
}

#[test]
fn a_connection_on_which_something_moves_outlives_the_idle_timeout() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        for _ in 0..10 {
            connection.write_all(b".").unwrap();
            thread::sleep(Duration::from_millis(100));
        }
    });
    let proxy = proxy([instance]).with(|settings| settings.idle_timeout = Duration::from_millis(400)).start();
    assert_eq!(proxy.ask(get("/")), "..........");
}

#[test]
fn an_instance_that_ends_without_a_word_is_a_bad_gateway() {
    let closing = instance(|mut connection| drop(read_head(&mut connection)));
    let aborting = instance(|mut connection| {
        read_head(&mut connection);
        abort(connection);
    });
    // Whoever makes an instance close must not be able to take it out of service; a reset speaks against it.
    for (address, suspected) in [(closing, false), (aborting, true)] {
        let mut setup = proxy([address]);
        setup.check = Some(tcp_check());
        let proxy = setup.start();
        let response = proxy.ask(get("/"));
        assert!(response.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{response:?}");
        proxy.wait_until_idle();
        assert_eq!(proxy.counters().refused.get(RefuseReason::NoResponse), 1);
        let table = proxy.context.table.load();
        let (_, _, instance) = table.instances().next().unwrap();
        assert_eq!(instance.status.health().last_failure().is_some(), suspected);
    }
}

#[test]
fn a_second_request_on_the_connection_goes_to_the_same_instance() {
    let proxy = proxy([keep_alive(), keep_alive()]).start();
    let mut client = proxy.connect();
    for path in ["/1", "/2", "/3"] {
        send_get(&mut client, path);
        assert!(read_response(&mut client).starts_with(&format!("GET {path} ")));
        assert_eq!(proxy.sessions().iter().sum::<u32>(), 1);
    }
    assert_eq!(proxy.counters().requests.get(), 1, "only the first is read");
    drop(client);
    proxy.wait_until_idle();
}

#[test]
fn stopping_lets_relayed_connections_finish() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        connection.write_all(b"half").unwrap();
        thread::sleep(Duration::from_millis(300));
        connection.write_all(b" whole").unwrap();
    });
    let mut proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client.write_all(get("/").as_bytes()).unwrap();
    client.read_exact(&mut [0; 4]).unwrap();
    let reading = thread::spawn(move || read_to_end(&mut client));
    let began = Instant::now();
    proxy.stop(PATIENCE);
    assert!(began.elapsed() < PATIENCE / 2, "ended as soon as the last connection had");
    assert_eq!(reading.join().unwrap(), " whole");
    assert!(TcpStream::connect(proxy.address).is_err(), "nobody listens any more");
}

#[test]
fn a_client_may_finish_behind_its_last_request() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        // Later than most responses: the proxy has noticed the end.
        thread::sleep(Duration::from_millis(100));
        connection.write_all(b"answer").unwrap();
    });
    let proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client.write_all(get("/last").as_bytes()).unwrap();
    finish(&client);
    assert_eq!(read_to_end(&mut client), "answer");
    proxy.wait_until_idle();
}

#[test]
fn a_client_that_gives_up_its_last_request_is_noticed() {
    let (ended, receiver) = mpsc::channel();
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        ended.send(read_until_broken(&mut connection).1).unwrap();
    });
    let proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client.write_all(get("/last").as_bytes()).unwrap();
    thread::sleep(Duration::from_millis(50));
    abort(client);
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), Some(ErrorKind::ConnectionReset));
    proxy.wait_until_idle();
}

#[test]
fn what_a_client_sends_behind_its_last_request_does_not_cost_it_the_answer() {
    let body = pattern(100_000);
    let answer = body.clone();
    let (reached, receiver) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let gone = std::sync::Mutex::new(gone);
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        reached.send(()).unwrap();
        gone.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        connection.write_all(&answer).unwrap();
        finish(&connection);
        // Unread bytes would make the instance reset its connection.
        read_until_broken(&mut connection);
    });
    let proxy = proxy([instance]).start();
    for _ in 0..20 {
        let mut client = proxy.connect();
        client.write_all(get("/last").as_bytes()).unwrap();
        receiver.recv_timeout(PATIENCE).unwrap();
        client.write_all(get("/last").as_bytes()).unwrap();
        go.send(()).unwrap();
        let (received, ended) = read_until_broken(&mut client);
        assert_eq!(ended, None, "{} bytes came before the reset", received.len());
        assert!(received == body);
    }
    proxy.wait_until_idle();
}

#[test]
fn the_answer_to_a_last_request_may_be_longer_than_what_the_client_takes_at_once() {
    let body = pattern(20_000_000);
    let answer = body.clone();
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        connection.write_all(&answer).unwrap();
    });
    let proxy = proxy([instance]).start();
    let mut client = proxy.connect();
    client.write_all(get("/last").as_bytes()).unwrap();
    thread::sleep(Duration::from_millis(100));
    let (received, ended) = read_until_broken(&mut client);
    assert_eq!(ended, None);
    assert!(received == body);
    proxy.wait_until_idle();
}
