//! Listeners with `once_only = false`: each request of a connection goes its own way.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use router::core::persistence::{Keys, Persistence};
use router::core::pool::{Instance, OnUnavailable, Pool, PoolId};
use router::core::rules::compile;
use router::core::table::{Action, Overrides, Rule};
use router::proxy::http;
use router::proxy::http::fields::Framing;
use router::proxy::http::scan::HeadLimits;
use router::proxy::refuse;
use router::proxy::settings::Offload;
use router_common::abi::reason::{CookieEvent, InterimEvent, RefuseReason, RelayReason};

use crate::actors::*;
use crate::corpus;
use crate::splicer::Splicer;

fn each(instances: impl IntoIterator<Item = SocketAddr>) -> Setup {
    proxy(instances).with(|settings| {
        settings.once_only = false;
        settings.forwarded_for = false;
    })
}

fn rule(name: &str, condition: &str, action: Action) -> Rule {
    Rule {
        name: name.to_owned(),
        enabled: true,
        condition: compile(condition).unwrap(),
        action,
        overrides: Overrides::default(),
        persistence: None,
        preload: None,
        hits: Arc::default(),
    }
}

/// An instance that answers each request with its name and says what it was asked.
fn named(name: &'static str, seen: &Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let seen = Arc::clone(seen);
    instance(move |mut connection| {
        loop {
            let head = read_head(&mut connection);
            if head.is_empty() {
                return;
            }
            seen.lock().unwrap().push(head);
            respond(&mut connection, name);
        }
    })
}

fn status_of(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or(head)
}

