//! XDP: packets that go past the stack, and those that do not.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use support::balanced::{Balanced, ask};
use support::lab::{Family, Host};
use support::scene::is_prefix;
use support::unwrapper::Unwrapper;
use support::{Connection, Curl, Entry, Router, Scene, TestLab, xdp};

support::over_both_families! {
    handed_off_connections_go_past_the_stack
    layer_4_flows_go_past_the_stack_in_every_mode
}

const LENGTH: u64 = 200 << 20;
const XDP: &str = "attach = \"xdp\"";

/// A lab that XDP works well in.
fn lab(backends: u8) -> TestLab {
    let lab = TestLab::with_backends(backends);
    xdp::open(&lab);
    lab
}

/// How each interface is attached, as `routerctl status` shows it.
fn hooks(router: &Router) -> Vec<String> {
    let status = router.ctl(["status"]);
    let interfaces = status["datapath"]["interfaces"].as_array().expect("the status has interfaces");
    interfaces.iter().map(|found| found["hook"].as_str().expect("a name").to_owned()).collect()
}

/// How many of these packets XDP has carried. Of any other it has said why it left it: its neighbour was not known yet, or it looked, as one in 65,536 does, as if
/// its checksum were open.
fn nearly_all(packets: u64, xdp_frames: impl Fn(&str) -> u64) -> u64 {
    let carried = xdp_frames("carried");
    let left: u64 = ["no_way_out", "partial_checksum", "too_long"].map(&xdp_frames).iter().sum();
    println!("{carried} of {packets} packets went past the stack, {left} were left to it");
    assert!(packets.saturating_sub(carried) <= left, "{carried} of {packets}, and {left} left");
    assert!(left < packets / 2, "{left} of {packets} were left to the stack");
    carried
}

fn handed_off_connections_go_past_the_stack(family: Family) {
    let scene = Scene::over_in(family, lab(1), XDP);
    assert_eq!(hooks(&scene.router), ["xdp-native", "xdp-native"], "{}", scene.router.log());
    let original = scene.lab.state_dir().join("files/200m");
    for entry in Entry::OFFLOADING {
        let arriving = scene.lab.state_dir().join(format!("received-{entry:?}"));
        let status = Curl::for_files(&scene.lab).download(scene.url(entry, "/files/200m"), &arriving);
        assert_eq!(status, Ok(200), "{entry:?}");
        assert!(is_prefix(&arriving, LENGTH, &original).unwrap(), "{entry:?}: another file arrives");
        let status = Curl::for_files(&scene.lab).upload(&original, scene.url(entry, "/upload/long"));
        assert!(matches!(status, Ok(201 | 204)), "{entry:?}: {status:?}");
    }
    let forwarded = scene.packets("forwarded");
    let carried = nearly_all(forwarded, |reason| scene.xdp_frames(reason));
    assert!(carried > 4 * LENGTH / 1_500, "{carried} packets are fewer than four files have");
    scene.comes_to_rest();
    scene.assert_no_segment_but_an_overtaken_one_was_discarded();
}

/// The names of the gateway's interfaces that have an XDP program.
fn attached(scene: &Scene) -> Vec<&'static str> {
    let has_program = |interface: &&str| {
        let shown = scene.lab.command(Host::Gateway, "ip").args(["link", "show", interface]).output();
        String::from_utf8(shown.expect("ip starts").stdout).expect("text").contains("prog/xdp")
    };
    ["client", "backends"].into_iter().filter(has_program).collect()
}

#[test]
#[ignore = "needs root"]
fn xdp_goes_on_without_the_daemon_and_its_successor_adopts_it() {
    let mut scene = Scene::over_in(Family::V4, lab(1), XDP);
    let mut connection = scene.connect(Entry::Handoff);
    let get = |connection: &mut Connection, when: &str| {
        let reply = connection.get("/files/64k").unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(reply.body.len(), 64 << 10, "{when}");
    };
    get(&mut connection, "before");
    scene.flow_of(&connection);
    let before = scene.xdp_frames("carried");
    scene.router.kill();
    assert_eq!(attached(&scene), ["client", "backends"]);
    get(&mut connection, "while it is dead");
    scene.router.restart();
    assert!(scene.xdp_frames("carried") > before + 64 * 1024 / 1_500, "XDP has carried the answer");
    assert_eq!(hooks(&scene.router), ["xdp-native", "xdp-native"]);
    get(&mut connection, "after");
    drop(connection);
    scene.comes_to_rest();
}

