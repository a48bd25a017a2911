//! IPv4 and IPv6 beside one another: what is of one family is handed off, what is of two is relayed, and routes may lead from one to the other.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use support::counters::{checksum_errors, paws_drops};
use support::lab::{Family, Host, Lab};
use support::{Connection, Curl, Link, Router, TestLab, router};

/// A listener and an instance of each family, and a rule that sends some clients and paths across.
fn both(lab: &Lab, listeners: [&str; 2], rules: &str) -> Router {
    let [four, six] = listeners;
    let rest = format!(
        r#"[[listener]]
name = "four"
address = "{four}"
offload = "handoff"

[[listener]]
name = "six"
address = "{six}"
offload = "handoff"

[[pool]]
name = "four"
[[pool.instance]]
name = "four1"
address = "10.77.2.11:80"

[[pool]]
name = "six"
[[pool.instance]]
name = "six1"
address = "[fd77:2::11]:80"

{rules}

[[rule]]
name = "across-to-four"
match = 'Path("/across") && ClientIP("::/0")'
pool = "four"

[[rule]]
name = "across-to-six"
match = 'Path("/across")'
pool = "six"

[[rule]]
name = "six"
match = 'ClientIP("::/0")'
pool = "six"

[default_rule]
pools = ["four"]
"#
    );
    Router::start(lab, &router::configuration(lab, "", "", &rest))
}

const VIPS: [&str; 2] = ["10.77.1.10:80", "[fd77:1::10]:80"];

fn connect(lab: &Lab, family: Family) -> Connection {
    let target = SocketAddr::new(family.vip(), 80);
    Connection::open(lab, Host::Client, &target.to_string()).expect("the router accepts")
}

/// `(handed off, relayed)` so far.
fn carried(router: &Router) -> (u64, u64) {
    let status = router.ctl(["status"]);
    let count = |name: &str| status["connections"][name].as_u64().expect("the status has this count");
    (count("handed_off"), count("relayed"))
}

fn relayed(router: &Router, reason: &str) -> u64 {
    router.ctl(["status"])["relayed"][reason].as_u64().unwrap_or(0)
}

fn flow_of(router: &Router, connection: &Connection) -> serde_json::Value {
    let client = format!("--client={}", connection.local_address());
    let mut found = serde_json::Value::Null;
    router.eventually(Duration::from_secs(10), "the connection is handed off", |router| {
        found = router.ctl(["flows", &client])["flows"][0].clone();
        !found.is_null()
    });
    found
}

fn assert_no_segment_was_spoiled(lab: &Lab) {
    for host in [Host::Client, Host::Gateway, Host::Backend(1)] {
        assert_eq!((paws_drops(lab, host), checksum_errors(lab, host)), (0, 0), "on {host}");
    }
}

#[test]
#[ignore = "needs root"]
fn one_router_hands_off_both_families_and_relays_from_one_to_the_other() {
    let lab = TestLab::with_backends(1);
    let router = both(&lab, VIPS, "");
    for family in Family::BOTH {
        let mut connection = connect(&lab, family);
        assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10);
        let flow = flow_of(&router, &connection);
        let text = |name: &str| flow[name].as_str().unwrap().parse::<SocketAddr>().unwrap();
        assert_eq!(text("client"), connection.local_address());
        assert_eq!(text("vip"), SocketAddr::new(family.vip(), 80));
        assert_eq!(text("source").ip(), family.source());
        assert_eq!(text("instance_address"), SocketAddr::new(family.address(Host::Backend(1)), 80));
        let reply = connection.get("/").unwrap().text();
        assert!(reply.contains(&format!("peer: {}:", family.source())), "{reply}");
    }
    assert_eq!(carried(&router), (2, 0), "handed off and relayed");

    for (family, other) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
        let reply =
            Curl::new(&lab).get(format!("http://{}/across", SocketAddr::new(family.vip(), 80))).text();
        assert!(reply.contains(&format!("x-forwarded-for: {}\n", family.address(Host::Client))), "{reply}");
        assert!(reply.contains(&format!("peer: {}:", other.source())), "{reply}");
    }
    assert_eq!(carried(&router), (2, 2), "handed off and relayed");
    assert_eq!(relayed(&router, "family"), 2, "though both were too short to be worth a handoff");
    assert_no_segment_was_spoiled(&lab);
}

