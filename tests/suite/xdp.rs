//! XDP: packets that go past the stack, and those that do not.

use std::collections::BTreeSet;
use std::net::IpAddr;

use support::balanced::{Balanced, ask};
use support::lab::{Family, Host};
use support::scene::is_prefix;
use support::unwrapper::Unwrapper;
use support::{Curl, Entry, Router, Scene, TestLab, xdp};

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
    let (carried, forwarded) = (scene.xdp_frames("carried"), scene.packets("forwarded"));
    println!("{carried} of {forwarded} packets went past the stack");
    assert!(carried > 4 * LENGTH / 1_500, "{carried} packets are fewer than four files have");
    // One in 65,536 looks as if its checksum were open.
    assert!(forwarded - carried < forwarded / 1_000, "{} took the slow way", forwarded - carried);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
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
        let carried = scene.xdp_frames("carried");
        println!("{family:?}, {mode}: {carried} of {there} + {back} packets went past the stack");
        assert_eq!(back > 0, !direct, "{mode}");
        assert_eq!(scene.packets("l4_placed"), 41, "{mode}");
        assert!(
            there + back - carried <= (there + back) / 1_000 + 5,
            "{mode}: {} took the slow way",
            there + back - carried
        );
    }
}
