//! Whole configurations, good and bad, with the exact words that an operator reads.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::core::health::{CheckKind, Reachability};
use crate::core::pool::{OnUnavailable, PoolId};
use crate::core::status::AdminState;
use crate::core::table::Action;

/// The smallest valid configuration.
const BASE: &str = r#"
[[listener]]
name = "web"
address = "10.0.1.1:80"

[[pool]]
name = "app"

[[pool.instance]]
name = "app1"
address = "10.0.2.11:80"
"#;

/// What is wrong with `text`, one line for each problem.
fn problems(text: &str) -> String {
    match parse("r.toml", text) {
        Ok(_) => String::new(),
        Err(errors) => {
            assert!(!errors.is_empty());
            errors.to_string()
        }
    }
}

/// What is wrong when `extra` is appended to the smallest valid configuration, with lines counted from `extra`'s first.
fn problems_of(extra: &str) -> String {
    let lines = BASE.matches('\n').count();
    let shift = |line: &str| {
        let Some((number, rest)) = line.strip_prefix("r.toml:").and_then(|rest| rest.split_once(':')) else {
            return line.to_owned();
        };
        match number.parse::<usize>() {
            Ok(number) if number > lines => format!("{}:{rest}", number - lines),
            _ => line.to_owned(),
        }
    };
    problems(&format!("{BASE}{extra}")).lines().map(shift).collect::<Vec<_>>().join("\n")
}

fn warnings(text: &str) -> String {
    parse("r.toml", text).expect("valid").warnings.to_string()
}

