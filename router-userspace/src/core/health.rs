//! Whether an instance can be reached: the rise and fall of active checks, what traffic itself shows, and what the
//! instance's own agent and reports say.
//!
//! - The first check decides at once, whatever `rise` and `fall` say: `initial` is only what is assumed until then.
//! - After that, `fall` failures in a row take an instance down and `rise` successes in a row bring it back.
//! - A refused connection takes it down at once: nobody listens there, and waiting would only cost requests.
//! - Traffic can take an instance down, but only checks bring it back: nobody is sent to one that is down.
//! - An agent takes it down by its word, whatever checks say, and only its word or its end brings it back.
//! - An instance that must report and falls silent is out of contact until it reports again.

mod tls;

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

pub use tls::{TlsCheck, TlsFailure};

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
    /// Completes a TLS handshake.
    Tls(TlsCheck),
}

impl CheckSpec {
    /// Time until the next check: the interval, moved by up to a tenth either way so that checks of many
    /// instances spread out. `random` is any number, evenly distributed.
    pub fn next_check(&self, random: u32) -> Duration {
        next_turn(self.interval, random)
    }

    /// Time until the first check after a start: at most a tenth of the interval.
    pub fn first_check(&self, random: u32) -> Duration {
        first_turn(self.interval, random)
    }

    /// What an HTTP status means for this check; others than `http` never look at one.
    pub fn judge(&self, status: u16) -> Observation {
        match &self.kind {
            CheckKind::Http { expect, .. } if !expect.iter().any(|range| range.contains(&status)) => {
                Observation::CheckFailed(Failure::Status(status))
            }
            _ => Observation::CheckPassed,
        }
    }
}

/// Time until something is done again that is done every `interval`: moved by up to a tenth either way.
pub fn next_turn(interval: Duration, random: u32) -> Duration {
    let share = f64::from(random) / f64::from(u32::MAX);
    interval.mul_f64(0.9 + 0.2 * share)
}

/// Time until it is done first: at most a tenth of the interval.
pub fn first_turn(interval: Duration, random: u32) -> Duration {
    interval.mul_f64(0.1 * f64::from(random) / f64::from(u32::MAX))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    Up,
    /// It must report and has been silent for too long: it gets nothing new until it reports again.
    OutOfContact,
    Down,
}

impl Reachability {
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::OutOfContact => "out-of-contact",
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
    /// No TLS connection came about.
    Tls(TlsFailure),
    /// The instance's agent said so.
    AgentSaysDown,
    /// The instance's agent must answer and did not, several times in a row.
    AgentSilent,
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
            Self::Tls(failure) => failure.fmt(f),
            Self::AgentSaysDown => f.write_str("its agent says that it is down"),
            Self::AgentSilent => f.write_str("its agent does not answer"),
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
    /// The agent says that the instance serves.
    AgentUp,
    /// The agent says that it does not, or had to answer and did not.
    AgentDown(Failure),
    /// It reported.
    Reported,
    /// It must report, and has been silent for too long.
    Silent,
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
    checks_pass: bool,
    /// Why the agent holds it to be down.
    agent_down: Option<Failure>,
    silent: bool,
    /// Observations in a row that speak against `checks_pass`.
    contrary: u32,
    /// Whether any check has ended yet.
    checked: bool,
    /// When the reachability last changed; `None` if it never did.
    changed: Option<Instant>,
    last_failure: Option<(Failure, Instant)>,
}

impl Health {
    pub fn new(initial: Reachability) -> Self {
        Self {
            checks_pass: initial == Reachability::Up,
            agent_down: None,
            silent: false,
            contrary: 0,
            checked: false,
            changed: None,
            last_failure: None,
        }
    }

    pub fn reachability(&self) -> Reachability {
        match (self.checks_pass && self.agent_down.is_none(), self.silent) {
            (false, _) => Reachability::Down,
            (true, true) => Reachability::OutOfContact,
            (true, false) => Reachability::Up,
        }
    }

    /// The same, if active checks are not believed.
    pub fn reachability_without_checks(&self) -> Reachability {
        Self { checks_pass: true, ..self.clone() }.reachability()
    }

