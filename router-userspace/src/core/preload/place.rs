//! One resource on one instance: when it is requested next, and what its failures lead to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::view::Run;
use super::{LoadFailure, Preload};
use crate::core::health::next_turn;
use crate::core::session::InstanceCounters;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Waits until it is due.
    Waiting,
    /// The request with this number is under way.
    Running { ticket: u64, started: Instant },
    /// Every try failed; another instance is picked when it is due.
    Stopped,
}

#[derive(Debug)]
pub(super) struct Place {
    pub instance: Arc<InstanceCounters>,
    /// The instance's name, for lists and logs.
    pub name: String,
    pub state: State,
    /// When the next request is due.
    pub due: Instant,
    /// When the first try of this round began.
    round: Instant,
    /// Failures in a row.
    pub failures: u32,
    pub loaded: bool,
    pub last: Option<Run>,
}

/// What a request led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The resource is open, for the first time or again.
    Loaded { first: bool },
    /// It is tried again after this time.
    Retry { after: Duration },
    /// It has failed too often; it is begun anew after this time.
    Stopped { begin_anew: Duration },
    /// The instance had been given up meanwhile.
    GivenUp,
}

impl Place {
    pub fn new(instance: Arc<InstanceCounters>, name: String, now: Instant) -> Self {
        Self {
            instance,
            name,
            state: State::Waiting,
            due: now,
            round: now,
            failures: 0,
            loaded: false,
            last: None,
        }
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    pub fn is_due(&self, now: Instant) -> bool {
        self.state == State::Waiting && self.due <= now
    }

    pub fn begin(&mut self, ticket: u64, now: Instant) {
        if self.failures == 0 {
            self.round = now;
        }
        self.state = State::Running { ticket, started: now };
    }

    /// Takes in how the request went that is under way.
    pub fn finish(
        &mut self,
        preload: &Preload,
        result: Result<u16, LoadFailure>,
        started: Instant,
        now: Instant,
        random: u32,
    ) -> Verdict {
        let succeeded = result.is_ok();
        self.last = Some(Run { ended: now, took: now.saturating_duration_since(started), result });
        self.state = State::Waiting;
        let next_round = (self.round + next_turn(preload.every, random)).max(now);
        if succeeded {
            let first = !std::mem::replace(&mut self.loaded, true);
            (self.failures, self.due) = (0, next_round);
            return Verdict::Loaded { first };
        }
        self.failures += 1;
        if self.failures <= preload.retries {
            let after = next_turn(preload.backoff(self.failures), random);
            self.due = now + after;
            return Verdict::Retry { after };
        }
        (self.state, self.loaded) = (State::Stopped, false);
        // Retries may have taken longer than the interval.
        self.due = next_round.max(now + next_turn(preload.backoff(self.failures), random));
        Verdict::Stopped { begin_anew: self.due.saturating_duration_since(now) }
    }
}
