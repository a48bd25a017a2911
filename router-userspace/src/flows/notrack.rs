//! Keeps the router's connections out of the host's connection tracking.
//!
//! Conntrack sees the handshake of a connection and, once packets travel by the flow table, nothing more of it: neither data nor FIN. It
//! would keep the entry as established for five days (`nf_conntrack_tcp_timeout_established`), until its table is full and the host drops new
//! connections. So packets of the VIPs and of our connections to instances are exempted (`notrack`), by an nftables
//! table of the router's own that other rules of the host are not touched by.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Command, Stdio};

/// Whose packets are exempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exempt {
    /// Where clients connect to; with an unspecified address, any address that this host has in its family.
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

/// Installs the table, in place of one of the same name.
pub fn install(table: &str, exempt: &Exempt) -> Result<(), NotrackError> {
    nft(&ruleset(table, exempt))
}

/// Whether there is such a table. Without nft there is none.
pub fn is_installed(table: &str) -> bool {
    let list = Command::new("nft")
        .args(["list", "table", "inet", table])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    list.is_ok_and(|status| status.success())
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
    format!("table inet {table}\ndelete table inet {table}\n")
}

fn ruleset(table: &str, exempt: &Exempt) -> String {
    let (mut sets, mut incoming, mut outgoing) = (String::new(), String::new(), String::new());
    for family in [&IPV4, &IPV6] {
        family.exempt(exempt, &mut sets, &mut incoming, &mut outgoing);
    }
    format!(
        "{without}table inet {table} {{\n{sets}\
         chain incoming {{ type filter hook prerouting priority raw; policy accept;\n{incoming}}}\n\
         chain outgoing {{ type filter hook output priority raw; policy accept;\n{outgoing}}}\n}}\n",
        without = without(table),
    )
}

/// What nft calls a family's things.
struct Family {
    is_ipv4: bool,
    header: &'static str,
    address: &'static str,
    /// Ends the names of sets.
    suffix: &'static str,
}

const IPV4: Family = Family { is_ipv4: true, header: "ip", address: "ipv4_addr", suffix: "" };
const IPV6: Family = Family { is_ipv4: false, header: "ip6", address: "ipv6_addr", suffix: "6" };

impl Family {
    /// Writing to a `String` cannot fail.
    fn exempt(&self, exempt: &Exempt, sets: &mut String, incoming: &mut String, outgoing: &mut String) {
        let Self { header: ip, suffix, .. } = self;
        let ours = |addresses: &[SocketAddr]| -> BTreeSet<SocketAddr> {
            addresses.iter().copied().filter(|address| address.is_ipv4() == self.is_ipv4).collect()
        };
        let (anywhere, vips): (BTreeSet<_>, BTreeSet<_>) =
            ours(&exempt.vips).into_iter().partition(|address| address.ip().is_unspecified());
        let instances = ours(&exempt.instances);
        let ports = format!("{}-{}", exempt.source_ports.start(), exempt.source_ports.end());
        if !vips.is_empty() {
            sets.push_str(&self.set("vips", &vips));
            let _ = writeln!(incoming, "{ip} daddr . tcp dport @vips{suffix} notrack");
            let _ = writeln!(outgoing, "{ip} saddr . tcp sport @vips{suffix} notrack");
        }
        for address in &anywhere {
            let port = address.port();
            let family = if self.is_ipv4 { "ipv4" } else { "ipv6" };
            let _ = writeln!(incoming, "meta nfproto {family} fib daddr type local tcp dport {port} notrack");
            let _ = writeln!(outgoing, "meta nfproto {family} fib saddr type local tcp sport {port} notrack");
        }
        if !instances.is_empty() {
            sets.push_str(&self.set("instances", &instances));
            // A client that reaches an instance through this host may use one of these ports too, and need address translation.
            let _ = writeln!(
                incoming,
                "{ip} saddr . tcp sport @instances{suffix} tcp dport {ports} fib daddr type local notrack"
            );
            let _ = writeln!(outgoing, "{ip} daddr . tcp dport @instances{suffix} tcp sport {ports} notrack");
        }
    }

    fn set(&self, name: &str, addresses: &BTreeSet<SocketAddr>) -> String {
        let elements: Vec<String> =
            addresses.iter().map(|address| format!("{} . {}", address.ip(), address.port())).collect();
        let Self { address, suffix, .. } = self;
        let elements = elements.join(", ");
        format!("set {name}{suffix} {{ type {address} . inet_service; elements = {{ {elements} }}; }}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exempt(vips: &[&str], instances: &[&str]) -> Exempt {
        let parse = |list: &[&str]| list.iter().map(|address| address.parse().unwrap()).collect();
        Exempt { vips: parse(vips), instances: parse(instances), source_ports: 20_000..=59_999 }
    }

    #[test]
    fn both_directions_of_both_legs_are_exempted_in_each_family() {
        let rules = ruleset(
            "router_notrack",
            &exempt(
                &["10.0.1.1:80", "[fd77:1::10]:80"],
                &["10.0.2.12:80", "10.0.2.11:8080", "[fd77:2::11]:80"],
            ),
        );
        assert_eq!(
            rules,
            "table inet router_notrack\n\
             delete table inet router_notrack\n\
             table inet router_notrack {\n\
             set vips { type ipv4_addr . inet_service; elements = { 10.0.1.1 . 80 }; }\n\
             set instances { type ipv4_addr . inet_service; elements = { 10.0.2.11 . 8080, 10.0.2.12 . 80 }; }\n\
             set vips6 { type ipv6_addr . inet_service; elements = { fd77:1::10 . 80 }; }\n\
             set instances6 { type ipv6_addr . inet_service; elements = { fd77:2::11 . 80 }; }\n\
             chain incoming { type filter hook prerouting priority raw; policy accept;\n\
             ip daddr . tcp dport @vips notrack\n\
             ip saddr . tcp sport @instances tcp dport 20000-59999 fib daddr type local notrack\n\
             ip6 daddr . tcp dport @vips6 notrack\n\
             ip6 saddr . tcp sport @instances6 tcp dport 20000-59999 fib daddr type local notrack\n\
             }\n\
             chain outgoing { type filter hook output priority raw; policy accept;\n\
             ip saddr . tcp sport @vips notrack\n\
             ip daddr . tcp dport @instances tcp sport 20000-59999 notrack\n\
             ip6 saddr . tcp sport @vips6 notrack\n\
             ip6 daddr . tcp dport @instances6 tcp sport 20000-59999 notrack\n\
             }\n\
             }\n"
        );
    }

    #[test]
    fn a_wildcard_listener_is_exempted_on_every_address_of_its_family() {
        let rules = ruleset("t", &exempt(&["0.0.0.0:8080", "[::]:80"], &[]));
        for rule in [
            "meta nfproto ipv4 fib daddr type local tcp dport 8080 notrack",
            "meta nfproto ipv6 fib daddr type local tcp dport 80 notrack",
        ] {
            assert!(rules.contains(rule), "{rules}");
        }
        assert!(!rules.contains("set "), "{rules}");
    }

    #[test]
    fn a_table_is_named_after_the_folder_of_its_flows() {
        assert_eq!(table_name(Path::new("/sys/fs/bpf/router")), "router_notrack");
        assert_eq!(table_name(Path::new("/sys/fs/bpf/router-lab/rt.1/")), "router_lab_rt_1_notrack");
        assert_eq!(table_name(Path::new("/mnt/bpf")), "mnt_bpf_notrack");
    }
}
