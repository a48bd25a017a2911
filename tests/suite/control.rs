//! The control socket of a running daemon: what operators see is what clients get, and whatever clients of the socket do,
//! connections do not notice.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use support::lab::{Family, Host};
use support::router::configuration;
use support::{Connection, Curl, Router, TestLab, router, unix};

const SERVICE: &str = r#"
[[listener]]
name = "web"
address = "10.77.1.10:80"
offload = "OFFLOAD"

[[pool]]
name = "web"
check = { type = "tcp", interval = "500ms", timeout = "250ms" }

INSTANCES
[[rule]]
name = "private"
match = 'PathPrefix("/private") && !ClientIP("10.77.2.0/24")'
action = "deny"

[default_rule]
pools = ["web"]
"#;

fn service(offload: &str) -> String {
    SERVICE.replace("OFFLOAD", offload).replace("INSTANCES", &router::instances(Family::V4, "web", 2))
}

fn start(lab: &TestLab, offload: &str, daemon: &str) -> Router {
    let router = Router::start(lab, &configuration(lab, daemon, "", &service(offload)));
    router.eventually(Duration::from_secs(5), "both instances serve", |router| {
        router.ctl(["status"])["pools"][0]["serving"] == 2
    });
    router
}

#[test]
#[ignore = "needs root"]
fn operators_see_what_clients_get() {
    let lab = TestLab::with_backends(2);
    let router = start(&lab, "handoff", "");
    for _ in 0..4 {
        assert_eq!(Curl::new(&lab).get("http://10.77.1.10/").status, 200);
    }
    assert_eq!(Curl::new(&lab).get("http://10.77.1.10/private/x").status, 403);

    let requests = |name: &str| {
        let rules = router.ctl(["rules"]);
        rules.as_array().unwrap().iter().find(|rule| rule["name"] == name).unwrap()["requests"].clone()
    };
    assert_eq!((requests("default"), requests("private")), (json!(4), json!(1)));
    assert_eq!(router.ctl(["status"])["refused"], json!({"denied": 1}));

    // What explain says of the next request is where the next request goes.
    let explained = router.ctl(["explain", "--listener", "web", "--client", "10.77.1.2", "--path", "/next"]);
    let expected = explained["outcome"]["instance"].as_str().unwrap().to_owned();
    let mut connection = Connection::open(&lab, Host::Client, "10.77.1.10:80").unwrap();
    connection.get("/next").unwrap();
    let flows =
        || router.ctl(["flows", "--instance", &expected, "--client", "10.77.1.2", "--listener", "web"]);
    router.eventually(Duration::from_secs(5), "the flow is listed", |_| flows()["count"] == 1);
    let flow = flows()["flows"][0].clone();
    assert_eq!(flow["client"], connection.local_address().to_string());
    assert_eq!(
        (&flow["rule"], &flow["pool"], &flow["vip"]),
        (&json!("default"), &json!("web"), &json!("10.77.1.10:80"))
    );
    let sessions = |name: &str| {
        let instances = router.ctl(["instances"]);
        instances.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap()["sessions"].clone()
    };
    assert_eq!(sessions(&expected), 1);

    connection.reset().unwrap();
    router.eventually(Duration::from_secs(10), "flow and session end with the connection", |_| {
        flows()["count"] == 0 && sessions(&expected) == 0
    });
}

#[test]
#[ignore = "needs root"]
fn whoever_asks_for_it_finds_live_decisions_in_the_log_and_why() {
    let lab = TestLab::with_backends(2);
    let configuration = configuration(&lab, "", "", &service("auto"));
    let arguments = ["--log", "warn,decision=debug", "--log-format", "json"];
    let router = Router::start_with(&lab, &configuration, &arguments);
    router.eventually(Duration::from_secs(5), "both instances serve", |router| {
        router.ctl(["status"])["pools"][0]["serving"] == 2
    });
    let decision_of = |path: &str| {
        let log = router.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.find(|line| line["target"] == "decision" && line["request"] == path)
    };
    // One of several decisions within a tenth of a second is written down; of a client that keeps asking, one will be.
    let find = |path: &str, status: u16| {
        let began = Instant::now();
        loop {
            assert_eq!(Curl::new(&lab).get(format!("http://10.77.1.10{path}")).status, status);
            match decision_of(&format!("GET 10.77.1.10{path}")) {
                Some(found) => return found,
                None => assert!(began.elapsed() < Duration::from_secs(20), "no decision was logged"),
            }
        }
    };

    let denied = find("/private/x", 403);
    assert_eq!(denied["rule"], "private");
    assert_eq!(
        denied["rules"],
        "private: PathPrefix(\"/private\") holds, ClientIP(\"10.77.2.0/24\") does not hold"
    );
    assert_eq!(denied["outcome"], "denied with 403");
    let served = find("/x", 200);
    assert_eq!((&served["listener"], &served["client"]), (&json!("web"), &json!("10.77.1.2")));
    assert_eq!(served["rules"], "private: PathPrefix(\"/private\") does not hold");
    assert_eq!((&served["rule"], &served["method"]), (&json!("default"), &json!("fewest-sessions")));
    let (instances, outcome) = (served["instances"].as_str().unwrap(), served["outcome"].as_str().unwrap());
    let chosen = outcome.strip_prefix("instance ").unwrap();
    assert!(
        instances.starts_with(&format!("{chosen}: comes first among the candidates; web")),
        "{instances}"
    );
}

