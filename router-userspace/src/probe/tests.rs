//! Checks of real sockets on the loopback interface: servers that work, refuse, stall, answer nonsense, or come back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::check::Checker;
use super::{Origin, Prober};
use crate::core::health::Observation::{self, CheckFailed, CheckPassed};
use crate::core::health::{CheckKind, CheckSpec, Failure, Reachability};
use crate::core::pool::{Instance, Method, Pool};
use crate::core::status::AdminState;
use crate::core::table::{DefaultRule, RoutingTable};

mod agents;
mod preloads;
mod tls;

fn tcp() -> CheckSpec {
    CheckSpec {
        kind: CheckKind::Tcp,
        interval: Duration::from_millis(20),
        timeout: Duration::from_millis(500),
        rise: 2,
        fall: 3,
        initial: Reachability::Down,
    }
}

fn http() -> CheckSpec {
    let kind = CheckKind::Http { path: "/health".to_owned(), host: None, expect: vec![200..=399] };
    CheckSpec { kind, ..tcp() }
}

async fn look(spec: &CheckSpec, address: SocketAddr) -> Observation {
    let checker = Checker::new(spec.clone(), None).expect("the check can be made");
    checker.check(address, &Origin::default()).await.expect("the check can be made")
}

/// A server that reads a request and answers each connection with `answer`.
async fn server(answer: &'static [u8]) -> SocketAddr {
    serve(move |mut stream, _request| async move {
        let _ = stream.write_all(answer).await;
    })
    .await
    .0
}

/// A server that treats each connection, with the request read from it, as `treat` says.
async fn serve<F>(treat: impl Fn(TcpStream, Vec<u8>) -> F + Send + 'static) -> (SocketAddr, AbortHandle)
where
    F: Future<Output = ()> + Send + 'static,
{
    serve_on("127.0.0.1:0".parse().unwrap(), treat).await
}

async fn serve_on<F>(
    address: SocketAddr,
    treat: impl Fn(TcpStream, Vec<u8>) -> F + Send + 'static,
) -> (SocketAddr, AbortHandle)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4_096];
            let length = stream.read(&mut request).await.unwrap_or(0);
            request.truncate(length);
            tokio::spawn(treat(stream, request));
        }
    });
    (address, task.abort_handle())
}

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn a_listening_port_passes_a_tcp_check_and_a_closed_one_refuses() {
    assert_eq!(look(&tcp(), server(b"").await).await, CheckPassed);
    assert_eq!(look(&tcp(), nobody().await).await, CheckFailed(Failure::Refused));
    assert_eq!(look(&http(), nobody().await).await, CheckFailed(Failure::Refused));
}

#[tokio::test]
async fn an_http_check_judges_the_status() {
    let cases: [(&'static [u8], Observation); 5] = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", CheckPassed),
        (b"HTTP/1.0 302 Found\r\nLocation: /\r\n\r\n", CheckPassed),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", CheckFailed(Failure::Status(404))),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", CheckFailed(Failure::Status(500))),
        (b"HTTP/1.1 503 \r\n\r\n", CheckFailed(Failure::Status(503))),
    ];
    for (answer, seen) in cases {
        assert_eq!(look(&http(), server(answer).await).await, seen, "{}", String::from_utf8_lossy(answer));
    }
    let mut only_204 = http();
    only_204.kind = CheckKind::Http { path: "/".to_owned(), host: None, expect: vec![204..=204] };
    assert_eq!(look(&only_204, server(b"HTTP/1.1 204 No Content\r\n\r\n").await).await, CheckPassed);
    let ok = server(b"HTTP/1.1 200 OK\r\n\r\n").await;
    assert_eq!(look(&only_204, ok).await, CheckFailed(Failure::Status(200)));
}

#[tokio::test]
async fn an_http_check_fails_on_garbage_silence_and_an_early_end() {
    let cases: [(&'static [u8], Failure); 5] = [
        (b"SSH-2.0-OpenSSH_9.2\r\n", Failure::Malformed),
        (b"\x15\x03\x01\x00\x02\x02\x16", Failure::Malformed),
        (b"HTTP/9.9 200 OK\r\n\r\n", Failure::Malformed),
        (b"", Failure::Closed),
        (b"HTTP/1.1 200 OK\r\nX: 1", Failure::Closed),
    ];
    for (answer, failure) in cases {
        assert_eq!(look(&http(), server(answer).await).await, CheckFailed(failure), "{answer:?}");
    }
    let (resets, _) = serve(|stream, _| async move {
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    })
    .await;
    assert_eq!(look(&http(), resets).await, CheckFailed(Failure::Reset));
}

#[tokio::test]
async fn an_endless_head_is_read_up_to_a_limit() {
    let (endless, _) = serve(|mut stream, _| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
        while stream.write_all(b"X-Filler: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n").await.is_ok() {}
    })
    .await;
    assert_eq!(look(&http(), endless).await, CheckFailed(Failure::Malformed));
}

