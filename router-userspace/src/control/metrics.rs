//! The daemon's numbers in the Prometheus text format, read at the moment of the scrape.
//!
//! Labels take their values from the configuration and from the lists of reasons only, never from clients, so the
//! number of series is bounded by the configuration.

mod decisions;
mod process;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, PoisonError};
use std::time::{Instant, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use router_common::abi::reason::{
    ControlReason, CookieEvent, InterimEvent, PacketReason, RefuseReason, RelayReason, ReportReason,
    UnboundReason, XdpReason,
};

use super::state::State;
use super::view;
use crate::core::health::Reachability;
use crate::core::load::LoadStatus;
use crate::core::status::AdminState;
use crate::core::table::{RoutingTable, RuleRef};

pub use prometheus_text::CONTENT_TYPE;

/// Every metric of the daemon.
pub fn text(state: &Arc<State>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(process::Usage));
    let router = registry.sub_registry_with_prefix("router");
    router.register_collector(Box::new(Scrape(Arc::clone(state))));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Scrape(Arc<State>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        daemon(&mut encoder, &self.0)?;
        configuration(&mut encoder, &self.0)?;
        reasons(&mut encoder, &self.0)?;
        flows(&mut encoder, &self.0)?;
        rules(&mut encoder, &self.0)?;
        preloads(&mut encoder, &self.0)?;
        decisions::encode(&mut encoder, self.0.table.load().memory())?;
        pools(&mut encoder, &self.0)
    }
}

fn daemon(encoder: &mut DescriptorEncoder<'_>, state: &State) -> fmt::Result {
    let started = state.started_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let counters = &state.counters;
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    gauges(encoder, "build_info", "Version of the daemon; the value is always 1", [(version, 1)])?;
    let help = "When the daemon started, in seconds since the epoch";
    one(encoder, "start_time_seconds", help, &ConstGauge::new(started))?;
    count(encoder, "connections_accepted", "Connections accepted", counters.accepted.get())?;
    let help = "Accepted connections that the daemon itself holds now; handed-off ones are flows instead";
    one(encoder, "connections_open", help, &ConstGauge::new(signed(counters.open())))?;
    count(encoder, "requests", "First requests read completely", counters.requests.get())?;
    count(encoder, "handoffs", "Connections handed to the packet path", counters.handoffs.get())?;
    let help = "Connections bound to an instance without ever having had a socket";
    count(encoder, "bound", help, counters.bound.get())?;
    let help = "Times that another instance was tried after connecting to one had failed";
    count(encoder, "retries", help, counters.retries.get())?;
    let help = "First requests behind which others had come already, which go on to the same instance unread";
    count(encoder, "pipelined", help, counters.pipelined.get())
}

fn configuration(encoder: &mut DescriptorEncoder<'_>, state: &State) -> fmt::Result {
    let status = state.configurator.status();
    let reloads =
        [([("result", "applied")], status.reloads), ([("result", "refused")], status.reloads_refused)];
    counts(encoder, "reloads", "Reloads of the configuration file", reloads.into_iter())?;
    if let Some(last) = &status.last_reload {
        let help = "When the configuration file was last reloaded or refused, in seconds since the epoch";
        one(encoder, "last_reload_time_seconds", help, &ConstGauge::new(signed(last.at)))?;
        let help = "1 if the last reload came into force, 0 if it was refused";
        one(encoder, "last_reload_successful", help, &ConstGauge::new(i64::from(last.error.is_none())))?;
    }
    let applied = status.changes.saturating_sub(status.changes_not_applied) as i64;
    let changes =
        [([("in_force", "yes")], applied), ([("in_force", "no")], status.changes_not_applied as i64)];
    gauges(encoder, "runtime_changes", "Run-time changes of the configuration", changes)
}