#[test]
#[ignore = "needs root"]
fn a_reload_attaches_xdp_elsewhere_and_connections_do_not_notice() {
    let scene = Scene::over_in(Family::V4, lab(1), XDP);
    let file = scene.router.configuration_file();
    let text = fs::read_to_string(&file).unwrap();
    let mut connection = scene.connect(Entry::Handoff);
    let other = "attach = \"tc\"\n[[datapath.interface]]\nname = \"client\"\nattach = \"xdp\"";
    for (attach, wanted, interfaces) in [
        (XDP, ["xdp-native", "xdp-native"], &["client", "backends"][..]),
        ("attach = \"tc\"", ["tc", "tc"], &[]),
        (other, ["xdp-native", "tc"], &["client"]),
        // A veth is best served by TC.
        ("attach = \"auto\"", ["tc", "tc"], &[]),
        (XDP, ["xdp-native", "xdp-native"], &["client", "backends"]),
    ] {
        fs::write(&file, text.replace(XDP, attach)).unwrap();
        let said = scene.router.ctl(["reload"]);
        assert!(said["needs_restart"].as_array().expect("a list").is_empty(), "{said}");
        assert_eq!(hooks(&scene.router), wanted, "{attach}");
        assert_eq!(attached(&scene), interfaces, "{attach}");
        let before = scene.xdp_frames("carried");
        let reply = connection.get("/files/64k").unwrap_or_else(|error| panic!("{attach}: {error}"));
        assert_eq!(reply.body.len(), 64 << 10, "{attach}");
        let carried = scene.xdp_frames("carried") - before;
        assert_eq!(carried > 0, !interfaces.is_empty(), "{attach}: {carried} frames by XDP");
    }
    let status = scene.router.ctl(["status"]);
    assert_eq!(status["datapath"]["interfaces"][0]["reason"], "as configured");
    drop(connection);
    scene.comes_to_rest();
}

#[test]
#[ignore = "needs root"]
fn where_the_driver_refuses_generic_xdp_does_the_same() {
    let lab = lab(1);
    // More than fits into a page.
    for (host, interface) in [(Host::Client, "eth0"), (Host::Switch, "gateway")] {
        lab.ip(host, &format!("link set {interface} mtu 9000"));
    }
    let scene = Scene::over_in(Family::V4, lab, XDP);
    assert_eq!(hooks(&scene.router), ["xdp-generic", "xdp-generic"], "{}", scene.router.log());
    let reason = scene.router.ctl(["status"])["datapath"]["interfaces"][0]["reason"].clone();
    assert!(reason.as_str().unwrap().contains("the kernel refuses XDP in its driver"), "{reason}");
    let original = scene.lab.state_dir().join("files/200m");
    let arriving = scene.lab.state_dir().join("received");
    let status = Curl::for_files(&scene.lab).download(scene.url(Entry::Handoff, "/files/200m"), &arriving);
    assert_eq!(status, Ok(200));
    assert!(is_prefix(&arriving, LENGTH, &original).unwrap(), "another file arrives");
    assert!(scene.xdp_frames("carried") > 10_000, "{} packets", scene.xdp_frames("carried"));
    scene.comes_to_rest();
    // When nothing stands in its way any more, the next reload moves XDP into the driver.
    for (host, interface) in [
        (Host::Client, "eth0"),
        (Host::Switch, "gateway"),
        (Host::Gateway, "client"),
        (Host::Gateway, "backends"),
    ] {
        scene.lab.ip(host, &format!("link set {interface} mtu 1500"));
    }
    scene.router.ctl(["reload"]);
    let reason = scene.router.ctl(["status"])["datapath"]["interfaces"][0]["reason"].clone();
    assert_eq!(hooks(&scene.router), ["xdp-native", "xdp-native"], "{reason}");
    scene.assert_no_segment_but_an_overtaken_one_was_discarded();
}

#[test]
#[ignore = "needs root"]
fn checksums_that_peers_leave_out_go_by_tc_and_status_says_what_to_set() {
    let lab = TestLab::with_backends(1);
    xdp::set(&lab, &["gro", "on"]);
    let scene = Scene::over_in(Family::V4, lab, XDP);
    assert_eq!(hooks(&scene.router), ["xdp-native", "xdp-native"]);
    let original = scene.lab.state_dir().join("files/200m");
    let arriving = scene.lab.state_dir().join("received");
    let status = Curl::for_files(&scene.lab).download(scene.url(Entry::Handoff, "/files/200m"), &arriving);
    assert_eq!(status, Ok(200));
    assert!(is_prefix(&arriving, LENGTH, &original).unwrap(), "another file arrives");
    assert!(scene.xdp_frames("partial_checksum") > 1_000);
    scene.router.eventually(Duration::from_secs(20), "the status gives advice", |router| {
        router.ctl(["status"])["datapath"]["interfaces"][0]["advice"].to_string().contains("tx off")
    });
    scene.comes_to_rest();
    scene.assert_no_segment_but_an_overtaken_one_was_discarded();
}

