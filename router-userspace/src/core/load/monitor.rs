//! Watches one instance's load: averages of what it reports, and the thresholds that they have passed.

use std::time::Instant;

use super::{Average, LoadPolicy, LoadStatus, Metric, Report, Thresholds};

/// One metric's average and what it says of the status.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub metric: Metric,
    pub average: f64,
    pub status: LoadStatus,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Part {
    average: Average,
    strained: bool,
    exhausted: bool,
}

impl Part {
    fn status(&self) -> LoadStatus {
        match (self.exhausted, self.strained) {
            (true, _) => LoadStatus::Exhausted,
            (false, true) => LoadStatus::Strained,
            (false, false) => LoadStatus::Available,
        }
    }
}

/// The load of one instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadMonitor {
    parts: [Part; Metric::ALL.len()],
    /// When the instance last reported its sessions itself.
    sessions_reported: Option<Instant>,
}

impl LoadMonitor {
    /// Takes in a report at `now`. The status follows from [`LoadMonitor::judge`].
    pub fn report(&mut self, report: &Report, policy: &LoadPolicy, now: Instant) {
        let values = [
            (Metric::Cpu, report.cpu_percent()),
            (Metric::Memory, report.memory_percent()),
            (Metric::Sessions, report.sessions.map(f64::from)),
            (Metric::TempDisk, report.temp_disk_percent),
            (Metric::Paging, report.paging),
            (Metric::CallsPerCore, report.calls_per_core),
        ];
        for (metric, value) in values {
            if let Some(value) = value {
                self.push(metric, value, policy, now);
            }
        }
        if report.sessions.is_some() {
            self.sessions_reported = Some(now);
        }
    }

    /// The status at `now`: the worst of what the averages say. `live` are the router's own sessions there, which
    /// count where the instance does not report its sessions.
    pub fn judge(
        &mut self,
        thresholds: &Thresholds,
        policy: &LoadPolicy,
        live: u32,
        now: Instant,
    ) -> LoadStatus {
        let is_old = |taken: Instant| now.saturating_duration_since(taken) > policy.report_ttl;
        if thresholds.of(Metric::Sessions).any() && self.sessions_reported.is_none_or(is_old) {
            self.push(Metric::Sessions, f64::from(live), policy, now);
        }
        for metric in Metric::ALL {
            let part = &mut self.parts[metric as usize];
            if part.average.latest().is_some_and(is_old) {
                part.average.clear();
            }
            let levels = thresholds.of(metric);
            let mean = part.average.mean(now, policy.window);
            let judge = |threshold: Option<super::Threshold>, passed| {
                mean.zip(threshold).is_some_and(|(value, threshold)| threshold.judge(passed, value))
            };
            part.strained = judge(levels.strained, part.strained);
            part.exhausted = judge(levels.exhausted, part.exhausted);
        }
        self.parts.iter().map(Part::status).max().unwrap_or_default()
    }

    /// What is known at `now`, metric by metric.
    pub fn readings(&self, policy: &LoadPolicy, now: Instant) -> Vec<Reading> {
        let reading = |metric: Metric| {
            let part = &self.parts[metric as usize];
            let average = part.average.mean(now, policy.window)?;
            Some(Reading { metric, average, status: part.status() })
        };
        Metric::ALL.into_iter().filter_map(reading).collect()
    }

