//! What changes an instance's share at run time: its agent's orders, and the slow start after it came back.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::agent::{AgentReport, AgentWeight};
use super::load::{Clock, NEVER};
use super::status::AdminState;

/// No order.
const NONE: u32 = u32::MAX;
/// Marks a weight that is a percentage.
const PERCENT: u32 = 1 << 16;

/// Orders of one instance's agent and the begin of its slow start. Read without a lock.
#[derive(Debug)]
pub struct Adjustment {
    admin: AtomicU8,
    weight: AtomicU32,
    max_sessions: AtomicU32,
    clock: Clock,
    began: AtomicI64,
}

impl Default for Adjustment {
    fn default() -> Self {
        Self {
            admin: AtomicU8::new(AdminState::Enabled as u8),
            weight: AtomicU32::new(NONE),
            max_sessions: AtomicU32::new(NONE),
            clock: Clock::default(),
            began: AtomicI64::new(NEVER),
        }
    }
}

impl Adjustment {
    /// The admin state that the agent asks for.
    #[inline]
    pub fn admin(&self) -> AdminState {
        AdminState::ALL[usize::from(self.admin.load(Ordering::Relaxed))]
    }

    /// The weight that the agent asks for.
    #[inline]
    pub fn agent_weight(&self) -> Option<AgentWeight> {
        match self.weight.load(Ordering::Relaxed) {
            NONE => None,
            word if word & PERCENT != 0 => Some(AgentWeight::Percent(word as u16)),
            word => Some(AgentWeight::Absolute(word as u16)),
        }
    }

    /// The limit of sessions that the agent asks for.
    #[inline]
    pub fn max_sessions(&self) -> Option<u32> {
        Some(self.max_sessions.load(Ordering::Relaxed)).filter(|&limit| limit != NONE)
    }

    /// The weight that counts at `now`. During a slow start it grows evenly from the smallest to the whole.
    #[inline]
    pub fn weight(&self, configured: u32, slow_start: Duration, now: Instant) -> u32 {
        let weight = self.agent_weight().map_or(configured, |order| order.of(configured));
        if weight == 0 || slow_start.is_zero() { weight } else { self.ramped(weight, slow_start, now) }
    }

    fn ramped(&self, weight: u32, slow_start: Duration, now: Instant) -> u32 {
        let began = self.began.load(Ordering::Acquire);
        if began == NEVER {
            return weight;
        }
        let passed = self.clock.microseconds(now).saturating_sub(began).max(0).cast_unsigned();
        let whole = slow_start.as_micros().max(1);
        let share = u128::from(weight) * u128::from(passed) / whole;
        u32::try_from(share).unwrap_or(weight).clamp(1, weight)
    }

    pub(super) fn begin_slow_start(&self, now: Instant) {
        self.began.store(self.clock.microseconds(now), Ordering::Release);
    }

    pub(super) fn apply(&self, said: &AgentReport) {
        if let Some(admin) = said.admin {
            self.admin.store(admin as u8, Ordering::Relaxed);
        }
        if let Some(weight) = said.weight {
            let word = match weight {
                AgentWeight::Percent(percent) => PERCENT | u32::from(percent),
                AgentWeight::Absolute(weight) => u32::from(weight),
            };
            self.weight.store(word, Ordering::Relaxed);
        }
        if let Some(limit) = said.max_sessions {
            let limit = if limit == 0 { NONE } else { limit };
            self.max_sessions.store(limit, Ordering::Relaxed);
        }
    }

    /// Takes back every order.
    pub(super) fn reset(&self) {
        self.admin.store(AdminState::Enabled as u8, Ordering::Relaxed);
        self.weight.store(NONE, Ordering::Relaxed);
        self.max_sessions.store(NONE, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_slow_start_ramps_evenly_from_little_to_the_whole_weight() {
        let adjustment = Adjustment::default();
        let start = Instant::now();
        let weight = |seconds| adjustment.weight(100, MINUTE, start + Duration::from_secs(seconds));
        assert_eq!(weight(0), 100, "nothing came back");
        adjustment.begin_slow_start(start);
        assert_eq!([0, 15, 30, 45, 60, 900].map(weight), [1, 25, 50, 75, 100, 100]);
        assert_eq!(adjustment.weight(100, Duration::ZERO, start), 100, "without a slow start");
        assert_eq!(adjustment.weight(0, MINUTE, start), 0, "0 stays 0");
    }

    #[test]
    fn an_agents_orders_hold_until_it_takes_them_back() {
        let adjustment = Adjustment::default();
        let now = Instant::now();
        let weight = || adjustment.weight(200, Duration::ZERO, now);
        adjustment.apply(&AgentReport::parse(b"50% maxconn:9 drain"));
        assert_eq!(
            (weight(), adjustment.max_sessions(), adjustment.admin()),
            (100, Some(9), AdminState::Drain)
        );
        adjustment.apply(&AgentReport::parse(b"weight:30"));
        assert_eq!(
            (weight(), adjustment.max_sessions(), adjustment.admin()),
            (30, Some(9), AdminState::Drain)
        );
        adjustment.apply(&AgentReport::parse(b"100% maxconn:0 ready"));
        assert_eq!(
            (weight(), adjustment.max_sessions(), adjustment.admin()),
            (200, None, AdminState::Enabled)
        );
        adjustment.apply(&AgentReport::parse(b"0% maint"));
        adjustment.reset();
        assert_eq!((weight(), adjustment.admin()), (200, AdminState::Enabled));
    }

    proptest! {
        #[test]
        fn a_ramp_never_falls_and_never_exceeds_the_weight(
            weight in 1u32..=1_000,
            slow_start in 1u64..10_000_000,
            moments in prop::collection::vec(0u64..20_000_000, 2..20),
        ) {
            let adjustment = Adjustment::default();
            let start = Instant::now();
            adjustment.begin_slow_start(start);
            let mut moments = moments;
            moments.sort_unstable();
            let mut before = 1;
            for moment in moments {
                let now = start + Duration::from_micros(moment);
                let ramped = adjustment.weight(weight, Duration::from_micros(slow_start), now);
                prop_assert!((before..=weight).contains(&ramped));
                prop_assert!(moment < slow_start || ramped == weight);
                before = ramped;
            }
        }
    }
}
