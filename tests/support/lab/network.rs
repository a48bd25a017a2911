//! Links, addresses, routes and kernel parameters.
//!
//! ```text
//! client eth0 ── client gateway backends ── gateway switch backendN ── eth0 backendN
//! ```
//! The gateway has one interface on each side, as a gateway host has. The switch is a bridge with a namespace to itself,
//! so that the bridging is nobody's work but its own.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{Host, Lab, VIP, netns};

pub fn create(lab: &Lab) -> Result<()> {
    for host in lab.hosts() {
        netns::add(&lab.name, host)?;
        set_parameters(lab, host)?;
    }
    let (client, gateway, switch) = (Host::Client, Host::Gateway, Host::Switch);
    ip(lab, switch, "link add name bridge type bridge stp_state 0 mcast_snooping 0\nlink set bridge up\n")?;
    cable(lab, (client, "eth0"), (gateway, "client"))?;
    cable(lab, (gateway, "backends"), (switch, "gateway"))?;
    ip(lab, switch, "link set gateway master bridge\n")?;
    for number in 1..=lab.backends {
        let port = format!("backend{number}");
        cable(lab, (Host::Backend(number), "eth0"), (switch, &port))?;
        ip(lab, switch, &format!("link set {port} master bridge\n"))?;
    }

    ip(
        lab,
        client,
        "addr add 10.77.1.2/24 dev eth0\n\
         addr add fd77:1::2/64 dev eth0 nodad\n\
         route add default via 10.77.1.1\n\
         route add default via fd77:1::1\n",
    )?;
    ip(
        lab,
        gateway,
        &format!(
            "addr add 10.77.1.1/24 dev client\n\
             addr add {VIP}/32 dev client\n\
             addr add fd77:1::1/64 dev client nodad\n\
             addr add fd77:1::10/128 dev client nodad\n\
             addr add 10.77.2.1/24 dev backends\n\
             addr add fd77:2::1/64 dev backends nodad\n"
        ),
    )?;
    for number in 1..=lab.backends {
        let last = 10 + number;
        ip(
            lab,
            Host::Backend(number),
            &format!(
                "addr add 10.77.2.{last}/24 dev eth0\n\
                 addr add fd77:2::{last}/64 dev eth0 nodad\n\
                 route add default via 10.77.2.1\n\
                 route add default via fd77:2::1\n"
            ),
        )?;
    }
    Ok(())
}

/// Kernel parameters; all of these belong to the namespace.
fn set_parameters(lab: &Lab, host: Host) -> Result<()> {
    let forwarding = if host == Host::Gateway { "1" } else { "0" };
    let parameters = [
        ("net.ipv4.ip_forward", forwarding),
        ("net.ipv6.conf.all.forwarding", forwarding),
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        ("net.ipv6.conf.default.accept_dad", "0"),
        ("net.ipv6.conf.default.accept_ra", "0"),
        // Room for tests that open tens of thousands of connections one after the other.
        ("net.ipv4.ip_local_port_range", "10000 65535"),
        // What one test teaches the kernel about a path shall not slow down the next.
        ("net.ipv4.tcp_no_metrics_save", "1"),
    ];
    for (key, value) in parameters {
        lab.sysctl(host, key, value)?;
    }
    // Otherwise every frame that the switch forwards visits the firewall's hooks, which no switch has.
    if host == Host::Switch && Path::new("/proc/sys/net/bridge").exists() {
        for key in ["net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"] {
            lab.sysctl(host, key, "0")?;
        }
    }
    ip(lab, host, "link set lo up\n")
}

/// Connects two hosts by a pair of virtual interfaces.
fn cable(lab: &Lab, (host, name): (Host, &str), (peer, peer_name): (Host, &str)) -> Result<()> {
    let peer_namespace = netns::full_name(&lab.name, peer);
    ip(
        lab,
        host,
        &format!(
            "link add name {name} type veth peer name {peer_name} netns {peer_namespace}\n\
             link set {name} up\n"
        ),
    )?;
    ip(lab, peer, &format!("link set {peer_name} up\n"))
}

/// Drops what arrives at `host` and matches `condition`, in nft's words; nothing if there is none.
pub fn discard(lab: &Lab, host: Host, condition: Option<&str>) -> Result<()> {
    let mut rules = String::from("table netdev loss\ndelete table netdev loss\n");
    if let Some(condition) = condition {
        rules.push_str(&format!(
            "table netdev loss {{ chain arrival {{\n\
             type filter hook ingress device eth0 priority 0;\n\
             {condition} counter drop\n\
             }}\n}}\n"
        ));
    }
    feed(lab.command(host, "nft").args(["-f", "-"]), &rules)
}

fn ip(lab: &Lab, host: Host, batch: &str) -> Result<()> {
    feed(Command::new("ip").args(["-netns", &netns::full_name(&lab.name, host), "-batch", "-"]), batch)
}

/// Gives a command its input.
fn feed(command: &mut Command, input: &str) -> Result<()> {
    let program = command.get_program().display().to_string();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    child.stdin.take().expect("stdin is a pipe").write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{command:?} failed: {}\non input:\n{input}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
