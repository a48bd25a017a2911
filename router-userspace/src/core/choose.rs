//! Which instance serves: candidates first, then the order of preference among them, then the method.
//!
//! Every step of the preference narrows the candidates ("if any has X, only those stay"), so those that the method
//! chooses from are the ones of the smallest [`Rank`], and why an instance lost is the first step at which it differs
//! from the winner.

use std::cmp::Ordering;
use std::time::Instant;

use super::candidates::Judge;
pub use super::candidates::{Exclusion, Tier};
use super::load::LoadStatus;
use super::memory::resources::Holders;
use super::methods::Figures;
use super::methods::consistent_hash::Ring;
use super::pool::{Instance, InstanceId, Method, Pool, PoolId};
use super::session::{Tally, Turn};
use super::table::RoutingTable;

/// sessions × 100 / weight, as shown to operators; `None` with weight 0.
pub fn load(sessions: u32, weight: u32) -> Option<f64> {
    (weight > 0).then(|| f64::from(sessions) * 100.0 / f64::from(weight))
}

/// At which step a candidate lost to the chosen instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostBy {
    /// It is a spare, and an ordinary instance can serve.
    Spare,
    /// It is draining, and one that is not can serve.
    Draining,
    /// It is not in the router's load balancing group, and one that is can serve.
    Group,
    /// Another one served the user last.
    Affinity,
    /// Its load status is worse.
    LoadStatus,
    /// Another one has the resource loaded already.
    Resource,
    /// The method prefers another one by its figure: the load, for the usual method.
    Load,
    /// The key belongs to another one.
    Hash,
    /// Same figure, but more sessions.
    Sessions,
    /// Equal, but chosen more recently.
    ChosenLater,
    /// Equal in everything, but later in the configuration.
    Order,
}

/// The steps of the preference in one number, the first step in the highest bits. The smallest rank stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(u8);

impl Rank {
    /// What [`Rank::new`] takes, by its place: tier, other group, not last, load status, not loaded.
    const SHIFTS: [u32; 5] = [5, 4, 3, 1, 0];

    fn new(tier: Tier, other_group: bool, not_last: bool, load_status: LoadStatus, not_loaded: bool) -> Self {
        let steps = [tier as u8, other_group.into(), not_last.into(), load_status as u8, not_loaded.into()];
        Self(steps.into_iter().zip(Self::SHIFTS).fold(0, |rank, (step, shift)| rank | step << shift))
    }

    /// The step at which `other` falls behind this rank.
    fn reason_against(self, other: Rank) -> Option<LostBy> {
        // The highest bit that differs belongs to the first step that does.
        match (self.0 ^ other.0).checked_ilog2()? {
            0 => Some(LostBy::Resource),
            1 | 2 => Some(LostBy::LoadStatus),
            3 => Some(LostBy::Affinity),
            4 => Some(LostBy::Group),
            _ if other.0 >> Self::SHIFTS[0] == Tier::Draining as u8 => Some(LostBy::Draining),
            _ => Some(LostBy::Spare),
        }
    }
}

/// What the preference between candidates is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    pub(super) tally: Tally,
    pub(super) rank: Rank,
    pub(super) figures: Figures,
    /// Round-robin: where the instance's next turn begins.
    pub(super) turn_start: u64,
}

impl Standing {
    /// The counters as they were when the choice was made.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Round-robin: where the turn after that begins.
    pub(super) fn next_turn(&self) -> u64 {
        self.figures.next_turn()
    }

    /// The figure that `method` compares; the smallest wins. `None` if it is not known, or the method has none.
    pub fn figure(&self, method: Method) -> Option<f64> {
        self.figures.of(method)
    }

    /// The step at which `other` loses to this one by `method`; `None` if it does not.
    pub(super) fn beats(&self, other: &Standing, method: Method) -> Option<LostBy> {
        if self.rank != other.rank {
            return (self.rank < other.rank).then(|| self.rank.reason_against(other.rank)).flatten();
        }
        match self.figures.compare(&other.figures, method) {
            Ordering::Less => return Some(LostBy::Load),
            Ordering::Greater => return None,
            Ordering::Equal => {}
        }
        // Whose turn it is does not depend on sessions.
        if method != Method::RoundRobin && self.tally.live() != other.tally.live() {
            return (self.tally.live() < other.tally.live()).then_some(LostBy::Sessions);
        }
        other.tally.last_chosen().is_after(self.tally.last_chosen()).then_some(LostBy::ChosenLater)
    }

    /// Why `other` lost to the winner `self`.
    pub(super) fn reason_against(&self, other: &Standing, method: Method) -> LostBy {
        if method == Method::ConsistentHash {
            return self.rank.reason_against(other.rank).unwrap_or(LostBy::Hash);
        }
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
    /// The method that chose.
    pub method: Method,
    /// Whether the method that was asked for lacked a fresh figure for some candidate.
    pub fell_back: bool,
}

/// What a choice among the instances of some pools goes by.
pub(super) struct Terms<'a> {
    pub pools: &'a [PoolId],
    pub method: Method,
    pub allow_exhausted: Option<bool>,
    /// The request's resource, and who has it loaded.
    pub resource: Option<&'a str>,
    pub holders: &'a Holders,
    /// The instance that served the user last, if affinity asks for it.
    pub last: Option<InstanceId>,
    pub ring: Option<&'a Ring>,
    /// What `consistent-hash` hashes.
    pub key: u64,
    pub tried: &'a [InstanceId],
    pub now: Instant,
}

