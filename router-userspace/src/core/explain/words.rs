//! A trace in words: why a rule was passed over, and why an instance lost.

use super::{InstanceResult, InstanceTrace, RuleResult, RuleTrace, SessionTrace, Trace};
use crate::core::choose::{Exclusion, LostBy};
use crate::core::health::Reachability;
use crate::core::pool::Method;
use crate::core::table::RoutingTable;

impl SessionTrace {
    /// Where the request's session lives, and whether it may go on there.
    pub fn describe(&self, table: &RoutingTable) -> String {
        match (self.id, self.usable) {
            (Some(id), true) => format!("lives on instance {}", table.instance(id).name),
            (Some(id), false) => {
                format!("lives on instance {}, which cannot serve now", table.instance(id).name)
            }
            (None, _) => "lives on an instance that is no longer configured".to_owned(),
        }
    }
}

impl RuleTrace {
    /// Why the rule was selected or not.
    pub fn why(&self) -> String {
        match &self.result {
            RuleResult::Selected => {
                let tests = self.tests.iter().map(|test| {
                    format!("{} {}", test.text, if test.holds { "holds" } else { "does not hold" })
                });
                tests.collect::<Vec<_>>().join(", ")
            }
            RuleResult::NoMatch { failed } => format!("{failed} does not hold"),
            RuleResult::Disabled => "disabled rules are skipped".to_owned(),
        }
    }
}

impl Trace {
    /// Instances among which the method could choose.
    pub fn candidates(&self) -> usize {
        self.instances.iter().filter(|one| !matches!(one.result, InstanceResult::Excluded(_))).count()
    }

    /// Why one of the instances was chosen or not.
    pub fn why(&self, table: &RoutingTable, one: &InstanceTrace) -> String {
        self.result_in_words(table, one) + doubt(one)
    }

    fn result_in_words(&self, table: &RoutingTable, one: &InstanceTrace) -> String {
        let winner = self.instances.iter().find(|one| one.result == InstanceResult::Chosen);
        let method = self.method;
        let instance = table.instance(one.id);
        let load = |one: Option<&InstanceTrace>| one.and_then(|one| one.load).unwrap_or(f64::INFINITY);
        match one.result {
            InstanceResult::Chosen if self.candidates() == 1 => "the only candidate".to_owned(),
            InstanceResult::Chosen => "comes first among the candidates".to_owned(),
            InstanceResult::Excluded(Exclusion::Tried) => "this request tried it in vain".to_owned(),
            InstanceResult::Excluded(Exclusion::Maintenance) => "in maintenance".to_owned(),
            InstanceResult::Excluded(Exclusion::Down) => match instance.status.health().last_failure() {
                Some((failure, _)) => format!("down: {failure}"),
                None => "down: not checked yet".to_owned(),
            },
            InstanceResult::Excluded(Exclusion::OutOfContact) => {
                "out of contact: it must report and is silent".to_owned()
            }
            InstanceResult::Excluded(Exclusion::Exhausted) => "exhausted".to_owned(),
            InstanceResult::Excluded(Exclusion::NoWeight) => "its weight is 0".to_owned(),
            InstanceResult::Excluded(Exclusion::Full) => {
                format!("full: {} of {} sessions", one.sessions, instance.max_sessions.unwrap_or(u32::MAX))
            }
            InstanceResult::Lost(LostBy::Draining) => "draining, and another can serve".to_owned(),
            InstanceResult::Lost(LostBy::Group) => {
                format!(
                    "not in this router's group \"{}\", and another is",
                    table.group().unwrap_or_default()
                )
            }
            InstanceResult::Lost(LostBy::Spare) => "a spare, and an ordinary instance can serve".to_owned(),
            InstanceResult::Lost(LostBy::Affinity) => {
                let other = winner.map_or("another", |winner| &winner.name);
                format!("{other} served the user last")
            }
            InstanceResult::Lost(LostBy::LoadStatus) => {
                let other = winner.map_or("better", |winner| winner.load_status.name());
                format!("{}, and another is {other}", one.load_status.name())
            }
            InstanceResult::Lost(LostBy::Resource) => "another has the resource loaded already".to_owned(),
            InstanceResult::Lost(LostBy::Hash) => "the key belongs to another".to_owned(),
            InstanceResult::Lost(LostBy::Load) if method == Method::FewestSessions => {
                format!("load {:.2} against {:.2}", load(Some(one)), load(winner))
            }
            InstanceResult::Lost(LostBy::Load) => {
                let figure = |one: Option<&InstanceTrace>| {
                    one.and_then(|one| one.figure)
                        .map_or_else(|| "unknown".to_owned(), |figure| format!("{figure:.2}"))
                };
                format!("{} {} against {}", method.name(), figure(Some(one)), figure(winner))
            }
            InstanceResult::Lost(LostBy::Sessions) => {
                let other = winner.map_or(0, |winner| winner.sessions);
                format!("same load, {} sessions against {other}", one.sessions)
            }
            InstanceResult::Lost(LostBy::ChosenLater) => "equal, but chosen more recently".to_owned(),
            InstanceResult::Lost(LostBy::Order) => {
                "equal in everything, but later in the configuration".to_owned()
            }
        }
    }
}

/// Why an instance that is down was judged as if it were up.
fn doubt(one: &InstanceTrace) -> &'static str {
    let believed = matches!(one.result, InstanceResult::Excluded(Exclusion::Down | Exclusion::Maintenance));
    if one.reachability == Reachability::Down && !believed {
        "; that it is down is not believed, because every instance of the pool fails its checks (fail-open)"
    } else {
        ""
    }
}
