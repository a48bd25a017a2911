//! Instances of Layer-4 listeners that no route leads to, or a way that is too narrow: others serve, and everybody is told.

use std::net::SocketAddr;
use std::time::Duration;

use support::lab::{Family, Host};
use support::{Connection, Router, TestLab, router};

const PATIENCE: Duration = Duration::from_secs(10);

support::over_both_families! {
    an_instance_without_a_route_gets_no_flows_until_it_has_one
    a_network_too_narrow_for_wrapped_packets_is_warned_of
}

fn an_instance_without_a_route_gets_no_flows_until_it_has_one(family: Family) {
    let lab = TestLab::with_backends(1);
    let vip = SocketAddr::new(family.vip(), 8080);
    let near = SocketAddr::new(family.address(Host::Backend(1)), 80);
    let (lost, network, way) = match family {
        Family::V4 => ("10.99.0.5:80", "10.99.0.0/24", "10.77.2.11"),
        Family::V6 => ("[fd99::5]:80", "fd99::/64", "fd77:2::11"),
    };
    let rest = format!(
        "[[listener]]\nname = \"stream\"\naddress = \"{vip}\"\nprotocol = \"tcp\"\n\n\
         [[pool]]\nname = \"servers\"\n\n\
         [[pool.instance]]\nname = \"near\"\naddress = \"{near}\"\n\n\
         [[pool.instance]]\nname = \"lost\"\naddress = \"{lost}\"\n\n\
         [default_rule]\npools = [\"servers\"]\n"
    );
    let router = Router::start(&lab, &router::configuration(&lab, "", "", &rest));
    let obstacle = |name: &str| {
        let instances = router.ctl(["instances"]);
        let instance = instances.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
        instance["obstacle"].as_str().map(str::to_owned)
    };
    for _ in 0..20 {
        let mut connection = Connection::open(&lab, Host::Client, &vip.to_string()).unwrap();
        assert_eq!(connection.get("/whoami").unwrap().status, 200, "whoever can be reached serves");
    }
    assert_eq!((obstacle("near"), obstacle("lost").as_deref()), (None, Some("no route leads to it")));
    assert_eq!(router.ctl(["status"])["datapath"]["l4_unroutable_instances"], 1);
    assert!(router.metrics().contains("\nrouter_l4_unroutable_instances 1\n"));
    assert!(router.log().contains("no route leads to an instance"), "{}", router.log());
    let said = checked(&lab, &router);
    assert!(said.contains(&format!("no route leads to instance lost ({lost})")), "{said}");

    lab.ip(Host::Gateway, &format!("route add {network} via {way}"));
    router.eventually(PATIENCE, "the instance takes flows once a route leads to it", |_| {
        obstacle("lost").is_none()
    });
    lab.ip(Host::Gateway, &format!("route del {network} via {way}"));
    router.eventually(PATIENCE, "and takes none without", |_| obstacle("lost").is_some());
    let warnings = router.log().matches("no route leads to an instance").count();
    assert_eq!(warnings, 2, "each change is told once: {}", router.log());
}

/// What `routerd --check` says of the router's own configuration. A warning is no mistake: what it is about may change.
fn checked(lab: &TestLab, router: &Router) -> String {
    let mut check = lab.command(Host::Gateway, router::binary("routerd"));
    let checked = check.arg("--check").arg("--config").arg(router.configuration_file()).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success(), "{said}");
    said
}

fn a_network_too_narrow_for_wrapped_packets_is_warned_of(family: Family) {
    let lab = TestLab::with_backends(1);
    let vip = SocketAddr::new(family.vip(), 80);
    let rest = format!(
        "[[listener]]\nname = \"direct\"\naddress = \"{vip}\"\nprotocol = \"tcp\"\nsource = \"dsr-ipip\"\n\n\
         [[pool]]\nname = \"servers\"\n\n{}[default_rule]\npools = [\"servers\"]\n",
        router::instances(family, "web", 1)
    );
    let router = Router::start(&lab, &router::configuration(&lab, "", "", &rest));
    let header = if family == Family::V4 { 20 } else { 40 };
    let usual = format!("packets of more than {} bytes are refused", 1_500 - header);
    assert!(router.log().contains(&usual), "{}", router.log());
    let set_mtu = |mtu: u32| {
        // Neither end of a link has a wider one than the other.
        lab.ip(Host::Switch, &format!("link set gateway mtu {mtu}"));
        lab.ip(Host::Gateway, &format!("link set backends mtu {mtu}"));
    };
    for (mtu, said_then) in [
        (1_500, Some(usual.as_str())),
        (1_500 + header, None),
        (
            1_280,
            Some(if family == Family::V4 {
                "packets of more than 1260 bytes"
            } else {
                "whatever they are told"
            }),
        ),
    ] {
        set_mtu(mtu);
        let said = checked(&lab, &router);
        match said_then {
            Some(what) => assert!(said.contains(what) && said.contains("dsr-ipip"), "{mtu}: {said}"),
            None => assert!(!said.contains("dsr-ipip"), "{mtu}: {said}"),
        }
    }
}
