//! Valid configurations and what becomes of them.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::BASE;
use crate::config::{Attach, Interfaces, ListenerPlan, Offload, Protocol, Source, load, parse};
use crate::core::decide::{Attempt, Outcome};
use crate::core::health::{CheckKind, Reachability};
use crate::core::pool::{OnUnavailable, PoolId};
use crate::core::request::{Header, HttpRequest, HttpVersion, Request};
use crate::core::status::AdminState;
use crate::core::table::Action;

#[test]
fn the_smallest_configuration_takes_every_default() {
    let plan = parse("r.toml", BASE).unwrap();
    assert_eq!(plan.daemon.control_socket, PathBuf::from("/run/router/control.sock"));
    assert_eq!(plan.daemon.state_dir, PathBuf::from("/var/lib/router"));
    assert_eq!((plan.daemon.control_group, plan.daemon.admin_listen), (None, None));
    assert!((1..=64).contains(&plan.daemon.workers));
    assert_eq!((plan.datapath.interfaces, plan.datapath.attach), (Interfaces::Auto, Attach::Auto));
    assert_eq!((plan.datapath.max_flows, plan.datapath.source_ports), (1_000_000, 20_000..=59_999));
    assert!(plan.datapath.source_addresses.is_empty() && plan.datapath.notrack);
    let [listener] = plan.listeners.as_slice() else { panic!("one listener") };
    assert_eq!(listener.address, "10.0.1.1:80".parse::<SocketAddr>().unwrap());
    assert_eq!(
        (listener.protocol, listener.source, listener.offload),
        (Protocol::Http, Source::Snat, Offload::Auto)
    );
    assert_eq!((listener.header_timeout, listener.max_header_bytes), (Duration::from_secs(10), 65_536));
    assert!(listener.forwarded_for && !listener.allow_http09);
    let table = &plan.table;
    assert_eq!((table.rules().len(), table.pools().len(), table.group()), (0, 1, None));
    assert_eq!(table.default_rule().pools, [PoolId(0)], "no pools named: every pool");
    let pool = &table.pools()[0];
    assert_eq!((pool.name.as_str(), pool.on_unavailable, &pool.check), ("app", None, &None));
    let instance = &pool.instances[0];
    assert_eq!((instance.weight, instance.max_sessions, instance.state), (100, None, AdminState::Enabled));
    assert_eq!(
        instance.status.reachability(),
        Reachability::Up,
        "without a check an instance is taken to be up"
    );
    assert!(plan.warnings.is_empty());
}

