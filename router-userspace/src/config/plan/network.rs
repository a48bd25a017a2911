//! Addresses of listeners, instances and the router itself, held against each other.

use std::net::SocketAddr;

use super::super::file::File;
use super::super::reader::{Placed, Report};
use super::super::report::Problem;
use super::listeners::overlap;
use super::unique::Unique;

pub(super) fn check(file: &File, report: &Report<'_>) {
    sources(file, report);
    for instance in file.pools.iter().flat_map(|pool| &pool.instances) {
        if let Some(address) = &instance.address {
            instance_address(file, address, report);
        }
    }
    listener_ports(file, report);
    families(file, report);
}

fn sources(file: &File, report: &Report<'_>) {
    let mut seen = Unique::new(report);
    for address in file.datapath.source_addresses.iter().flat_map(|list| &list.value) {
        seen.see(address, |ip| (format!("`source_addresses` lists {ip} twice"), String::new()));
        if address.value.is_unspecified() {
            let message =
                format!("`source_addresses` must name addresses of this host, not {}", address.value);
            report.add(Problem::at(address.span.clone(), message));
        }
    }
}

fn instance_address(file: &File, address: &Placed<SocketAddr>, report: &Report<'_>) {
    if address.value.ip().is_unspecified() {
        let message = format!("an instance cannot have the address {}", address.value.ip());
        report.add(
            Problem::at(address.span.clone(), message).help("write the address that the server listens on"),
        );
        return;
    }
    let listeners = file.listeners.iter().filter_map(|listener| listener.address.as_ref());
    for listener in listeners.filter(|listener| overlap(listener.value, address.value)) {
        if listener.value != address.value {
            // A wildcard listener covers the instance only if the instance's address is this host's own.
            continue;
        }
        let message = format!("instance address {} is a listener's own", address.value);
        let problem =
            Problem::at(address.span.clone(), message).help("the router would connect to itself for ever");
        report.add(problem.earlier(listener.span.clone(), "this listener"));
    }
    let Some(sources) = &file.datapath.source_addresses else { return };
    if !sources.value.is_empty()
        && !sources.value.iter().any(|source| source.value.is_ipv4() == address.value.is_ipv4())
    {
        let family = family(address.value);
        let message = format!(
            "`source_addresses` has no {family} address for {}, so the route decides which one is used",
            address.value
        );
        let problem = Problem::at(address.span.clone(), message).help("add one of this host's");
        report.warn(problem.earlier(sources.span.clone(), "these source addresses"));
    }
}

/// A listener within the router's own source ports would take connections away from flows.
fn listener_ports(file: &File, report: &Report<'_>) {
    let ports = &file.datapath.source_ports;
    let sources = file.datapath.source_addresses.iter().flat_map(|list| &list.value);
    let sources: Vec<_> = sources.map(|source| source.value).collect();
    let listeners = file.listeners.iter().filter_map(|listener| listener.address.as_ref());
    let reports = file.reports.iter().filter_map(|reports| reports.listen.as_ref());
    for address in listeners.chain(&file.daemon.admin_listen).chain(reports) {
        let shared = address.value.ip().is_unspecified() || sources.contains(&address.value.ip());
        if shared && ports.value.contains(&address.value.port()) {
            let (low, high) = (ports.value.start(), ports.value.end());
            let message = format!(
                "port {} lies within the router's own source ports {low}-{high}",
                address.value.port()
            );
            let problem = Problem::at(address.span.clone(), message);
            report.add(problem.help("use another port, or set `source_ports` in [datapath] to leave it out"));
        }
    }
}

/// Packets cannot be translated between IPv4 and IPv6, so such connections stay in user space. Where both families have listeners and pools of their own, rules may
/// keep them apart.
fn families(file: &File, report: &Report<'_>) {
    let of_each = |instances: &[&Placed<SocketAddr>]| {
        let first = |is_ipv4| instances.iter().copied().find(|address| address.value.is_ipv4() == is_ipv4);
        (first(true).cloned(), first(false).cloned())
    };
    for pool in &file.pools {
        let addresses: Vec<_> =
            pool.instances.iter().filter_map(|instance| instance.address.as_ref()).collect();
        if let (Some(v4), Some(v6)) = of_each(&addresses) {
            let message = "connections from one family to the other are relayed, never handed off, and this pool has instances of both";
            let problem = Problem::at(v6.span, message.to_owned())
                .help("a pool for each family, chosen by `Listener` or `ClientIP` in rules, avoids it");
            report.warn(problem.earlier(v4.span, "an IPv4 instance"));
        }
    }
    let addresses: Vec<_> =
        file.pools.iter().flat_map(|pool| &pool.instances).filter_map(|one| one.address.as_ref()).collect();
    let (v4, v6) = of_each(&addresses);
    for listener in file.listeners.iter().filter_map(|listener| listener.address.as_ref()) {
        let (own, other) = if listener.value.is_ipv4() { (&v4, &v6) } else { (&v6, &v4) };
        let (None, Some(other)) = (own, other) else { continue };
        let (ours, theirs) = (family(listener.value), family(other.value));
        let message = format!(
            "connections from {ours} listener {} to {theirs} instances are relayed, never handed off, and there are no others",
            listener.value
        );
        let problem = Problem::at(listener.span.clone(), message);
        report.warn(problem.earlier(other.span.clone(), "such an instance"));
    }
}

fn family(address: SocketAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}