#[test]
fn the_smallest_configuration_takes_every_default() {
    let plan = parse("r.toml", BASE).unwrap();
    assert_eq!(plan.daemon.control_socket, PathBuf::from("/run/router/control.sock"));
    assert_eq!(plan.daemon.state_dir, PathBuf::from("/var/lib/router"));
    assert_eq!((plan.daemon.control_group, plan.daemon.admin_listen), (None, None));
    assert!((1..=64).contains(&plan.daemon.workers));
    assert_eq!((plan.datapath.interfaces, plan.datapath.attach), (Interfaces::Auto, Attach::Auto));
    assert_eq!((plan.datapath.max_flows, plan.datapath.source_ports), (1_000_000, 20_000..=59_999));
    assert!(plan.datapath.source_addresses.is_empty());
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
        pin_dir = "/sys/fs/bpf/other"
        source_addresses = ["10.0.2.1", "fd00::1"]
        source_ports = "30000-30999"
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
        max_segment = 1400
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
    assert_eq!(plan.datapath.source_addresses.len(), 2);
    let listener = &plan.listeners[0];
    assert_eq!(
        *listener,
        ListenerPlan {
            name: "web".to_owned(),
            address: "[fd00::10]:80".parse().unwrap(),
            protocol: Protocol::Http,
            source: Source::Snat,
            offload: Offload::Handoff,
            offload_after_bytes: 0,
            offload_after: Duration::from_secs(90),
            offload_second_request: false,
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
            max_segment: Some(1_400),
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
    assert_eq!((api.action, api.on_unavailable), (Action::Pool(PoolId(1)), Some(OnUnavailable::Silent)));
    assert_eq!(table.default_rule().pools, [PoolId(1), PoolId(0)]);
}

#[test]
fn an_empty_file_lacks_what_a_router_needs() {
    let wanted = "r.toml: there is no [[pool]] (add one with a name and at least one instance)\n\
                  r.toml: there is no [[listener]] (add one with a name and an address)";
    assert_eq!(problems(""), wanted);
    assert_eq!(problems("# only a comment\n"), wanted);
}

#[test]
fn broken_toml_is_shown_where_it_breaks() {
    assert_eq!(
        problems("[daemon]\nworkers = = 2\nstate_dir = [\n"),
        "r.toml:2:11: TOML: extra `=`, expected nothing (see https://toml.io for the syntax)\n\
         r.toml:2:13: TOML: unexpected key or value, expected newline, `#` (see https://toml.io for the syntax)\n\
         r.toml:3:13: TOML: unclosed array, expected `]` (see https://toml.io for the syntax)"
    );
    assert_eq!(
        problems("[daemon]\nworkers = 1\nworkers = 2\n"),
        "r.toml:3:1: TOML: duplicate key (each key may be written once in a table; [[name]] begins another table)"
    );
}

#[test]
fn all_problems_are_listed_at_once_in_the_order_of_the_file() {
    let text = r#"
[daemon]
workers = 0
wrokers = 3

[[listener]]
name = "my site"
adress = "10.0.1.1:80"
header_timeout = 10

[[pool]]
name = "app"

[[rule]]
name = "api"
match = 'Host("api.example"'
pool = "ap"
"#;
    let found = problems(text);
    let places: Vec<&str> = found.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(
        places,
        [
            "r.toml:3:11",
            "r.toml:4:1",
            "r.toml:6:1",
            "r.toml:7:8",
            "r.toml:8:1",
            "r.toml:9:18",
            "r.toml:11:1",
            "r.toml:16:14",
            "r.toml:17:8"
        ],
        "{found}"
    );
}

#[test]
fn unknown_keys_are_answered_with_the_nearest_known_one() {
    assert_eq!(
        problems_of("adress = \"10.0.2.12:80\"\n"),
        "1:1: unknown key `adress` in [[pool.instance]] (did you mean `address`?)"
    );
    assert_eq!(
        problems_of("[daemon]\ncolour = 1\n"),
        "2:1: unknown key `colour` in [daemon] (known keys: control_socket, control_group, state_dir, admin_listen, group, workers)"
    );
    assert_eq!(
        problems_of("[listeners]\n"),
        "1:2: unknown key `listeners` in the configuration (did you mean `listener`?)"
    );
}

#[test]
fn what_is_not_built_yet_is_refused_by_name() {
    for (extra, wanted) in [
        (
            "node = \"host7\"",
            "1:1: `node` in [[pool.instance]] is not supported in this version (remove it: the router would not act on it)",
        ),
        (
            "[reports]\nlisten = \"10.0.2.1:9190\"",
            "1:2: `reports` in the configuration is not supported in this version (remove it: the router would not act on it)",
        ),
        (
            "[groups]\nfinance = [\"alice\"]",
            "1:2: `groups` in the configuration is not supported in this version (remove it: the router would not act on it)",
        ),
        (
            "[datapath]\nattach = \"xdp\"",
            "2:10: `attach = \"xdp\"` is not supported in this version (use \"auto\" or \"tc\")",
        ),
    ] {
        assert_eq!(problems_of(extra), wanted);
    }
    let listener = |line: &str| problems(&BASE.replace("name = \"web\"", &format!("name = \"web\"\n{line}")));
    for (line, wanted) in [
        (
            "protocol = \"tls\"",
            "r.toml:4:12: `protocol = \"tls\"` is not supported in this version (use \"http\")",
        ),
        (
            "source = \"transparent\"",
            "r.toml:4:10: `source = \"transparent\"` is not supported in this version (use \"snat\")",
        ),
        (
            "offload = \"bind\"",
            "r.toml:4:11: `offload = \"bind\"` is not supported in this version (use \"auto\", \"handoff\" or \"relay\")",
        ),
        (
            "once_only = false",
            "r.toml:4:13: `once_only = false` is not supported in this version (only the first request of a connection is matched against the rules)",
        ),
        (
            "session = { cookie = \"S\" }",
            "r.toml:4:1: `session` in [[listener]] is not supported in this version (remove it: the router would not act on it)",
        ),
    ] {
        assert_eq!(listener(line), wanted);
    }
    let pool = |line: &str| problems(&BASE.replace("name = \"app\"", &format!("name = \"app\"\n{line}")));
    for (line, wanted) in [
        (
            "method = \"least-cpu\"",
            "r.toml:8:10: `method = \"least-cpu\"` is not supported in this version (use \"fewest-sessions\")",
        ),
        (
            "on_unavailable = \"pool:spare\"",
            "r.toml:8:18: `on_unavailable = \"pool:spare\"` is not supported in this version (use \"503\", \"reset\" or \"silent\")",
        ),
        (
            "check = { type = \"tls\" }",
            "r.toml:8:18: `type = \"tls\"` is not supported in this version (use \"tcp\" or \"http\")",
        ),
        (
            "slow_start = \"30s\"",
            "r.toml:8:1: `slow_start` in [[pool]] is not supported in this version (remove it: the router would not act on it)",
        ),
    ] {
        assert_eq!(pool(line), wanted);
    }
}

#[test]
fn wrong_values_say_what_is_wanted() {
    let listener = |line: &str| problems(&BASE.replace("name = \"web\"", &format!("name = \"web\"\n{line}")));
    for (line, wanted) in [
        ("offload = \"atuo\"", "4:11: `offload` cannot be \"atuo\" (did you mean \"auto\"?)"),
        (
            "offload = 1",
            "4:11: `offload` must be a string, not the number 1 (use \"auto\", \"handoff\" or \"relay\")",
        ),
        (
            "header_timeout = 10",
            "4:18: `header_timeout` must be a duration, not the number 10 (a number and a unit (ms, s, m, h or d) in quotes, such as \"500ms\", \"10s\" or \"1m30s\")",
        ),
        (
            "header_timeout = \"10 sec\"",
            "4:18: `header_timeout` is not a duration: \"10 sec\" (a number and a unit (ms, s, m, h or d) in quotes, such as \"500ms\", \"10s\" or \"1m30s\")",
        ),
        ("header_timeout = \"0s\"", "4:18: `header_timeout` must be from 100ms to 1d, not 0s"),
        (
            "max_header_bytes = 5000000000",
            "4:20: `max_header_bytes` must be from 1024 to 1048576, not 5000000000",
        ),
        (
            "max_header_bytes = \"64k\"",
            "4:20: `max_header_bytes` must be a whole number from 1024 to 1048576, not \"64k\"",
        ),
        (
            "max_header_bytes = -99999999999999999999999999",
            "4:20: `max_header_bytes` must be from 1024 to 1048576, not -99999999999999999999999999",
        ),
        (
            "forwarded_for = \"yes\"",
            "4:17: `forwarded_for` must be true or false, not \"yes\" (without quotes)",
        ),
    ] {
        assert_eq!(listener(line), format!("r.toml:{wanted}"));
    }
    for (extra, wanted) in [
        (
            "[daemon]\ncontrol_socket = \"run/x\"",
            "2:18: `control_socket` must be an absolute path, not \"run/x\"",
        ),
        (
            "[datapath]\ninterfaces = \"eth0\"",
            "2:14: `interfaces` must be a list or \"auto\", not \"eth0\" (name the interfaces of clients and instances: [\"eth0\", \"eth1\"])",
        ),
        (
            "[datapath]\ninterfaces = [\"eth0\", \"a/b\", 3]",
            "2:23: `interfaces` is not an interface name: \"a/b\" (1 to 15 characters, as `ip link` shows it)\n2:30: `interfaces` must be an interface name, not the number 3",
        ),
        (
            "[datapath]\ninterfaces = []",
            "2:14: `interfaces` is empty (name the interfaces of clients and instances, or write \"auto\")",
        ),
        (
            "[datapath]\nsource_ports = \"60000-20000\"",
            "2:16: `source_ports` begins above its end: 60000-20000 (write \"20000-60000\")",
        ),
        (
            "[datapath]\nsource_ports = \"80-2000\"",
            "2:16: `source_ports` must not use ports below 1024: 80-2000 (write the lowest and the highest port, from 1024 to 65535, such as \"20000-59999\")",
        ),
        (
            "[datapath]\nsource_ports = 20000",
            "2:16: `source_ports` must be a range of ports, not the number 20000 (write the lowest and the highest port, from 1024 to 65535, such as \"20000-59999\")",
        ),
        (
            "[datapath]\nsource_ports = \"20000-70000\"",
            "2:16: `source_ports` is not a range of ports: \"20000-70000\" (write the lowest and the highest port, from 1024 to 65535, such as \"20000-59999\")",
        ),
        (
            "[datapath]\nsource_addresses = [\"10.0.2.1/24\"]",
            "2:21: `source_addresses` is not an IP address: \"10.0.2.1/24\" (write \"10.0.2.1\" or \"fd00::1\", without a port or prefix length)",
        ),
        ("weight = 1001", "1:10: `weight` must be from 0 to 1000, not 1001"),
        ("state = \"enabled\"", "1:9: `state` cannot be \"enabled\" (did you mean \"enable\"?)"),
        (
            "[[rule]]\nname = \"r\"\nmatch = 'Any()'\naction = \"deny\"\nstatus = 200",
            "5:10: `status` must be from 400 to 599, not 200",
        ),
    ] {
        assert_eq!(problems_of(extra), wanted);
    }
    let long = format!("[daemon]\ncontrol_socket = \"/{}\"", "x".repeat(107));
    assert_eq!(
        problems_of(&long),
        "2:18: `control_socket` is too long for a Unix socket: 108 bytes (at most 107 bytes; use a shorter folder such as /run/router)"
    );
}

#[test]
fn addresses_are_literal_and_have_a_port() {
    let at = |address: &str| {
        problems(&BASE.replace("10.0.2.11:80", address))
            .trim_start_matches("r.toml:11:11: `address` ")
            .to_owned()
    };
    const EXAMPLE: &str = "write \"10.0.1.1:80\", or \"[2001:db8::1]:80\" for IPv6";
    assert_eq!(
        at("10.0.2.11"),
        format!("is not an address and port: \"10.0.2.11\" (the port is missing: {EXAMPLE})")
    );
    assert_eq!(
        at("app1.example:80"),
        format!("is not an address and port: \"app1.example:80\" (host names are not resolved: {EXAMPLE})")
    );
    assert_eq!(at("10.0.2.300:80"), format!("is not an address and port: \"10.0.2.300:80\" ({EXAMPLE})"));
    assert_eq!(at("10.0.2.11:0"), "must have a port from 1 to 65535, not 0");
    assert_eq!(at("224.0.0.1:80"), "must be a unicast address, not 224.0.0.1");
    assert_eq!(
        at("[::ffff:10.0.2.11]:80"),
        "is an IPv4 address in IPv6 form: ::ffff:10.0.2.11 (write 10.0.2.11)"
    );
    assert_eq!(
        at("0.0.0.0:81"),
        "r.toml:11:11: an instance cannot have the address 0.0.0.0 (write the address that the server listens on)"
    );
    assert_eq!(
        at("10.0.1.1:80"),
        "r.toml:11:11: instance address 10.0.1.1:80 is a listener's own (the router would connect to itself for ever)"
    );
}

#[test]
fn an_instance_belongs_to_exactly_one_pool() {
    let second = |name: &str, address: &str| {
        problems_of(&format!(
            "[[pool]]\nname = \"other\"\n[[pool.instance]]\nname = \"{name}\"\naddress = \"{address}\"\n"
        ))
    };
    assert_eq!(
        second("app1", "10.0.2.12:80"),
        "4:8: two instances are named `app1` (instance names are unique across all pools)"
    );
    assert_eq!(
        second("app2", "10.0.2.11:80"),
        "5:11: two instances have the address 10.0.2.11:80 (an instance belongs to exactly one pool)"
    );
    assert_eq!(second("app2", "10.0.2.11:81"), "");
}

#[test]
fn listeners_do_not_share_a_name_or_an_address() {
    let second = |name: &str, address: &str| {
        problems_of(&format!("[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\n"))
    };
    const HELP: &str = "use another address or port; 0.0.0.0 and [::] cover every address of their family";
    assert_eq!(
        second("web", "10.0.1.2:80"),
        "2:8: two listeners are named `web` (give each listener its own name)"
    );
    assert_eq!(
        second("b", "10.0.1.1:80"),
        format!("3:11: listener address 10.0.1.1:80 is already listened on ({HELP})")
    );
    assert_eq!(
        second("b", "0.0.0.0:80"),
        format!("3:11: listener address 0.0.0.0:80 is already listened on ({HELP})")
    );
    assert_eq!(second("b", "[::]:80"), "", "IPv6 listeners are IPv6 only");
    assert_eq!(second("b", "10.0.1.1:81"), "");
    assert_eq!(
        problems_of("[daemon]\nadmin_listen = \"0.0.0.0:80\"\n"),
        "2:16: `admin_listen` 0.0.0.0:80 is the address of a listener (use another port)"
    );
}

#[test]
fn source_addresses_and_ports_fit_listeners_and_instances() {
    assert_eq!(
        warnings(&format!("{BASE}[datapath]\nsource_addresses = [\"fd00::1\"]\n")),
        "r.toml:11:11: `source_addresses` has no IPv4 address for 10.0.2.11:80, so the route decides which one is used (add one of this host's)"
    );
    assert_eq!(
        problems_of("[datapath]\nsource_addresses = [\"10.0.2.1\", \"10.0.2.1\", \"0.0.0.0\"]\n"),
        "2:33: `source_addresses` lists 10.0.2.1 twice\n2:45: `source_addresses` must name addresses of this host, not 0.0.0.0"
    );
    assert_eq!(
        problems_of(
            "[datapath]\nsource_addresses = [\"10.0.2.1\"]\n[[listener]]\nname = \"b\"\naddress = \"10.0.2.1:20000\"\n"
        ),
        "5:11: port 20000 lies within the router's own source ports 20000-59999 (use another port, or set `source_ports` in [datapath] to leave it out)"
    );
}

#[test]
fn pools_have_names_and_instances() {
    assert_eq!(
        problems_of("[[pool]]\nname = \"app\"\n"),
        "1:1: pool `app` has no instance (add [[pool.instance]] with a name and an address below it)\n\
         2:8: two pools are named `app` (give each pool its own name)"
    );
    assert_eq!(
        problems_of("[[pool]]\n[[pool.instance]]\n"),
        "1:1: [[pool]] has no `name` (add a line such as: name = \"web\")\n\
         2:1: [[pool.instance]] has no `name` (add a line such as: name = \"app1\")\n\
         2:1: [[pool.instance]] has no `address` (add a line such as: address = \"10.0.2.11:80\")"
    );
    assert_eq!(
        problems("[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n[pool]\nname = \"app\"\n"),
        "r.toml:4:2: `pool` must be a list of tables, not a table (write [[pool]] in double brackets, once for each)"
    );
    assert_eq!(
        problems_of("[[pool]]\nname = \"b\"\ninstance = [3]\n"),
        "1:1: pool `b` has no instance (add [[pool.instance]] with a name and an address below it)\n\
         3:13: `instance` must hold tables only, not the number 3 (write each as [[pool.instance]])"
    );
}

#[test]
fn checks_make_sense_as_a_whole() {
    let check = |check: &str| {
        let found =
            problems(&BASE.replace("name = \"app\"", &format!("name = \"app\"\ncheck = {{ {check} }}")));
        found.trim_start_matches("r.toml:").to_owned()
    };
    assert_eq!(check("type = \"http\", interval = \"1s\", timeout = \"1s\""), "");
    assert_eq!(
        check("type = \"tcp\", interval = \"1s\", timeout = \"2s\""),
        "8:52: a check's `timeout` (2s) must not be longer than its `interval` (1s) (or checks of one instance would overlap)"
    );
    assert_eq!(
        check("type = \"tcp\", interval = \"500ms\""),
        "8:36: a check's `timeout` (1s) must not be longer than its `interval` (500ms) (or checks of one instance would overlap)"
    );
    assert_eq!(
        check("path = \"/\""),
        "8:9: `check` of a [[pool]] has no `type` (add a line such as: type = \"http\")"
    );
    assert_eq!(
        check("type = \"tcp\", path = \"/\""),
        "8:32: `path` has no meaning for a check of type \"tcp\" (remove it, or set type = \"http\")"
    );
    assert_eq!(
        check("type = \"http\", path = \"health check\""),
        "8:33: `path` is not a path that can be requested: \"health check\" (begin with '/', write spaces and other special characters percent-encoded)"
    );
    assert_eq!(
        check("type = \"http\", host = \"a\\r\\nX: 1\""),
        "8:33: `host` is not a host name: \"a\\r\\nX: 1\""
    );
    assert_eq!(
        check("type = \"http\", expect = []"),
        "8:35: `expect` is empty, so no answer could pass the check (leave it out to expect 200-399)"
    );
    assert_eq!(
        check("type = \"http\", expect = [\"2xx\", 99]"),
        "8:36: `expect` is not a range of HTTP statuses: \"2xx\" (write statuses from 100 to 599, such as [200, \"300-399\"])\n\
         r.toml:8:43: `expect` must be from 100 to 599, not 99 (write statuses from 100 to 599, such as [200, \"300-399\"])"
    );
}

#[test]
fn rules_lead_somewhere_and_are_named_once() {
    let rule = |lines: &str| problems_of(&format!("[[rule]]\nname = \"r\"\nmatch = 'Any()'\n{lines}\n"));
    assert_eq!(
        rule("pool = \"ap\""),
        "4:8: rule `r` names pool `ap`, which does not exist (did you mean `app`?)"
    );
    assert_eq!(
        rule("pool = \"maps\""),
        "4:8: rule `r` names pool `maps`, which does not exist (known pools: app)"
    );
    assert_eq!(rule(""), "2:8: rule `r` does nothing (add pool = \"NAME\", or action = \"deny\")");
    assert_eq!(
        rule("pool = \"app\"\naction = \"deny\""),
        "2:8: rule `r` has both a pool and an action (keep one of the two)"
    );
    assert_eq!(rule("action = \"drop\""), "4:10: `action` cannot be \"drop\" (use \"deny\")");
    assert_eq!(
        rule("pool = \"app\"\nstatus = 404"),
        "5:10: `status` has a meaning only with action = \"deny\" (remove it, or replace the pool by action = \"deny\")"
    );
    assert_eq!(
        rule("action = \"deny\"\non_unavailable = \"reset\""),
        "5:18: `on_unavailable` has no meaning in a rule that denies (remove it)"
    );
    assert_eq!(
        problems_of("[[rule]]\nname = \"default\"\nmatch = 'Any()'\npool = \"app\"\n"),
        "2:8: `default` is the name of the default rule (choose another name; the rule that is always last is written as [default_rule])"
    );
    let twice = "[[rule]]\nname = \"r\"\nmatch = 'Any()'\npool = \"app\"\n".repeat(2);
    assert_eq!(problems_of(&twice), "6:8: two rules are named `r` (give each rule its own name)");
    assert_eq!(
        problems_of("[default_rule]\npools = [\"app\", \"app\", \"b\"]\n"),
        "2:17: the default rule names pool `app` twice (remove one)\n\
         2:24: the default rule names pool `b`, which does not exist (known pools: app)"
    );
    assert_eq!(
        problems_of("[default_rule]\npools = []\n"),
        "2:9: the default rule has no pools (name at least one, or leave `pools` out to use every pool)"
    );
}

/// The text that the report marks in a rule whose `match` is written as `written`.
fn marked(written: &str) -> (String, String) {
    let text = format!("{BASE}[[rule]]\nname = \"r\"\npool = \"app\"\nmatch = {written}\n");
    let errors = parse("r.toml", &text).expect_err("the expression is wrong");
    assert_eq!(errors.len(), 1, "{errors}");
    let problem = errors.iter().next().unwrap();
    (problem.message.clone(), text[problem.span.clone().unwrap()].to_owned())
}

#[test]
fn an_expression_error_points_at_the_token_however_the_string_is_written() {
    for written in [
        r#"'Host("a") && Hots("b")'"#,
        r#""Host(\"a\") && Hots(\"b\")""#,
        r#""Path(\"/\u00e9\") && \u0048ost(\"\x61\") && Path(\"/\U0001F600\") && Hots(\"b\")""#,
        "'''\n  Path(\"/é\")\n  && Hots(\"b\")\n'''",
        "\"\"\"\nHost(\\\"a\\\") && \\\n\n    Hots(\\\"b\\\")\"\"\"",
    ] {
        assert_eq!(marked(written), ("there is no function Hots".to_owned(), "Hots".to_owned()), "{written}");
    }
    let (message, at) = marked(r#"'Host("a"'"#);
    assert_eq!((message.as_str(), at.as_str()), ("this ( is never closed", "("));
    let (message, at) = marked(r#""ClientIP(\"10.0.0.0/33\")""#);
    assert_eq!((message.as_str(), at.as_str()), ("\"10.0.0.0/33\" is not a network", r#"\"10.0.0.0/33\""#));
    let (message, _) = marked("''");
    assert_eq!(message, "the expression is empty");
}

#[test]
fn a_rule_that_names_a_listener_that_is_not_there_is_shown_at_its_name() {
    let rule = |condition: &str| {
        problems_of(&format!("[[rule]]\nname = \"r\"\nmatch = '{condition}'\npool = \"app\"\n"))
    };
    assert_eq!(rule("Listener(\"web\")"), "");
    assert_eq!(
        rule("Any() && !Listener(\"web\", \"wbe\")"),
        "3:36: there is no listener `wbe`, so this never holds (did you mean `web`?)"
    );
    assert_eq!(
        rule("Listener(\"api\")"),
        "3:19: there is no listener `api`, so this never holds (known listeners: web)"
    );
}

#[test]
fn what_works_and_is_probably_not_meant_is_a_warning() {
    let other = "[[pool]]\nname = \"other\"\n[[pool.instance]]\nname = \"o1\"\naddress = \"[fd00::1]:80\"\nweight = 0\n";
    assert_eq!(
        warnings(&format!("{BASE}{other}[default_rule]\npools = [\"app\"]\n")),
        "r.toml:4:11: connections from IPv4 listener 10.0.1.1:80 to IPv6 instances are relayed, never handed off\n\
         r.toml:12:1: every instance of pool `other` has weight 0, so none gets new connections\n\
         r.toml:13:8: no rule leads to pool `other` (name it in a [[rule]] or in [default_rule])"
    );
}

#[test]
fn the_report_for_people_has_the_source_line_a_caret_and_help() {
    let text = "[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n[[pool]]\nname = \"app\"\n\
                [[pool.instance]]\nname = \"app1\"\nadress = \"10.0.2.11:80\"\naddress = \"10.0.2.11:80\"\n";
    let report = parse("router.toml", text).expect_err("a bad key").graphical(false);
    let wanted = "  × unknown key `adress` in [[pool.instance]]
   ╭─[router.toml:8:1]
 7 │ name = \"app1\"
 8 │ adress = \"10.0.2.11:80\"
   · ^^^^^^
 9 │ address = \"10.0.2.11:80\"
   ╰────
  help: did you mean `address`?
";
    assert_eq!(report.trim_matches('\n'), wanted.trim_matches('\n'));
}

#[test]
fn thousands_of_problems_are_counted_rather_than_printed() {
    let text = format!("{BASE}{}", "[[rule]]\nname = \"r\"\nmatch = '('\npool = \"x\"\n".repeat(1_000));
    let errors = parse("r.toml", &text).expect_err("bad rules");
    assert_eq!(errors.len(), 2_999, "999 repeated names, 1000 expressions, 1000 pools");
    let printed = errors.to_string();
    assert_eq!(printed.lines().count(), 101);
    assert_eq!(printed.lines().last(), Some("r.toml: and 2899 more problems"));
}

/// A file of this test's own, removed with its folder.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("router-config-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, content: &[u8]) -> PathBuf {
        let path = self.0.join("router.toml");
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What `load` says, with the folder's name left out.
fn load_error(path: &Path) -> String {
    let error = load(path).expect_err("unreadable").to_string();
    error.replace(&format!("{}/", path.parent().unwrap().display()), "")
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let folder = Folder::new("unreadable");
    assert_eq!(
        load_error(&folder.0.join("no.toml")),
        "no.toml: there is no such file (name it with --config FILE)"
    );
    fs::create_dir(folder.0.join("dir")).unwrap();
    assert_eq!(
        load_error(&folder.0.join("dir")),
        "dir: is a directory (name the file itself, such as router.toml)"
    );
    let latin1 = folder.file(b"[daemon]\n# caf\xe9\ngroup = \"a\"\n");
    assert_eq!(load_error(&latin1), "router.toml:2:6: not UTF-8: byte 0xe9 (save the file as UTF-8)");
    let path = folder.file(BASE.as_bytes());
    assert_eq!(load(&path).unwrap().listeners.len(), 1);
}

#[test]
fn a_huge_file_is_refused_without_being_read() {
    let folder = Folder::new("huge");
    let path = folder.file(b"");
    fs::File::options().write(true).open(&path).unwrap().set_len(100 << 20).unwrap();
    assert_eq!(load_error(&path), "router.toml: is larger than 16 MiB (is this the right file?)");
}

#[test]
fn text_that_is_not_utf_8_deep_in_a_file_is_found_by_line() {
    let folder = Folder::new("binary");
    let path = folder.file(&[&b"\xff\xfe"[..], &[0; 100]].concat());
    assert_eq!(load_error(&path), "router.toml:1:1: not UTF-8: byte 0xff (save the file as UTF-8)");
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

/// Pieces of configurations, so that random text gets past the TOML parser.
fn fragment() -> impl Strategy<Value = String> {
    let words = vec![
        "[daemon]\n",
        "[datapath]\n",
        "[[listener]]\n",
        "[[pool]]\n",
        "[[pool.instance]]\n",
        "[[rule]]\n",
        "[default_rule]\n",
        "[pool.check]\n",
        "name = \"a\"\n",
        "address = \"10.0.0.1:80\"\n",
        "address = \"[::]:1\"\n",
        "match = 'Host(\"a\")'\n",
        "match = \"Path(\\\"\\\\d\"\n",
        "pool = \"a\"\n",
        "action = \"deny\"\n",
        "status = 403\n",
        "workers = 9\n",
        "check = { type = \"tcp\" }\n",
        "type = \"http\"\n",
        "pools = [\"a\"]\n",
        "interfaces = []\n",
        "source_addresses = [\"::1\"]\n",
        "source_ports = \"1-2\"\n",
        "weight = 0\n",
        "expect = []\n",
    ];
    prop_oneof![4 => prop::sample::select(words).prop_map(str::to_owned), 1 => "\\PC{0,20}\n", 1 => "[a-z_]{1,12} = ['\"\\[{0-9][^\n]{0,12}\n"]
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "(?s).{0,200}") {
        if let Err(errors) = parse("r.toml", &text) {
            prop_assert!(!errors.is_empty() && !errors.to_string().is_empty() && !errors.graphical(false).is_empty());
        }
    }

    #[test]
    fn arbitrary_configurations_never_panic(pieces in prop::collection::vec(fragment(), 0..24)) {
        if let Err(errors) = parse("r.toml", &pieces.concat()) {
            prop_assert!(!errors.is_empty() && !errors.to_string().is_empty() && !errors.graphical(true).is_empty());
        }
    }

    #[test]
    fn a_configuration_cut_anywhere_never_panics(at in 0usize..3_000) {
        let text = include_str!("../../../examples/gateway.toml");
        let cut = (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let _ = parse("r.toml", &text[..cut]).map_err(|errors| errors.graphical(false));
    }
}
