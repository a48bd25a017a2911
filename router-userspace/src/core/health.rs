//! Whether an instance can be reached: the rise and fall of active checks, and what traffic itself shows.
//!
//! - The first check decides at once, whatever `rise` and `fall` say: `initial` is only what is assumed until then.
//! - After that, `fall` failures in a row take an instance down and `rise` successes in a row bring it back.
//! - A refused connection takes it down at once: nobody listens there, and waiting would only cost requests.
//! - Traffic can take an instance down, but only checks bring it back: nobody is sent to one that is down.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// How the instances of a pool are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckSpec {
    pub kind: CheckKind,
    /// From the start of one check to the start of the next, before jitter.
    pub interval: Duration,
    /// How long one check may take in all.
    pub timeout: Duration,
    /// Successes in a row that bring an instance up; at least 1.
    pub rise: u32,
    /// Failures in a row that take an instance down; at least 1.
    pub fall: u32,
    /// What is assumed until the first check has ended.
    pub initial: Reachability,
}

/// What one check does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// Connects and closes.
    Tcp,
    /// Sends `GET path` and reads the status line.
    Http {
        path: String,
        /// The `Host` header; the instance's address if `None`.
        host: Option<String>,
        /// Statuses that count as success.
        expect: Vec<RangeInclusive<u16>>,
    },
}

impl CheckSpec {
    /// Time until the next check: the interval, moved by up to a tenth either way so that checks of many
    /// instances spread out. `random` is any number, evenly distributed.
    pub fn next_check(&self, random: u32) -> Duration {
        let share = f64::from(random) / f64::from(u32::MAX);
        self.interval.mul_f64(0.9 + 0.2 * share)
    }

    /// Time until the first check after a start: at most a tenth of the interval.
    pub fn first_check(&self, random: u32) -> Duration {
        self.interval.mul_f64(0.1 * f64::from(random) / f64::from(u32::MAX))
    }

    /// What an HTTP status means for this check; a `tcp` check never looks at one.
    pub fn judge(&self, status: u16) -> Observation {
        match &self.kind {
            CheckKind::Http { expect, .. } if !expect.iter().any(|range| range.contains(&status)) => {
                Observation::CheckFailed(Failure::Status(status))
            }
            _ => Observation::CheckPassed,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    Up,
    Down,
}

impl Reachability {
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// How an attempt to use an instance failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The port answered with a reset: nobody listens.
    Refused,
    /// No answer in time.
    TimedOut,
    /// Connected, then reset before the first byte.
    Reset,
    /// Closed before a complete answer.
    Closed,
    /// The network said that there is no way there.
    Unreachable,
    /// An HTTP status that the check does not expect.
    Status(u16),
    /// An answer that is not HTTP.
    Malformed,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("connection refused"),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Reset => f.write_str("connection reset before the first byte"),
            Self::Closed => f.write_str("connection closed before a complete answer"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Status(status) => write!(f, "HTTP status {status}"),
            Self::Malformed => f.write_str("the answer is not HTTP"),
        }
    }
}

/// One thing that was seen of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// An active check succeeded.
    CheckPassed,
    /// An active check failed.
    CheckFailed(Failure),
    /// A client's connection could not be made, or was reset before the first byte.
    TrafficFailed(Failure),
}

/// A change of reachability, to be logged and counted by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    pub to: Reachability,
    /// What took the instance down; `None` when it came up.
    pub failure: Option<Failure>,
}

/// The state machine of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    reachability: Reachability,
    /// Observations in a row that speak against `reachability`.
    contrary: u32,
    /// Whether any check has ended yet.
    checked: bool,
    /// When `reachability` last changed; `None` if it never did.
    changed: Option<Instant>,
    last_failure: Option<(Failure, Instant)>,
}

impl Health {
    pub fn new(initial: Reachability) -> Self {
        Self { reachability: initial, contrary: 0, checked: false, changed: None, last_failure: None }
    }

    pub fn reachability(&self) -> Reachability {
        self.reachability
    }

    /// When the reachability last changed; `None` while it is still the initial one.
    pub fn changed(&self) -> Option<Instant> {
        self.changed
    }

    /// Whether any active check has ended yet.
    pub fn checked(&self) -> bool {
        self.checked
    }

    /// The latest failure and when it was seen, even if the instance is up again.
    pub fn last_failure(&self) -> Option<(Failure, Instant)> {
        self.last_failure
    }

