//! Links that become narrower in the middle of a transfer: the sender is told, by the router or through it, and everything arrives.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::balanced::Balanced;
use support::behind::{Behind, ip, run};
use support::counters::{checksum_errors, counter};
use support::lab::{Family, Host};
use support::unwrapper::Unwrapper;
use support::{Entry, Scene, TestLab, xdp};

const LENGTH: usize = 20 << 20;
const NARROW: &str = "1280";

support::over_both_families! {
    layer_4_links_of_the_gateway_that_narrow_in_mid_transfer_are_told_of_by_the_router
    layer_4_links_beyond_the_client_s_router_are_told_of_through_the_router
    layer_4_links_beyond_the_instance_s_router_are_told_of_through_the_router
    a_link_of_the_gateway_that_narrows_in_mid_transfer_is_told_of_by_the_router
    a_link_beyond_the_client_s_router_that_narrows_in_mid_transfer_is_told_of_through_the_router
    a_link_beyond_the_instance_s_router_that_narrows_in_mid_transfer_is_told_of_through_the_router
    where_packets_go_past_the_stack_links_that_narrow_are_told_of_all_the_same
    layer_4_where_packets_go_past_the_stack_links_that_narrow_are_told_of_all_the_same
    layer_4_the_client_is_told_of_a_link_that_narrows_towards_instances_that_answer_directly
    a_link_that_narrows_beyond_a_router_of_wrapped_packets_is_told_of_by_the_router
    with_xdp_a_link_that_narrows_beyond_a_router_of_wrapped_packets_is_told_of_too
}

/// What carries a transfer.
trait Carrier {
    fn lab(&self) -> &TestLab;
    fn url(&self, path: &str) -> String;
    fn flows(&self) -> Vec<Value>;
}

impl Carrier for Scene {
    fn lab(&self) -> &TestLab {
        &self.lab
    }

    fn url(&self, path: &str) -> String {
        self.url(Entry::Handoff, path)
    }

    fn flows(&self) -> Vec<Value> {
        self.flows(None)
    }
}

impl Carrier for Balanced {
    fn lab(&self) -> &TestLab {
        &self.lab
    }

    fn url(&self, path: &str) -> String {
        self.url(path)
    }

    fn flows(&self) -> Vec<Value> {
        self.flows()
    }
}

/// The first bytes of the file that is transferred.
fn original(lab: &TestLab) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    File::open(lab.state_dir().join("files/200m")).unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

/// curl, which says nothing but what is wrong.
fn quiet(mut curl: Command) -> Command {
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "120", "--noproxy", "*"]);
    curl
}

/// Downloads, and narrows a link when a fifth has arrived. The rest is longer than all buffers on the way.
fn download(scene: &impl Carrier, curl: Command, narrow: impl FnOnce()) {
    let began = Instant::now();
    let range = format!("0-{}", LENGTH - 1);
    let mut curl = quiet(curl);
    curl.args(["--range", &range, &scene.url("/files/200m")]).stdout(Stdio::piped());
    let mut curl = curl.spawn().expect("curl starts");
    let mut arriving = curl.stdout.take().unwrap();
    let mut received = vec![0; LENGTH / 5];
    arriving.read_exact(&mut received).unwrap();
    narrow();
    arriving.read_to_end(&mut received).unwrap();
    assert!(curl.wait().unwrap().success());
    println!("{} MB down in {:.1?}", LENGTH >> 20, began.elapsed());
    assert!(received == original(scene.lab()), "the file arrives changed");
}

/// Uploads, and narrows a link when a tenth has been carried, and a fifth been sent.
fn upload(scene: &impl Carrier, narrow: impl FnOnce()) {
    upload_by(scene, scene.lab().command(Host::Client, "curl"), narrow);
}

fn upload_by(scene: &impl Carrier, curl: Command, narrow: impl FnOnce()) {
    let original = original(scene.lab());
    let began = Instant::now();
    let mut curl = quiet(curl);
    curl.args(["--header", "Expect:", "--upload-file", "-", &scene.url("/upload/copy")])
        .stdin(Stdio::piped());
    let mut curl = curl.spawn().expect("curl starts");
    let mut leaving = curl.stdin.take().unwrap();
    leaving.write_all(&original[..LENGTH / 5]).unwrap();
    let carried = || scene.flows().iter().filter_map(|flow| flow["bytes_to_instance"].as_u64()).max();
    while carried().unwrap_or(0) < LENGTH as u64 / 10 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?} bytes in a minute", carried());
        thread::sleep(Duration::from_millis(20));
    }
    narrow();
    leaving.write_all(&original[LENGTH / 5..]).unwrap();
    drop(leaving);
    assert!(curl.wait().unwrap().success());
    println!("{} MB up in {:.1?}", LENGTH >> 20, began.elapsed());
    let of = |number| scene.lab().host_dir(Host::Backend(number)).join("upload/copy");
    let stored = (1..=scene.lab().backends()).map(of).find(|file| file.exists()).expect("somebody stored it");
    assert!(fs::read(&stored).unwrap() == original, "the upload arrives changed");
    fs::remove_file(stored).unwrap();
}

