//! What a simulation has shown, for people and programs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::log::LogReport;
use super::tally::SERVED;
use super::world::World;
use crate::core::pool::Method;
use crate::core::table::RuleRef;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Requests that each configuration was given.
    pub requests: u64,
    /// The time that passed in the simulation, in seconds.
    pub seconds: f64,
    pub seed: u64,
    /// Whether it was ended before all requests were made.
    pub interrupted: bool,
    /// What was read of the access log, if the requests are from one.
    pub log: Option<LogReport>,
    /// In the order in which they were given.
    pub configurations: Vec<ConfigurationReport>,
}

/// How one configuration has served the requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConfigurationReport {
    pub file: String,
    /// Requests by what became of them; together, all requests.
    pub outcomes: BTreeMap<String, u64>,
    /// Greatest number of sessions at one moment, on all instances together.
    pub peak_sessions: u64,
    /// Sessions that the request's user or session key brought back to an instance.
    pub by_affinity: u64,
    pub resumed: u64,
    /// Decisions in which a method lacked a figure of some instance, so that `fewest-sessions` decided.
    pub fell_back: u64,
    /// `None` if no request asked for a resource.
    pub resources: Option<ResourceReport>,
    /// In the order in which they are tried, then the default rule and the choice of live sessions.
    pub rules: Vec<RuleReport>,
    pub pools: Vec<PoolReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResourceReport {
    /// Different resources that were opened.
    pub opened: u64,
    /// Requests whose resource was loaded on their instance.
    pub hits: u64,
    /// Requests that had to load theirs.
    pub loads: u64,
    /// Hits among both, from 0 to 1.
    pub hit_rate: f64,
    /// Resources that were loaded on two instances or more at one moment.
    pub loaded_twice: u64,
    /// The most instances that had one resource loaded at one moment.
    pub most_copies: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleReport {
    pub name: String,
    pub requests: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolReport {
    pub name: String,
    pub method: String,
    /// Requests that its instances served.
    pub requests: u64,
    /// How uneven requests are, each instance's in proportion to its weight.
    pub imbalance: Imbalance,
    /// The same for the peak of sessions.
    pub peak_imbalance: Imbalance,
    pub instances: Vec<InstanceReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstanceReport {
    pub name: String,
    pub weight: u32,
    pub requests: u64,
    /// Requests that it would have served if all were shared by weight.
    pub expected: f64,
    pub peak_sessions: u32,
    /// Times that it had to load a resource.
    pub loads: u64,
}

/// All 0 if there was nothing to share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Imbalance {
    /// The greatest value divided by the mean: 1 if all are equal.
    pub max_over_mean: f64,
    /// Standard deviation of the values, for a weight of 100.
    pub deviation: f64,
    /// Standard deviation divided by the mean.
    pub variation: f64,
}

impl Imbalance {
    /// Of values with the weights by which they ought to be in proportion; weight 0 is left out.
    fn of(values: impl Iterator<Item = (f64, u32)>) -> Self {
        let weighted = values.filter(|(_, weight)| *weight > 0);
        let values: Vec<f64> = weighted.map(|(value, weight)| value * 100.0 / f64::from(weight)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        if mean.is_nan() || mean <= 0.0 {
            return Self::default();
        }
        let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        let deviation = square.sqrt();
        let max = values.iter().copied().fold(0.0, f64::max);
        Self { max_over_mean: max / mean, deviation, variation: deviation / mean }
    }
}

impl ConfigurationReport {
    pub(super) fn of(file: &str, world: &World) -> Self {
        let (table, tally) = (&world.table, &world.tally);
        let names =
            (0..table.rules().len()).map(RuleRef::Rule).chain([RuleRef::Default, RuleRef::ActiveSession]);
        let rules = names.zip(&tally.rules);
        let counts = &table.memory().counts;
        let mut instances = tally.instances.iter();
        let pools = table.pools().iter().map(|pool| {
            let served: Vec<_> = instances.by_ref().take(pool.instances.len()).collect();
            let requests: u64 = served.iter().map(|one| one.requests).sum();
            let weights: u64 = pool.instances.iter().map(|instance| u64::from(instance.weight)).sum();
            let both = || pool.instances.iter().zip(&served);
            let report = |(instance, one): (&crate::core::pool::Instance, &&super::tally::InstanceTally)| {
                let share = f64::from(instance.weight) / weights.max(1) as f64;
                InstanceReport {
                    name: instance.name.clone(),
                    weight: instance.weight,
                    requests: one.requests,
                    expected: requests as f64 * share,
                    peak_sessions: one.peak,
                    loads: one.loads,
                }
            };
            PoolReport {
                name: pool.name.clone(),
                method: pool.method.name().to_owned(),
                requests,
                imbalance: Imbalance::of(
                    both().map(|(instance, one)| (one.requests as f64, instance.weight)),
                ),
                peak_imbalance: Imbalance::of(
                    both().map(|(instance, one)| (f64::from(one.peak), instance.weight)),
                ),
                instances: both().map(report).collect(),
            }
        });
        Self {
            file: file.to_owned(),
            outcomes: tally.outcomes.iter().map(|(name, count)| (name.to_string(), *count)).collect(),
            peak_sessions: tally.peak_sessions,
            by_affinity: counts.by_affinity.get(),
            resumed: counts.sessions_resumed.get(),
            fell_back: Method::ALL.into_iter().map(|method| counts.fallbacks(method).get()).sum(),
            resources: ResourceReport::of(world),
            pools: pools.collect(),
            rules: rules
                .map(|(rule, &requests)| RuleReport { name: table.rule_name(rule).to_owned(), requests })
                .collect(),
        }
    }

    /// Requests that an instance served.
    pub fn served(&self) -> u64 {
        self.outcomes.get(SERVED).copied().unwrap_or(0)
    }

    pub fn pool(&self, name: &str) -> Option<&PoolReport> {
        self.pools.iter().find(|pool| pool.name == name)
    }
}

impl ResourceReport {
    fn of(world: &World) -> Option<Self> {
        let tally = &world.tally;
        let loads: u64 = tally.instances.iter().map(|instance| instance.loads).sum();
        let all = tally.hits + loads;
        (all > 0).then(|| Self {
            opened: tally.copies.len() as u64,
            hits: tally.hits,
            loads,
            hit_rate: tally.hits as f64 / all as f64,
            loaded_twice: tally.copies.values().filter(|copies| copies.peak > 1).count() as u64,
            most_copies: tally.copies.values().map(|copies| copies.peak).max().unwrap_or(0),
        })
    }
}