#[test]
#[ignore = "needs root"]
fn what_a_peer_does_not_take_from_xdp_goes_by_tc() {
    let lab = TestLab::with_backends(1);
    xdp::set(&lab, &["tx", "off", "gro", "off"]);
    let scene = Scene::over_in(Family::V4, lab, XDP);
    let mut connection = scene.connect(Entry::Handoff);
    for _ in 0..3 {
        assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10);
    }
    assert_eq!(scene.xdp_frames("carried"), 0);
    assert!(scene.xdp_frames("no_way_out") > 100);
    let status = scene.router.ctl(["status"]);
    let advice = status["datapath"]["interfaces"][1]["advice"].to_string();
    assert!(advice.contains("gro on"), "{advice}");
    // The daemon notices when that changes.
    xdp::set(&scene.lab, &["gro", "on"]);
    scene.router.eventually(Duration::from_secs(20), "frames go past the stack", |_| {
        connection.get("/files/64k").expect("the connection goes on");
        scene.xdp_frames("carried") > 100
    });
    drop(connection);
    scene.comes_to_rest();
}

#[test]
#[ignore = "needs root"]
fn the_first_packet_to_a_neighbour_without_an_address_goes_through_the_stack() {
    let scene = Scene::over_in(Family::V4, lab(1), XDP);
    let mut connection = scene.connect(Entry::Handoff);
    connection.get("/files/64k").unwrap();
    scene.flow_of(&connection);
    for _ in 0..5 {
        let before = scene.xdp_frames("no_way_out");
        scene.lab.ip(Host::Gateway, "neigh flush dev backends");
        scene.router.eventually(
            Duration::from_secs(20),
            "a request meets a next hop without an address",
            |_| {
                scene.lab.ip(Host::Gateway, "neigh flush dev backends");
                let reply = connection.get("/files/1k").expect("nothing is lost");
                assert_eq!(reply.body.len(), 1 << 10);
                scene.xdp_frames("no_way_out") > before
            },
        );
    }
    assert_eq!(scene.packets("xdp_way_lost"), 0);
    drop(connection);
    scene.comes_to_rest();
}

/// Both a connection and a datagram reach both instances, which see `seen`, and a file arrives whole.
fn serves(scene: &Balanced, seen: IpAddr) {
    let askers: Vec<_> = (0..20).map(|_| scene.asker()).collect();
    let mut answered = BTreeSet::new();
    for asker in &askers {
        let answer = ask(asker, "who?").unwrap();
        let (number, rest) = answer.split_once(' ').unwrap();
        assert_eq!(rest, format!("{seen} who?"), "{:?}", scene.family);
        answered.insert(number.to_owned());
        // Again: not the first packet of a flow.
        assert!(ask(asker, &"long ".repeat(200)).unwrap().ends_with(&"long ".repeat(200)));
    }
    assert_eq!(answered.len(), 2, "{answered:?}");
    for _ in 0..20 {
        let mut connection = scene.connect().unwrap();
        let text = connection.get("/who/is/asking").unwrap().text();
        assert!(text.contains(&format!("peer: {seen}")), "{:?}: {text}", scene.family);
    }
    let original = scene.lab.state_dir().join("files/200m");
    let arriving = scene.lab.state_dir().join("received");
    let status = Curl::for_files(&scene.lab).download(scene.url("/files/200m"), &arriving);
    assert_eq!(status, Ok(200));
    assert!(is_prefix(&arriving, LENGTH, &original).unwrap(), "another file arrives");
}

fn layer_4_flows_go_past_the_stack_in_every_mode(family: Family) {
    let (client, router) = (family.address(Host::Client), family.source());
    for (mode, seen) in [("snat", router), ("transparent", client), ("dsr-l2", client), ("dsr-ipip", client)]
    {
        let direct = mode.starts_with("dsr");
        let scene = if direct {
            Balanced::direct_in(lab(2), family, mode, XDP)
        } else {
            Balanced::in_lab_with(lab(2), family, 2, XDP, &format!("source = \"{mode}\""))
        };
        assert_eq!(hooks(&scene.router), ["xdp-native", "xdp-native"], "{}", scene.router.log());
        let _unwrapping: Vec<_> = match mode {
            "dsr-ipip" => (1..=2).map(|number| Unwrapper::start(&scene.lab, number, family)).collect(),
            _ => Vec::new(),
        };
        serves(&scene, seen);
        let there = scene.packets("l4_forwarded") + scene.packets("l4_placed");
        let back = scene.packets("l4_answered");
        println!("{family:?}, {mode}");
        nearly_all(there + back, |reason| scene.xdp_frames(reason));
        assert_eq!(back > 0, !direct, "{mode}");
        assert_eq!(scene.packets("l4_placed"), 41, "{mode}");
    }
}