#[test]
fn every_setting_is_taken_over() {
    let plan = parse(
        "r.toml",
        r#"
        [daemon]
        control_socket = "/tmp/r.sock"
        control_group = "router"
        state_dir = "/tmp/state"
        admin_listen = "127.0.0.1:9180"
        group = "rack-a"
        workers = 3
        [datapath]
        interfaces = ["eth0", "eth1.7"]
        attach = "tc"
        max_flows = 1000
        flow_idle_timeout = "90s"
        pin_dir = "/sys/fs/bpf/other"
        source_addresses = ["10.0.2.1", "fd00::1"]
        source_ports = "30000-30999"
        notrack = false
        [[listener]]
        name = "web"
        address = "[fd00::10]:80"
        protocol = "http"
        source = "snat"
        offload = "handoff"
        offload_after_bytes = 0
        offload_after = "1m30s"
        offload_second_request = false
        once_only = true
        header_timeout = "500ms"
        max_header_bytes = 0x1000
        forwarded_for = false
        allow_http09 = true
        connect_timeout = "2s"
        connect_retries = 0
        idle_timeout = "30m"
        pipelining = false
        half_closed_timeout = "1m"
        retry_after = "7s"
        backlog = 128
        defer_accept = false
        max_segment = 1400
        initial_window = 8192
        accept_proxy_protocol = { from = ["10.9.0.0/16", "2001:db8::1"] }
        [[pool]]
        name = "app"
        method = "fewest-sessions"
        on_unavailable = "reset"
        [pool.check]
        type = "http"
        path = "/health?deep=1"
        host = "app.example:8080"
        expect = [204, "300-302"]
        interval = "5s"
        timeout = "5s"
        rise = 4
        fall = 5
        initial = "up"
        [[pool.instance]]
        name = "app1"
        address = "[fd00::11]:80"
        weight = 0
        group = "rack-b"
        max_sessions = 7
        state = "maintenance"
        [[pool.instance]]
        name = "app2"
        address = "10.0.2.12:80"
        state = "drain"
        [[pool]]
        name = "other"
        check = { type = "tcp" }
        instance = [{ name = "other1", address = "10.0.2.13:80" }]
        [[rule]]
        name = "keep-out"
        match = 'PathPrefix("/admin")'
        action = "deny"
        [[rule]]
        name = "gone"
        match = 'PathPrefix("/old")'
        action = "deny"
        status = 410
        enabled = false
        [[rule]]
        name = "api"
        match = 'Host("api.example")'
        pool = "other"
        on_unavailable = "silent"
        method = "fewest-sessions"
        [default_rule]
        pools = ["other", "app"]
        on_unavailable = "503"
        method = "fewest-sessions"
        "#,
    )
    .unwrap();
    assert_eq!((plan.daemon.workers, plan.daemon.control_group.as_deref()), (3, Some("router")));
    assert_eq!(plan.daemon.admin_listen, Some("127.0.0.1:9180".parse().unwrap()));
    assert_eq!(plan.datapath.interfaces, Interfaces::Named(vec!["eth0".to_owned(), "eth1.7".to_owned()]));
    assert_eq!((plan.datapath.attach, plan.datapath.max_flows), (Attach::Tc, 1_000));
    assert_eq!(plan.datapath.source_ports, 30_000..=30_999);
    assert_eq!(plan.datapath.flow_idle_timeout, Duration::from_secs(90));
    assert!(!plan.datapath.notrack);
    assert_eq!(plan.datapath.source_addresses.len(), 2);
    let listener = &plan.listeners[0];
    assert_eq!(
        *listener,
        ListenerPlan {
            name: "web".to_owned(),
            address: "[fd00::10]:80".parse().unwrap(),
            protocol: Protocol::Http,
            source: Source::Snat,
            echo: true,
            offload: Offload::Handoff,
            offload_after_bytes: 0,
            offload_after: Duration::from_secs(90),
            offload_second_request: false,
            once_only: true,
            header_timeout: Duration::from_millis(500),
            max_header_bytes: 4_096,
            forwarded_for: false,
            allow_http09: true,
            connect_timeout: Duration::from_secs(2),
            connect_retries: 0,
            idle_timeout: Duration::from_secs(1_800),
            pipelining: false,
            half_closed_timeout: Duration::from_secs(60),
            retry_after: Duration::from_secs(7),
            backlog: 128,
            defer_accept: false,
            max_segment: Some(1_400),
            initial_window: 8_192,
            accept_proxy_protocol: vec!["10.9.0.0/16".parse().unwrap(), "2001:db8::1/128".parse().unwrap()],
            client_affinity: None,
        }
    );
    let table = &plan.table;
    assert_eq!(table.group(), Some("rack-a"));
    let check = table.pools()[0].check.as_ref().unwrap();
    let kind = CheckKind::Http {
        path: "/health?deep=1".to_owned(),
        host: Some("app.example:8080".to_owned()),
        expect: vec![204..=204, 300..=302],
    };
    assert_eq!(check.kind, kind);
    assert_eq!((check.interval, check.timeout), (Duration::from_secs(5), Duration::from_secs(5)));
    assert_eq!((check.rise, check.fall, check.initial), (4, 5, Reachability::Up));
    assert_eq!(table.pools()[0].on_unavailable, Some(OnUnavailable::Reset));
    let instance = &table.pools()[0].instances[0];
    assert_eq!(
        (instance.weight, instance.group.as_deref(), instance.max_sessions),
        (0, Some("rack-b"), Some(7))
    );
    assert_eq!(instance.status.admin(), AdminState::Maintenance);
    assert_eq!(table.pools()[0].instances[1].status.admin(), AdminState::Drain);
    let tcp = table.pools()[1].check.as_ref().unwrap();
    assert_eq!((&tcp.kind, tcp.rise, tcp.fall), (&CheckKind::Tcp, 2, 3));
    assert_eq!(
        table.pools()[1].instances[0].status.reachability(),
        Reachability::Down,
        "checked before it serves"
    );
    let [keep_out, gone, api] = table.rules() else { panic!("three rules") };
    assert_eq!(keep_out.action, Action::Deny { status: 403 });
    assert_eq!((gone.action, gone.enabled), (Action::Deny { status: 410 }, false));
    assert_eq!(
        (api.action, api.overrides.on_unavailable),
        (Action::Pool(PoolId(1)), Some(OnUnavailable::Silent))
    );
    assert_eq!(table.default_rule().pools, [PoolId(1), PoolId(0)]);
}