#[test]
#[ignore = "needs root"]
fn wildcards_of_both_families_share_a_port_and_each_takes_its_own() {
    let lab = TestLab::with_backends(1);
    let router = both(&lab, ["0.0.0.0:80", "[::]:80"], "");
    for (family, listener) in [(Family::V4, "four"), (Family::V6, "six")] {
        let mut connection = connect(&lab, family);
        assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10);
        assert_eq!(flow_of(&router, &connection)["listener"], listener);
    }
    assert_eq!(carried(&router), (2, 0), "handed off and relayed");
    assert_no_segment_was_spoiled(&lab);
}

#[test]
#[ignore = "needs root"]
fn an_interface_that_would_put_too_long_packets_together_is_named_at_the_start() {
    let lab = TestLab::with_backends(1);
    lab.ip(Host::Gateway, "link set backends gro_max_size 150000");
    let router = both(&lab, VIPS, "");
    let log = router.log();
    assert!(log.contains("ip link set backends gro_max_size 65536"), "{log}");
    assert!(!log.contains("ip link set client gro_max_size"), "{log}");
}

#[test]
#[ignore = "needs root"]
fn the_interfaces_of_listeners_and_instances_on_ipv6_are_found_by_themselves() {
    let lab = TestLab::with_backends(1);
    let rest = r#"[[listener]]
name = "six"
address = "[fd77:1::10]:80"
offload = "handoff"

[[pool]]
name = "six"
[[pool.instance]]
name = "six1"
address = "[fd77:2::11]:80"

[default_rule]
pools = ["six"]
"#;
    let configuration = router::configuration(&lab, "", "", rest);
    let named = "interfaces = [\"client\", \"backends\"]";
    assert!(configuration.contains(named));
    let router = Router::start(&lab, &configuration.replace(named, "interfaces = \"auto\""));
    let mut connection = connect(&lab, Family::V6);
    assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10);
    flow_of(&router, &connection);
    let status = router.ctl(["status"]);
    assert_eq!(status["datapath"]["detail"], "TCX on backends, client");
}

#[test]
#[ignore = "needs root"]
fn rules_know_clients_by_networks_of_either_family() {
    let lab = TestLab::with_backends(1);
    let rules = r#"
[[rule]]
name = "blocked"
match = 'Path("/private") && ClientIP("fd77:1::/64", "10.77.1.0/30")'
action = "deny"
status = 403

[[rule]]
name = "mapped"
match = 'Path("/mapped") && ClientIP("::ffff:10.77.1.2")'
action = "deny"
status = 404

[[rule]]
name = "elsewhere"
match = 'ClientIP("fd77:1::/96") && Path("/private") && !ClientIP("fd77:1::2")'
action = "deny"
status = 451
"#;
    let router = both(&lab, VIPS, rules);
    let status = |family: Family, path: &str| {
        Curl::new(&lab).get(format!("http://{}{path}", SocketAddr::new(family.vip(), 80))).status
    };
    for family in Family::BOTH {
        assert_eq!(status(family, "/private"), 403, "{family:?}");
        assert_eq!(status(family, "/"), 200, "{family:?}");
    }
    // A client over IPv4 is an IPv4 client, however the rule writes it.
    assert_eq!((status(Family::V4, "/mapped"), status(Family::V6, "/mapped")), (404, 200));

    let explained =
        router.ctl(["explain", "--listener", "six", "--client", "fd77:1::9", "--path", "/private"]);
    assert!(explained.to_string().contains("\"blocked\""), "{explained}");
}

/// The link-local address of an interface.
fn link_local(lab: &Lab, host: Host, interface: &str) -> IpAddr {
    let mut command: Command = lab.command(host, "ip");
    let output =
        command.args(["-6", "-brief", "address", "show", "dev", interface, "scope", "link"]).output();
    let text = String::from_utf8_lossy(&output.expect("ip starts").stdout).into_owned();
    let address = text.split_whitespace().nth(2).and_then(|address| address.split('/').next());
    address.unwrap_or_else(|| panic!("no link-local address: {text}")).parse().expect("an address")
}

