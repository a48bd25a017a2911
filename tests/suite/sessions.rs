//! Sessions stay where they are, resources open where they are loaded, and requests wait when nobody can serve.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use support::lab::{Family, Host, VIP};
use support::{Connection, Curl, Router, TestLab, router};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A listener, the pool `maps` of every backend, and what a story adds to each of the two and behind them.
fn start(lab: &TestLab, listener: &str, pool: &str, instance: &str, rest: &str) -> Router {
    let mut text = format!("[[listener]]\nname = \"web\"\naddress = \"{VIP}:80\"\n{listener}\n");
    text.push_str(&format!("[[pool]]\nname = \"maps\"\n{pool}\n"));
    for number in 1..=lab.backends() {
        let address = lab.backend_address(number);
        text.push_str(&format!(
            "[[pool.instance]]\nname = \"backend{number}\"\naddress = \"{address}:80\"\n{instance}\n"
        ));
    }
    text.push_str(rest);
    Router::start(lab, &router::configuration(lab, "", "", &text))
}

/// A connection whose first request has been answered, and the instance that answered. It stays open.
fn open(lab: &TestLab, path: &str, fields: &str) -> (Connection, String) {
    let mut connection =
        Connection::open(lab, Host::Client, &format!("{VIP}:80")).expect("the router accepts");
    connection.wait_at_most(PATIENCE);
    connection.send(format!("GET {path} HTTP/1.1\r\nHost: maps.example\r\n{fields}\r\n")).unwrap();
    let reply = connection.reply().expect("an answer");
    let instance = reply.instance().unwrap_or("nobody").to_owned();
    (connection, instance)
}

fn metric(router: &Router, series: &str) -> u64 {
    let text = router.metrics();
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().expect("a whole number"))
}

#[test]
#[ignore = "needs root"]
fn a_session_stays_on_its_instance_across_drain_and_a_restart_of_the_router() {
    let lab = TestLab::with_backends(3);
    let mut router = start(&lab, "session = { header = \"X-Session\" }", "", "", "");
    let session = "X-Session: one\r\n";
    let (_held, home) = open(&lab, "/whoami", session);
    router.ctl(["instance", "set", &home, "--state", "drain"]);
    for _ in 0..6 {
        assert_eq!(open(&lab, "/whoami", session).1, home, "its session goes on there");
        assert_ne!(open(&lab, "/whoami", "").1, home, "nothing new goes there");
    }
    let sessions = router.ctl(["sessions"]);
    assert_eq!((&sessions["count"], &sessions["sessions"][0]["instance"]), (&1.into(), &home.clone().into()));
    let explained = router.ctl([
        "explain",
        "--listener=web",
        "--client=10.77.1.9",
        "--path=/whoami",
        "--header",
        "X-Session: one",
    ]);
    assert_eq!(explained["outcome"]["rule"], "active-session");
    assert_eq!(explained["outcome"]["instance"], home.as_str());

    assert!(router.stop().success());
    router.restart();
    for _ in 0..6 {
        assert_eq!(open(&lab, "/whoami", session).1, home, "the session is known after a restart");
    }
}

#[test]
#[ignore = "needs root"]
fn a_session_stays_on_its_instance_though_it_is_strained_and_rules_now_say_otherwise() {
    let lab = TestLab::with_backends(2);
    let router = start(
        &lab,
        "session = { header = \"X-Session\" }",
        "thresholds = { strained_sessions = [3, 2], window = \"1s\" }",
        "",
        "",
    );
    let session = "X-Session: one\r\n";
    let (_first, home) = open(&lab, "/whoami", session);
    let _more = [open(&lab, "/whoami", session), open(&lab, "/whoami", session)];
    router.eventually(PATIENCE, "its connections strain the instance", |router| {
        let instances = router.ctl(["instances"]);
        instances
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == home && one["reported"]["status"] == "strained")
    });
    assert_ne!(open(&lab, "/whoami", "").1, home, "nothing new goes there");
    assert_eq!(open(&lab, "/whoami", session).1, home, "its session goes on there");

    router.ctl(["rule", "add", "closed", "--match", "Any()", "--deny", "--first"]);
    assert_eq!(Curl::new(&lab).get(format!("http://{VIP}/whoami")).status, 403);
    assert_eq!(open(&lab, "/whoami", session).1, home, "a session comes before any rule");
    router.ctl(["rule", "remove", "closed"]);
    assert_eq!(open(&lab, "/whoami", session).1, home);
}