fn reasons(encoder: &mut DescriptorEncoder<'_>, state: &State) -> fmt::Result {
    let help = meanings(
        "Connections relayed in user space instead of being handed off",
        RelayReason::ALL.iter().map(|reason| (reason.name(), reason.description())),
    );
    let relayed = state.counters.relayed.iter().map(|(reason, count)| ([("reason", reason.name())], count));
    counts(encoder, "relayed", &help, relayed)?;
    let help = meanings(
        "Connections that began without a socket and were given one, instead of being bound",
        UnboundReason::ALL.iter().map(|reason| (reason.name(), reason.description())),
    );
    let unbound = state.counters.unbound.iter().map(|(reason, count)| ([("reason", reason.name())], count));
    counts(encoder, "unbound", &help, unbound)?;
    let help = meanings(
        "Connections and requests refused",
        RefuseReason::ALL.iter().map(|reason| (reason.name(), reason.description())),
    );
    let refused = state.counters.refused.iter().map(|(reason, count)| ([("reason", reason.name())], count));
    counts(encoder, "refused", &help, refused)?;
    let help = meanings(
        "Persistence cookies read and set",
        CookieEvent::ALL.iter().map(|event| (event.name(), event.description())),
    );
    let cookies = state.counters.cookies.iter().map(|(event, count)| ([("event", event.name())], count));
    counts(encoder, "cookies", &help, cookies)?;
    let help = meanings(
        "Interim responses (1xx) where each request is routed by itself",
        InterimEvent::ALL.iter().map(|event| (event.name(), event.description())),
    );
    let interim = state.counters.interim.iter().map(|(event, count)| ([("event", event.name())], count));
    counts(encoder, "interim_responses", &help, interim)?;
    let help = meanings(
        "Connections to the control socket and the admin address that did not end by themselves",
        ControlReason::ALL.iter().map(|reason| (reason.name(), reason.description())),
    );
    let closed = state.counters.control_closed.iter();
    let closed = closed.map(|(reason, count)| ([("reason", reason.name())], count));
    counts(encoder, "control_closed", &help, closed)?;
    let help = meanings(
        "Reports of instances that were refused",
        ReportReason::ALL.iter().map(|reason| (reason.name(), reason.description())),
    );
    let refused = state.counters.reports_refused.iter();
    let refused = refused.map(|(reason, count)| ([("reason", reason.name())], count));
    counts(encoder, "reports_refused", &help, refused)
}

/// Absent without a data path: a constant zero would look like an idle one.
fn flows(encoder: &mut DescriptorEncoder<'_>, state: &State) -> fmt::Result {
    let Some(flows) = &state.flows else { return Ok(()) };
    one(encoder, "flows", "Flows alive in the kernel", &ConstGauge::new(signed(flows.len() as u64)))?;
    let unroutable = state.layer4.as_ref().map_or(0, |flows| flows.unroutable().len() as u64);
    let help = "Instances that no route leads to, so that no Layer-4 flow is placed there";
    one(encoder, "l4_unroutable_instances", help, &ConstGauge::new(signed(unroutable)))?;
    one(encoder, "flows_max", "Greatest number of flows", &ConstGauge::new(signed(flows.capacity() as u64)))?;
    let help = "Size of the range of source ports; each pair of source address and instance has it whole";
    one(encoder, "source_ports_max", help, &ConstGauge::new(signed(state.ports.range().len() as u64)))?;
    let used = state.ports.used();
    let used = used.iter().map(|(source, instance, ports)| {
        ([("source", source.to_string()), ("instance", instance.to_string())], *ports as i64)
    });
    let used: Vec<_> = used.collect();
    let used = used.iter().map(|([(a, source), (b, instance)], ports)| {
        ([(*a, source.as_str()), (*b, instance.as_str())], *ports)
    });
    gauges(encoder, "source_ports_used", "Source ports in use towards the instance", used)?;
    let help = meanings(
        "Packets that the packet path looked at",
        PacketReason::ALL.iter().map(|reason| (reason.name(), reason.description())),
    );
    // A reason is one series, even if the data path reports it in several parts.
    let mut packets = BTreeMap::<&str, u64>::new();
    for (reason, count) in flows.counters() {
        *packets.entry(reason).or_default() += count;
    }
    counts(
        encoder,
        "packets",
        &help,
        packets.into_iter().map(|(reason, count)| ([("reason", reason)], count)),
    )?;
    let help = meanings(
        "Frames that XDP has met; each is one of the packets, too",
        XdpReason::ALL.iter().map(|reason| (reason.name(), reason.description())),
    );
    let frames = flows.xdp_frames().into_iter();
    counts(encoder, "xdp_frames", &help, frames.map(|(reason, count)| ([("reason", reason)], count)))
}

