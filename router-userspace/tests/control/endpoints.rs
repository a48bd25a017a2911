//! Each path of the control socket answers what an operator or a script asks.

use hyper::Method;
use router::control::protocol::Listener;
use serde_json::json;

use crate::daemon::{Daemon, ask_over, block_on};

#[test]
fn status_sums_up_the_daemon() {
    let daemon = Daemon::start();
    let answer = daemon.get("/v1/status");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers["router-control-version"], "1");
    let status = answer.json();
    assert_eq!(status["pid"], std::process::id());
    assert_eq!(status["config_file"], "/etc/router/router.toml");
    assert_eq!(
        status["connections"],
        json!({"accepted": 3, "open": 1, "requests": 3, "bound": 0, "handed_off": 1, "relayed": 1, "refused": 1, "retries": 2})
    );
    assert_eq!(status["relayed"], json!({"short": 1}), "only reasons that occurred");
    assert_eq!(status["refused"], json!({"denied": 1}));
    assert_eq!(
        status["datapath"],
        json!({
            "loaded": true, "detail": "TCX ingress on eth0, eth1",
            "flows": 3, "max_flows": 1000, "l4_flows": 0, "l4_max_flows": 0, "l4_unroutable_instances": 0,
            "interfaces": [
                {"interface": "eth0", "hook": "xdp-native", "reason": "as configured", "advice": ["set something"]},
                {"interface": "eth1", "hook": "tc", "reason": "its driver has no native XDP", "advice": []},
            ]
        })
    );
    assert_eq!(status["pools"][1], json!({"name": "maps", "instances": 4, "serving": 2, "sessions": 3}));
    assert_eq!(status["listeners"][0]["name"], "web");
}

#[test]
fn pools_and_instances_show_health_admin_state_and_sessions() {
    let daemon = Daemon::start();
    let pools = daemon.get("/v1/pools").json();
    assert_eq!(pools[1]["check"], "http /health every 2s, timeout 1s, rise 2, fall 3");
    assert_eq!((&pools[1]["serving"], &pools[1]["sessions"]), (&json!(2), &json!(3)));
    assert_eq!((&pools[0]["check"], &pools[0]["on_unavailable"]), (&json!(null), &json!(null)));
    assert_eq!(pools[2]["on_unavailable"], "reset");

    let instances = daemon.get("/v1/instances").json();
    let find =
        |name: &str| instances.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone();
    assert_eq!(instances.as_array().unwrap().len(), 6);
    let busy = find("gis2");
    assert_eq!(
        (&busy["sessions"], &busy["sessions_total"], &busy["weight"]),
        (&json!(2), &json!(2), &json!(50))
    );
    assert_eq!((&busy["health"], &busy["serving"]), (&json!("up"), &json!(true)));
    let down = find("gis3");
    assert_eq!((&down["health"], &down["serving"]), (&json!("down"), &json!(false)));
    assert!(down["health_detail"].as_str().unwrap().starts_with("connection refused, "), "{down}");
    assert_eq!(find("gone")["health_detail"], "not checked yet");
    assert_eq!(find("gis4")["admin"], "maintenance");
    assert_eq!(pools[1]["instances"][1]["name"], "gis2");
}

