//! The decision log: a sample of live decisions with all that led to them, under the tracing target `decision`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::Level;

use crate::core::decide::{Attempt, Decision, Outcome};
use crate::core::explain::{InstanceResult, RuleTrace, Trace};
use crate::core::request::Request;
use crate::core::table::RoutingTable;

/// The tracing target.
pub const TARGET: &str = "decision";

/// A look at every rule and instance costs far more than a decision, and so does a line that names them.
const INTERVAL: Duration = Duration::from_millis(100);

/// Rules, and instances, of one line.
const MAX_LISTED: usize = 16;

/// Picks the decisions that are written down: at most one in each tenth of a second, of all workers together.
#[derive(Debug)]
pub struct Sampler {
    began: Instant,
    /// In milliseconds since then.
    next: AtomicU64,
    /// Decisions since the last one that was picked.
    passed: AtomicU64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { began: Instant::now(), next: AtomicU64::new(0), passed: AtomicU64::new(0) }
    }
}

impl Sampler {
    /// Of how many decisions this one is picked, itself included; `None` if it is not.
    fn pick(&self, now: Instant) -> Option<u64> {
        let now = u64::try_from(now.duration_since(self.began).as_millis()).unwrap_or(u64::MAX);
        let next = self.next.load(Ordering::Relaxed);
        let after = now.saturating_add(INTERVAL.as_millis() as u64);
        let picked = now >= next
            && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !picked {
            self.passed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(1 + self.passed.swap(0, Ordering::Relaxed))
    }
}

/// Decides, and writes down how if the log is read and this decision is picked.
pub(super) fn decide(
    table: &RoutingTable,
    request: &Request<'_>,
    attempt: &Attempt<'_>,
    sampler: &Sampler,
) -> Decision {
    if !tracing::enabled!(target: TARGET, Level::DEBUG) {
        return table.decide(request, attempt);
    }
    let Some(of) = sampler.pick(attempt.now) else { return table.decide(request, attempt) };
    let (decision, trace) = table.decide_and_explain(request, attempt);
    tracing::debug!(
        target: TARGET,
        listener = request.listener,
        client = %request.client,
        request = asked(request),
        of,
        session = trace.session.as_ref().map(|session| session.describe(table)),
        user = trace.identity.user,
        resource = trace.identity.resource,
        cookie = trace.cookie.map(|event| event.name()),
        rules = rules(&trace),
        rule = trace.rule_name,
        method = trace.method.name(),
        instances = instances(table, &trace),
        outcome = outcome(table, &trace),
    );
    decision
}

fn asked(request: &Request<'_>) -> String {
    match (&request.http, &request.tls) {
        (Some(http), _) => format!("{} {}{}", http.method, http.host.unwrap_or("-"), http.raw_path),
        (None, Some(hello)) => format!("TLS {}", hello.server_name.unwrap_or("-")),
        (None, None) => String::new(),
    }
}

/// The rules that were tried, the selected one last: those before it decided too.
fn rules(trace: &Trace) -> String {
    let of_rule = |rule: &RuleTrace| format!("{}: {}", rule.name, rule.why());
    let skipped = trace.rules.len().saturating_sub(MAX_LISTED);
    let listed = trace.rules[skipped..].iter().map(of_rule);
    let more = (skipped > 0).then(|| format!("{skipped} more before"));
    more.into_iter().chain(listed).collect::<Vec<_>>().join("; ")
}

/// The chosen instance first, then the others in their order.
fn instances(table: &RoutingTable, trace: &Trace) -> String {
    let is_chosen = |result: InstanceResult| result == InstanceResult::Chosen;
    let chosen = trace.instances.iter().filter(|one| is_chosen(one.result));
    let others = trace.instances.iter().filter(|one| !is_chosen(one.result));
    let listed =
        chosen.chain(others).take(MAX_LISTED).map(|one| format!("{}: {}", one.name, trace.why(table, one)));
    let skipped = trace.instances.len().saturating_sub(MAX_LISTED);
    let more = (skipped > 0).then(|| format!("{skipped} more"));
    listed.chain(more).collect::<Vec<_>>().join("; ")
}

fn outcome(table: &RoutingTable, trace: &Trace) -> String {
    match &trace.outcome {
        Outcome::Instance { id, .. } => format!("instance {}", table.instance(*id).name),
        Outcome::Deny { status } => format!("denied with {status}"),
        Outcome::Unavailable { action, .. } => format!("unavailable: {}", action.describe(table.pools())),
        Outcome::AmbiguousPath => "the path as sent selects another rule: 400".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_decisions_a_second_are_picked_and_those_between_counted() {
        let sampler = Sampler::default();
        let at = |milliseconds| sampler.pick(sampler.began + Duration::from_millis(milliseconds));
        assert_eq!(at(0), Some(1));
        assert_eq!((at(1), at(99)), (None, None));
        assert_eq!(at(100), Some(3));
        assert_eq!(at(150), None);
        assert_eq!(at(5_000), Some(2));
        assert_eq!(at(5_001), None);
    }
}