#[test]
fn requests_of_one_connection_go_to_the_pools_that_the_rules_say_and_a_denied_one_is_denied() {
    let (reports, web) = (Arc::default(), Arc::default());
    let mut setup = each([named("web", &web)]);
    setup.pools = vec![Pool {
        name: "reports".into(),
        instances: vec![Instance::new("r", named("reports", &reports), None)],
        ..Pool::default()
    }];
    setup.rules = vec![
        rule("reports", r#"PathPrefix("/reports")"#, Action::Pool(PoolId(1))),
        rule("no", r#"PathPrefix("/admin")"#, Action::Deny { status: 403 }),
    ];
    let proxy = setup.start();
    let mut client = proxy.connect();
    for (path, wanted) in [("/", "web"), ("/reports/1", "reports"), ("/a", "web"), ("/reports/2", "reports")]
    {
        send_get(&mut client, path);
        assert_eq!(read_response(&mut client), wanted, "{path}");
    }
    send_get(&mut client, "/admin");
    let head = read_head(&mut client);
    assert_eq!(status_of(&head), "403");
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ").or(line.strip_prefix("Content-Length: ")))
        .unwrap()
        .parse()
        .unwrap();
    client.read_exact(&mut vec![0; length]).unwrap();
    send_get(&mut client, "/b");
    assert_eq!(read_response(&mut client), "web", "the connection goes on");
    drop(client);
    proxy.wait_until_idle();
    assert_eq!((web.lock().unwrap().len(), reports.lock().unwrap().len()), (3, 2));
    assert!(!web.lock().unwrap().iter().any(|head| head.contains("/admin")));
    assert_eq!(proxy.counters().refused.get(RefuseReason::Denied), 1);
    assert_eq!(proxy.counters().requests.get(), 6);
    assert_eq!(proxy.counters().relayed.get(RelayReason::PerRequest), 1, "once for the connection");
    assert_eq!(proxy.context.table.load().rules()[0].hits.get(), 2);
}

#[test]
fn a_connection_to_an_instance_is_kept_for_its_client_and_shared_with_no_other() {
    let clients: Arc<Mutex<Vec<HashSet<String>>>> = Arc::default();
    let connections = Arc::clone(&clients);
    let instance = instance(move |mut connection| {
        let mut asked = HashSet::new();
        loop {
            let head = read_head(&mut connection);
            if head.is_empty() {
                connections.lock().unwrap().push(asked);
                return;
            }
            asked.insert(head.split('/').nth(1).unwrap().to_owned());
            respond(&mut connection, "ok");
        }
    });
    let proxy = each([instance]).start();
    thread::scope(|scope| {
        for number in 0..8 {
            let proxy = &proxy;
            scope.spawn(move || {
                let mut client = proxy.connect();
                for round in 0..20 {
                    send_get(&mut client, &format!("/client-{number}/{round}"));
                    assert_eq!(read_response(&mut client), "ok");
                }
            });
        }
    });
    proxy.wait_until_idle();
    eventually("every connection has ended", || clients.lock().unwrap().len() == 8);
    assert!(clients.lock().unwrap().iter().all(|asked| asked.len() == 1), "{clients:?}");
}

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
fn a_kept_connection_that_its_instance_has_closed_costs_no_request() {
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    // Answers one request on each connection, and closes without having said so.
    let instance = instance(move |mut connection| {
        if !read_head(&mut connection).is_empty() {
            count.fetch_add(1, Ordering::Relaxed);
            respond(&mut connection, "ok");
        }
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    for _ in 0..50 {
        send_get(&mut client, "/");
        assert_eq!(read_response(&mut client), "ok");
    }
    assert_eq!((served.load(Ordering::Relaxed), proxy.counters().refused.total()), (50, 0));
}

#[test]
fn what_may_not_be_done_twice_is_not_sent_twice() {
    let posts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&posts);
    // Takes the second request of a connection and closes without an answer.
    let instance = instance(move |mut connection| {
        read_head(&mut connection);
        respond(&mut connection, "ok");
        if read_head(&mut connection).starts_with("POST") {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    assert_eq!(read_response(&mut client), "ok");
    client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert_eq!(status_of(&read_head(&mut client)), "502");
    assert_eq!(posts.load(Ordering::Relaxed), 1);
    assert_eq!(proxy.counters().refused.get(RefuseReason::NoResponse), 1);
}

#[test]
fn an_instance_that_refuses_is_passed_over_for_each_request() {
    let proxy = each([nobody(), keep_alive()]).start();
    let mut client = proxy.connect();
    for _ in 0..6 {
        send_get(&mut client, "/");
        assert!(read_response(&mut client).starts_with("GET / "));
    }
    assert!(proxy.counters().retries.get() > 0);
    assert_eq!(proxy.counters().refused.total(), 0);
}

#[test]
fn a_pool_that_nobody_serves_is_answered_as_it_says() {
    for (action, wanted) in [(OnUnavailable::Status503, "HTTP/1.1 503 "), (OnUnavailable::Reset, "")] {
        let mut setup = each([nobody()]);
        setup.on_unavailable = Some(action);
        let proxy = setup.start();
        let mut client = proxy.connect();
        client.write_all(get("/").as_bytes()).unwrap();
        let (answer, ended) = read_until_broken(&mut client);
        assert!(String::from_utf8(answer).unwrap().starts_with(wanted));
        assert_eq!(ended.is_some(), wanted.is_empty(), "{action:?}");
        proxy.wait_until_idle();
        assert_eq!(proxy.counters().refused.get(RefuseReason::ConnectFailed), 1);
    }
}

#[test]
fn sessions_are_counted_while_a_request_is_served() {
    let instance = instance(|mut connection| {
        loop {
            if read_head(&mut connection).is_empty() {
                return;
            }
            connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no").unwrap();
            let mut go = [0];
            if connection.read_exact(&mut go).is_err() {
                return;
            }
        }
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    read_head(&mut client);
    assert_eq!(proxy.sessions(), [1]);
    drop(client);
    eventually("the session ends with its client", || proxy.sessions() == [0]);
    proxy.wait_until_idle();
}

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

const FAR_MORE_THAN_BUFFERS: usize = 256 << 20;

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

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";

/// An instance that changes the protocol on `/ws`, and then sends back what it gets.
fn switching() -> SocketAddr {
    instance(|mut connection| {
        loop {
            let head = read_head(&mut connection);
            if head.is_empty() {
                return;
            }
            if head.to_ascii_lowercase().contains("upgrade: websocket") {
                break;
            }
            respond(&mut connection, "plain");
        }
        connection
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello",
            )
            .unwrap();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = connection.read(&mut buffer) {
            connection.write_all(&buffer[..count]).unwrap();
        }
    })
}

fn talk_after_upgrade(proxy: &Proxy) {
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    assert_eq!(read_response(&mut client), "plain");
    client.write_all(UPGRADE.as_bytes()).unwrap();
    let head = read_head(&mut client);
    assert_eq!(status_of(&head), "101");
    assert!(head.to_ascii_lowercase().contains("upgrade: websocket"), "{head}");
    let mut hello = [0; 5];
    client.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    for number in 0..20 {
        let frame = format!("\x01frame {number}\r\n\r\n");
        client.write_all(frame.as_bytes()).unwrap();
        let mut back = vec![0; frame.len()];
        client.read_exact(&mut back).unwrap();
        assert_eq!(back, frame.as_bytes());
    }
    assert_eq!(proxy.sessions(), [1]);
    finish(&client);
    assert_eq!(read_to_end(&mut client), "");
}

#[test]
fn after_an_upgrade_bytes_pass_unread() {
    let proxy = each([switching()]).with(|settings| settings.offload = Offload::Relay).start();
    talk_after_upgrade(&proxy);
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().relayed.get(RelayReason::Configured), 1);
    assert_eq!(proxy.counters().refused.total(), 0);
}

#[test]
fn an_upgraded_connection_is_handed_off() {
    let flows = Arc::new(Splicer::default());
    let proxy = each([switching()]).flows(flows.clone()).start();
    talk_after_upgrade(&proxy);
    proxy.wait_until_idle();
    let taken = flows.taken();
    assert_eq!((taken.len(), proxy.counters().handoffs.get()), (1, 1));
    assert_eq!(taken[0].source_port, Some(taken[0].bound));
    assert_eq!(proxy.counters().relayed.total(), 0);
}

#[test]
fn an_upgrade_that_is_declined_leaves_an_ordinary_connection() {
    let flows = Arc::new(Splicer::default());
    let proxy = each([keep_alive()]).flows(flows.clone()).start();
    let mut client = proxy.connect();
    client.write_all(UPGRADE.as_bytes()).unwrap();
    assert!(read_response(&mut client).starts_with("GET /ws "));
    send_get(&mut client, "/next");
    assert!(read_response(&mut client).starts_with("GET /next "));
    assert!(flows.taken().is_empty());
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

#[test]
fn requests_wait_in_line_until_one_before_them_is_answered() {
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let instance = instance(move |mut connection| {
        loop {
            let head = read_head(&mut connection);
            if head.is_empty() {
                return;
            }
            if head.starts_with("GET /slow") {
                wait.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            }
            respond(&mut connection, "ok");
        }
    });
    let mut setup = each([]);
    setup.rules = vec![rule("line", r#"PathPrefix("/")"#, Action::Pool(PoolId(1)))];
    setup.pools = vec![Pool {
        name: "line".into(),
        instances: vec![Instance { max_sessions: Some(1), ..Instance::new("one", instance, None) }],
        on_unavailable: Some(OnUnavailable::Queue { patience: PATIENCE }),
        queue_limit: 10,
        ..Pool::default()
    }];
    let proxy = setup.start();
    let (mut first, mut second) = (proxy.connect(), proxy.connect());
    send_get(&mut first, "/slow");
    eventually("the only place is taken", || proxy.sessions() == [1]);
    send_get(&mut second, "/next");
    thread::sleep(Duration::from_millis(50));
    release.send(()).unwrap();
    assert_eq!(read_response(&mut first), "ok");
    assert_eq!(
        read_response(&mut second),
        "ok",
        "the place is free although the first client stays connected"
    );
    send_get(&mut first, "/again");
    assert_eq!(read_response(&mut first), "ok");
}

#[test]
fn a_cookie_is_looked_at_and_set_for_each_request() {
    let persistence = Persistence {
        cookie: "RTID".to_owned(),
        age: Duration::ZERO,
        domain: None,
        path: "/".to_owned(),
        secure: false,
        http_only: true,
        same_site: None,
        generation: 1,
        keys: Keys::new(&[[7; 32]]).unwrap(),
    };
    let mut setup = each([]);
    let names = ["one", "two"];
    setup.rules = vec![Rule {
        persistence: Some(Arc::new(persistence)),
        ..rule("kept", r#"PathPrefix("/")"#, Action::Pool(PoolId(1)))
    }];
    setup.pools = vec![Pool {
        name: "kept".into(),
        instances: names.map(|name| Instance::new(name, named(name, &Arc::default()), None)).into(),
        ..Pool::default()
    }];
    let proxy = setup.start();
    let mut client = proxy.connect();
    let mut ask = |cookie: Option<&str>| {
        let field = cookie.map_or_else(String::new, |cookie| format!("Cookie: {cookie}\r\n"));
        client.write_all(format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n").as_bytes()).unwrap();
        let head = read_head(&mut client);
        let mut body = [0; 3];
        client.read_exact(&mut body).unwrap();
        let set = head
            .lines()
            .find_map(|line| line.strip_prefix("Set-Cookie: ")?.split(';').next().map(str::to_owned));
        (String::from_utf8(body.to_vec()).unwrap(), set)
    };
    let (first, cookie) = ask(None);
    let cookie = cookie.expect("the first response sets one");
    for _ in 0..4 {
        assert_eq!(ask(Some(&cookie)), (first.clone(), None));
    }
    assert!(ask(Some("RTID=forged")).1.is_some(), "on the same connection");
    let counts = &proxy.counters().cookies;
    let counted =
        [CookieEvent::Inserted, CookieEvent::Honoured, CookieEvent::Forged].map(|event| counts.get(event));
    assert_eq!(counted, [2, 4, 1]);
}

#[test]
fn a_silent_pool_says_nothing_until_the_client_gives_up() {
    let mut setup = each([nobody()]);
    setup.on_unavailable = Some(OnUnavailable::Silent);
    let proxy = setup.start();
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    eventually("it is refused", || proxy.counters().refused.get(RefuseReason::ConnectFailed) == 1);
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let silence = client.read(&mut [0]).unwrap_err().kind();
    assert!(matches!(silence, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{silence:?}");
    drop(client);
    proxy.wait_until_idle();
}

#[test]
fn what_a_client_sends_right_behind_an_upgrade_reaches_the_instance() {
    for flows in [None, Some(Arc::new(Splicer::default()))] {
        let mut setup = each([switching()]);
        let hands_off = flows.is_some();
        if let Some(flows) = flows {
            setup = setup.flows(flows);
        }
        let proxy = setup.start();
        let mut client = proxy.connect();
        client.write_all(format!("{UPGRADE}early bird").as_bytes()).unwrap();
        assert_eq!(status_of(&read_head(&mut client)), "101");
        let mut back = [0; 15];
        client.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"helloearly bird");
        assert_eq!(proxy.counters().handoffs.get(), u64::from(hands_off));
        drop(client);
        proxy.wait_until_idle();
    }
}

#[test]
fn a_client_that_aborts_while_it_waits_for_an_upgrade_is_noticed() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        let _ended = connection.read(&mut [0]);
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    client.write_all(UPGRADE.as_bytes()).unwrap();
    eventually("the instance is asked", || proxy.sessions() == [1]);
    abort(client);
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().refused.get(RefuseReason::ClientGone), 1);
}