#[test]
#[ignore = "needs root"]
fn the_admin_address_gives_metrics_to_the_network_and_nothing_else() {
    let lab = TestLab::with_backends(2);
    let _router = start(&lab, "auto", "admin_listen = \"10.77.1.1:9180\"");
    let metrics = Curl::new(&lab).get("http://10.77.1.1:9180/metrics");
    assert_eq!(metrics.status, 200);
    assert!(metrics.text().contains("\nrouter_pool_serving{pool=\"web\"} 2\n"), "{}", metrics.text());
    assert_eq!(Curl::new(&lab).get("http://10.77.1.1:9180/healthz").text(), "ok\n");
    assert_eq!(Curl::new(&lab).get("http://10.77.1.1:9180/v1/status").status, 404);
}

#[test]
#[ignore = "needs root"]
fn a_flooded_control_socket_disturbs_no_connection() {
    let lab = TestLab::with_backends(2);
    let router = start(&lab, "relay", "");
    let files_before = router.open_files();
    let until = Instant::now() + Duration::from_secs(4);
    let mut flood: Vec<JoinHandle<u32>> = vec![idle(router.socket(), until)];
    let metrics = &b"GET /metrics HTTP/1.1\r\nHost: r\r\n\r\n"[..];
    for (bytes, reads) in [
        (metrics, 1 << 20),
        // Asks for more than it reads, so that answers pile up.
        (metrics, 1),
        (b"POST /v1/explain HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{[", 1 << 20),
        (b"\x16\x03\x01\x00\xff\xfe no protocol at all\r\n\r\n", 1 << 20),
        (b"POST /v1/explain HTTP/1.1\r\nHost: r\r\nContent-Length: 99999999999\r\n\r\n", 1 << 20),
    ] {
        flood.push(repeat(router.socket(), bytes, reads, until));
    }
    let mut served = 0;
    while Instant::now() < until {
        let reply = Curl::new(&lab).within(Duration::from_secs(5)).get("http://10.77.1.10/files/64k");
        assert_eq!((reply.status, reply.body.len()), (200, 64 * 1024));
        // As many connections as may be served, as many that are being turned away, and some that have just been evicted.
        let held = router.open_files().saturating_sub(files_before);
        assert!(held < 500, "the flood holds {held} descriptors");
        served += 1;
    }
    let sent: Vec<u32> = flood.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(served >= 4 && sent.iter().all(|count| *count > 4), "{served} served, {sent:?} sent");

    assert_eq!(router.ctl(["status"])["connections"]["refused"], 0);
    router.eventually(Duration::from_secs(15), "every descriptor of the flood is closed", |router| {
        router.open_files() <= files_before + 1
    });
}

/// A flooder that waits longer than this for the socket tries another connection.
const FLOODER_PATIENCE: Duration = Duration::from_millis(500);

/// Opens connections and says nothing on them.
fn idle(socket: PathBuf, until: Instant) -> JoinHandle<u32> {
    std::thread::spawn(move || {
        let mut held = Vec::new();
        let mut opened = 0;
        while Instant::now() < until {
            match unix::connect(&socket, FLOODER_PATIENCE) {
                Ok(stream) => {
                    opened += 1;
                    held.push(stream);
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            if held.len() > 200 {
                held.drain(..100);
            }
        }
        opened
    })
}

/// Sends the same bytes over and over, and reads up to `reads` bytes after each time; on a new connection whenever the old
/// one is closed or both sides' buffers are full.
fn repeat(socket: PathBuf, bytes: &'static [u8], reads: usize, until: Instant) -> JoinHandle<u32> {
    std::thread::spawn(move || {
        let mut sent = 0;
        while Instant::now() < until {
            let Ok(mut stream) = unix::connect(&socket, FLOODER_PATIENCE) else { continue };
            let mut answer = vec![0; reads];
            while Instant::now() < until && stream.write_all(bytes).is_ok() {
                sent += 1;
                if !stream.read(&mut answer).is_ok_and(|length| length > 0) {
                    break;
                }
            }
        }
        sent
    })
}

#[test]
#[ignore = "needs root"]
fn a_second_daemon_leaves_the_first_one_s_socket_alone() {
    let lab = TestLab::with_backends(2);
    let router = start(&lab, "relay", "");
    let second = lab
        .command(Host::Gateway, "timeout")
        .arg("20")
        .arg(support::router::binary("routerd"))
        .arg("--config")
        .arg(router.configuration_file())
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&second.stdout), String::from_utf8_lossy(&second.stderr));
    assert!(
        !second.status.success() && said.contains("another daemon answers on the control socket"),
        "{said}"
    );
    assert!(!said.contains("listening"), "it took no connection that was meant for the first: {said}");
    assert_eq!(router.ctl(["status"])["pid"], router.pid());
}
