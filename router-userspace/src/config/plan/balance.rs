//! Layer-4 listeners: what they can be told, what rules can ask of their clients, and which instances they can reach.

use std::time::Duration;

use super::super::file::{File, Listener};
use super::super::reader::{Placed, Report};
use super::super::report::Problem;
use super::super::settings::{Protocol, Source};
use crate::core::identity::SessionSource;
use crate::core::methods::maglev;
use crate::core::placement;
use crate::core::pool::{OnUnavailable, PoolId};
use crate::core::rules::ClientCondition;
use crate::core::table::{Action, RoutingTable, RuleRef};

/// How long clients are remembered; on a Layer-4 listener alone.
pub(super) fn affinity(listener: &Listener) -> Option<Duration> {
    let session = listener.identity.spec.session.as_ref()?;
    (listener.protocol.value.is_layer4() && session.source == SessionSource::ClientAddress)
        .then_some(session.idle_timeout)
}

/// What each listener says by itself.
pub(super) fn check(file: &File, report: &Report<'_>) {
    ring_size(file, report);
    for listener in &file.listeners {
        let protocol = listener.protocol.value;
        if !protocol.is_layer4() {
            let source = &listener.source;
            if source.value.is_direct_return() {
                let message = format!(
                    "`source = \"{}\"` does not go together with protocol \"{}\"",
                    source.value.name(),
                    protocol.name()
                );
                report.add(
                    Problem::at(source.span.clone(), message)
                        .help("the router answers such clients itself: use \"snat\" or \"transparent\", or protocol \"tcp\""),
                );
            }
            continue;
        }
        if let Some(address) = listener.address.as_ref().filter(|address| address.value.ip().is_unspecified())
        {
            let message = format!(
                "a listener with protocol \"{}\" needs an address of its own, not {}",
                protocol.name(),
                address.value.ip()
            );
            report.add(
                Problem::at(address.span.clone(), message).help("write the VIP, and a listener for each"),
            );
        }
    }
    source_ports(file, report);
}

fn ring_size(file: &File, report: &Report<'_>) {
    let size = &file.datapath.maglev_size;
    if !maglev::is_prime(size.value) {
        let message = format!("`maglev_size` must be a prime, and {} is none", size.value);
        let near = maglev::prime_from(size.value);
        report.add(Problem::at(size.span.clone(), message).help(format!("the next one is {near}")));
    }
}

/// Two flows on one tuple would get each other's answers.
fn source_ports(file: &File, report: &Report<'_>) {
    let (proxy, balance) = (&file.datapath.source_ports, &file.datapath.l4_source_ports);
    let snat = file
        .listeners
        .iter()
        .any(|listener| listener.protocol.value.is_layer4() && listener.source.value == Source::Snat);
    let overlap = proxy.value.start() <= balance.value.end() && balance.value.start() <= proxy.value.end();
    if overlap && (snat || balance.written) {
        let message = format!(
            "`l4_source_ports` {}-{} and `source_ports` {}-{} overlap",
            balance.value.start(),
            balance.value.end(),
            proxy.value.start(),
            proxy.value.end()
        );
        let problem = Problem::at(balance.span.clone(), message).help("give each its own ports");
        report.add(problem.earlier(proxy.span.clone(), "the ports of handed-off connections"));
    }
}

/// Whether the instances that a listener's clients may come to can serve them.
pub(super) fn check_pools(file: &File, table: &RoutingTable, report: &Report<'_>) {
    for listener in file.listeners.iter().filter(|listener| listener.protocol.value.is_layer4()) {
        let (Some(name), Some(address)) = (&listener.name, &listener.address) else { continue };
        let mut seen: Vec<PoolId> = Vec::new();
        for rule in reachable_rules(table, &name.value) {
            reaction(file, table, rule, listener.protocol.value, report);
            for pool in placement::reachable_pools(table, rule) {
                if !seen.contains(&pool) {
                    seen.push(pool);
                    instances(file, pool, listener, address, report);
                }
            }
        }
    }
}

