//! What is counted while a simulation runs. Every request has exactly one outcome.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use crate::core::table::RuleRef;

/// A resource's number, in the order in which they were first asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Resource(pub u32);

/// What the outcome of a request that an instance serves is called.
pub const SERVED: &str = "served";
/// The listener itself answers 400; no rule sees the request.
pub const BAD_PATH: &str = "bad path";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InstanceTally {
    pub requests: u64,
    /// Greatest number of sessions at one moment.
    pub peak: u32,
    /// Times that a resource was opened which was not loaded there.
    pub loads: u64,
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    requests: u64,
    pub outcomes: BTreeMap<Cow<'static, str>, u64>,
    /// By place, and behind them the default rule and the choice of a live session.
    pub rules: Vec<u64>,
    pub instances: Vec<InstanceTally>,
    pub peak_sessions: u64,
    /// Requests for a resource that was loaded on their instance.
    pub hits: u64,
    /// How often each resource is open on each instance now.
    open: HashMap<(Resource, u32), u32>,
    pub copies: HashMap<Resource, Copies>,
}

/// On how many instances one resource is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    now: u32,
    pub peak: u32,
}

impl Tally {
    pub fn new(rules: usize, instances: usize) -> Self {
        Self {
            rules: vec![0; rules + 2],
            instances: vec![InstanceTally::default(); instances],
            ..Self::default()
        }
    }

    pub fn requests(&self) -> u64 {
        self.requests
    }

    pub fn count(&mut self, outcome: impl Into<Cow<'static, str>>) {
        self.requests += 1;
        *self.outcomes.entry(outcome.into()).or_default() += 1;
    }

    pub fn refuse_path(&mut self) {
        self.count(BAD_PATH);
    }

    pub fn count_rule(&mut self, rule: RuleRef) {
        let behind = self.rules.len() - 2;
        let place = match rule {
            RuleRef::Rule(place) => place,
            RuleRef::Default => behind,
            RuleRef::ActiveSession => behind + 1,
        };
        self.rules[place] += 1;
    }

    /// A request is served. `sessions` are those of the instance with it, `live` those of all instances.
    pub fn place(&mut self, instance: usize, sessions: u32, live: u64) {
        self.count(SERVED);
        let tally = &mut self.instances[instance];
        tally.requests += 1;
        tally.peak = tally.peak.max(sessions);
        self.peak_sessions = self.peak_sessions.max(live);
    }

    /// A request opens its resource on an instance; says whether it was not loaded there.
    pub fn open(&mut self, instance: usize, resource: Option<Resource>) -> bool {
        let Some(resource) = resource else { return false };
        let sessions = self.open.entry((resource, instance as u32)).or_default();
        *sessions += 1;
        if *sessions > 1 {
            self.hits += 1;
            return false;
        }
        self.instances[instance].loads += 1;
        let copies = self.copies.entry(resource).or_default();
        copies.now += 1;
        copies.peak = copies.peak.max(copies.now);
        true
    }

    /// A connection leaves; says whether its resource is not loaded there any more.
    pub fn close(&mut self, instance: usize, resource: Option<Resource>) -> bool {
        let Some(resource) = resource else { return false };
        let place = (resource, instance as u32);
        let Some(sessions) = self.open.get_mut(&place) else { return false };
        *sessions -= 1;
        if *sessions > 0 {
            return false;
        }
        self.open.remove(&place);
        if let Some(copies) = self.copies.get_mut(&resource) {
            copies.now -= 1;
        }
        true
    }
}
