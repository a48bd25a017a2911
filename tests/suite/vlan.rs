//! Clients and instances in VLANs (IEEE 802.1Q), and in VLANs within VLANs (802.1ad): the router's interfaces are those of the VLANs.

use std::fs::File;
use std::io::{self, Read};
use std::process::Command;

use support::lab::{Family, Host, Lab};
use support::scene::is_prefix;
use support::{Curl, Entry, Scene, TestLab};

const LENGTH: u64 = 20 << 20;

support::over_both_families! {
    connections_between_vlans_are_handed_off
    connections_between_vlans_within_vlans_are_handed_off
    connections_from_a_vlan_to_an_untagged_network_are_handed_off
}

/// The tags of one network, outermost first, with the names of what carries them on top of an interface.
#[derive(Clone, Copy)]
struct Tags(&'static [(&'static str, u16)]);

const UNTAGGED: Tags = Tags(&[]);
const CLIENTS: Tags = Tags(&[("802.1Q", 100)]);
const INSTANCES: Tags = Tags(&[("802.1Q", 200)]);
const CLIENTS_DOUBLE: Tags = Tags(&[("802.1ad", 10), ("802.1Q", 100)]);
const INSTANCES_DOUBLE: Tags = Tags(&[("802.1ad", 20), ("802.1Q", 100)]);

impl Tags {
    /// Moves the addresses of an interface to that of the VLAN, and returns its name.
    fn put_on(self, lab: &Lab, host: Host, interface: &str, addresses: &[&str]) -> String {
        let mut name = interface.to_owned();
        // Each tag beyond the first takes four bytes that no interface makes room for.
        let mtu = 1500 - 4 * (self.0.len().max(1) - 1);
        for (depth, (protocol, number)) in self.0.iter().enumerate() {
            let inner = format!("vlan{depth}{}", if interface == "backends" { "b" } else { "" });
            ip(
                lab,
                host,
                &format!("link add link {name} name {inner} type vlan proto {protocol} id {number}"),
            );
            ip(lab, host, &format!("link set {inner} mtu {mtu} up"));
            name = inner;
        }
        if !self.0.is_empty() {
            ip(lab, host, &format!("addr flush dev {interface}"));
            for address in addresses {
                let nodad = if address.contains(':') { " nodad" } else { "" };
                ip(lab, host, &format!("addr add {address} dev {name}{nodad}"));
            }
        }
        name
    }
}

fn ip(lab: &Lab, host: Host, arguments: &str) {
    let mut command: Command = lab.command(host, "ip");
    let output = command.args(arguments.split(' ')).output().expect("ip starts");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The routes went with the addresses.
fn route_again(lab: &Lab, host: Host, network: u8) {
    ip(lab, host, &format!("route replace default via 10.77.{network}.1"));
    ip(lab, host, &format!("-6 route replace default via fd77:{network}::1"));
}

/// Whether the kernel has interfaces for VLANs.
fn is_possible(lab: &Lab) -> bool {
    let add = ["link", "add", "link", "lo", "name", "probe", "type", "vlan", "id", "1"];
    let output = lab.command(Host::Switch, "ip").args(add).output().expect("ip starts");
    !String::from_utf8_lossy(&output.stderr).contains("Unknown device type")
}

/// Sends a file down and up between these networks.
fn story(family: Family, clients: Tags, instances: Tags) {
    let lab = TestLab::with_backends(1);
    if !is_possible(&lab) {
        return eprintln!("skipped: this kernel has no interfaces for VLANs (CONFIG_VLAN_8021Q)");
    }
    let (client, gateway, backend) = (Host::Client, Host::Gateway, Host::Backend(1));
    let outside = clients.put_on(
        &lab,
        gateway,
        "client",
        &["10.77.1.1/24", "10.77.1.10/32", "fd77:1::1/64", "fd77:1::10/128"],
    );
    clients.put_on(&lab, client, "eth0", &["10.77.1.2/24", "fd77:1::2/64"]);
    route_again(&lab, client, 1);
    let inside = instances.put_on(&lab, gateway, "backends", &["10.77.2.1/24", "fd77:2::1/64"]);
    instances.put_on(&lab, backend, "eth0", &["10.77.2.11/24", "fd77:2::11/64"]);
    route_again(&lab, backend, 2);

    let scene = Scene::over_interfaces(family, lab, &[&outside, &inside]);
    let directory = scene.lab.state_dir();
    let original = directory.join("files/200m");
    let (received, sent) = (directory.join("received"), directory.join("sent"));
    io::copy(&mut File::open(&original).unwrap().take(LENGTH), &mut File::create(&sent).unwrap()).unwrap();
    let range = format!("0-{}", LENGTH - 1);
    let down = Curl::for_files(&scene.lab).arg("--range").arg(range);
    assert_eq!(down.download(scene.url(Entry::Handoff, "/files/200m"), &received), Ok(206));
    assert!(is_prefix(&received, LENGTH, &original).unwrap(), "the file arrives changed");
    let up = Curl::for_files(&scene.lab).upload(&sent, scene.url(Entry::Handoff, "/upload/copy"));
    assert!(matches!(up, Ok(201 | 204)), "{up:?}");
    let stored = scene.lab.host_dir(backend).join("upload/copy");
    assert!(is_prefix(&stored, LENGTH, &original).unwrap(), "the upload arrives changed");

    assert_eq!(scene.carried(), (2, 0), "handed off and relayed");
    let forwarded = scene.packets("forwarded");
    assert!(forwarded > 100, "{forwarded} packets went from one network to the other");
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

fn connections_between_vlans_are_handed_off(family: Family) {
    story(family, CLIENTS, INSTANCES);
}

fn connections_between_vlans_within_vlans_are_handed_off(family: Family) {
    story(family, CLIENTS_DOUBLE, INSTANCES_DOUBLE);
}

fn connections_from_a_vlan_to_an_untagged_network_are_handed_off(family: Family) {
    story(family, CLIENTS, UNTAGGED);
    // And the other way round.
    story(family, UNTAGGED, INSTANCES);
}
