//! The live daemon in the protocol's words: status, pools, instances, rules and reasons.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use router_common::abi::reason::PacketReason;

use super::protocol::{
    Attachment, Connections, Datapath, Instance, Load, Pool, PoolSummary, Reason, Reasons, Rule, Status,
};
use super::state::State;
use crate::core::counters::CountByReason;
use crate::core::health::{CheckKind, CheckSpec, Reachability, TlsCheck};
use crate::core::load::LoadStatus;
use crate::core::pool;
use crate::core::status::AdminState;
use crate::core::table::{self, Action, RoutingTable, RuleRef};

pub fn status(state: &State) -> Status {
    let table = state.table.load();
    let counters = &state.counters;
    let flows = state.flows.as_deref();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: state.started.elapsed().as_secs(),
        config_file: state.config_file.as_ref().map(|file| file.display().to_string()),
        group: table.group().map(str::to_owned),
        configuration: state.configurator.status(),
        datapath: Datapath {
            loaded: flows.is_some(),
            detail: state.datapath.clone(),
            flows: flows.map_or(0, |flows| flows.len() as u64),
            max_flows: flows.map_or(0, |flows| flows.capacity() as u64),
            l4_flows: state.layer4.as_ref().map_or(0, |flows| flows.count() as u64),
            l4_max_flows: state.layer4.as_ref().map_or(0, |flows| flows.capacity() as u64),
            interfaces: flows
                .map_or_else(Vec::new, |flows| flows.attachments().into_iter().map(attachment).collect()),
            l4_unroutable_instances: state.layer4.as_ref().map_or(0, |flows| flows.unroutable().len() as u64),
        },
        connections: Connections {
            accepted: counters.accepted.get(),
            open: counters.open(),
            requests: counters.requests.get(),
            bound: counters.bound.get(),
            handed_off: counters.handoffs.get(),
            relayed: counters.relayed.total(),
            refused: counters.refused.total(),
            retries: counters.retries.get(),
        },
        listeners: state.listeners.load().to_vec(),
        pools: table.pools().iter().map(summary).collect(),
        relayed: occurred(&counters.relayed, |reason| reason.name()),
        unbound: occurred(&counters.unbound, |reason| reason.name()),
        refused: occurred(&counters.refused, |reason| reason.name()),
    }
}

fn attachment(found: crate::flows::xdp::Attachment) -> Attachment {
    let crate::flows::xdp::Attachment { interface, hook, reason, advice } = found;
    Attachment { interface, hook: hook.name().to_owned(), reason, advice }
}

fn summary(pool: &pool::Pool) -> PoolSummary {
    PoolSummary {
        name: pool.name.clone(),
        instances: pool.instances.len(),
        serving: serving_count(pool),
        sessions: live_sessions(pool),
    }
}

fn occurred<R: crate::core::counters::Reason>(
    counts: &CountByReason<R>,
    name: fn(R) -> &'static str,
) -> BTreeMap<String, u64> {
    counts
        .iter()
        .filter(|&(_, count)| count > 0)
        .map(|(reason, count)| (name(reason).to_owned(), count))
        .collect()
}

pub fn pools(table: &RoutingTable) -> Vec<Pool> {
    let now = Instant::now();
    let pools = table.pools().iter();
    pools
        .map(|pool| Pool {
            name: pool.name.clone(),
            method: pool.method.name().to_owned(),
            on_unavailable: pool.on_unavailable.map(|reaction| reaction.describe(table.pools())),
            check: pool.check.as_ref().map(describe_check),
            serving: serving_count(pool),
            sessions: live_sessions(pool),
            instances: pool.instances.iter().map(|one| instance(pool, one, now)).collect(),
        })
        .collect()
}

pub fn instances(state: &State) -> Vec<Instance> {
    let now = Instant::now();
    let unroutable = state.layer4.as_ref().map(|flows| flows.unroutable()).unwrap_or_default();
    let obstacle = |address| unroutable.contains(address).then(|| "no route leads to it".to_owned());
    let table = state.table.load();
    table
        .instances()
        .map(|(_, pool, one)| Instance { obstacle: obstacle(&one.address), ..instance(pool, one, now) })
        .collect()
}

pub fn instance(pool: &pool::Pool, instance: &pool::Instance, now: Instant) -> Instance {
    let health = instance.status.health();
    let unchecked = pool.check.is_some() && !health.checked();
    let failure = health
        .last_failure()
        .map(|(failure, when)| format!("{failure}, {} s ago", now.saturating_duration_since(when).as_secs()));
    Instance {
        pool: pool.name.clone(),
        name: instance.name.clone(),
        address: instance.address,
        group: instance.group.clone(),
        admin: instance.status.admin().name().to_owned(),
        health: instance.status.reachability().name().to_owned(),
        health_since_seconds: health
            .changed()
            .map(|changed| now.saturating_duration_since(changed).as_secs_f64()),
        health_detail: failure.or_else(|| unchecked.then(|| "not checked yet".to_owned())),
        weight: instance.weight,
        sessions: instance.status.sessions().live(),
        max_sessions: instance.max_sessions,
        sessions_total: instance.status.sessions().total(),
        serving: serving(pool, instance),
        obstacle: None,
        reported: reported(pool, instance, now),
    }
}

