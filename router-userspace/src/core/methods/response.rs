//! How long an instance took to answer: a moving average of what traffic shows.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An average without a new observation for so long says nothing any more. The instance is then chosen by its sessions again,
/// which brings a new observation; otherwise one slow answer could keep it idle for ever.
pub const FRESH: Duration = Duration::from_secs(30);

/// The weight of a new observation is 1/8, as for the round trip of TCP (RFC 6298).
const SHARE: u64 = 8;

/// The moving average of one instance's response times. Safe to use from several workers: a lost update costs one
/// observation.
#[derive(Debug, Default)]
pub struct ResponseTime {
    /// Microseconds, plus 1; 0 before the first observation.
    average: AtomicU64,
    /// When the last observation was made, in milliseconds after `epoch`.
    observed: AtomicU64,
    epoch: OnceLock<Instant>,
}

impl ResponseTime {
    /// Takes in one response time that was observed at `now`.
    pub fn observe(&self, took: Duration, now: Instant) {
        let micros = took.as_micros().min(1 << 40) as u64;
        let epoch = *self.epoch.get_or_init(|| now);
        let age = now.saturating_duration_since(epoch).as_millis() as u64;
        let stale = age.saturating_sub(self.observed.load(Ordering::Relaxed)) > FRESH.as_millis() as u64;
        let average = match self.average.load(Ordering::Relaxed) {
            0 => micros,
            _ if stale => micros,
            before => (before - 1) - (before - 1) / SHARE + micros / SHARE,
        };
        self.average.store(average + 1, Ordering::Relaxed);
        self.observed.store(age, Ordering::Relaxed);
    }

    /// The average in milliseconds; `None` if nothing was observed within the last [`FRESH`].
    pub fn milliseconds(&self, now: Instant) -> Option<f64> {
        let average = self.average.load(Ordering::Relaxed).checked_sub(1)?;
        let observed = *self.epoch.get()? + Duration::from_millis(self.observed.load(Ordering::Relaxed));
        (now.saturating_duration_since(observed) <= FRESH).then_some(average as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_observation_moves_the_average_by_an_eighth() {
        let (times, now) = (ResponseTime::default(), Instant::now());
        assert_eq!(times.milliseconds(now), None);
        times.observe(Duration::from_millis(80), now);
        assert_eq!(times.milliseconds(now), Some(80.0));
        times.observe(Duration::from_millis(160), now);
        assert_eq!(times.milliseconds(now), Some(90.0));
    }

    #[test]
    fn an_old_average_is_not_known_any_more_and_the_next_observation_starts_anew() {
        let (times, now) = (ResponseTime::default(), Instant::now());
        times.observe(Duration::from_millis(80), now);
        let later = now + FRESH + Duration::from_millis(2);
        assert_eq!(times.milliseconds(later), None);
        times.observe(Duration::from_millis(10), later);
        assert_eq!(times.milliseconds(later), Some(10.0));
    }
}