fn assert_carried(scene: &Scene, connections: u64) {
    assert_eq!(scene.carried(), (connections, 0), "handed off and relayed");
    assert_no_checksum_was_wrong(&scene.lab);
    scene.comes_to_rest();
}

fn assert_no_checksum_was_wrong(lab: &TestLab) {
    for host in [Host::Client, Host::Gateway, Host::Backend(1)] {
        assert_eq!(checksum_errors(lab, host), 0, "on {host}");
    }
}

/// A link of the gateway.
struct GatewayLink {
    interface: &'static str,
    peer: (Host, &'static str),
}

const TO_CLIENT: GatewayLink = GatewayLink { interface: "client", peer: (Host::Client, "eth0") };
const TO_INSTANCE: GatewayLink = GatewayLink { interface: "backends", peer: (Host::Switch, "gateway") };

impl GatewayLink {
    fn set_mtu(&self, lab: &TestLab, mtu: &str) {
        let (peer, its_interface) = self.peer;
        ip(lab, peer, &format!("link set {its_interface} mtu {mtu}"));
        ip(lab, Host::Gateway, &format!("link set {} mtu {mtu}", self.interface));
    }
}

/// As a wire does it, the links deliver nothing that is longer than their MTU: virtual ones let through what is still to be taken apart. Nor do they leave
/// checksums to the receiver's trust: what the router answers with is looked at.
fn make_links_strict(lab: &TestLab) {
    for interface in ["client", "backends"] {
        let features = ["tso", "off", "gso", "off", "tx", "off"];
        run(lab.command(Host::Gateway, "ethtool").args(["-K", interface]).args(features));
    }
}

/// Narrows the gateway's links one after the other. `told` counts the senders that the router has told of an MTU.
fn links_of_the_gateway_narrow(scene: &impl Carrier, told: impl Fn() -> u64) {
    make_links_strict(scene.lab());
    download(scene, scene.lab().command(Host::Client, "curl"), || TO_CLIENT.set_mtu(scene.lab(), NARROW));
    let of_instance = told();
    assert!(of_instance > 0, "the instance was told");
    TO_CLIENT.set_mtu(scene.lab(), "1500");
    // It would say in its next handshake what it has been told.
    for family in ["-4", "-6"] {
        ip(scene.lab(), Host::Backend(1), &format!("{family} route flush cache"));
    }
    upload(scene, || TO_INSTANCE.set_mtu(scene.lab(), NARROW));
    println!("told the instance {of_instance} times, the client {}", told() - of_instance);
    assert!(told() > of_instance, "the client was told");
}

fn a_link_of_the_gateway_that_narrows_in_mid_transfer_is_told_of_by_the_router(family: Family) {
    let scene = Scene::over(family);
    links_of_the_gateway_narrow(&scene, || scene.packets("too_long"));
    assert_carried(&scene, 2);
}

fn layer_4_links_of_the_gateway_that_narrow_in_mid_transfer_are_told_of_by_the_router(family: Family) {
    for source in ["snat", "transparent"] {
        let scene = Balanced::with(family, 1, "", &format!("source = \"{source}\""), "");
        links_of_the_gateway_narrow(&scene, || scene.packets("too_long"));
        assert_no_checksum_was_wrong(&scene.lab);
    }
}

/// No IPv6 sender takes an MTU below 1280 (RFC 8201 §4): where packets are wrapped, the link has room for that and a header.
fn layer_4_the_client_is_told_of_a_link_that_narrows_towards_instances_that_answer_directly(family: Family) {
    for source in ["dsr-l2", "dsr-ipip"] {
        let scene = Balanced::direct(family, source);
        let wrapped = source == "dsr-ipip";
        let _unwrapping: Vec<_> =
            (1..=2).filter(|_| wrapped).map(|number| Unwrapper::start(&scene.lab, number, family)).collect();
        let narrow = if wrapped && family == Family::V6 { "1320" } else { NARROW };
        make_links_strict(&scene.lab);
        let mut before = 0;
        upload(&scene, || {
            before = scene.packets("too_long");
            TO_INSTANCE.set_mtu(&scene.lab, narrow);
        });
        println!("{source}: told the client {} times", scene.packets("too_long") - before);
        assert!(scene.packets("too_long") > before, "{source}: the client was told");
        assert_no_checksum_was_wrong(&scene.lab);
    }
}

const XDP: &str = "attach = \"xdp\"";

/// A lab that XDP works well in.
fn lab_for_xdp() -> TestLab {
    let lab = TestLab::with_backends(1);
    xdp::open(&lab);
    lab
}

/// XDP leaves to TC what is too long, and errors.
fn where_packets_go_past_the_stack_links_that_narrow_are_told_of_all_the_same(family: Family) {
    let scene = Scene::over_in(family, lab_for_xdp(), XDP);
    links_of_the_gateway_narrow(&scene, || scene.packets("too_long"));
    TO_INSTANCE.set_mtu(&scene.lab, "1500");
    a_link_beyond_the_client_narrows(&scene);
    assert!(scene.packets("error_forwarded") > 0);
    assert!(scene.xdp_frames("carried") > 10_000, "{} frames in XDP", scene.xdp_frames("carried"));
    assert_carried(&scene, 3);
}

fn layer_4_where_packets_go_past_the_stack_links_that_narrow_are_told_of_all_the_same(family: Family) {
    for source in ["snat", "transparent"] {
        let listener = format!("source = \"{source}\"");
        let scene = Balanced::in_lab_with(lab_for_xdp(), family, 1, XDP, &listener);
        links_of_the_gateway_narrow(&scene, || scene.packets("too_long"));
        TO_INSTANCE.set_mtu(&scene.lab, "1500");
        a_link_beyond_the_client_narrows(&scene);
        assert!(scene.packets("l4_error_forwarded") > 0, "{source}");
        assert!(scene.xdp_frames("carried") > 10_000, "{source}: {} frames", scene.xdp_frames("carried"));
        assert_no_checksum_was_wrong(&scene.lab);
    }
}

/// Only IPv4: no router fragments IPv6 (RFC 8200 §5).
#[test]
#[ignore = "needs root"]
fn what_a_router_on_the_way_cuts_into_fragments_arrives_whole() {
    let scene = Scene::over(Family::V4);
    let behind = Behind::client(&scene.lab);
    // A sender that does not ask to be told of an MTU, and a link that is too narrow from the beginning.
    run(behind.command("sysctl").args(["-q", "-w", "net.ipv4.ip_no_pmtu_disc=1"]));
    ip(&scene.lab, Host::Client, &format!("link set eth0 mtu {NARROW}"));
    let fragments = || counter(&scene.lab, Host::Client, "Ip.FragCreates");
    upload_by(&scene, behind.command("curl"), || {});
    println!("{} fragments came", fragments());
    assert!(fragments() > 10_000, "{} fragments came", fragments());
    assert_eq!(scene.packets("too_long_unanswered"), 0);
    assert_carried(&scene, 1);
}

/// Downloads to a host behind the client, and narrows the link between these two meanwhile.
fn a_link_beyond_the_client_narrows(scene: &impl Carrier) {
    let behind = Behind::client(scene.lab());
    download(scene, behind.command("curl"), || {
        behind.ip(&format!("link set eth0 mtu {NARROW}"));
        ip(scene.lab(), Host::Client, &format!("link set behind mtu {NARROW}"));
    });
}

fn a_link_beyond_the_client_s_router_that_narrows_in_mid_transfer_is_told_of_through_the_router(
    family: Family,
) {
    let scene = Scene::over(family);
    a_link_beyond_the_client_narrows(&scene);
    let forwarded = scene.packets("error_forwarded");
    println!("{forwarded} errors were passed on to the instance");
    assert!(forwarded > 0);
    assert_eq!(scene.packets("error_out_of_window"), 0);
    assert_carried(&scene, 1);
}

fn layer_4_links_beyond_the_client_s_router_are_told_of_through_the_router(family: Family) {
    for source in ["snat", "transparent", "dsr-l2", "dsr-ipip"] {
        let scene = match source {
            "snat" | "transparent" => Balanced::with(family, 1, "", &format!("source = \"{source}\""), ""),
            _ => Balanced::direct(family, source),
        };
        let wrapped = source == "dsr-ipip";
        let _unwrapping: Vec<_> =
            (1..=2).filter(|_| wrapped).map(|number| Unwrapper::start(&scene.lab, number, family)).collect();
        a_link_beyond_the_client_narrows(&scene);
        let forwarded = scene.packets("l4_error_forwarded");
        println!("{source}: {forwarded} errors were passed on to the instance");
        assert!(forwarded > 0, "{source}");
        assert_no_checksum_was_wrong(&scene.lab);
    }
}

/// A lab whose second backend is the first one's router.
fn lab_with_a_router_before_the_instance(family: Family) -> TestLab {
    let lab = TestLab::with_backends(2);
    let router = Host::Backend(2);
    lab.sysctl(router, "net.ipv4.ip_forward", "1").unwrap();
    lab.sysctl(router, "net.ipv6.conf.all.forwarding", "1").unwrap();
    lab.sysctl(router, "net.ipv4.conf.all.send_redirects", "0").unwrap();
    lab.sysctl(router, "net.ipv4.conf.eth0.send_redirects", "0").unwrap();
    lab.sysctl(Host::Gateway, "net.ipv6.conf.all.accept_redirects", "0").unwrap();
    let (to, via) = (family.address(Host::Backend(1)), family.address(router));
    ip(&lab, Host::Gateway, &format!("route add {to}/{} via {via} dev backends", bits(family)));
    lab
}

fn bits(family: Family) -> u8 {
    if family == Family::V4 { 32 } else { 128 }
}

/// Uploads, and narrows the link behind the instance's router meanwhile.
fn a_link_beyond_the_instance_s_router_narrows(scene: &impl Carrier, family: Family) {
    a_link_beyond_the_instance_s_router_narrows_to(NARROW, scene, family);
}

fn a_link_beyond_the_instance_s_router_narrows_to(mtu: &str, scene: &impl Carrier, family: Family) {
    let to = family.address(Host::Backend(1));
    upload(scene, || {
        let route = format!("route add {to}/{} dev eth0 mtu lock {mtu}", bits(family));
        ip(scene.lab(), Host::Backend(2), &route);
    });
}

fn a_link_beyond_the_instance_s_router_that_narrows_in_mid_transfer_is_told_of_through_the_router(
    family: Family,
) {
    let scene = Scene::over_only_first(family, lab_with_a_router_before_the_instance(family));
    a_link_beyond_the_instance_s_router_narrows(&scene, family);
    let forwarded = scene.packets("error_forwarded");
    println!("{forwarded} errors were passed on to the client");
    assert!(forwarded > 0);
    assert_eq!(scene.packets("error_out_of_window"), 0);
    assert_carried(&scene, 1);
}

fn layer_4_links_beyond_the_instance_s_router_are_told_of_through_the_router(family: Family) {
    for source in ["snat", "transparent"] {
        let lab = lab_with_a_router_before_the_instance(family);
        let scene = Balanced::in_lab(lab, family, 1, &format!("source = \"{source}\""));
        a_link_beyond_the_instance_s_router_narrows(&scene, family);
        let forwarded = scene.packets("l4_error_forwarded");
        println!("{source}: {forwarded} errors were passed on to the client");
        assert!(forwarded > 0, "{source}");
        assert_no_checksum_was_wrong(&scene.lab);
    }
}

fn a_link_that_narrows_beyond_a_router_of_wrapped_packets_is_told_of_by_the_router(family: Family) {
    wrapped_packets_meet_a_narrow_link(family, lab_with_a_router_before_the_instance(family), "");
}

fn with_xdp_a_link_that_narrows_beyond_a_router_of_wrapped_packets_is_told_of_too(family: Family) {
    let lab = lab_with_a_router_before_the_instance(family);
    xdp::open(&lab);
    let scene = wrapped_packets_meet_a_narrow_link(family, lab, XDP);
    assert!(scene.xdp_frames("carried") > 1_000, "{} frames in XDP", scene.xdp_frames("carried"));
}

/// What a router between gateway and instance says of wrapped packets, it says to the gateway.
fn wrapped_packets_meet_a_narrow_link(family: Family, lab: TestLab, datapath: &str) -> Balanced {
    let scene = Balanced::direct_to(1, lab, family, "dsr-ipip", datapath);
    let unwrapping = Unwrapper::start(&scene.lab, 1, family);
    // No IPv6 sender takes an MTU below 1280.
    let narrow = if family == Family::V6 { "1400" } else { NARROW };
    let before = scene.packets("too_long");
    a_link_beyond_the_instance_s_router_narrows_to(narrow, &scene, family);
    let (noted, told) = (scene.packets("l4_tunnel_mtu"), scene.packets("too_long") - before);
    println!("the gateway was told {noted} times, and has told the client {told} times");
    assert!(noted > 0 && told > 0);
    assert_eq!(scene.packets("l4_tunnel_error_forged"), 0);
    assert_no_checksum_was_wrong(&scene.lab);
    drop(unwrapping);
    scene
}
