//! Who may serve at all: an instance is a candidate of one of three tiers, or it is excluded for a reason.

use std::time::{Duration, Instant};

use super::health::Reachability;
use super::load::LoadStatus;
use super::pool::{Instance, Pool};
use super::session::Tally;
use super::status::AdminState;

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
    /// It is exhausted, and neither rule nor pool allows that.
    Exhausted,
}

/// How willingly an instance is used: one of a later tier serves only while no tier before it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    Ordinary,
    Spare,
    Draining,
}

/// What makes an instance a candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub tally: Tally,
    pub tier: Tier,
    /// The weight that counts now.
    pub weight: u32,
    pub load_status: LoadStatus,
    /// How long its reports count.
    pub report_ttl: Duration,
}

/// What a pool's instances are judged by.
#[derive(Clone, Copy)]
pub(super) struct Judge<'a> {
    pool: &'a Pool,
    fails_open: bool,
    allow_exhausted: bool,
    now: Instant,
}

impl<'a> Judge<'a> {
    pub fn of(pool: &'a Pool, allow_exhausted: Option<bool>, now: Instant) -> Self {
        let allow_exhausted = allow_exhausted.unwrap_or(pool.allow_exhausted);
        Self { pool, fails_open: pool.fails_open(), allow_exhausted, now }
    }

    /// Whether the instance can be used at all, as a session that is there already needs it.
    #[inline]
    pub fn usable(&self, instance: &Instance) -> Result<AdminState, Exclusion> {
        let status = &instance.status;
        let admin = status.admin();
        if admin == AdminState::Maintenance {
            return Err(Exclusion::Maintenance);
        }
        let reachability =
            if self.fails_open { status.reachability_without_checks() } else { status.reachability() };
        match reachability {
            Reachability::Up => Ok(admin),
            Reachability::OutOfContact => Err(Exclusion::OutOfContact),
            Reachability::Down => Err(Exclusion::Down),
        }
    }

    /// Whether the instance may get a new session. Inlined, because an answer that goes through memory costs more than finding it.
    #[inline(always)]
    pub fn candidate(&self, instance: &Instance, tally: Tally) -> Result<Candidate, Exclusion> {
        let admin = self.usable(instance)?;
        let weight = self.pool.weight(instance, self.now);
        if weight == 0 {
            return Err(Exclusion::NoWeight);
        }
        if instance.status.max_sessions(instance.max_sessions).is_some_and(|max| tally.live() >= max) {
            return Err(Exclusion::Full);
        }
        let load_status = instance.status.load_status();
        if load_status == LoadStatus::Exhausted && !self.allow_exhausted {
            return Err(Exclusion::Exhausted);
        }
        let tier = match (admin, instance.spare) {
            (AdminState::Drain, _) => Tier::Draining,
            (_, true) => Tier::Spare,
            _ => Tier::Ordinary,
        };
        Ok(Candidate { tally, tier, weight, load_status, report_ttl: self.pool.load.report_ttl })
    }
}