    /// Whether checks, and not merely the lack of one, say that it is down.
    pub fn fails_checks(&self) -> bool {
        self.checked && !self.checks_pass
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

    /// Why the agent holds the instance to be down, if it does.
    pub fn agent_down(&self) -> Option<Failure> {
        self.agent_down
    }

    /// Forgets what the agent said, because nobody asks it any more.
    pub fn forget_agent(&mut self) {
        self.agent_down = None;
    }

    /// Forgets what checks and traffic have shown, because no check is left that could bring the instance back.
    pub fn trust(&mut self) {
        let (agent_down, silent) = (self.agent_down, self.silent);
        *self = Self { agent_down, silent, ..Self::new(Reachability::Up) };
    }

    /// Takes in what was seen at `now`; returns the change if there is one. Without a check, checks and traffic change
    /// nothing: an instance that no check could bring back is never taken down.
    pub fn observe(
        &mut self,
        check: Option<&CheckSpec>,
        seen: Observation,
        now: Instant,
    ) -> Option<Transition> {
        let before = self.reachability();
        let failure = match seen {
            Observation::CheckFailed(failure) | Observation::TrafficFailed(failure) if check.is_some() => {
                Some(failure)
            }
            Observation::AgentDown(failure) => Some(failure),
            _ => None,
        };
        if let Some(failure) = failure {
            self.last_failure = Some((failure, now));
        }
        match seen {
            Observation::AgentUp => self.agent_down = None,
            // What an agent said holds when it falls silent.
            Observation::AgentDown(Failure::AgentSilent) if self.agent_down.is_some() => {}
            Observation::AgentDown(failure) => self.agent_down = Some(failure),
            Observation::Reported => self.silent = false,
            Observation::Silent => self.silent = true,
            _ => self.weigh(check?, seen, failure),
        }
        let to = self.reachability();
        if to == before {
            return None;
        }
        self.changed = Some(now);
        Some(Transition { to, failure })
    }

    /// Counts a check or a connection, and lets enough of them in a row decide.
    fn weigh(&mut self, check: &CheckSpec, seen: Observation, failure: Option<Failure>) {
        let by_traffic = matches!(seen, Observation::TrafficFailed(_));
        let first_check = !by_traffic && !self.checked;
        self.checked |= !by_traffic;
        let pass = failure.is_none();
        if pass == self.checks_pass {
            self.contrary = 0;
            return;
        }
        self.contrary += 1;
        let needed = match failure {
            _ if first_check => 1,
            Some(Failure::Refused) => 1,
            Some(_) => check.fall,
            None => check.rise,
        };
        if self.contrary >= needed {
            self.checks_pass = pass;
            self.contrary = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Observation::{AgentDown, AgentUp, CheckFailed, CheckPassed, Reported, Silent, TrafficFailed};
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
                let transition = health.observe(Some(&spec()), seen, now);
                assert_eq!(transition.is_some(), before != health.reachability());
                match health.reachability() {
                    Reachability::Up => 'u',
                    Reachability::OutOfContact => 'o',
                    Reachability::Down => 'd',
                }
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
    fn an_agent_takes_it_down_by_its_word_and_checks_do_not_bring_it_back() {
        let mut health = Health::new(Reachability::Down);
        let down = AgentDown(Failure::AgentSaysDown);
        let story = [CheckPassed, down, CheckPassed, CheckPassed, AgentUp, down, SLOW, SLOW, SLOW, AgentUp];
        assert_eq!(run(&mut health, &story), "udddudddd".to_owned() + "d");
        assert_eq!(run(&mut health, &[CheckPassed, CheckPassed]), "du");
    }

    #[test]
    fn a_silent_instance_is_out_of_contact_until_it_reports_again() {
        let mut health = Health::new(Reachability::Down);
        let story = [CheckPassed, Silent, CheckPassed, Silent, Reported, Silent];
        assert_eq!(run(&mut health, &story), "uooouo");
        let refused = TrafficFailed(Failure::Refused);
        assert_eq!(run(&mut health, &[refused, Reported, CheckPassed, CheckPassed]), "dddu");
    }

    #[test]
    fn not_believing_checks_does_not_mean_not_believing_anything() {
        let mut health = Health::new(Reachability::Down);
        assert!(!health.fails_checks(), "nothing was checked yet");
        run(&mut health, &[SLOW]);
        assert!(health.fails_checks());
        assert_eq!(health.reachability_without_checks(), Reachability::Up);
        run(&mut health, &[Silent]);
        assert_eq!(health.reachability_without_checks(), Reachability::OutOfContact);
        run(&mut health, &[AgentDown(Failure::AgentSilent)]);
        assert_eq!(health.reachability_without_checks(), Reachability::Down);
    }

    #[test]
    fn without_a_check_only_agents_and_reports_matter() {
        let mut health = Health::new(Reachability::Up);
        let now = Instant::now();
        let refused = TrafficFailed(Failure::Refused);
        assert_eq!(health.observe(None, refused, now), None);
        assert_eq!(health.last_failure(), None);
        let down = AgentDown(Failure::AgentSaysDown);
        assert_eq!(health.observe(None, down, now).unwrap().to, Reachability::Down);
        health.trust();
        assert_eq!(health.reachability(), Reachability::Down, "what the agent says still holds");
    }

    #[test]
    fn a_transition_says_what_took_the_instance_down() {
        let mut health = Health::new(Reachability::Up);
        let transition =
            health.observe(Some(&spec()), CheckFailed(Failure::Status(503)), Instant::now()).unwrap();
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