fn rules(encoder: &mut DescriptorEncoder<'_>, state: &State) -> fmt::Result {
    let table = state.table.load();
    let all = (0..table.rules().len()).map(RuleRef::Rule).chain([RuleRef::Default, RuleRef::ActiveSession]);
    let hits = all.map(|rule| ([("rule", table.rule_name(rule))], table.hits(rule).get()));
    counts(encoder, "rule_requests", "Requests that the rule selected", hits)
}

fn preloads(encoder: &mut DescriptorEncoder<'_>, state: &State) -> fmt::Result {
    let (states, loaded) = super::preloads::count(state);
    let states = states.iter().map(|(state, count)| ([("state", state.name())], *count as i64));
    gauges(encoder, "preloads", "Preloaded resources, once for each instance, by state", states)?;
    let help = "Preloaded resources, once for each instance, to which requests are sent because of it";
    one(encoder, "preloads_loaded", help, &ConstGauge::new(loaded as i64))?;
    let planner = state.preloads.lock().unwrap_or_else(PoisonError::into_inner);
    let failed = planner.counts.failed.iter().map(|(reason, count)| (reason.name(), count));
    let results = std::iter::once(("succeeded", planner.counts.succeeded.get())).chain(failed);
    let results = results.map(|(result, count)| ([("result", result)], count));
    counts(
        encoder,
        "preload_requests",
        "Requests of preloads that have ended: succeeded, or why not",
        results,
    )
}

fn pools(encoder: &mut DescriptorEncoder<'_>, state: &State) -> fmt::Result {
    let table = state.table.load();
    let pools = table.pools().iter();
    let sizes = pools.clone().map(|pool| ([("pool", pool.name.as_str())], pool.instances.len() as i64));
    gauges(encoder, "pool_instances", "Instances in the pool", sizes)?;
    let serving = pools.map(|pool| ([("pool", pool.name.as_str())], view::serving_count(pool) as i64));
    gauges(encoder, "pool_serving", "Instances of the pool that may be given new sessions", serving)?;

    let instances = || {
        table.instances().map(|(_, pool, instance)| {
            (instance, [("pool", pool.name.as_str()), ("instance", instance.name.as_str())])
        })
    };
    let up = instances()
        .map(|(instance, labels)| (labels, i64::from(instance.status.reachability() == Reachability::Up)));
    gauges(
        encoder,
        "instance_up",
        "1 if the instance can be reached, as checks and traffic show, else 0",
        up,
    )?;
    let now = Instant::now();
    let since = instances().filter_map(|(instance, labels)| {
        let changed = instance.status.health().changed()?;
        Some((labels, now.saturating_duration_since(changed).as_secs() as i64))
    });
    let help = "Seconds since the instance went up or down; absent until it does";
    gauges(encoder, "instance_last_change_seconds", help, since)?;
    let checks = instances().flat_map(|(instance, [pool, name])| {
        let seen = instance.status.health_counts();
        let results = [("passed", seen.checks_passed.get()), ("failed", seen.checks_failed.get())];
        results.map(|(result, count)| ([pool, name, ("result", result)], count))
    });
    counts(encoder, "instance_checks", "Active checks of the instance, by result", checks)?;
    let changes = instances().flat_map(|(instance, [pool, name])| {
        let seen = instance.status.health_counts();
        let lost = seen.lost_contact.get();
        let changes = [("up", seen.came_up.get()), ("down", seen.went_down.get()), ("out-of-contact", lost)];
        changes.map(|(to, count)| ([pool, name, ("to", to)], count))
    });
    counts(encoder, "instance_changes", "Times that the instance went up, down or out of contact", changes)?;
    let admin = instances().flat_map(|(instance, [pool, name])| {
        let current = instance.status.admin();
        AdminState::ALL.map(|state| ([pool, name, ("state", state.name())], i64::from(state == current)))
    });
    gauges(encoder, "instance_admin_state", "1 for the instance's admin state, 0 for the others", admin)?;
    loads(encoder, &table, now)?;
    let weights = instances().map(|(instance, labels)| (labels, i64::from(instance.weight)));
    gauges(encoder, "instance_weight", "Weight of the instance; 100 is usual", weights)?;
    let live = instances().map(|(instance, labels)| (labels, i64::from(instance.status.sessions().live())));
    gauges(encoder, "instance_sessions", "Live sessions on the instance, handed off or not", live)?;
    let total = instances().map(|(instance, labels)| (labels, instance.status.sessions().total()));
    counts(encoder, "instance_sessions_begun", "Sessions begun on the instance", total)
}

