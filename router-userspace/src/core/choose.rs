//! Which instance serves: the health filter first, then the order of preference among those that are left.
//!
//! Every step of that order narrows the candidates ("if any has X, only those stay"), so the winner is simply the
//! smallest by the list of steps, and why an instance lost is the first step at which it differs from the winner.

use super::health::Reachability;
use super::pool::{Instance, InstanceId, Method, PoolId};
use super::session::{Tally, Turn};
use super::status::AdminState;
use super::table::RoutingTable;

/// sessions × 100 / weight, as shown to operators; `None` with weight 0.
pub fn load(sessions: u32, weight: u32) -> Option<f64> {
    (weight > 0).then(|| f64::from(sessions) * 100.0 / f64::from(weight))
}

/// Why an instance is no candidate at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// This request tried it already, in vain.
    Tried,
    /// In maintenance.
    Maintenance,
    /// Its checks, or a refused connection, say that it is down.
    Down,
    /// It must report and is silent.
    OutOfContact,
    /// Its weight is 0.
    NoWeight,
    /// It has `max_sessions` sessions.
    Full,
}

/// At which step a candidate lost to the chosen instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostBy {
    /// It is draining, and one that is not can serve.
    Draining,
    /// It is not in the router's load balancing group, and one that is can serve.
    Group,
    /// Its load is greater.
    Load,
    /// Same load, but more sessions.
    Sessions,
    /// Equal, but chosen more recently.
    ChosenLater,
    /// Equal in everything, but later in the configuration.
    Order,
}

/// What the preference between candidates is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    tally: Tally,
    weight: u32,
    draining: bool,
    other_group: bool,
}

impl Standing {
    /// The counters as they were when the choice was made.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The step at which `other` loses to `self`; `None` if it does not.
    fn beats(&self, other: &Standing, method: Method) -> Option<LostBy> {
        if self.draining != other.draining {
            return other.draining.then_some(LostBy::Draining);
        }
        if self.other_group != other.other_group {
            return other.other_group.then_some(LostBy::Group);
        }
        let Method::FewestSessions = method;
        // sessions / weight compared without division: nothing is rounded, so ties are ties.
        let load = u64::from(self.tally.live()) * u64::from(other.weight);
        let other_load = u64::from(other.tally.live()) * u64::from(self.weight);
        if load != other_load {
            return (load < other_load).then_some(LostBy::Load);
        }
        if self.tally.live() != other.tally.live() {
            return (self.tally.live() < other.tally.live()).then_some(LostBy::Sessions);
        }
        other.tally.last_chosen().is_after(self.tally.last_chosen()).then_some(LostBy::ChosenLater)
    }

    /// Why `other` lost to the winner `self`.
    pub(super) fn reason_against(&self, other: &Standing, method: Method) -> LostBy {
        self.beats(other, method).unwrap_or(LostBy::Order)
    }
}

/// The instance that a choice fell on.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub id: InstanceId,
    pub standing: Standing,
    /// The turn to claim it with: later than every turn seen.
    pub turn: Turn,
}

impl RoutingTable {
    /// Chooses among the instances of `pools`, leaving out `tried`. `seen` is told about each instance.
    pub(super) fn choose(
        &self,
        pools: &[PoolId],
        method: Method,
        tried: &[InstanceId],
        mut seen: impl FnMut(InstanceId, Result<Standing, Exclusion>),
    ) -> Option<Choice> {
        let mut best: Option<(InstanceId, Standing)> = None;
        let mut latest = Turn::NEVER;
        for &pool in pools {
            for (instance, index) in self.pool(pool).instances.iter().zip(0..) {
                let id = InstanceId { pool, index };
                let tally = instance.status.sessions().tally();
                latest = latest.latest(tally.last_chosen());
                let standing =
                    if tried.contains(&id) { Err(Exclusion::Tried) } else { self.standing(instance, tally) };
                seen(id, standing);
                let Ok(standing) = standing else { continue };
                if best.is_none_or(|(_, best)| standing.beats(&best, method).is_some()) {
                    best = Some((id, standing));
                }
            }
        }
        best.map(|(id, standing)| Choice { id, standing, turn: latest.next() })
    }

    fn standing(&self, instance: &Instance, tally: Tally) -> Result<Standing, Exclusion> {
        let admin = instance.status.admin();
        if admin == AdminState::Maintenance {
            return Err(Exclusion::Maintenance);
        }
        match instance.status.reachability() {
            Reachability::Up => {}
            Reachability::OutOfContact => return Err(Exclusion::OutOfContact),
            Reachability::Down => return Err(Exclusion::Down),
        }
        if instance.weight == 0 {
            return Err(Exclusion::NoWeight);
        }
        if instance.max_sessions.is_some_and(|max| tally.live() >= max) {
            return Err(Exclusion::Full);
        }
        let other_group = self.group().is_some_and(|group| instance.group.as_deref() != Some(group));
        Ok(Standing { tally, weight: instance.weight, draining: admin == AdminState::Drain, other_group })
    }
}