/// Whether a client's address can be the source of connections to the instances that its requests may go to: those of its own family.
pub(super) fn check_transparent_pools(file: &File, table: &RoutingTable, report: &Report<'_>) {
    let transparent = |listener: &&Listener| {
        !listener.protocol.value.is_layer4() && listener.source.value == Source::Transparent
    };
    for listener in file.listeners.iter().filter(transparent) {
        let (Some(name), Some(vip)) = (&listener.name, &listener.address) else { continue };
        let pools = placement::pools_of_listener(table, &name.value, listener.protocol.value);
        let instances = pools.iter().filter_map(|pool| file.pools.get(usize::from(pool.0)));
        let addresses = instances.flat_map(|pool| &pool.instances).filter_map(|one| one.address.as_ref());
        for address in addresses.filter(|address| address.value.is_ipv4() != vip.value.is_ipv4()) {
            let message = format!(
                "with `source = \"transparent\"` clients of listener {} connect to instance {} with their own addresses, which are of the other family",
                vip.value, address.value
            );
            let help =
                "lead the listener's clients to another pool by a rule with `Listener`, or use \"snat\"";
            report.add(
                Problem::at(address.span.clone(), message)
                    .help(help)
                    .earlier(vip.span.clone(), "this listener"),
            );
        }
    }
}

/// The rules that a listener's clients may select.
fn reachable_rules(table: &RoutingTable, listener: &str) -> Vec<RuleRef> {
    let mut reachable = Vec::new();
    for (place, rule) in table.rules().iter().enumerate() {
        let condition = rule.condition.by_client(listener);
        if condition != ClientCondition::Always(false) {
            reachable.push(RuleRef::Rule(place));
        }
        if condition == ClientCondition::Always(true) && rule.enabled {
            return reachable;
        }
    }
    reachable.push(RuleRef::Default);
    reachable
}

/// Nobody can be told 503 or kept waiting.
fn reaction(file: &File, table: &RoutingTable, rule: RuleRef, protocol: Protocol, report: &Report<'_>) {
    let RuleRef::Rule(place) = rule else { return };
    let rule = &table.rules()[place];
    if matches!(rule.action, Action::Deny { .. }) {
        return;
    }
    if let Some(OnUnavailable::Queue { .. } | OnUnavailable::Status503) = rule.overrides.on_unavailable
        && let Some(written) = file.rules.get(place).and_then(|rule| rule.on_unavailable.as_ref())
    {
        let message =
            format!("`on_unavailable` of this rule cannot be done for protocol \"{}\"", protocol.name());
        report.add(
            Problem::at(written.span.clone(), message).help("use \"reset\", \"silent\" or \"pool:NAME\""),
        );
    }
}

fn instances(
    file: &File,
    pool: PoolId,
    listener: &Listener,
    vip: &Placed<std::net::SocketAddr>,
    report: &Report<'_>,
) {
    let source = listener.source.value;
    let Some(pool) = file.pools.get(usize::from(pool.0)) else { return };
    for address in pool.instances.iter().filter_map(|instance| instance.address.as_ref()) {
        if address.value.is_ipv4() != vip.value.is_ipv4() {
            let message =
                format!("instance {} and listener {} are of different families", address.value, vip.value);
            let help = "packets are not translated between IPv4 and IPv6: lead the listener's clients to another pool by a rule";
            report.add(
                Problem::at(address.span.clone(), message)
                    .help(help)
                    .earlier(vip.span.clone(), "this listener"),
            );
        } else if source.is_direct_return() && address.value.port() != vip.value.port() {
            let message = format!(
                "with `source = \"{}\"` packets arrive at instance {} still addressed to port {}",
                source.name(),
                address.value,
                vip.value.port()
            );
            let help = format!("let the instance listen on port {}, or use \"snat\"", vip.value.port());
            report.add(
                Problem::at(address.span.clone(), message)
                    .help(help)
                    .earlier(vip.span.clone(), "this listener"),
            );
        }
    }
}
