//! A listener that routes every request by itself (`once_only = false`), with nginx behind it and curl in front.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use support::lab::Host;
use support::router::configuration;
use support::{Connection, Curl, Router, TestLab};

const VIP: &str = "10.77.1.10:80";
/// Where the instance that changes the protocol listens.
const SWITCHING: &str = "10.77.2.11:7000";
const PATIENCE: Duration = Duration::from_secs(30);

fn settings(lab: &TestLab) -> String {
    let rest = format!(
        r#"
[[listener]]
name = "each"
address = "{VIP}"
once_only = false

[[pool]]
name = "web"
[[pool.instance]]
name = "web1"
address = "10.77.2.11:80"

[[pool]]
name = "files"
[[pool.instance]]
name = "web2"
address = "10.77.2.12:80"

[[pool]]
name = "chat"
[[pool.instance]]
name = "chat1"
address = "{SWITCHING}"

[[rule]]
name = "files"
match = 'PathPrefix("/files")'
pool = "files"

[[rule]]
name = "no-upload"
match = 'PathPrefix("/upload")'
action = "deny"
status = 403

[[rule]]
name = "chat"
match = 'Path("/chat")'
pool = "chat"

[default_rule]
pools = ["web"]
"#
    );
    configuration(lab, "", "", &rest)
}

fn start() -> (TestLab, Router) {
    let lab = TestLab::with_backends(2);
    let router = Router::start(&lab, &settings(&lab));
    (lab, router)
}

fn metric(router: &Router, series: &str) -> u64 {
    let metrics = router.metrics();
    let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {series} in {metrics}"))
}

#[test]
#[ignore = "needs root"]
fn curls_requests_on_one_connection_go_to_different_instances_and_a_denied_one_is_denied() {
    let (lab, router) = start();
    let url = |path: &str| format!("http://{VIP}{path}");
    let both = Curl::new(&lab)
        .arg("--write-out")
        .arg("[%{num_connects} connects]")
        .arg(url("/whoami"))
        .arg(url("/upload/x"))
        .get(url("/files/64k"));
    assert_eq!((both.status, both.instance()), (200, Some("backend1")));
    let text = both.text();
    assert_eq!(text.matches("[1 connects]").count(), 1, "one connection: {}", text.len());
    assert_eq!(text.matches("[0 connects]").count(), 2);
    assert!(text.contains("HTTP/1.1 403 Forbidden\r\n"));
    assert!(text.to_lowercase().contains("x-instance: backend2\r\n"));
    assert_eq!(metric(&router, "router_refused_total{reason=\"denied\"}"), 1);
    assert_eq!(metric(&router, "router_requests_total"), 3);
    router.eventually(PATIENCE, "the connection is counted once", |router| {
        metric(router, "router_relayed_total{reason=\"per_request\"}") == 1
    });
}

#[test]
#[ignore = "needs root"]
fn bodies_pass_whole_on_a_connection_that_alternates_between_instances() {
    let (lab, router) = start();
    let mut connection = Connection::open(&lab, Host::Client, VIP).unwrap();
    let direct = Curl::on(&lab, Host::Gateway).get("http://10.77.2.12/files/64k");
    for _ in 0..20 {
        let file = connection.get("/files/64k").unwrap();
        assert_eq!((file.status, file.instance()), (200, Some("backend2")));
        assert!(file.body == direct.body, "the file arrives changed");
        let name = connection.get("/whoami").unwrap();
        assert_eq!((name.status, name.text().trim()), (200, "backend1"));
    }
    // A second head that servers might read differently.
    connection
        .send("GET /whoami HTTP/1.1\r\nHost: lab\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    assert_eq!(connection.reply().unwrap().status, 400);
    assert_eq!(metric(&router, "router_requests_total"), 40);
}

#[test]
#[ignore = "needs root"]
fn an_upgraded_connection_is_handed_off_and_outlives_the_daemon() {
    let (lab, mut router) = start();
    let listener = lab.inside(Host::Backend(1), || TcpListener::bind(SWITCHING)).unwrap().unwrap();
    let instance = thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            connection.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
        connection.write_all(switched.as_bytes()).unwrap();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = connection.read(&mut buffer) {
            connection.write_all(&buffer[..count]).unwrap();
        }
        String::from_utf8(head).unwrap()
    });

    let mut connection = Connection::open(&lab, Host::Client, VIP).unwrap();
    assert_eq!(connection.get("/whoami").unwrap().instance(), Some("backend1"));
    connection
        .send("GET /chat HTTP/1.1\r\nHost: lab\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        .unwrap();
    let mut stream = connection.sender().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    let mut echo = |text: String| {
        stream.write_all(text.as_bytes()).unwrap();
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, text.as_bytes());
    };
    echo("as soon as it is switched".to_owned());
    let client = format!("--client={}", connection.local_address());
    router
        .eventually(PATIENCE, "the kernel carries it", |router| router.ctl(["flows", &client])["count"] == 1);
    assert_eq!(metric(&router, "router_handoffs_total"), 1);
    for number in 0..100 {
        echo(format!("frame {number}"));
    }
    router.kill();
    for number in 0..100 {
        echo(format!("frame {number} without a daemon"));
    }
    drop((stream, connection));
    let head = instance.join().unwrap();
    assert!(
        head.starts_with("GET /chat HTTP/1.1\r\n") && head.contains("X-Forwarded-For: 10.77.1.2\r\n"),
        "{head}"
    );
}