#[tokio::test]
async fn a_slow_answer_and_an_answer_byte_by_byte_fail_at_the_deadline() {
    let (silent, _) = serve(|stream, _| async move {
        sleep(Duration::from_secs(30)).await;
        drop(stream);
    })
    .await;
    let (dripping, _) = serve(|mut stream, _| async move {
        for byte in b"HTTP/1.1 200 OK\r\n\r\n" {
            let _ = stream.write_all(&[*byte]).await;
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let impatient = CheckSpec { timeout: Duration::from_millis(200), ..http() };
    for address in [silent, dripping] {
        let started = Instant::now();
        assert_eq!(look(&impatient, address).await, CheckFailed(Failure::TimedOut));
        assert!(started.elapsed() < Duration::from_millis(400), "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_server_that_keeps_the_connection_open_does_not_hold_up_the_verdict() {
    let (open, _) = serve(|mut stream, _| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n").await;
        sleep(Duration::from_secs(30)).await;
    })
    .await;
    let started = Instant::now();
    assert_eq!(look(&CheckSpec { timeout: Duration::from_secs(20), ..http() }, open).await, CheckPassed);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_http_check_asks_for_its_path_and_host_and_to_close() {
    let (requests, mut received) = tokio::sync::mpsc::unbounded_channel();
    let (address, _) = serve(move |mut stream, request| {
        requests.send(String::from_utf8(request).unwrap()).unwrap();
        async move {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        }
    })
    .await;
    let host = Some("app.example".to_owned());
    let named = CheckSpec {
        kind: CheckKind::Http { path: "/up?x=1".to_owned(), host, expect: vec![200..=200] },
        ..http()
    };
    assert_eq!(look(&named, address).await, CheckPassed);
    assert_eq!(
        timeout(Duration::from_secs(30), received.recv()).await.unwrap().unwrap(),
        "GET /up?x=1 HTTP/1.1\r\nHost: app.example\r\nUser-Agent: router-check\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(look(&http(), address).await, CheckPassed);
    assert!(
        timeout(Duration::from_secs(30), received.recv())
            .await
            .unwrap()
            .unwrap()
            .contains(&format!("\r\nHost: {address}\r\n"))
    );
}

#[tokio::test]
async fn a_check_that_this_host_cannot_make_says_nothing_about_the_instance() {
    let origin = Origin { addresses: vec!["192.0.2.1".parse().unwrap()], flow_ports: Vec::new() };
    assert!(
        Checker::new(tcp(), None).unwrap().check(server(b"").await, &origin).await.is_err(),
        "not an address of this host"
    );
}

fn instance(name: &str, address: SocketAddr, check: &CheckSpec) -> Instance {
    Instance {
        name: name.to_owned(),
        address,
        weight: 100,
        group: None,
        max_sessions: None,
        state: AdminState::Enabled,
        ..Instance::new(name, address, Some(check))
    }
}

fn table(check: Option<CheckSpec>, instances: Vec<Instance>) -> RoutingTable {
    let pool = Pool {
        name: "app".to_owned(),
        method: Method::FewestSessions,
        on_unavailable: None,
        check,
        instances,
        ..Pool::default()
    };
    RoutingTable::new(Vec::new(), DefaultRule::default(), vec![pool], None).unwrap()
}

fn prober() -> Prober {
    Prober::new(Handle::current(), Origin::default())
}

async fn becomes(table: &RoutingTable, index: usize, wanted: Reachability) {
    let status = &table.pools()[0].instances[index].status;
    let reached = async {
        while status.reachability() != wanted {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(Duration::from_secs(5), reached).await.unwrap_or_else(|_| panic!("never {}", wanted.name()));
}

#[tokio::test]
async fn an_instance_serves_after_its_first_good_check_and_stops_and_comes_back_by_itself() {
    let prober = prober();
    let treat = |mut stream: TcpStream, _| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
    };
    let (address, server) = serve(treat).await;
    let table = table(Some(http()), vec![instance("app1", address, &http())]);
    let status = &table.pools()[0].instances[0].status;
    assert_eq!(status.reachability(), Reachability::Down, "checked before it serves");
    prober.install(&table);
    becomes(&table, 0, Reachability::Up).await;
    server.abort();
    becomes(&table, 0, Reachability::Down).await;
    assert_eq!(status.health().last_failure().unwrap().0, Failure::Refused);
    serve_on(address, treat).await;
    becomes(&table, 0, Reachability::Up).await;
    let counts = status.health_counts();
    assert_eq!((counts.came_up.get(), counts.went_down.get()), (2, 1));
    assert!(counts.checks_passed.get() >= 3 && counts.checks_failed.get() >= 1);
}

#[tokio::test]
async fn a_failing_status_takes_an_instance_down_after_fall_checks_and_not_before() {
    let prober = prober();
    let status_code = Arc::new(AtomicU16::new(200));
    let failures = Arc::new(AtomicUsize::new(0));
    let (code, count) = (Arc::clone(&status_code), Arc::clone(&failures));
    let (address, _) = serve(move |mut stream, _| {
        let status = code.load(Ordering::SeqCst);
        count.fetch_add(usize::from(status == 500), Ordering::SeqCst);
        async move {
            let _ = stream.write_all(format!("HTTP/1.1 {status} X\r\n\r\n").as_bytes()).await;
        }
    })
    .await;
    let table = table(Some(http()), vec![instance("app1", address, &http())]);
    prober.install(&table);
    becomes(&table, 0, Reachability::Up).await;
    status_code.store(500, Ordering::SeqCst);
    becomes(&table, 0, Reachability::Down).await;
    assert!((3..=4).contains(&failures.load(Ordering::SeqCst)), "fall = 3: {failures:?}");
    status_code.store(200, Ordering::SeqCst);
    becomes(&table, 0, Reachability::Up).await;
}

#[tokio::test]
async fn a_new_table_keeps_what_is_known_joins_new_instances_and_leaves_removed_ones() {
    let prober = prober();
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let (leaving, _) = serve(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async {}
    })
    .await;
    let staying = server(b"").await;
    let first =
        table(Some(tcp()), vec![instance("stays", staying, &tcp()), instance("leaves", leaving, &tcp())]);
    prober.install(&first);
    becomes(&first, 0, Reachability::Up).await;
    becomes(&first, 1, Reachability::Up).await;
    assert_eq!(prober.checked(), 2);

    let joining = server(b"").await;
    let mut second =
        table(Some(tcp()), vec![instance("joins", joining, &tcp()), instance("stays", staying, &tcp())]);
    second.carry_over(&first);
    prober.install(&second);
    assert_eq!(second.pools()[0].instances[1].status.reachability(), Reachability::Up, "at once");
    becomes(&second, 0, Reachability::Up).await;
    assert_eq!(prober.checked(), 2);
    // A check that was under way may still have arrived; after that there are none.
    sleep(Duration::from_millis(50)).await;
    let before = seen.load(Ordering::SeqCst);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(seen.load(Ordering::SeqCst), before, "nobody checks an instance that has left");

    prober.install(&table(None, Vec::new()));
    assert_eq!(prober.checked(), 0);
}

#[tokio::test]
async fn a_changed_check_is_used_from_the_next_one_on() {
    let prober = prober();
    let address = server(b"HTTP/1.1 500 X\r\n\r\n").await;
    let first = table(Some(tcp()), vec![instance("app1", address, &tcp())]);
    prober.install(&first);
    becomes(&first, 0, Reachability::Up).await;
    let mut second = table(Some(http()), vec![instance("app1", address, &http())]);
    second.carry_over(&first);
    prober.install(&second);
    becomes(&second, 0, Reachability::Down).await;

    let mut unchecked = table(None, vec![instance("app1", address, &http())]);
    unchecked.carry_over(&second);
    let status = &unchecked.pools()[0].instances[0].status;
    assert_eq!(status.reachability(), Reachability::Up, "no check is left that could bring it back");
}

#[tokio::test]
async fn dropping_the_prober_ends_its_checks() {
    let prober = prober();
    let table = table(Some(tcp()), vec![instance("app1", server(b"").await, &tcp())]);
    prober.install(&table);
    becomes(&table, 0, Reachability::Up).await;
    drop(prober);
    sleep(Duration::from_millis(50)).await;
    let counts = table.pools()[0].instances[0].status.health_counts();
    let before = counts.checks_passed.get();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(counts.checks_passed.get(), before);
}