#[test]
#[ignore = "needs root"]
fn a_reload_that_remembers_fewer_sessions_forgets_those_unused_for_longest() {
    let lab = TestLab::with_backends(1);
    let site = format!(
        "[[listener]]\nname = \"web\"\naddress = \"{VIP}:80\"\noffload = \"relay\"\nsession = {{ header = \"X-Session\" }}\n\
         [[pool]]\nname = \"maps\"\n{}",
        router::instances(Family::V4, "backend", 1)
    );
    let router = Router::start(&lab, &router::configuration(&lab, "session_limit = 6400", "", &site));
    let count = || router.ctl(["sessions"])["count"].as_u64().unwrap();
    let session = |number: usize| format!("X-Session: number-{number}\r\n");
    let (mut held, _) = open(&lab, "/whoami", &session(0));
    for number in 1..200 {
        open(&lab, "/whoami", &session(number));
    }
    assert_eq!(count(), 200);
    let reload = |from: &str, to: &str| {
        let file = router.configuration_file();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from));
        std::fs::write(file, text.replace(from, to)).unwrap();
        let applied = router.ctl(["reload"]);
        assert_eq!(applied["needs_restart"], serde_json::json!([]), "{applied}");
    };
    reload("session_limit = 6400", "session_limit = 64");
    let left = count();
    assert!(left <= 64, "{left}");
    let overflow = "router_remembered_overflow_total{table=\"sessions\"}";
    assert_eq!(metric(&router, overflow), 200 - left);
    assert_eq!(held.get("/whoami").unwrap().instance(), Some("backend1"), "connections go on");

    reload("session_limit = 64", "session_limit = 6400");
    for number in 200..300 {
        open(&lab, "/whoami", &session(number));
    }
    assert_eq!((count(), metric(&router, overflow)), (left + 100, 200 - left), "there is room again");
}

support::over_both_families! {
    sessions_by_the_clients_address_stay_and_neighbours_have_sessions_of_their_own
}

fn sessions_by_the_clients_address_stay_and_neighbours_have_sessions_of_their_own(family: Family) {
    let lab = TestLab::with_backends(2);
    lab.ip(Host::Client, "addr add 10.77.1.3/24 dev eth0");
    lab.ip(Host::Client, "addr add fd77:1::3/64 dev eth0 nodad");
    let mut site = String::new();
    for (way, port) in [("handoff", 80), ("auto", 81), ("relay", 82)] {
        let vip = SocketAddr::new(family.vip(), port);
        site.push_str(&format!(
            "[[listener]]\nname = \"{way}\"\naddress = \"{vip}\"\noffload = \"{way}\"\nsession = {{ client_address = true }}\n"
        ));
    }
    site.push_str("[[pool]]\nname = \"maps\"\n");
    site.push_str(&router::instances(family, "backend", 2));
    let mut router = Router::start(&lab, &router::configuration(&lab, "", "", &site));
    let first = family.address(Host::Client);
    let second = match family {
        Family::V4 => "10.77.1.3".parse().unwrap(),
        Family::V6 => "fd77:1::3".parse().unwrap(),
    };
    let connect = |from, port| {
        let (from, to) = (SocketAddr::new(from, 0), SocketAddr::new(family.vip(), port));
        let mut connection = Connection::open_from(&lab, Host::Client, from, to).expect("the router accepts");
        let home = connection.get("/whoami").unwrap().text().trim().to_owned();
        (connection, home)
    };
    for port in [80, 81, 82] {
        let (mut held, home) = connect(first, port);
        let (_other, elsewhere) = connect(second, port);
        assert_ne!(elsewhere, home, "a neighbour is somebody else, and goes where there is room");
        router.ctl(["instance", "set", &home, "--state", "drain"]);
        for _ in 0..3 {
            assert_eq!(connect(first, port).1, home, "the session goes on there");
            assert_eq!(connect(second, port).1, elsewhere);
        }
        assert_eq!(held.get("/whoami").unwrap().text().trim(), home);
        router.ctl(["instance", "set", &home, "--state", "enable"]);
    }
    assert_eq!(router.ctl(["sessions"])["count"], 6, "one for each client and listener");
    let homes = |router: &Router| {
        let sessions = router.ctl(["sessions"])["sessions"].clone();
        let mut homes: Vec<_> = sessions
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["listener"].to_string(), one["id"].to_string(), one["instance"].to_string()))
            .collect();
        homes.sort();
        homes
    };
    let before = homes(&router);
    assert!(router.stop().success());
    router.restart();
    assert_eq!(homes(&router), before, "and they are known after a restart");
}