fn reported(pool: &pool::Pool, instance: &pool::Instance, now: Instant) -> Load {
    let status = &instance.status;
    let readings = status.readings(&pool.load, now);
    Load {
        status: status.load_status().name().to_owned(),
        averages: readings.iter().map(|one| (one.metric.name().to_owned(), one.average)).collect(),
        reported_seconds_ago: status
            .reported()
            .map(|reported| now.saturating_duration_since(reported).as_secs_f64()),
        registered: instance.registered,
        effective_weight: pool.weight(instance, now),
        agent_value: status.gauges().agent_value(pool.load.report_ttl, now),
        agent_text: status.agent_text(),
        loaded_resources: status.loaded_resources(),
    }
}

/// Whether new sessions go there without need. A draining instance serves only when no other can.
pub fn serving(pool: &pool::Pool, instance: &pool::Instance) -> bool {
    let status = &instance.status;
    let reachability =
        if pool.fails_open() { status.reachability_without_checks() } else { status.reachability() };
    status.admin() == AdminState::Enabled
        && reachability == Reachability::Up
        && (pool.allow_exhausted || status.load_status() != LoadStatus::Exhausted)
        && status.adjustment().agent_weight().map_or(instance.weight, |order| order.of(instance.weight)) > 0
        && status.max_sessions(instance.max_sessions).is_none_or(|limit| status.sessions().live() < limit)
}

pub fn serving_count(pool: &pool::Pool) -> usize {
    pool.instances.iter().filter(|instance| serving(pool, instance)).count()
}

fn live_sessions(pool: &pool::Pool) -> u64 {
    pool.instances.iter().map(|instance| u64::from(instance.status.sessions().live())).sum()
}

fn describe_check(check: &CheckSpec) -> String {
    let kind = match &check.kind {
        CheckKind::Tcp => "tcp".to_owned(),
        CheckKind::Http { path, host: None, .. } => format!("http {path}"),
        CheckKind::Http { path, host: Some(host), .. } => format!("http {path} as {host}"),
        CheckKind::Tls(TlsCheck { server_name, authorities, .. }) => {
            let name = server_name.as_ref().map(|name| format!(" as {name}")).unwrap_or_default();
            let verified = if authorities.is_some() { ", certificate verified" } else { "" };
            format!("tls{name}{verified}")
        }
    };
    let (interval, timeout) = (short(check.interval), short(check.timeout));
    format!("{kind} every {interval}, timeout {timeout}, rise {}, fall {}", check.rise, check.fall)
}

fn short(duration: Duration) -> String {
    format!("{duration:?}")
}

pub fn rules(state: &State) -> Vec<Rule> {
    let table = state.table.load();
    let own = table.rules().iter().enumerate().map(|(index, rule)| self::rule(&table, index, rule));
    own.chain(std::iter::once(default_rule(&table))).collect()
}

fn rule(table: &RoutingTable, index: usize, rule: &table::Rule) -> Rule {
    Rule {
        name: rule.name.clone(),
        enabled: rule.enabled,
        condition: rule.condition.source().to_owned(),
        pools: pool_names(table, RuleRef::Rule(index)),
        deny_status: match rule.action {
            Action::Deny { status } => Some(status),
            Action::Pool(_) => None,
        },
        method: rule.overrides.method.map(|method| method.name().to_owned()),
        on_unavailable: rule.overrides.on_unavailable.map(|reaction| reaction.describe(table.pools())),
        requests: rule.hits.get(),
    }
}

fn default_rule(table: &RoutingTable) -> Rule {
    let rule = table.default_rule();
    Rule {
        name: table.rule_name(RuleRef::Default).to_owned(),
        enabled: true,
        condition: "Any()".to_owned(),
        pools: pool_names(table, RuleRef::Default),
        deny_status: None,
        method: rule.overrides.method.map(|method| method.name().to_owned()),
        on_unavailable: rule.overrides.on_unavailable.map(|reaction| reaction.describe(table.pools())),
        requests: rule.hits.get(),
    }
}

pub fn pool_names(table: &RoutingTable, rule: RuleRef) -> Vec<String> {
    table.pools_of(rule).iter().map(|&pool| table.pool(pool).name.clone()).collect()
}

pub fn reasons(state: &State) -> Reasons {
    let packets: BTreeMap<&str, u64> =
        state.flows.as_ref().map(|flows| flows.counters().into_iter().collect()).unwrap_or_default();
    let packet = PacketReason::ALL.iter().map(|reason| {
        named(reason.name(), reason.description(), packets.get(reason.name()).copied().unwrap_or(0))
    });
    let relayed = state.counters.relayed.iter();
    let unbound = state.counters.unbound.iter();
    let refused = state.counters.refused.iter();
    let control = state.counters.control_closed.iter();
    let reports = state.counters.reports_refused.iter();
    let cookies = state.counters.cookies.iter();
    let interim = state.counters.interim.iter();
    Reasons {
        packet: packet.collect(),
        relay: relayed.map(|(reason, count)| named(reason.name(), reason.description(), count)).collect(),
        unbound: unbound.map(|(reason, count)| named(reason.name(), reason.description(), count)).collect(),
        report: reports.map(|(reason, count)| named(reason.name(), reason.description(), count)).collect(),
        control: control.map(|(reason, count)| named(reason.name(), reason.description(), count)).collect(),
        cookie: cookies.map(|(event, count)| named(event.name(), event.description(), count)).collect(),
        interim: interim.map(|(event, count)| named(event.name(), event.description(), count)).collect(),
        refuse: refused.map(|(reason, count)| named(reason.name(), reason.description(), count)).collect(),
    }
}

fn named(name: &str, description: &str, count: u64) -> Reason {
    Reason { name: name.to_owned(), description: description.trim().to_owned(), count }
}