/// What instances report of themselves.
fn loads(encoder: &mut DescriptorEncoder<'_>, table: &RoutingTable, now: Instant) -> fmt::Result {
    let instances = || {
        table.instances().map(|(_, pool, instance)| {
            (pool, instance, [("pool", pool.name.as_str()), ("instance", instance.name.as_str())])
        })
    };
    let statuses = instances().flat_map(|(_, instance, [pool, name])| {
        let current = instance.status.load_status();
        LoadStatus::ALL.map(|status| ([pool, name, ("status", status.name())], i64::from(status == current)))
    });
    gauges(encoder, "instance_load_status", "1 for the instance's load status, 0 for the others", statuses)?;
    let averages = instances().flat_map(|(pool, instance, [pool_label, name])| {
        let readings = instance.status.readings(&pool.load, now).into_iter();
        readings.filter(|reading| reading.metric.is_percent()).map(move |reading| {
            ([pool_label, name, ("value", reading.metric.name())], reading.average.round() as i64)
        })
    });
    let help = "Average of what the instance reports, in percent; absent while it is not known";
    gauges(encoder, "instance_load", help, averages)?;
    let reports =
        instances().map(|(_, instance, labels)| (labels, instance.status.health_counts().reports.get()));
    counts(encoder, "instance_reports", "Reports taken in, pushed or asked for", reports)?;
    let ignored = instances()
        .map(|(_, instance, labels)| (labels, instance.status.health_counts().agent_words_ignored.get()));
    let help = "Words of the instance's agent that mean nothing";
    counts(encoder, "instance_agent_words_ignored", help, ignored)
}

/// `summary; name: meaning; …`. Descriptions end in a full stop, which the encoder adds itself.
fn meanings<'a>(summary: &str, reasons: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut help = format!("{summary}, by reason");
    for (name, description) in reasons {
        // Writing to a `String` cannot fail.
        let _ = write!(help, "; {name}: {}", description.trim().trim_end_matches('.'));
    }
    help
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn one(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn count(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    one(encoder, name, help, &ConstCounter::new(value))
}

fn counts<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl Iterator<Item = ([(&'a str, &'a str); N], u64)>,
) -> fmt::Result {
    family(encoder, name, help, series.map(|(labels, value)| (labels, ConstCounter::new(value))))
}

fn gauges<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = ([(&'a str, &'a str); N], i64)>,
) -> fmt::Result {
    family(encoder, name, help, series.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value))))
}

/// One metric with one value for each set of labels; nothing at all, not even its description, if there is none.
fn family<'a, const N: usize, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl Iterator<Item = ([(&'a str, &'a str); N], M)>,
) -> fmt::Result {
    let mut series = series.peekable();
    let Some((_, first)) = series.peek() else { return Ok(()) };
    let mut encoder = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    for (labels, metric) in series {
        metric.encode(encoder.encode_family(&labels)?)?;
    }
    Ok(())
}