    /// Takes in what was seen at `now`; returns the change if there is one.
    pub fn observe(&mut self, spec: &CheckSpec, seen: Observation, now: Instant) -> Option<Transition> {
        let (failure, first_check) = match seen {
            Observation::CheckPassed => (None, !self.checked),
            Observation::CheckFailed(failure) => (Some(failure), !self.checked),
            Observation::TrafficFailed(failure) => (Some(failure), false),
        };
        self.checked |= !matches!(seen, Observation::TrafficFailed(_));
        if let Some(failure) = failure {
            self.last_failure = Some((failure, now));
        }
        let to = if failure.is_some() { Reachability::Down } else { Reachability::Up };
        if to == self.reachability {
            self.contrary = 0;
            return None;
        }
        self.contrary += 1;
        let needed = match to {
            _ if first_check || failure == Some(Failure::Refused) => 1,
            Reachability::Down => spec.fall,
            Reachability::Up => spec.rise,
        };
        if self.contrary < needed {
            return None;
        }
        self.reachability = to;
        self.contrary = 0;
        self.changed = Some(now);
        Some(Transition { to, failure })
    }
}

#[cfg(test)]
mod tests {
    use super::Observation::{CheckFailed, CheckPassed, TrafficFailed};
    use super::*;

    fn spec() -> CheckSpec {
        CheckSpec {
            kind: CheckKind::Http { path: "/health".into(), host: None, expect: vec![200..=399] },
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            initial: Reachability::Down,
        }
    }

    /// Feeds observations and returns the reachability after each.
    fn run(health: &mut Health, seen: &[Observation]) -> String {
        let now = Instant::now();
        seen.iter()
            .map(|&seen| {
                let before = health.reachability();
                let transition = health.observe(&spec(), seen, now);
                assert_eq!(transition.is_some(), before != health.reachability());
                if health.reachability() == Reachability::Up { 'u' } else { 'd' }
            })
            .collect()
    }

    const SLOW: Observation = CheckFailed(Failure::TimedOut);

    #[test]
    fn an_instance_is_checked_before_it_first_serves_and_one_success_is_enough() {
        let mut health = Health::new(Reachability::Down);
        assert!(!health.checked());
        assert_eq!(run(&mut health, &[CheckPassed]), "u");
        assert!(health.checked() && health.changed().is_some());
    }

    #[test]
    fn an_instance_that_fails_its_first_check_then_needs_rise_successes() {
        assert_eq!(run(&mut Health::new(Reachability::Down), &[SLOW, CheckPassed, CheckPassed]), "ddu");
    }

    #[test]
    fn an_instance_assumed_up_goes_down_with_its_first_failed_check() {
        assert_eq!(run(&mut Health::new(Reachability::Up), &[SLOW, CheckPassed, CheckPassed]), "ddu");
    }

    #[test]
    fn fall_failures_in_a_row_take_it_down_and_a_success_between_starts_the_count_anew() {
        let mut health = Health::new(Reachability::Down);
        let story = [CheckPassed, SLOW, SLOW, CheckPassed, SLOW, SLOW, SLOW];
        assert_eq!(run(&mut health, &story), "uuuuuud");
    }

    #[test]
    fn rise_successes_in_a_row_bring_it_back_and_a_failure_between_starts_the_count_anew() {
        let mut health = Health::new(Reachability::Down);
        let story = [SLOW, CheckPassed, SLOW, CheckPassed, CheckPassed];
        assert_eq!(run(&mut health, &story), "ddddu");
    }

    #[test]
    fn a_refused_connection_takes_it_down_at_once_whoever_saw_it() {
        for refused in [CheckFailed(Failure::Refused), TrafficFailed(Failure::Refused)] {
            let mut health = Health::new(Reachability::Down);
            assert_eq!(
                run(&mut health, &[CheckPassed, CheckPassed, refused, CheckPassed, CheckPassed]),
                "uuddu"
            );
        }
    }

    #[test]
    fn slow_traffic_counts_towards_fall_together_with_checks() {
        let mut health = Health::new(Reachability::Down);
        let slow = TrafficFailed(Failure::TimedOut);
        assert_eq!(run(&mut health, &[CheckPassed, slow, SLOW, slow]), "uuud");
    }

    #[test]
    fn a_transition_says_what_took_the_instance_down() {
        let mut health = Health::new(Reachability::Up);
        let transition = health.observe(&spec(), CheckFailed(Failure::Status(503)), Instant::now()).unwrap();
        assert_eq!(transition, Transition { to: Reachability::Down, failure: Some(Failure::Status(503)) });
        assert_eq!(transition.failure.unwrap().to_string(), "HTTP status 503");
    }

    #[test]
    fn jitter_moves_a_check_by_a_tenth_at_most() {
        assert_eq!(spec().next_check(0), Duration::from_millis(1800));
        assert_eq!(spec().next_check(u32::MAX), Duration::from_millis(2200));
        assert_eq!(spec().first_check(0), Duration::ZERO);
        assert_eq!(spec().first_check(u32::MAX), Duration::from_millis(200));
    }

    #[test]
    fn only_expected_statuses_pass() {
        assert_eq!(spec().judge(204), CheckPassed);
        assert_eq!(spec().judge(404), CheckFailed(Failure::Status(404)));
    }
}