    fn push(&mut self, metric: Metric, value: f64, policy: &LoadPolicy, now: Instant) {
        self.parts[metric as usize].average.push(value, now, policy.window);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::core::load::Threshold;

    const SECOND: Duration = Duration::from_secs(1);

    fn cpu(percent: f64) -> Report {
        Report { cpu_idle_percent: Some(100.0 - percent), ..Report::default() }
    }

    fn memory(percent: u64) -> Report {
        Report { memory_total: Some(100), memory_free: Some(100 - percent), ..Report::default() }
    }

    /// Reports every two seconds; the status after each, by its first letter.
    fn story(policy: &LoadPolicy, reports: &[Report]) -> String {
        let mut monitor = LoadMonitor::default();
        let mut now = Instant::now();
        let letters = reports.iter().map(|report| {
            monitor.report(report, policy, now);
            let status = monitor.judge(&policy.thresholds, policy, 0, now);
            now += 2 * SECOND;
            &status.name()[..1]
        });
        letters.collect()
    }

    /// Only the latest report counts.
    fn at_once() -> LoadPolicy {
        LoadPolicy { window: Duration::from_millis(1), ..LoadPolicy::default() }
    }

    #[test]
    fn the_default_thresholds_are_entered_and_left_at_different_values() {
        let processors = [10.0, 49.9, 50.0, 45.0, 44.9, 89.9, 90.0, 85.0, 84.9, 45.0, 44.9].map(cpu);
        assert_eq!(story(&at_once(), &processors), "aassaseessa");
        let memories = [74, 75, 70, 69, 98, 93, 92, 69].map(memory);
        assert_eq!(story(&at_once(), &memories), "assaeesa");
    }

    #[test]
    fn the_worst_part_decides() {
        let both = Report { memory_total: Some(100), memory_free: Some(1), ..cpu(60.0) };
        assert_eq!(story(&at_once(), &[cpu(60.0), both, cpu(10.0)]), "see", "memory is still known");
    }

    #[test]
    fn a_short_peak_is_averaged_away_and_a_lasting_one_is_not() {
        let policy = LoadPolicy::default();
        let calm = [10.0; 5];
        let peak: Vec<Report> = [&calm[..], &[100.0], &calm].concat().into_iter().map(cpu).collect();
        assert_eq!(story(&policy, &peak), "aaaaaaaaaaa");
        let lasting: Vec<Report> = [&calm[..], &[100.0; 7]].concat().into_iter().map(cpu).collect();
        assert_eq!(story(&policy, &lasting), "aaaaaaasseee");
    }

    #[test]
    fn what_is_too_old_is_not_known_any_more() {
        let policy = at_once();
        let mut monitor = LoadMonitor::default();
        let start = Instant::now();
        monitor.report(&cpu(99.0), &policy, start);
        let mut at = |seconds| monitor.judge(&policy.thresholds, &policy, 0, start + seconds * SECOND);
        assert_eq!(
            [at(0), at(10), at(11)],
            [LoadStatus::Exhausted, LoadStatus::Exhausted, LoadStatus::Available]
        );
    }

    #[test]
    fn the_routers_own_sessions_count_until_the_instance_reports_its_own() {
        let mut policy = at_once();
        policy.thresholds.of_mut(Metric::Sessions).strained = Some(Threshold { enter: 10.0, leave: 8.0 });
        let mut monitor = LoadMonitor::default();
        let mut now = Instant::now();
        let mut judge = |monitor: &mut LoadMonitor, live| {
            now += SECOND;
            monitor.judge(&policy.thresholds, &policy, live, now)
        };
        assert_eq!(judge(&mut monitor, 9), LoadStatus::Available);
        assert_eq!(judge(&mut monitor, 10), LoadStatus::Strained);
        assert_eq!(judge(&mut monitor, 8), LoadStatus::Strained);
        let report = Report { sessions: Some(3), ..Report::default() };
        monitor.report(&report, &policy, Instant::now() + 4 * SECOND);
        assert_eq!(judge(&mut monitor, 99), LoadStatus::Available);
    }

    #[test]
    fn a_threshold_that_is_switched_off_is_never_passed() {
        let mut policy = at_once();
        policy.thresholds.of_mut(Metric::Cpu).strained = None;
        assert_eq!(story(&policy, &[cpu(60.0), cpu(95.0), cpu(60.0)]), "aea");
        policy.thresholds = Thresholds::OFF;
        assert_eq!(story(&policy, &[cpu(100.0), memory(100)]), "aa");
    }

    proptest! {
        /// Inside the band between leave and enter the status never changes, whatever it is.
        #[test]
        fn a_status_never_flaps_inside_its_band(
            enter in 20.0f64..100.0,
            width in 0.1f64..20.0,
            before in 0.0f64..100.0,
            inside in prop::collection::vec((0.0f64..1.0, 1u64..5_000), 1..50),
        ) {
            let mut policy = LoadPolicy::default();
            let threshold = Threshold { enter, leave: enter - width };
            policy.thresholds = Thresholds::OFF;
            policy.thresholds.of_mut(Metric::Cpu).strained = Some(threshold);
            let mut monitor = LoadMonitor::default();
            let mut now = Instant::now();
            monitor.report(&cpu(before), &policy, now);
            let settled = monitor.judge(&policy.thresholds, &policy, 0, now);
            for (share, pause) in inside {
                now += Duration::from_millis(pause);
                monitor.report(&cpu(threshold.leave + share * width * 0.999 + 1e-6), &policy, now);
                prop_assert_eq!(monitor.judge(&policy.thresholds, &policy, 0, now), settled);
            }
        }

        /// A status changes to the worse only at an enter value and to the better only below a leave value.
        #[test]
        fn every_change_has_its_threshold(values in prop::collection::vec(0.0f64..100.0, 1..200)) {
            let policy = at_once();
            let mut monitor = LoadMonitor::default();
            let mut now = Instant::now();
            let mut before = LoadStatus::Available;
            for value in values {
                now += SECOND;
                monitor.report(&cpu(value), &policy, now);
                let status = monitor.judge(&policy.thresholds, &policy, 0, now);
                let levels = policy.thresholds.of(Metric::Cpu);
                let of = |status| match status {
                    LoadStatus::Exhausted => levels.exhausted.unwrap(),
                    _ => levels.strained.unwrap(),
                };
                if status > before {
                    prop_assert!(value >= of(status).enter);
                } else if status < before {
                    prop_assert!(value < of(before).leave);
                }
                before = status;
            }
        }
    }
}