#[test]
#[ignore = "needs root"]
fn clients_behind_a_router_with_a_link_local_address_are_handed_off_in_both_families() {
    let lab = TestLab::with_backends(1);
    let router = both(&lab, VIPS, "");
    let via = link_local(&lab, Host::Client, "eth0");
    lab.ip(Host::Client, "addr add 10.77.9.5/32 dev lo");
    lab.ip(Host::Client, "addr add fd77:9::5/128 dev lo nodad");
    // IPv4 may have a next hop of the other family (RFC 8950).
    lab.ip(Host::Gateway, &format!("route add 10.77.9.0/24 via inet6 {via} dev client"));
    lab.ip(Host::Gateway, &format!("route add fd77:9::/64 via {via} dev client"));
    for (family, source) in [(Family::V4, "10.77.9.5:0"), (Family::V6, "[fd77:9::5]:0")] {
        let target = SocketAddr::new(family.vip(), 80);
        let mut connection =
            Connection::open_from(&lab, Host::Client, source.parse().unwrap(), target).unwrap();
        for _ in 0..3 {
            assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10, "{family:?}");
        }
        flow_of(&router, &connection);
        // Nobody answers for the neighbour any more: the kernel finds it again, and no packet is lost.
        lab.ip(Host::Gateway, "-6 neigh flush dev client");
        assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10, "{family:?}");
    }
    assert_eq!(carried(&router), (2, 0), "handed off and relayed");
    assert_no_segment_was_spoiled(&lab);
}

#[test]
#[ignore = "needs root"]
fn a_client_with_a_link_local_address_is_relayed_since_that_means_nothing_without_its_interface() {
    let lab = TestLab::with_backends(1);
    let router = both(&lab, VIPS, "");
    let IpAddr::V6(address) = link_local(&lab, Host::Client, "eth0") else { unreachable!("it is IPv6") };
    let index = lab.inside(Host::Client, || Link::index("eth0")).expect("the lab is up");
    let scope = index.expect("the client has this interface");
    let source = SocketAddr::V6(std::net::SocketAddrV6::new(address, 0, 0, scope));
    let mut connection =
        Connection::open_from(&lab, Host::Client, source, SocketAddr::new(Family::V6.vip(), 80)).unwrap();
    let reply = connection.get("/").unwrap().text();
    assert!(reply.contains(&format!("x-forwarded-for: {address}\n")), "{reply}");
    drop(connection);
    router.eventually(Duration::from_secs(5), "it is counted", |router| relayed(router, "link_local") == 1);
    assert_eq!(carried(&router), (0, 1), "handed off and relayed");
}

#[test]
#[ignore = "needs root"]
fn a_neighbour_that_the_kernel_has_forgotten_is_found_again_without_a_loss() {
    let lab = TestLab::with_backends(1);
    let router = both(&lab, VIPS, "");
    let unresolved = || {
        let metrics = router.metrics();
        let line = "router_packets_total{reason=\"next_hop_unresolved\"} ";
        let count = metrics.lines().find_map(|text| text.strip_prefix(line)?.parse::<u64>().ok());
        count.expect("the metrics have this count")
    };
    for family in Family::BOTH {
        let mut connection = connect(&lab, family);
        connection.get("/files/64k").unwrap();
        flow_of(&router, &connection);
        let before = unresolved();
        for interface in ["client", "backends"] {
            lab.ip(Host::Gateway, &format!("neigh flush dev {interface}"));
            lab.ip(Host::Gateway, &format!("-6 neigh flush dev {interface}"));
        }
        for _ in 0..3 {
            assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10, "{family:?}");
        }
        println!("{family:?}: {} packets were left to the kernel to resolve", unresolved() - before);
        assert!(unresolved() > before, "{family:?}");
    }
    assert_eq!(carried(&router), (2, 0), "handed off and relayed");
    assert_no_segment_was_spoiled(&lab);
}
