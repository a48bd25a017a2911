//! Resources that are opened on instances before users ask for them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use support::lab::{Family, Host, VIP, peers};
use support::router::configuration;
use support::{Curl, Entry, Peer, Router, TestLab, router};

const LIMIT: Duration = Duration::from_secs(30);

/// Three instances that are checked, and a rule that opens `sales` on some of them; `keys` are the others of its preload.
fn settings(family: Family, lab: &TestLab, keys: &str) -> String {
    let listeners: String = [("handoff", 80), ("auto", 81), ("relay", 82)]
        .map(|(way, port)| {
            let vip = SocketAddr::new(family.vip(), port);
            format!(
                "[[listener]]\nname = \"{way}\"\naddress = \"{vip}\"\noffload = \"{way}\"\n\
                 resource = {{ path_regex = '^/analysis/([^/]+)' }}\n\n"
            )
        })
        .concat();
    let instances = router::instances(family, "web", 3);
    let rest = format!(
        r#"{listeners}
[[pool]]
name = "web"
check = {{ type = "tcp", interval = "200ms", timeout = "100ms", fall = 2, rise = 1 }}

{instances}
[[rule]]
name = "analyses"
match = 'PathPrefix("/analysis")'
pool = "web"
preload = {{ resources = ["sales"], every = "1h", {keys} }}
"#
    );
    configuration(lab, "", "", &rest)
}

fn preloads(router: &Router) -> Vec<Value> {
    router.ctl(["preloads"]).as_array().expect("a list").clone()
}

/// The numbers of the instances that have the resource loaded.
fn loaded(router: &Router) -> BTreeSet<u8> {
    let number = |row: &Value| row["instance"].as_str()?.strip_prefix("web")?.parse().ok();
    preloads(router).iter().filter(|row| row["loaded"] == true).filter_map(number).collect()
}

fn metric(router: &Router, series: &str) -> u64 {
    let metrics = router.metrics();
    let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {series}"))
}

/// The number of the backend that answers, over each way of carrying connections.
fn served_by(family: Family, lab: &TestLab, path: &str) -> BTreeSet<u8> {
    let ask = |entry: Entry| {
        let reply = Curl::new(lab).get(entry.url_over(family, path));
        assert_eq!(reply.status, 200);
        reply.instance().unwrap().strip_prefix("backend").unwrap().parse().unwrap()
    };
    [Entry::Handoff, Entry::Auto, Entry::Relay, Entry::Relay].map(ask).into()
}

support::over_both_families! {
    a_preload_survives_the_death_of_its_instance_and_users_go_where_it_is
}

