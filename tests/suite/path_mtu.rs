//! Links that become narrower in the middle of a transfer: the sender is told, by the router or through it, and everything arrives.

use std::fs::{self, File};
use std::io::{self, Read};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use support::counters::{checksum_errors, counter};
use support::lab::{Family, Host, Lab};
use support::scene::is_prefix;
use support::{Curl, Entry, Scene};

const LENGTH: u64 = 20 << 20;
const NARROW: &str = "1280";

support::over_both_families! {
    a_link_of_the_gateway_that_narrows_in_mid_transfer_is_told_of_by_the_router
    a_link_beyond_the_client_s_router_that_narrows_in_mid_transfer_is_told_of_through_the_router
    a_link_beyond_the_instance_s_router_that_narrows_in_mid_transfer_is_told_of_through_the_router
}

fn ip(lab: &Lab, host: Host, arguments: &str) {
    run(lab.command(host, "ip").args(arguments.split(' ')));
}

fn run(command: &mut Command) {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until a flow has carried a fifth of the file.
fn in_mid_transfer(scene: &Scene) {
    let began = Instant::now();
    loop {
        let flows = scene.flows(None);
        let carried = flows.iter().flat_map(|flow| [&flow["bytes_to_client"], &flow["bytes_to_instance"]]);
        if carried.filter_map(|bytes| bytes.as_u64()).any(|bytes| bytes > LENGTH / 5) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{flows:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Downloads, and narrows a link meanwhile.
fn download(scene: &Scene, curl: Curl, narrow: impl FnOnce() + Send) {
    let original = scene.lab.state_dir().join("files/200m");
    let received = scene.lab.state_dir().join("received");
    let began = Instant::now();
    let status = thread::scope(|threads| {
        threads.spawn(|| {
            in_mid_transfer(scene);
            narrow();
        });
        let range = format!("0-{}", LENGTH - 1);
        let curl = curl.arg("--limit-rate").arg("10M").arg("--range").arg(range);
        curl.download(scene.url(Entry::Handoff, "/files/200m"), &received)
    });
    assert_eq!(status, Ok(206));
    println!("{} MB down in {:.1?}", LENGTH >> 20, began.elapsed());
    assert!(is_prefix(&received, LENGTH, &original).unwrap(), "the file arrives changed");
}

/// Uploads, and narrows a link meanwhile.
fn upload(scene: &Scene, narrow: impl FnOnce() + Send) {
    upload_by(scene, scene.lab.command(Host::Client, "curl"), narrow);
}

fn upload_by(scene: &Scene, curl: Command, narrow: impl FnOnce() + Send) {
    let original = scene.lab.state_dir().join("files/200m");
    let sent = scene.lab.state_dir().join("sent");
    io::copy(&mut File::open(&original).unwrap().take(LENGTH), &mut File::create(&sent).unwrap()).unwrap();
    let began = Instant::now();
    let status = thread::scope(|threads| {
        threads.spawn(|| {
            in_mid_transfer(scene);
            narrow();
        });
        let curl = Curl::for_files_by(curl).arg("--limit-rate").arg("10M");
        curl.upload(&sent, scene.url(Entry::Handoff, "/upload/copy"))
    });
    assert!(matches!(status, Ok(201 | 204)), "{status:?}");
    println!("{} MB up in {:.1?}", LENGTH >> 20, began.elapsed());
    let stored = scene.lab.host_dir(Host::Backend(1)).join("upload/copy");
    assert!(is_prefix(&stored, LENGTH, &original).unwrap(), "the upload arrives changed");
    fs::remove_file(stored).unwrap();
}

fn assert_carried(scene: &Scene, connections: u64) {
    assert_eq!(scene.carried(), (connections, 0), "handed off and relayed");
    for host in [Host::Client, Host::Gateway, Host::Backend(1)] {
        assert_eq!(checksum_errors(&scene.lab, host), 0, "on {host}");
    }
    scene.comes_to_rest();
}

fn a_link_of_the_gateway_that_narrows_in_mid_transfer_is_told_of_by_the_router(family: Family) {
    let scene = Scene::over(family);
    // As a wire does it, the links deliver nothing that is longer than their MTU: virtual ones let through what is still to be taken apart.
    for interface in ["client", "backends"] {
        // Nor do they leave checksums to the receiver's trust: what the router answers with is looked at.
        let features = ["tso", "off", "gso", "off", "tx", "off"];
        run(scene.lab.command(Host::Gateway, "ethtool").args(["-K", interface]).args(features));
    }
    let narrow = |interface: &str, (peer, its_interface): (Host, &str)| {
        ip(&scene.lab, peer, &format!("link set {its_interface} mtu {NARROW}"));
        ip(&scene.lab, Host::Gateway, &format!("link set {interface} mtu {NARROW}"));
    };
    let widen = |interface: &str, (peer, its_interface): (Host, &str)| {
        ip(&scene.lab, peer, &format!("link set {its_interface} mtu 1500"));
        ip(&scene.lab, Host::Gateway, &format!("link set {interface} mtu 1500"));
    };
    let to_client = ("client", (Host::Client, "eth0"));
    let to_instance = ("backends", (Host::Switch, "gateway"));
    download(&scene, Curl::for_files(&scene.lab), || narrow(to_client.0, to_client.1));
    let told = scene.packets("too_long");
    assert!(told > 0, "the instance was told");
    widen(to_client.0, to_client.1);
    upload(&scene, || narrow(to_instance.0, to_instance.1));
    println!("told the instance {told} times, the client {}", scene.packets("too_long") - told);
    assert!(scene.packets("too_long") > told, "the client was told");
    assert_carried(&scene, 2);
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

/// A namespace behind the client, which is its router.
struct Behind(Child);

impl Behind {
    fn client(lab: &Lab) -> Self {
        // Bounded, whatever becomes of this process.
        let child = lab.command(Host::Client, "unshare").args(["--net", "sleep", "300"]).spawn();
        let behind = Self(child.expect("unshare starts"));
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let client = lab.inside(Host::Client, || fs::read_link("/proc/thread-self/ns/net")).unwrap().unwrap();
        let began = Instant::now();
        let moved = || {
            fs::read_link(format!("/proc/{}/ns/net", behind.0.id())).is_ok_and(|it| it != own && it != client)
        };
        while !moved() {
            assert!(began.elapsed() < Duration::from_secs(10), "unshare makes a namespace");
            thread::sleep(Duration::from_millis(5));
        }
        lab.sysctl(Host::Client, "net.ipv4.ip_forward", "1").unwrap();
        lab.sysctl(Host::Client, "net.ipv6.conf.all.forwarding", "1").unwrap();
        ip(lab, Host::Client, &format!("link add behind type veth peer name eth0 netns {}", behind.0.id()));
        for command in [
            "link set behind up",
            "addr add 10.77.9.1/24 dev behind",
            "addr add fd77:9::1/64 dev behind nodad",
        ] {
            ip(lab, Host::Client, command);
        }
        for command in [
            "link set lo up",
            "link set eth0 up",
            "addr add 10.77.9.5/24 dev eth0",
            "addr add fd77:9::5/64 dev eth0 nodad",
            "route add default via 10.77.9.1",
            "route add default via fd77:9::1",
        ] {
            behind.ip(command);
        }
        ip(lab, Host::Gateway, "route add 10.77.9.0/24 via 10.77.1.2 dev client");
        ip(lab, Host::Gateway, "route add fd77:9::/64 via fd77:1::2 dev client");
        behind
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.id())).arg("--").arg(program);
        command
    }

    fn ip(&self, arguments: &str) {
        run(self.command("ip").args(arguments.split(' ')));
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_link_beyond_the_client_s_router_that_narrows_in_mid_transfer_is_told_of_through_the_router(
    family: Family,
) {
    let scene = Scene::over(family);
    let behind = Behind::client(&scene.lab);
    download(&scene, Curl::for_files_by(behind.command("curl")), || {
        behind.ip(&format!("link set eth0 mtu {NARROW}"));
        ip(&scene.lab, Host::Client, &format!("link set behind mtu {NARROW}"));
    });
    let forwarded = scene.packets("error_forwarded");
    println!("{forwarded} errors were passed on to the instance");
    assert!(forwarded > 0);
    assert_eq!(scene.packets("error_out_of_window"), 0);
    assert_carried(&scene, 1);
}

fn a_link_beyond_the_instance_s_router_that_narrows_in_mid_transfer_is_told_of_through_the_router(
    family: Family,
) {
    // The second backend is the first one's router.
    let lab = support::TestLab::with_backends(2);
    let router = Host::Backend(2);
    lab.sysctl(router, "net.ipv4.ip_forward", "1").unwrap();
    lab.sysctl(router, "net.ipv6.conf.all.forwarding", "1").unwrap();
    lab.sysctl(router, "net.ipv4.conf.all.send_redirects", "0").unwrap();
    lab.sysctl(router, "net.ipv4.conf.eth0.send_redirects", "0").unwrap();
    lab.sysctl(Host::Gateway, "net.ipv6.conf.all.accept_redirects", "0").unwrap();
    let (to, via) = (family.address(Host::Backend(1)), family.address(router));
    let bits = if to.is_ipv4() { 32 } else { 128 };
    ip(&lab, Host::Gateway, &format!("route add {to}/{bits} via {via} dev backends"));
    let scene = Scene::over_only_first(family, lab);
    upload(&scene, || {
        ip(&scene.lab, router, &format!("route add {to}/{bits} dev eth0 mtu lock {NARROW}"));
    });
    let forwarded = scene.packets("error_forwarded");
    println!("{forwarded} errors were passed on to the client");
    assert!(forwarded > 0);
    assert_eq!(scene.packets("error_out_of_window"), 0);
    assert_carried(&scene, 1);
}
