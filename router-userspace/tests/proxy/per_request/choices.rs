//! Where each request goes, and what its connections to instances are good for.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use router::core::persistence::{Keys, Persistence};
use router::core::pool::{Instance, OnUnavailable, Pool, PoolId};
use router::core::table::{Action, Rule};
use router_common::abi::reason::{CookieEvent, RefuseReason, RelayReason};

use super::*;
use crate::actors::*;

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