#[test]
#[ignore = "needs root"]
fn a_resource_opens_on_a_second_instance_only_when_the_first_is_strained() {
    let lab = TestLab::with_backends(2);
    let router = start(
        &lab,
        "resource = { query = \"map\" }",
        "thresholds = { strained_sessions = [3, 2], window = \"1s\" }",
        "",
        "",
    );
    let (first, home) = open(&lab, "/whoami?map=sales", "");
    let (second, also) = open(&lab, "/whoami?map=sales", "");
    assert_eq!(also, home, "it is loaded there");
    let (_other, elsewhere) = open(&lab, "/whoami?map=stock", "");
    assert_ne!(elsewhere, home, "another resource opens where there is room");
    let (_third, third) = open(&lab, "/whoami?map=sales", "");
    assert_eq!(third, home);
    router.eventually(PATIENCE, "three sessions strain the instance", |_| {
        let (connection, instance) = open(&lab, "/whoami?map=sales", "");
        drop(connection);
        instance == elsewhere
    });
    for mut connection in [first, second] {
        assert_eq!(connection.get("/whoami").unwrap().instance(), Some(home.as_str()), "they stay");
    }
}

#[test]
#[ignore = "needs root"]
fn when_everything_is_exhausted_the_configured_answer_comes_and_no_later_rule_serves() {
    let lab = TestLab::with_backends(1);
    let rest = format!(
        "[[pool]]\nname = \"later\"\n[[pool.instance]]\nname = \"later1\"\naddress = \"{}:81\"\n\
         [[rule]]\nname = \"first\"\nmatch = 'Any()'\npool = \"maps\"\n\
         [[rule]]\nname = \"second\"\nmatch = 'Method(\"GET\") && Any()'\npool = \"later\"\n",
        lab.backend_address(1)
    );
    let thresholds = "thresholds = { exhausted_sessions = [2, 1], window = \"1s\" }";
    let router = start(&lab, "", thresholds, "", &rest);
    let _held = [open(&lab, "/whoami", ""), open(&lab, "/whoami", "")];
    router.eventually(PATIENCE, "two sessions exhaust the only instance", |_| {
        Curl::new(&lab).within(PATIENCE).get(format!("http://{VIP}/whoami")).status == 503
    });
    let rules = router.ctl(["rules"]);
    assert_eq!(rules[1]["requests"], 0, "nothing falls through: {rules}");
    assert!(metric(&router, "router_refused_total{reason=\"unavailable\"}") >= 1);
}

#[test]
#[ignore = "needs root"]
fn a_queue_holds_and_releases_requests_in_bounds() {
    let lab = TestLab::with_backends(1);
    let pool = "on_unavailable = \"queue:60s\"\nqueue_limit = 2";
    let router = start(&lab, "", pool, "max_sessions = 1", "");
    let (held, _) = open(&lab, "/whoami", "");
    let url = format!("http://{VIP}/whoami");
    thread::scope(|threads| {
        let waiting = threads.spawn(|| Curl::new(&lab).within(PATIENCE).get(&url));
        router
            .eventually(PATIENCE, "one request waits", |router| metric(router, "router_queue_waiting") == 1);
        // A second one takes the last place, and leaves it again.
        let mut leaver = Connection::open(&lab, Host::Client, &format!("{VIP}:80")).unwrap();
        leaver.send("GET /whoami HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        router
            .eventually(PATIENCE, "two requests wait", |router| metric(router, "router_queue_waiting") == 2);
        let refused = Curl::new(&lab).within(PATIENCE).get(&url);
        assert_eq!(
            (refused.status, refused.headers.contains_key("retry-after")),
            (503, true),
            "the line is full"
        );
        assert_eq!(metric(&router, "router_refused_total{reason=\"queue_full\"}"), 1);
        drop(leaver);
        router.eventually(PATIENCE, "the client that left is out of the line", |router| {
            metric(router, "router_queued_total{result=\"left\"}") == 1
        });
        assert_eq!(metric(&router, "router_queue_waiting"), 1, "the other still waits");
        drop(held);
        assert_eq!(waiting.join().unwrap().status, 200, "a session has ended, so the request is served");
    });
    assert_eq!(metric(&router, "router_queued_total{result=\"served\"}"), 1);
    assert_eq!(metric(&router, "router_queue_waiting"), 0);
}

#[test]
#[ignore = "needs root"]
fn a_request_that_waited_in_vain_gets_a_503() {
    let lab = TestLab::with_backends(1);
    let router = start(&lab, "", "on_unavailable = \"queue:200ms\"", "max_sessions = 1", "");
    let _held = open(&lab, "/whoami", "");
    let reply = Curl::new(&lab).within(PATIENCE).get(format!("http://{VIP}/whoami"));
    assert_eq!(reply.status, 503);
    assert_eq!(metric(&router, "router_refused_total{reason=\"queue_timeout\"}"), 1);
}