/// The best candidate so far by one method.
#[derive(Clone, Copy)]
struct Leader {
    id: InstanceId,
    standing: Standing,
}

impl RoutingTable {
    /// Chooses by `terms`. `seen` is told about each instance.
    pub(super) fn choose(
        &self,
        terms: &Terms<'_>,
        mut seen: impl FnMut(InstanceId, Result<Standing, Exclusion>),
    ) -> Option<Choice> {
        let mut latest = Turn::NEVER;
        let mut least: Option<Leader> = None;
        let mut best: Option<Leader> = None;
        // Whether every candidate of the best rank has the method's figure.
        let mut complete = true;
        let start = if terms.method == Method::RoundRobin { self.round(terms.pools) } else { 0 };
        let by_sessions = terms.method == Method::FewestSessions;
        for &number in terms.pools {
            let pool = self.pool(number);
            let judge = Judge::of(pool, terms.allow_exhausted, terms.now);
            for (instance, index) in pool.instances.iter().zip(0..) {
                let id = InstanceId { pool: number, index };
                let tally = instance.status.sessions().tally();
                latest = latest.latest(tally.last_chosen());
                let standing = self.standing(pool, instance, id, tally, &judge, terms, start);
                seen(id, standing);
                let Ok(standing) = standing else { continue };
                let missing = !standing.figures.know(terms.method);
                match least {
                    Some(leader) if standing.rank > leader.standing.rank => continue,
                    Some(leader) if standing.rank == leader.standing.rank => complete &= !missing,
                    _ => (complete, least, best) = (!missing, None, None),
                }
                let this = Leader { id, standing };
                let leads = |leader: Option<Leader>, method| {
                    leader.is_none_or(|leader| standing.beats(&leader.standing, method).is_some())
                };
                if leads(least, Method::FewestSessions) {
                    least = Some(this);
                }
                if !by_sessions && !missing && leads(best, terms.method) {
                    best = Some(this);
                }
            }
        }
        let least = least?;
        let turn = latest.next();
        if terms.method == Method::ConsistentHash
            && let Some(Leader { id, standing }) = self.owner(terms, least.standing.rank)
        {
            return Some(Choice { id, standing, turn, method: terms.method, fell_back: false });
        }
        let (leader, method, fell_back) = match best {
            Some(best) if complete => (best, terms.method, false),
            _ => (least, Method::FewestSessions, !by_sessions),
        };
        let Leader { id, standing } = leader;
        Some(Choice { id, standing, turn, method, fell_back })
    }

    /// Inlined like [`Judge::candidate`].
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the loop of `choose` has them at hand")]
    fn standing(
        &self,
        pool: &Pool,
        instance: &Instance,
        id: InstanceId,
        tally: Tally,
        judge: &Judge<'_>,
        terms: &Terms<'_>,
        round: u64,
    ) -> Result<Standing, Exclusion> {
        if terms.tried.contains(&id) {
            return Err(Exclusion::Tried);
        }
        let candidate = judge.candidate(instance, tally)?;
        let loaded = terms.resource.is_some_and(|resource| {
            terms.holders.contains(instance.status.sessions())
                || instance.status.reports_loaded(resource, pool.load.report_ttl, terms.now)
        });
        let other_group = self.group().is_some_and(|group| instance.group.as_deref() != Some(group));
        let not_last = terms.last.is_some_and(|last| last != id);
        let rank = Rank::new(candidate.tier, other_group, not_last, candidate.load_status, !loaded);
        let turn_start = instance.status.sessions().turn_start();
        let figures = Figures::of_candidate(terms, instance, &candidate, turn_start, round);
        Ok(Standing { tally, rank, figures, turn_start })
    }

    /// The first candidate of this rank on the ring, from the key's place on.
    fn owner(&self, terms: &Terms<'_>, rank: Rank) -> Option<Leader> {
        terms.ring?.from(terms.key).find_map(|id| {
            let instance = self.instance(id);
            let pool = self.pool(id.pool);
            let judge = Judge::of(pool, terms.allow_exhausted, terms.now);
            let tally = instance.status.sessions().tally();
            let standing = self.standing(pool, instance, id, tally, &judge, terms, 0).ok()?;
            (standing.rank == rank).then_some(Leader { id, standing })
        })
    }

    /// Where the round of these pools stands: where the latest turn began that was taken.
    fn round(&self, pools: &[PoolId]) -> u64 {
        let taken = self.instances_of(pools).map(|(_, instance)| instance.status.sessions().last_turn());
        taken.max().unwrap_or(0)
    }

    fn instances_of<'a>(
        &'a self,
        pools: &'a [PoolId],
    ) -> impl Iterator<Item = (InstanceId, &'a Instance)> + use<'a> {
        pools.iter().flat_map(|&pool| {
            let instances = self.pool(pool).instances.iter().zip(0..);
            instances.map(move |(instance, index)| (InstanceId { pool, index }, instance))
        })
    }
}
