//! `routerctl where` on a router with XDP: its program is asked first, and says so.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use support::balanced::{Balanced, UDP_PORT, ask};
use support::lab::{Family, Host};
use support::{Entry, Scene, TestLab, xdp};

support::over_both_families! {
    packets_of_layer_4_are_said_to_be_carried_by_xdp
    packets_of_a_handed_off_connection_are_said_to_be_carried_by_xdp
}

const XDP: &str = "attach = \"xdp\"";

fn lab(backends: u8) -> TestLab {
    let lab = TestLab::with_backends(backends);
    xdp::open(&lab);
    lab
}

/// The hook, the reason, and what each program has said.
fn told(answer: &Value) -> (String, String, Vec<(String, String)>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let fate = &answer["packets"][0]["fate"];
    let word = |program: &Value| {
        let said = if program["left"].is_null() { &program["reason"] } else { &program["left"] };
        (text(&program["program"]), text(said))
    };
    let programs = fate["programs"].as_array().unwrap_or_else(|| panic!("no answer: {answer}"));
    (text(&fate["hook"]), text(&fate["reason"]), programs.iter().map(word).collect())
}

fn one(program: &str, said: &str) -> Vec<(String, String)> {
    vec![(program.to_owned(), said.to_owned())]
}

fn packets_of_layer_4_are_said_to_be_carried_by_xdp(family: Family) {
    let scene = Balanced::in_lab_with(lab(1), family, 1, XDP, "");
    let client = |port| SocketAddr::new(family.address(Host::Client), port).to_string();
    let vip = |port| SocketAddr::new(family.vip(), port).to_string();
    let query = |source: String, destination: String, more: &[&str]| {
        let arguments = [&["where", "udp", &source, &destination], more].concat();
        told(&scene.router.ctl(arguments))
    };
    // Once asked, the instance's neighbour is known for some time.
    let asker = scene.asker();
    scene.router.eventually(Duration::from_secs(20), "XDP carries what is asked", |_| {
        let before = scene.xdp_frames("carried");
        ask(&asker, "who?").unwrap();
        scene.xdp_frames("carried") >= before + 2
    });
    let counted = || {
        let packets = ["l4_placed", "l4_forwarded"].map(|reason| scene.packets(reason));
        let frames = ["carried", "dropped"].map(|reason| scene.xdp_frames(reason));
        (packets, frames, scene.flows().len())
    };
    let before = counted();
    let placed = query(client(7_777), vip(UDP_PORT), &[]);
    assert_eq!(placed, ("xdp-native".into(), "l4_placed".into(), one("router_xdp_layer4", "l4_placed")));
    let own = asker.local_addr().unwrap().to_string();
    let known = query(own, vip(UDP_PORT), &[]);
    assert_eq!(known, ("xdp-native".into(), "l4_forwarded".into(), one("router_xdp_layer4", "l4_forwarded")));

    // What is too long for the way out is TC's, which tells the sender.
    let (hook, reason, programs) = query(client(7_777), vip(UDP_PORT), &["--payload", "2000"]);
    assert_eq!((hook.as_str(), reason.as_str()), ("tc", "too_long"));
    assert_eq!(programs[..1], one("router_xdp_layer4", "too_long"));
    let (hook, reason, programs) = query(client(7_777), vip(9), &[]);
    assert_eq!((hook.as_str(), reason.as_str()), ("tc", "not_tcp"));
    assert_eq!(programs[..1], one("router_xdp_layer4", "not_carried"));
    let (hook, reason, programs) = query(client(7_777), vip(UDP_PORT), &["--vlan", "7"]);
    assert_eq!((hook.as_str(), reason.as_str()), ("tc", "vlan_tagged"));
    assert_eq!(programs[..1], one("router_xdp_layer4", "not_carried"));
    assert_eq!(counted(), before, "nothing has changed by the questions");
}

fn packets_of_a_handed_off_connection_are_said_to_be_carried_by_xdp(family: Family) {
    let scene = Scene::over_in(family, lab(1), XDP);
    let mut connection = scene.connect(Entry::Handoff);
    connection.get("/files/64k").unwrap();
    scene.router.eventually(Duration::from_secs(20), "nothing is in custody", |_| {
        scene.flow_of(&connection)["state"] == "direct"
    });
    let flow = scene.flow_of(&connection);
    let end = |name: &str| flow[name].as_str().unwrap().to_owned();
    for (source, destination) in [(end("client"), end("vip")), (end("instance_address"), end("source"))] {
        let answer = scene.router.ctl(["where", "tcp", &source, &destination]);
        let expected = ("xdp-native".into(), "forwarded".into(), one("router_xdp", "forwarded"));
        assert_eq!(told(&answer), expected, "{source}: {answer}");
    }
    assert_eq!(connection.get("/files/1k").unwrap().status, 200);
    drop(connection);
    scene.comes_to_rest();
}
