//! One side stops in the middle.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use router_common::abi::reason::RefuseReason;

use super::*;
use crate::actors::*;

const FAR_MORE_THAN_BUFFERS: usize = 256 << 20;

/// Sends until nothing more is taken for a while; returns how much was.
fn send_until_stuck(connection: &mut TcpStream, limit: usize) -> usize {
    connection.set_write_timeout(Some(Duration::from_millis(700))).unwrap();
    let piece = vec![7; 64 * 1024];
    let mut sent = 0;
    while sent < limit {
        match connection.write(&piece) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    sent
}

#[test]
fn an_instance_that_does_not_read_holds_its_client_back() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        thread::sleep(Duration::from_secs(3));
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {FAR_MORE_THAN_BUFFERS}\r\n\r\n");
    client.write_all(head.as_bytes()).unwrap();
    let sent = send_until_stuck(&mut client, FAR_MORE_THAN_BUFFERS);
    assert!(sent < FAR_MORE_THAN_BUFFERS / 4, "{sent} bytes were taken");
    drop(client);
    proxy.wait_until_idle();
}

#[test]
fn a_client_that_does_not_read_holds_its_instance_back_and_loses_nothing() {
    let sent = Arc::new(AtomicUsize::new(usize::MAX));
    let count = Arc::clone(&sent);
    let (give_up, told) = std::sync::mpsc::channel::<()>();
    let told = Mutex::new(told);
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {FAR_MORE_THAN_BUFFERS}\r\n\r\n");
        connection.write_all(head.as_bytes()).unwrap();
        count.store(send_until_stuck(&mut connection, FAR_MORE_THAN_BUFFERS), Ordering::Relaxed);
        let _ = told.lock().unwrap().recv_timeout(Duration::from_secs(30));
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    eventually("the instance is stuck", || sent.load(Ordering::Relaxed) != usize::MAX);
    let sent = sent.load(Ordering::Relaxed);
    assert!(sent < FAR_MORE_THAN_BUFFERS / 4, "{sent} bytes were taken");
    read_head(&mut client);
    client.read_exact(&mut vec![0; sent]).expect("all that the instance has sent");
    give_up.send(()).unwrap();
    let (received, _) = read_until_broken(&mut client);
    assert!(received.is_empty(), "the instance gave up, and that is seen");
    proxy.wait_until_idle();
}

#[test]
fn a_client_that_aborts_ends_its_request_at_the_instance() {
    let (ended, wait) = std::sync::mpsc::channel();
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        let mut byte = [0];
        ended.send(matches!(connection.read(&mut byte), Ok(0) | Err(_))).unwrap();
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    eventually("the instance is asked", || proxy.sessions() == [1]);
    abort(client);
    assert!(wait.recv_timeout(PATIENCE).unwrap());
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().refused.get(RefuseReason::ClientGone), 1);
}

#[test]
fn a_response_that_breaks_off_is_seen_to_be_broken() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        connection.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n").unwrap();
        abort(connection);
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    let (received, ended) = read_until_broken(&mut client);
    assert!(ended.is_some() && !received.ends_with(b"0\r\n\r\n"), "{ended:?}");
    proxy.wait_until_idle();
}

#[test]
fn an_instance_that_never_answers_is_given_up() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        let _ended = connection.read(&mut [0]);
    });
    let proxy = each([instance]).with(|settings| settings.idle_timeout = Duration::from_millis(300)).start();
    assert_eq!(status_of(&proxy.ask(get("/"))), "504");
    assert_eq!(proxy.counters().refused.get(RefuseReason::ResponseTimeout), 1);
    proxy.wait_until_idle();
}

#[test]
fn a_client_that_reads_nothing_is_reset_when_its_patience_ends() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        let _ended = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 268435456\r\n\r\n");
        send_until_stuck(&mut connection, FAR_MORE_THAN_BUFFERS);
        let _ended = connection.read(&mut [0]);
    });
    let proxy = each([instance]).with(|settings| settings.idle_timeout = Duration::from_millis(300)).start();
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    proxy.wait_until_idle();
    let (_, ended) = read_until_broken(&mut client);
    assert!(ended.is_some());
}
