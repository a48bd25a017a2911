//! The average of a value over a window of time: each sample counts for the time since the one before it, which is
//! what it was measured over.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Samples that are kept for one window. Samples that come faster are merged, so that no sender can make it grow.
const MAX_SAMPLES: u32 = 64;

/// A time-weighted average.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Average {
    /// Oldest first. The first one only says where the second one begins, unless it is alone.
    samples: VecDeque<(Instant, f64)>,
}

impl Average {
    /// The value has been `value` up to `now`.
    pub fn push(&mut self, value: f64, now: Instant, window: Duration) {
        match self.samples.back_mut() {
            Some((taken, latest)) if now.saturating_duration_since(*taken) < window / MAX_SAMPLES => {
                *latest = value;
            }
            _ => self.samples.push_back((now, value)),
        }
        // What is older than the window matters only as the begin of the next.
        while let Some(&(next, _)) = self.samples.get(1)
            && now.saturating_duration_since(next) >= window
        {
            self.samples.pop_front();
        }
    }

    /// When the latest sample was taken, to a small part of the window.
    pub fn latest(&self) -> Option<Instant> {
        self.samples.back().map(|(taken, _)| *taken)
    }

    /// The average over the last `window`, or since the first sample if that is less; `None` without a sample.
    pub fn mean(&self, now: Instant, window: Duration) -> Option<f64> {
        let &(_, latest) = self.samples.back()?;
        let age = |moment: Instant| now.saturating_duration_since(moment).min(window);
        let (mut mean, mut covered) = (latest, 0.0);
        for (&(begin, _), &(end, value)) in self.samples.iter().zip(self.samples.iter().skip(1)) {
            let held = age(begin).saturating_sub(age(end)).as_secs_f64();
            covered += held;
            if covered > 0.0 {
                // Exact for a value that does not change, so that thresholds mean what they say.
                mean += (value - mean) * (held / covered);
            }
        }
        Some(mean)
    }

    pub fn clear(&mut self) {
        self.samples.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    #[test]
    fn each_sample_counts_for_the_time_since_the_one_before_it() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut average = Average::default();
        assert_eq!(average.mean(start, WINDOW), None);
        average.push(80.0, start, WINDOW);
        assert_eq!(average.mean(start, WINDOW), Some(80.0), "the first sample counts at once");
        average.push(20.0, at(2), WINDOW);
        average.push(50.0, at(6), WINDOW);
        assert_eq!(average.mean(at(6), WINDOW), Some(40.0));
        assert_eq!(average.mean(at(11), WINDOW), Some(44.0), "20 counts for a second");
        assert_eq!(average.mean(at(12), WINDOW), Some(50.0), "and then no more");
    }

    proptest! {
        #[test]
        fn an_average_lies_between_its_samples_and_never_keeps_more_than_it_needs(
            steps in prop::collection::vec((0u64..3_000, 0.0f64..100.0), 1..500),
        ) {
            let mut now = Instant::now();
            let mut average = Average::default();
            let (mut low, mut high) = (f64::MAX, f64::MIN);
            for (pause, value) in steps {
                now += Duration::from_millis(pause);
                average.push(value, now, WINDOW);
                low = low.min(value);
                high = high.max(value);
                let mean = average.mean(now, WINDOW).unwrap();
                prop_assert!((low - 1e-9..=high + 1e-9).contains(&mean), "{low} {mean} {high}");
                prop_assert!(average.samples.len() <= MAX_SAMPLES as usize + 2);
            }
            let last = average.samples.back().unwrap().1;
            let settled = average.mean(now + WINDOW, WINDOW).unwrap();
            prop_assert!((settled - last).abs() < 1e-9, "after a whole window only the latest value counts");
        }
    }
}
