//! Resources that are opened on instances ahead of users: what a rule asks for, when, and the plan of what is next.
//!
//! [`Planner::step`] says which requests to send now, and [`Planner::finish`] takes in how one went. Sending is the
//! caller's part; the clock, the wall clock and random numbers are arguments.

mod item;
mod pick;
mod place;
mod planner;
mod request;
pub mod schedule;
mod view;

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::counters::{Count, CountByReason, Reason};
use super::health::Failure;

pub use planner::{CONCURRENT, Event, Planner, Task, Verdict};
pub use request::{Field, LoadRequest};
pub use schedule::Schedule;
pub use view::{PlaceState, PreloadView, Run};

/// On how many instances each resource is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// So many different ones, at least 1.
    Number(usize),
    /// Every one that can be picked.
    All,
}

impl Wanted {
    pub fn number(self) -> usize {
        match self {
            Self::Number(number) => number,
            Self::All => usize::MAX,
        }
    }
}

/// What a rule opens ahead of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preload {
    pub resources: Vec<String>,
    pub instances: Wanted,
    pub request: LoadRequest,
    /// Statuses that mean that the resource is open.
    pub expect: Vec<RangeInclusive<u16>>,
    /// From the start of one request to the start of the next, before jitter.
    pub every: Duration,
    /// How long one request may take in all.
    pub timeout: Duration,
    /// When requests may be sent.
    pub schedule: Schedule,
    /// How many further tries follow a failed one.
    pub retries: u32,
    /// Before the first of them; each further delay is twice as long.
    pub retry_delay: Duration,
    /// Whether a resource may be opened on an exhausted instance.
    pub load_on_exhausted: bool,
    /// Whether it is refreshed on an instance that is exhausted.
    pub update_exhausted: bool,
}

impl Preload {
    /// The pause after so many failures in a row, before jitter; never longer than `every`.
    pub(super) fn backoff(&self, failures: u32) -> Duration {
        let doubled = 2u32.saturating_pow(failures.saturating_sub(1));
        self.retry_delay.saturating_mul(doubled).min(self.every)
    }

    /// What an answer with this status means.
    pub fn judge(&self, status: u16) -> Result<u16, LoadFailure> {
        let expected = self.expect.iter().any(|range| range.contains(&status));
        if expected { Ok(status) } else { Err(LoadFailure::Instance(Failure::Status(status))) }
    }
}

/// Why a resource could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadFailure {
    /// What the instance did, or did not do.
    Instance(Failure),
    /// The request could not be sent, for a reason that says nothing about the instance.
    NotSent(String),
}

impl fmt::Display for LoadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(failure) => failure.fmt(f),
            Self::NotSent(error) => write!(f, "cannot be sent: {error}"),
        }
    }
}

/// The same without its details, to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFailureReason {
    Refused,
    TimedOut,
    Reset,
    Closed,
    Unreachable,
    Status,
    Malformed,
    NotSent,
}

impl LoadFailureReason {
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::TimedOut => "timed_out",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::Unreachable => "unreachable",
            Self::Status => "status",
            Self::Malformed => "malformed",
            Self::NotSent => "not_sent",
        }
    }
}

impl Reason for LoadFailureReason {
    const ALL: &'static [Self] = &[
        Self::Refused,
        Self::TimedOut,
        Self::Reset,
        Self::Closed,
        Self::Unreachable,
        Self::Status,
        Self::Malformed,
        Self::NotSent,
    ];

    fn index(self) -> usize {
        self as usize
    }
}

impl LoadFailure {
    pub fn reason(&self) -> LoadFailureReason {
        match self {
            Self::NotSent(_) => LoadFailureReason::NotSent,
            Self::Instance(failure) => match failure {
                Failure::Refused => LoadFailureReason::Refused,
                Failure::TimedOut => LoadFailureReason::TimedOut,
                Failure::Reset => LoadFailureReason::Reset,
                Failure::Closed => LoadFailureReason::Closed,
                Failure::Status(_) => LoadFailureReason::Status,
                Failure::Malformed | Failure::Tls(_) => LoadFailureReason::Malformed,
                // Agents have no part in a request.
                Failure::Unreachable | Failure::AgentSaysDown | Failure::AgentSilent => {
                    LoadFailureReason::Unreachable
                }
            },
        }
    }
}

/// How requests went since the daemon started.
#[derive(Debug, Default)]
pub struct PreloadCounts {
    pub succeeded: Count,
    pub failed: CountByReason<LoadFailureReason>,
}