fn a_preload_survives_the_death_of_its_instance_and_users_go_where_it_is(family: Family) {
    let lab = TestLab::with_backends(3);
    let mut router = Router::start(
        &lab,
        &settings(family, &lab, r#"instances = 1, request = "GET /analysis/{resource}/open""#),
    );
    router.eventually(LIMIT, "the resource is open on one instance", |router| loaded(router).len() == 1);
    let first = loaded(&router);
    let row = &preloads(&router)[0];
    assert_eq!((&row["rule"], &row["resource"]), (&"analyses".into(), &"sales".into()));
    assert_eq!((&row["state"], &row["last"]["status"]), (&"loaded".into(), &200.into()), "{row}");
    assert!(row["next_in_seconds"].as_f64().unwrap() > 3_000.0, "{row}");
    assert_eq!(served_by(family, &lab, "/analysis/sales"), first, "users of the resource go there");
    assert_ne!(served_by(family, &lab, "/analysis/other"), first, "others spread");

    peers::stop_one(&lab, *first.first().unwrap()).unwrap();
    router.eventually(LIMIT, "another instance is picked", |router| {
        let now = loaded(router);
        now.len() == 1 && now != first
    });
    assert_eq!(served_by(family, &lab, "/analysis/sales"), loaded(&router));
    assert_eq!(metric(&router, "router_preload_requests_total{result=\"succeeded\"} "), 2);

    // Whatever was loaded is loaded anew by the next daemon.
    peers::start_one(&lab, *first.first().unwrap()).unwrap();
    router.stop();
    router.restart();
    router.eventually(LIMIT, "the resource is open again", |router| loaded(router).len() == 1);
    assert_eq!(metric(&router, "router_preload_requests_total{result=\"succeeded\"} "), 1);
}

#[test]
#[ignore = "needs root"]
fn repeated_failures_stop_with_a_status_and_a_reload_begins_anew() {
    let lab = TestLab::with_backends(3);
    let failing = r#"instances = 2, retries = 1, retry_delay = "10ms", request = "GET /files/{resource}""#;
    let router = Router::start(&lab, &settings(Family::V4, &lab, failing));
    let stopped = |router: &Router| {
        let rows = preloads(router);
        rows.len() == 2 && rows.iter().all(|row| row["state"] == "stopped")
    };
    router.eventually(LIMIT, "both have stopped", stopped);
    for row in preloads(&router) {
        assert_eq!(row["last"]["failure"], "HTTP status 404", "{row}");
        assert_eq!((&row["failed_attempts"], &row["loaded"]), (&2.into(), &false.into()), "{row}");
    }
    let failed = "router_preload_requests_total{result=\"status\"} ";
    assert_eq!(metric(&router, failed), 4);
    router.ctl(["reload"]);
    router.eventually(LIMIT, "it is tried again", |router| metric(router, failed) == 8 && stopped(router));
    assert!(loaded(&router).is_empty());
}

#[test]
#[ignore = "needs root"]
fn an_instance_gets_the_secret_fields_and_nobody_else_sees_them() {
    let lab = TestLab::with_backends(1);
    let folder = lab.host_dir(Host::Gateway);
    fs::create_dir_all(&folder).unwrap();
    let headers = folder.join("preload.headers");
    fs::write(&headers, "# for the maps\nAuthorization: Bearer hush-hush\n").unwrap();
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&heads);
    let instance = Peer::start(&lab, 1, 9000, move |mut stream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).expect("heads are ASCII here");
        let allowed = head.contains("\r\nAuthorization: Bearer hush-hush\r\n");
        seen.lock().unwrap().push(head);
        let status = if allowed { "200 OK" } else { "401 Unauthorized" };
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    });
    let site = format!(
        r#"
[[listener]]
name = "web"
address = "{VIP}:80"
resource = {{ query = "map" }}

[[pool]]
name = "maps"

[[pool.instance]]
name = "web1"
address = "{address}"

[[rule]]
name = "maps"
match = 'PathPrefix("/map")'
pool = "maps"
preload = {{ resources = ["sales"], request = "GET /map?map={{resource}}", every = "1h", retry_delay = "50ms", headers_file = "{headers}" }}
"#,
        address = instance.address(),
        headers = headers.display()
    );
    let router = Router::start(&lab, &configuration(&lab, "", "", &site));
    router.eventually(LIMIT, "it is preloaded", |router| loaded(router) == BTreeSet::from([1]));
    assert!(heads.lock().unwrap().iter().all(|head| head.starts_with("GET /map?map=sales HTTP/1.1\r\n")));

    fs::write(&headers, "Authorization: Bearer out-of-date\n").unwrap();
    let differences = router.ctl(["reload"])["differences"].clone();
    assert_eq!(differences[0]["name"], headers.display().to_string().as_str(), "{differences}");
    router.eventually(LIMIT, "it begins anew and fails", |router| {
        preloads(router)[0]["last"]["failure"].as_str().is_some_and(|failure| failure.contains("401"))
    });
    let mut shown = router.log() + &router.metrics();
    for command in ["preloads", "rules", "pools", "status", "changes"] {
        shown += &router.ctl([command]).to_string();
    }
    assert!(!shown.contains("hush") && !shown.contains("out-of-date"), "a secret is shown");
}
