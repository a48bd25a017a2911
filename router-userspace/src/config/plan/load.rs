//! Load and reports: thresholds that make sense together, and pools that report to somebody.

use std::time::Duration;

use router_report::format_duration;

use super::super::file::{File, Pool};
use super::super::load::{Agent, Pair, PoolReports};
use super::super::reader::{Placed, Report};
use super::super::report::Problem;
use super::{PoolToken, ReportsPlan, tokens};
use crate::core::agent::AgentSpec;
use crate::core::load::{LoadPolicy, Thresholds};
use crate::core::pool::Registration;

/// Answers of an agent that may be missed before its value is not known any more.
const MISSED_ANSWERS: u32 = 3;

/// Where reports come in, and with which tokens.
pub(super) fn reports(file: &File, report: &Report<'_>) -> Option<ReportsPlan> {
    let reporting: Vec<_> =
        file.pools.iter().filter_map(|pool| Some((pool.name.as_ref()?, pool.reports.as_ref()?))).collect();
    let Some(reports) = &file.reports else {
        for (name, reports) in reporting {
            let message = format!("pool `{}` is to report, but nobody listens for reports", name.value);
            let help = "add [reports] with a line such as: listen = \"10.0.2.1:9190\"";
            report.add(Problem::at(reports.span.clone(), message).help(help));
        }
        return None;
    };
    let listen = reports.listen.as_ref()?;
    if reporting.is_empty() {
        let message = "no pool has `reports`, so every report will be refused";
        let help = "add reports = { token_file = \"…\" } to the pools whose instances report";
        report.warn(Problem::at(listen.span.clone(), message).help(help));
    }
    let read = |(name, reports): (&Placed<String>, &PoolReports)| {
        let tokens = tokens::read(reports.token_file.as_ref()?, report)?;
        let pool = &name.value;
        Some(tokens.into_iter().map(|token| PoolToken { pool: pool.clone(), token }).collect::<Vec<_>>())
    };
    // Every file is read, so that all problems are told at once.
    let tokens: Vec<_> = reporting.into_iter().map(read).collect();
    let tokens = tokens.into_iter().collect::<Option<Vec<_>>>()?.concat();
    Some(ReportsPlan { listen: listen.value, tokens })
}

pub(super) fn policy(pool: &Pool, report: &Report<'_>) -> LoadPolicy {
    let mut policy = LoadPolicy::default();
    if let Some((pairs, window)) = &pool.thresholds {
        policy.thresholds = thresholds(&Thresholds::OFF, pairs, report);
        policy.window = window.value;
    }
    if let Some(agent) = &pool.agent {
        policy.report_ttl = (agent.interval.value * MISSED_ANSWERS).max(policy.report_ttl);
    }
    if let Some(reports) = &pool.reports {
        policy.report_ttl = reports.ttl.value;
        policy.must_report = reports.required.value;
    }
    policy
}

/// `base`, changed as the table says.
pub(super) fn thresholds(base: &Thresholds, pairs: &[Pair], report: &Report<'_>) -> Thresholds {
    let mut thresholds = base.clone();
    for pair in pairs {
        let levels = thresholds.of_mut(pair.metric);
        if let Some(strained) = &pair.strained {
            levels.strained = strained.value;
        }
        if let Some(exhausted) = &pair.exhausted {
            levels.exhausted = exhausted.value;
        }
        if let (Some(strained), Some(exhausted)) = (levels.strained, levels.exhausted)
            && (strained.enter > exhausted.enter || strained.leave > exhausted.leave)
            && let Some(written) =
                pair.exhausted.as_ref().filter(|value| value.written).or(pair.strained.as_ref())
        {
            let name = pair.metric.name();
            let message = format!(
                "`strained_{name}` must not be above `exhausted_{name}`: [{}, {}] and [{}, {}]",
                strained.enter, strained.leave, exhausted.enter, exhausted.leave
            );
            let help = "an instance is strained before it is exhausted; -1 switches one off";
            report.add(Problem::at(written.span.clone(), message).help(help));
        }
    }
    thresholds
}

pub(super) fn agent(agent: &Agent, report: &Report<'_>) -> Option<AgentSpec> {
    if agent.timeout.value > agent.interval.value {
        let at = if agent.timeout.written { &agent.timeout.span } else { &agent.interval.span };
        let (timeout, interval) =
            (format_duration(agent.timeout.value), format_duration(agent.interval.value));
        let message =
            format!("an agent's `timeout` ({timeout}) must not be longer than its `interval` ({interval})");
        report.add(Problem::at(at.clone(), message).help("or questions to one agent would overlap"));
    }
    Some(AgentSpec {
        port: agent.port.as_ref()?.value,
        interval: agent.interval.value,
        timeout: agent.timeout.value,
        require_response: agent.require_response.value,
        send: agent.send.value.clone().into_bytes(),
    })
}

pub(super) fn registration(pool: &Pool, report: &Report<'_>) -> Option<Registration> {
    let reports = pool.reports.as_ref()?;
    if !reports.allow_registration.value {
        return None;
    }
    if reports.forget_after.value < reports.ttl.value {
        let (forget_after, ttl) =
            (format_duration(reports.forget_after.value), format_duration(reports.ttl.value));
        let message = format!("`forget_after` ({forget_after}) must not be shorter than `ttl` ({ttl})");
        let help = "an instance is out of contact before it is forgotten";
        report.add(Problem::at(reports.forget_after.span.clone(), message).help(help));
    }
    Some(Registration {
        forget_after: reports.forget_after.value,
        max_instances: usize::from(reports.max_registered.value),
    })
}

pub(super) fn slow_start(pool: &Pool) -> Duration {
    pool.slow_start.as_ref().map_or(Duration::ZERO, |duration| duration.value)
}