#[test]
fn every_example_is_valid_and_says_nothing_doubtful() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        count += 1;
        let plan = load(&path).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(plan.warnings.to_string(), "", "{}", path.display());
    }
    assert!(count >= 3, "the examples are found");
}

#[test]
fn ten_thousand_rules_are_read() {
    let rules: String = (0..10_000)
        .map(|n| format!("[[rule]]\nname = \"r{n}\"\nmatch = 'Host(\"h{n}.example\") && PathPrefix(\"/{n}\")'\npool = \"app\"\n"))
        .collect();
    let plan = parse("r.toml", &format!("{BASE}{rules}")).unwrap();
    assert_eq!(plan.table.rules().len(), 10_000);
}

/// The rule and the instances that the quickstart's configuration gives a request, with every instance up.
fn quickstart(host: &str, path: &str, header: Option<(&str, &str)>, client: &str) -> (String, Vec<String>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let table = load(&folder.join("quickstart.toml")).unwrap().table;
    for (_, _, instance) in table.instances() {
        instance.status.trust();
    }
    let host_header = Header { name: "Host", value: host.as_bytes() };
    let other = header.map(|(name, value)| Header { name, value: value.as_bytes() });
    let headers: Vec<Header<'_>> = [Some(host_header), other].into_iter().flatten().collect();
    let http = HttpRequest {
        version: HttpVersion::Http11,
        method: "GET",
        host: Some(host),
        raw_path: path,
        path,
        query: None,
        headers: &headers,
    };
    let request = Request { listener: "web", client: client.parse().unwrap(), http: Some(http), tls: None };
    let mut instances = Vec::new();
    let mut tried = Vec::new();
    loop {
        let decision = table.decide(&request, &Attempt { tried: &tried, ..Attempt::first(Instant::now()) });
        let Outcome::Instance { id, .. } = decision.outcome else {
            return (table.rule_name(decision.rule).to_owned(), instances);
        };
        instances.push(table.instance(id).name.clone());
        tried.push(id);
    }
}

#[test]
fn the_quickstart_routes_by_a_rule_of_each_kind() {
    const CLIENT: &str = "10.77.1.2";
    const VIP: &str = "10.77.1.10";
    let beta = Some(("X-Beta", "1"));
    let cookie = Some(("Cookie", "a=b; beta=1"));
    for (host, path, header, client, rule, instances) in [
        (VIP, "/", None, CLIENT, "default", &["web1", "web2"][..]),
        ("api.example", "/", None, CLIENT, "api-host", &["api1"]),
        (VIP, "/", beta, CLIENT, "beta-users", &["api1"]),
        (VIP, "/", cookie, CLIENT, "beta-users", &["api1"]),
        (VIP, "/files/200m", None, CLIENT, "downloads", &["files1"]),
        (VIP, "/debian.iso", None, CLIENT, "downloads", &["files1"]),
        ("api.example", "/admin/users", None, CLIENT, "no-admin", &[]),
        (VIP, "/admin", None, "10.77.1.1", "default", &["web1", "web2"]),
        (VIP, "/", None, "10.77.9.1", "default", &["web1", "web2"]),
    ] {
        let (chosen, served) = quickstart(host, path, header, client);
        assert_eq!(
            (chosen.as_str(), served),
            (rule, instances.iter().map(|name| name.to_string()).collect()),
            "{host} {path}"
        );
    }
}
