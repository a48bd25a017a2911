//! Keeps the router's connections out of the host's connection tracking.
//!
//! Conntrack sees the handshake of a connection and, once packets travel by the flow table, nothing more of it: neither data nor FIN. It
//! would keep the entry as established for five days (`nf_conntrack_tcp_timeout_established`), until its table is full and the host drops new
//! connections. So packets of the VIPs and of our connections to instances are exempted (`notrack`), by an nftables
//! table of the router's own that other rules of the host are not touched by.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{SocketAddr, SocketAddrV4};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Command, Stdio};

/// Present where the kernel can track connections in this network namespace.
const CONNTRACK: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Whose packets are exempted. Only IPv4 connections can become flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exempt {
    /// Where clients connect to; with the unspecified address, any address of this host.
    pub vips: Vec<SocketAddr>,
    pub instances: Vec<SocketAddr>,
    /// Our ports towards instances.
    pub source_ports: RangeInclusive<u16>,
}

/// Why there is no exemption.
#[derive(Debug, thiserror::Error)]
pub enum NotrackError {
    #[error("the program `nft` (package nftables) cannot be started: {0}")]
    NoNft(#[source] io::Error),
    #[error("`nft` refused the rules: {0}")]
    Refused(String),
}

/// Whether connections may be tracked on this host.
pub fn is_needed() -> bool {
    Path::new(CONNTRACK).exists()
}

/// Installs the table, in place of one of the same name.
pub fn install(table: &str, exempt: &Exempt) -> Result<(), NotrackError> {
    nft(&ruleset(table, exempt))
}

/// Removes the table; fine when there is none.
pub fn remove(table: &str) -> Result<(), NotrackError> {
    nft(&without(table))
}

/// The name of the table that belongs to the flows kept in this directory: routers of one network namespace differ in it.
pub fn table_name(pin_dir: &Path) -> String {
    let path = pin_dir.strip_prefix("/sys/fs/bpf").unwrap_or(pin_dir).to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("{}_notrack", path.trim_matches('/').chars().map(plain).collect::<String>())
}

fn nft(rules: &str) -> Result<(), NotrackError> {
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(NotrackError::NoNft)?;
    let mut input = nft.stdin.take().expect("it is piped");
    // If nft has ended already, its exit status says why.
    let _ = input.write_all(rules.as_bytes());
    drop(input);
    let output = nft.wait_with_output().map_err(NotrackError::NoNft)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(NotrackError::Refused(text.lines().next().unwrap_or("no reason given").trim().to_owned()))
}

/// Naming the table first makes its deletion succeed whether it existed or not. All of one file takes effect in one step.
fn without(table: &str) -> String {
    format!("table ip {table}\ndelete table ip {table}\n")
}

fn ruleset(table: &str, exempt: &Exempt) -> String {
    let v4 = |addresses: &[SocketAddr]| -> BTreeSet<SocketAddrV4> {
        let only = |address: &SocketAddr| match address {
            SocketAddr::V4(address) => Some(*address),
            SocketAddr::V6(_) => None,
        };
        addresses.iter().filter_map(only).collect()
    };
    let (vips, instances) = (v4(&exempt.vips), v4(&exempt.instances));
    let (anywhere, vips): (BTreeSet<_>, BTreeSet<_>) =
        vips.into_iter().partition(|address| address.ip().is_unspecified());
    let ports = format!("{}-{}", exempt.source_ports.start(), exempt.source_ports.end());

    let (mut incoming, mut outgoing) = (String::new(), String::new());
    if !vips.is_empty() {
        incoming += "ip daddr . tcp dport @vips notrack\n";
        outgoing += "ip saddr . tcp sport @vips notrack\n";
    }
    for address in &anywhere {
        let port = address.port();
        // Writing to a `String` cannot fail.
        let _ = writeln!(incoming, "fib daddr type local tcp dport {port} notrack");
        let _ = writeln!(outgoing, "fib saddr type local tcp sport {port} notrack");
    }
    if !instances.is_empty() {
        // A client that reaches an instance through this host may use one of these ports too, and need address translation.
        let _ = writeln!(
            incoming,
            "ip saddr . tcp sport @instances tcp dport {ports} fib daddr type local notrack"
        );
        let _ = writeln!(outgoing, "ip daddr . tcp dport @instances tcp sport {ports} notrack");
    }
    format!(
        "{without}table ip {table} {{\n{vips}{instances}\
         chain incoming {{ type filter hook prerouting priority raw; policy accept;\n{incoming}}}\n\
         chain outgoing {{ type filter hook output priority raw; policy accept;\n{outgoing}}}\n}}\n",
        without = without(table),
        vips = set("vips", &vips),
        instances = set("instances", &instances),
    )
}

fn set(name: &str, addresses: &BTreeSet<SocketAddrV4>) -> String {
    if addresses.is_empty() {
        return String::new();
    }
    let elements: Vec<String> =
        addresses.iter().map(|address| format!("{} . {}", address.ip(), address.port())).collect();
    format!("set {name} {{ type ipv4_addr . inet_service; elements = {{ {} }}; }}\n", elements.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exempt(vips: &[&str], instances: &[&str]) -> Exempt {
        let parse = |list: &[&str]| list.iter().map(|address| address.parse().unwrap()).collect();
        Exempt { vips: parse(vips), instances: parse(instances), source_ports: 20_000..=59_999 }
    }

    #[test]
    fn both_directions_of_both_legs_are_exempted() {
        let rules = ruleset("router_notrack", &exempt(&["10.0.1.1:80"], &["10.0.2.12:80", "10.0.2.11:8080"]));
        assert_eq!(
            rules,
            "table ip router_notrack\n\
             delete table ip router_notrack\n\
             table ip router_notrack {\n\
             set vips { type ipv4_addr . inet_service; elements = { 10.0.1.1 . 80 }; }\n\
             set instances { type ipv4_addr . inet_service; elements = { 10.0.2.11 . 8080, 10.0.2.12 . 80 }; }\n\
             chain incoming { type filter hook prerouting priority raw; policy accept;\n\
             ip daddr . tcp dport @vips notrack\n\
             ip saddr . tcp sport @instances tcp dport 20000-59999 fib daddr type local notrack\n\
             }\n\
             chain outgoing { type filter hook output priority raw; policy accept;\n\
             ip saddr . tcp sport @vips notrack\n\
             ip daddr . tcp dport @instances tcp sport 20000-59999 notrack\n\
             }\n\
             }\n"
        );
    }

    #[test]
    fn a_wildcard_listener_is_exempted_on_every_address_and_ipv6_on_none() {
        let rules = ruleset("t", &exempt(&["0.0.0.0:8080", "[::1]:80"], &["[fd77::1]:80"]));
        assert!(rules.contains("fib daddr type local tcp dport 8080 notrack"), "{rules}");
        assert!(!rules.contains("set ") && !rules.contains("::"), "{rules}");
    }

    #[test]
    fn a_table_is_named_after_the_folder_of_its_flows() {
        assert_eq!(table_name(Path::new("/sys/fs/bpf/router")), "router_notrack");
        assert_eq!(table_name(Path::new("/sys/fs/bpf/router-lab/rt.1/")), "router_lab_rt_1_notrack");
        assert_eq!(table_name(Path::new("/mnt/bpf")), "mnt_bpf_notrack");
    }
}
