//! The values that methods compare, published for decisions: each is one atomic word beside the moment it was taken.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Report;

/// Moments as microseconds since the first one, so that they fit into a word.
#[derive(Debug, Default)]
pub struct Clock(OnceLock<Instant>);

impl Clock {
    pub fn microseconds(&self, now: Instant) -> i64 {
        let origin = *self.0.get_or_init(|| now);
        let part = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        match now.checked_duration_since(origin) {
            Some(after) => part(after),
            None => -part(origin.duration_since(now)),
        }
    }
}

/// Marks a moment that never was.
pub const NEVER: i64 = i64::MIN;

/// One value and the moment it was taken.
#[derive(Debug)]
struct Gauge {
    bits: AtomicU64,
    taken: AtomicI64,
}

impl Default for Gauge {
    fn default() -> Self {
        Self { bits: AtomicU64::new(0), taken: AtomicI64::new(NEVER) }
    }
}

impl Gauge {
    /// The value goes first: a reader between the two sees it a moment before it counts as fresh.
    fn set(&self, bits: u64, taken: i64) {
        self.bits.store(bits, Ordering::Relaxed);
        self.taken.store(taken, Ordering::Release);
    }

    fn get(&self, now: i64, ttl: Duration) -> Option<u64> {
        let taken = self.taken.load(Ordering::Acquire);
        let age = now.saturating_sub(taken);
        let fresh = taken != NEVER && u128::try_from(age).is_ok_and(|age| age <= ttl.as_micros());
        // A report that came in after the decision had looked at the clock is the freshest of all.
        (fresh || taken != NEVER && age < 0).then(|| self.bits.load(Ordering::Relaxed))
    }
}

/// What methods need of an instance's reports.
#[derive(Debug, Default)]
pub struct Gauges {
    clock: Clock,
    cpu_spare: Gauge,
    memory_free: Gauge,
    agent_value: Gauge,
}

impl Gauges {
    /// Publishes what the report mentions.
    pub fn publish(&self, report: &Report, now: Instant) {
        let taken = self.clock.microseconds(now);
        if let Some(spare) = report.cpu_spare() {
            self.cpu_spare.set(spare.to_bits(), taken);
        }
        if let Some(free) = report.free_memory() {
            self.memory_free.set(free, taken);
        }
        if let Some(value) = report.agent_value {
            self.agent_value.set(value.into(), taken);
        }
    }

    /// Capacity × idle %; `None` if nothing at most `ttl` old says so.
    pub fn cpu_spare(&self, ttl: Duration, now: Instant) -> Option<f64> {
        self.cpu_spare.get(self.clock.microseconds(now), ttl).map(f64::from_bits)
    }

    /// Free virtual memory in bytes; `None` if nothing at most `ttl` old says so.
    pub fn memory_free(&self, ttl: Duration, now: Instant) -> Option<u64> {
        self.memory_free.get(self.clock.microseconds(now), ttl)
    }

    /// The agent's value, 0 (idle) to 100 (full); `None` if nothing at most `ttl` old says so.
    pub fn agent_value(&self, ttl: Duration, now: Instant) -> Option<u8> {
        self.agent_value.get(self.clock.microseconds(now), ttl).map(|bits| bits as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    #[test]
    fn a_value_is_known_until_its_report_is_too_old_and_others_do_not_refresh_it() {
        let gauges = Gauges::default();
        let start = Instant::now();
        assert_eq!(gauges.cpu_spare(TTL, start), None);
        let cpu = Report { cpu_capacity: Some(500.0), cpu_idle_percent: Some(25.0), ..Report::default() };
        gauges.publish(&cpu, start);
        let memory = Report { memory_free: Some(7), virtual_memory_free: Some(9), ..Report::default() };
        gauges.publish(&memory, start + TTL);
        assert_eq!(gauges.cpu_spare(TTL, start + TTL), Some(12_500.0));
        assert_eq!(gauges.cpu_spare(TTL, start + TTL + Duration::from_micros(1)), None);
        assert_eq!(gauges.memory_free(TTL, start + 2 * TTL), Some(9));
        assert_eq!(gauges.agent_value(TTL, start), None);
    }

    #[test]
    fn a_decision_that_began_before_the_report_came_in_uses_it() {
        let gauges = Gauges::default();
        let before = Instant::now();
        let after = before + Duration::from_secs(60);
        gauges.publish(&Report { agent_value: Some(40), ..Report::default() }, after);
        assert_eq!(gauges.agent_value(TTL, before), Some(40));
    }
}