#[test]
fn rules_are_listed_in_the_order_in_which_they_are_tried_with_the_default_rule_last() {
    let daemon = Daemon::start();
    let rules = daemon.get("/v1/rules").json();
    let names: Vec<_> = rules.as_array().unwrap().iter().map(|rule| rule["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["old", "gis", "admin", "lost", "default"]);
    assert_eq!(rules[0]["enabled"], false);
    assert_eq!(rules[1]["match"], r#"PathPrefix("/gis") && Host("gis.example")"#);
    assert_eq!((&rules[1]["pools"], &rules[1]["requests"]), (&json!(["maps"]), &json!(2)));
    assert_eq!((&rules[2]["pools"], &rules[2]["deny_status"]), (&json!([]), &json!(403)));
    assert_eq!(rules[4]["pools"], json!(["web"]));
}

#[test]
fn flows_are_found_by_instance_client_and_listener() {
    let daemon = Daemon::start();
    let count = |query: &str| daemon.get(&format!("/v1/flows?{query}")).json()["count"].as_u64().unwrap();
    assert_eq!(count(""), 3);
    assert_eq!(count("instance=gis1"), 1);
    assert_eq!(count("instance=10.0.2.99:80"), 1);
    assert_eq!(count("instance=web1"), 0);
    assert_eq!(count("client=10.1.2.3"), 1);
    assert_eq!(count("client=10.1.2.3:50001"), 1);
    assert_eq!(count("client=10.1.2.3:50002"), 0);
    assert_eq!(count("client=10.1.0.0/16"), 2);
    assert_eq!(count("listener=web"), 3);
    assert_eq!(count("listener=10.0.1.1:81"), 0);
    assert_eq!(count("listener=web&client=10.1.0.0/16&instance=gis2"), 1);

    let flows = daemon.get("/v1/flows").json()["flows"].clone();
    let ids: Vec<_> = flows.as_array().unwrap().iter().map(|flow| flow["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [2, 1, 3], "the oldest first");
    assert_eq!((&flows[0]["pool"], &flows[0]["instance"]), (&json!("maps"), &json!("gis2")));
    assert_eq!((&flows[0]["state"], &flows[0]["rule"]), (&json!("closing"), &json!("gis")));
    assert_eq!(
        (&flows[2]["instance"], &flows[2]["rule"]),
        (&json!(null), &json!(null)),
        "adopted, instance gone"
    );

    assert_eq!(daemon.get("/v1/flows?count=1").json(), json!({"count": 3}));
    let limited = daemon.get("/v1/flows?limit=1").json();
    assert_eq!((&limited["count"], limited["flows"].as_array().unwrap().len()), (&json!(3), 1));
}

#[test]
fn a_question_about_flows_that_makes_no_sense_says_so() {
    let daemon = Daemon::start();
    for (query, error, help) in [
        ("instance=gsi1", "there is no instance \"gsi1\"", "did you mean \"gis1\"?"),
        ("listener=dns", "there is no listener \"dns\"", "there are: web"),
        ("client=me", "client \"me\" is not an address", "10.0.0.0/8"),
        ("limit=0", "limit is 0", "1 to 100000"),
        ("limit=many", "invalid digit", "limit"),
        ("count=2", "count is 2", "give 1 or 0"),
        ("clent=10.1.2.3", "unknown field `clent`", "client"),
    ] {
        let answer = daemon.get(&format!("/v1/flows?{query}"));
        assert_eq!(answer.status, 400, "{query}");
        let (said, advised) = answer.error();
        assert!(said.contains(error) && advised.contains(help), "{query}: {said}; {advised}");
    }
}

#[test]
fn explain_names_the_sub_expression_that_failed_and_why_each_instance_lost() {
    let daemon = Daemon::start();
    let request = json!({
        "listener": "web", "client": "10.1.2.3", "path": "/gis/./map?x=1",
        "headers": [{"name": "Host", "value": "gis.example:80"}],
    });
    let answer = daemon.post("/v1/explain", request.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    let said = answer.json();
    assert_eq!(
        said["outcome"],
        json!({"kind": "instance", "rule": "gis", "pool": "maps", "instance": "gis1", "address": "10.0.2.21:80"})
    );
    assert_eq!(said["normalised_path"], "/gis/map");
    assert_eq!(said["method"], "fewest-sessions");
    assert_eq!(said["rules"][0]["result"], "disabled");
    assert_eq!(said["rules"][1]["result"], "matched");
    assert_eq!(said["rules"].as_array().unwrap().len(), 2, "no later rule is looked at");
    let because: Vec<_> =
        said["instances"].as_array().unwrap().iter().map(|one| one["because"].clone()).collect();
    assert_eq!(
        because,
        [
            "comes first among the candidates",
            "load 4.00 against 1.00",
            "down: connection refused",
            "in maintenance"
        ]
    );
    assert_eq!((&said["instances"][0]["chosen"], &said["instances"][0]["load"]), (&json!(true), &json!(1.0)));
    let before = daemon.state.table.load().instance(first()).status.sessions().tally();
    daemon.post("/v1/explain", request.to_string());
    assert_eq!(
        daemon.state.table.load().instance(first()).status.sessions().tally(),
        before,
        "it changes nothing"
    );

    let other = json!({"listener": "web", "client": "10.1.2.3", "path": "/gis/map"});
    let said = daemon.post("/v1/explain", other.to_string()).json();
    assert_eq!(said["rules"][1]["failed"], r#"Host("gis.example")"#);
    assert_eq!(said["rules"][1]["because"], r#"Host("gis.example") does not hold"#);
    assert_eq!(
        said["rules"][1]["tests"],
        json!([
            {"test": r#"PathPrefix("/gis")"#, "holds": true},
            {"test": r#"Host("gis.example")"#, "holds": false}
        ])
    );
    assert_eq!(said["outcome"]["rule"], "default");
    assert_eq!(said["instances"][0]["because"], "the only candidate");
}

fn first() -> router::core::pool::InstanceId {
    router::core::pool::InstanceId { pool: router::core::pool::PoolId(1), index: 0 }
}

#[test]
fn explain_shows_refusals_as_the_client_would_meet_them() {
    let daemon = Daemon::start();
    let outcome = |path: &str, client: &str, headers: serde_json::Value| {
        let request = json!({"listener": "web", "client": client, "path": path, "headers": headers});
        daemon.post("/v1/explain", request.to_string()).json()["outcome"].clone()
    };
    let denied = outcome("/admin", "192.0.2.1", json!([]));
    assert_eq!(denied, json!({"kind": "deny", "rule": "admin", "status": 403}));
    assert_eq!(
        outcome("/admin", "::ffff:10.0.0.1", json!([]))["kind"],
        "instance",
        "a mapped address is IPv4"
    );
    let nobody = outcome("/lost", "192.0.2.1", json!([]));
    assert_eq!(nobody, json!({"kind": "unavailable", "rule": "lost", "pools": ["lost"], "action": "reset"}));
    let odd = outcome("/x/%2e%2e/admin", "192.0.2.1", json!([]));
    assert_eq!(odd["kind"], "ambiguous-path");
    assert_eq!((&odd["raw_rule"], &odd["normalised_rule"]), (&json!("default"), &json!("admin")));
    let climbing = outcome("/a/x%2f../admin", "192.0.2.1", json!([]));
    assert_eq!((&climbing["kind"], &climbing["reason"]), (&json!("refused"), &json!("ambiguous_path")));
    let twice = json!([{"name": "Host", "value": "a"}, {"name": "Host", "value": "b"}]);
    assert_eq!(outcome("/", "192.0.2.1", twice)["reason"], "bad_request");
    let smuggled = json!([{"name": "X Y", "value": "a"}]);
    assert_eq!(outcome("/", "192.0.2.1", smuggled)["reason"], "bad_request");
    assert_eq!(outcome(&format!("/{}", "a".repeat(9000)), "192.0.2.1", json!([]))["reason"], "uri_too_long");
}

#[test]
fn explain_takes_a_server_name_where_tls_is_spoken_and_a_request_where_http_is() {
    let daemon = Daemon::start();
    let secure = Listener {
        name: "secure".to_owned(),
        address: "10.0.1.1:443".parse().unwrap(),
        protocol: "tls".to_owned(),
        source: "snat".to_owned(),
        offload: "auto".to_owned(),
    };
    daemon.state.listeners.rcu(|listeners| [&listeners[..], std::slice::from_ref(&secure)].concat());
    let explain = |listener: &str, more: serde_json::Value| {
        let mut request = json!({"listener": listener, "client": "192.0.2.1"});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        daemon.post("/v1/explain", request.to_string())
    };
    let reached = explain("secure", json!({"server_name": "a.example.", "alpn": ["h2"]})).json();
    assert_eq!(reached["outcome"]["rule"], "default", "{reached}");
    assert_eq!(explain("secure", json!({})).json()["outcome"]["kind"], "instance");
    let odd = explain("secure", json!({"server_name": "a.example:443"})).json();
    assert_eq!(odd["outcome"]["reason"], "bad_server_name");
    for (listener, more, error) in [
        (
            "secure",
            json!({"path": "/admin"}),
            "listener secure speaks tls: it reads no method, path, version or header field",
        ),
        (
            "web",
            json!({"server_name": "a.example"}),
            "listener web speaks http: it reads no server name and no ALPN",
        ),
    ] {
        let answer = explain(listener, more);
        assert_eq!((answer.status, answer.json()["error"].as_str().unwrap()), (400, error));
    }
}

#[test]
fn every_reason_has_a_meaning_and_a_count() {
    let daemon = Daemon::start();
    let reasons = daemon.get("/v1/reasons").json();
    let find = |part: &str, name: &str| {
        reasons[part].as_array().unwrap().iter().find(|reason| reason["name"] == name).unwrap().clone()
    };
    assert_eq!(find("packet", "forwarded")["count"], 4711);
    assert_eq!(
        find("relay", "short"),
        json!({
            "name": "short", "count": 1,
            "description": "Too short to be worth a handoff: it ended before any trigger was met.",
        })
    );
    assert_eq!(find("refuse", "bad_request")["count"], 0);
    assert_eq!(find("control", "answer_unread")["count"], 0);
}

#[test]
fn metrics_are_prometheus_text_on_the_socket_and_on_the_admin_address() {
    let daemon = Daemon::with(|settings| settings.admin_listen = Some("127.0.0.1:0".parse().unwrap()));
    let over_socket = daemon.get("/metrics");
    assert_eq!(over_socket.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = &over_socket.body;
    for line in [
        "# TYPE router_connections_accepted_total counter",
        "router_connections_accepted_total 3",
        "router_connections_open 1",
        "router_handoffs_total 1",
        "router_retries_total 2",
        "router_relayed_total{reason=\"short\"} 1",
        "router_relayed_total{reason=\"table_full\"} 0",
        "router_refused_total{reason=\"denied\"} 1",
        "router_control_closed_total{reason=\"turned_away\"} 0",
        "router_packets_total{reason=\"forwarded\"} 4711",
        "router_flows 3",
        "router_flows_max 1000",
        "router_source_ports_max 1000",
        "router_source_ports_used{source=\"10.0.2.1\",instance=\"10.0.2.21:80\"} 0",
        "router_rule_requests_total{rule=\"gis\"} 2",
        "router_rule_requests_total{rule=\"default\"} 0",
        "router_pool_instances{pool=\"maps\"} 4",
        "router_pool_serving{pool=\"maps\"} 2",
        "router_instance_up{pool=\"maps\",instance=\"gis3\"} 0",
        "router_instance_sessions{pool=\"maps\",instance=\"gis2\"} 2",
        "router_instance_sessions_begun_total{pool=\"maps\",instance=\"gis2\"} 2",
        "router_instance_weight{pool=\"maps\",instance=\"gis2\"} 50",
        "router_instance_admin_state{pool=\"maps\",instance=\"gis4\",state=\"maintenance\"} 1",
        "router_instance_admin_state{pool=\"maps\",instance=\"gis4\",state=\"enabled\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
    }
    let help = text.lines().find(|line| line.starts_with("# HELP router_refused_total")).unwrap();
    assert!(help.contains("denied: A rule refuses this request;"), "{help}");
    assert_each_metric_is_described_once(text);
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing from\n{text}")).parse().unwrap()
    };
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_open_fds") > 3.0 && value("process_open_fds") < value("process_max_fds"));
    assert!(value("process_cpu_seconds_total") > 0.0);
    assert!(value("router_start_time_seconds") > 1.7e9);

    let address = daemon.server.admin_address().unwrap();
    let over_tcp = |path: &'static str| {
        block_on(async move {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            ask_over(hyper_util::rt::TokioIo::new(stream), Method::GET, path, "".into()).await
        })
    };
    assert!(over_tcp("/metrics").body.contains("router_flows 3\n"));
    assert_eq!((over_tcp("/healthz").status, over_tcp("/healthz").body.as_str()), (200, "ok\n"));
    assert_eq!(over_tcp("/v1/status").status, 404, "anyone may reach the admin address");
}

fn assert_each_metric_is_described_once(text: &str) {
    let mut described = std::collections::BTreeSet::new();
    let mut series = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(described.insert(rest.split(' ').next().unwrap().to_owned()), "{line} twice");
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(series.insert(name.to_owned()), "{line} twice");
            assert!(described.contains(name.split('{').next().unwrap()), "{line} is not described");
        }
    }
}

#[test]
fn a_daemon_without_a_data_path_says_why_and_has_no_flows() {
    let mut daemon = Daemon::start();
    let old = &daemon.state;
    let state = router::control::State {
        preloads: std::sync::Arc::default(),
        table: std::sync::Arc::clone(&old.table),
        counters: std::sync::Arc::clone(&old.counters),
        flows: None,
        layer4: None,
        tracer: None,
        captures: None,
        ports: std::sync::Arc::clone(&old.ports),
        datapath: "not loaded: no permission to load BPF programs".to_owned(),
        heads: Box::new(crate::daemon::Heads),
        listeners: std::sync::Arc::clone(&old.listeners),
        configurator: std::sync::Arc::clone(&old.configurator),
        config_file: None,
        started: old.started,
        started_at: old.started_at,
    };
    let socket = daemon.socket.with_file_name("second.sock");
    let settings = router::control::Settings {
        socket: socket.clone(),
        group: None,
        admin_listen: None,
        timeouts: router::control::Timeouts::default(),
    };
    let second = router::control::Opened::new(&settings).unwrap().serve(std::sync::Arc::new(state)).unwrap();
    daemon.socket = socket;
    assert_eq!(
        daemon.get("/v1/status").json()["datapath"]["detail"],
        "not loaded: no permission to load BPF programs"
    );
    assert_eq!(daemon.get("/v1/flows").json(), json!({"count": 0, "flows": []}));
    assert!(
        !daemon.get("/metrics").body.contains("router_flows"),
        "a zero would look like an idle data path"
    );
    drop(second);
}
