//! Which instances a report is about: the one that it names, and those that share its host.

use std::time::Instant;

use super::Report;
use crate::core::health::{Failure, Observation};
use crate::core::pool::InstanceId;
use crate::core::status::Changes;
use crate::core::table::RoutingTable;

impl Report {
    /// What holds for every instance of the same host.
    pub fn of_host(&self) -> Report {
        Report { sessions: None, calls_per_core: None, agent_value: None, resources: None, ..self.clone() }
    }
}

impl RoutingTable {
    /// Takes in at `now` what the instance reported, for it and for the instances of its node. `up` if it also says
    /// whether it serves. Returns what changed, instance by instance, itself first.
    pub fn take_report(
        &self,
        id: InstanceId,
        report: &Report,
        up: Option<bool>,
        now: Instant,
    ) -> Vec<(InstanceId, Changes)> {
        let take = |id: InstanceId, report: &Report| {
            let (pool, instance) = (self.pool(id.pool), self.instance(id));
            (id, instance.status.report(report, &pool.load, pool.thresholds(instance), now))
        };
        let mut changes = vec![take(id, report)];
        if let Some(up) = up {
            let seen = if up { Observation::AgentUp } else { Observation::AgentDown(Failure::AgentSaysDown) };
            let transition = self.instance(id).status.observe(None, seen, now);
            changes[0].1.reachability = transition.or(changes[0].1.reachability);
        }
        let Some(node) = &self.instance(id).node else { return changes };
        let shared = report.of_host();
        let neighbours = self
            .instances()
            .filter(|&(other, _, instance)| other != id && instance.node.as_ref() == Some(node));
        changes.extend(neighbours.map(|(other, ..)| take(other, &shared)));
        changes
    }
}
