//! What the values of a pushed report can be.

use std::net::SocketAddr;
use std::time::Duration;

use router_common::abi::reason::ReportReason;
use router_report::{MAX_RESOURCE_BYTES, MAX_RESOURCES, Report};

use super::Refused;
use crate::core::load;

/// How far ahead an instance's clock may be.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);
/// How old a report may say to be.
const MAX_AGE: Duration = Duration::from_secs(60);
/// A host with less memory is one that reports it in another unit.
const MIN_MEMORY: u64 = 32 * 1024 * 1024;
/// More memory than any host has.
const MAX_MEMORY: u64 = 1 << 52;
const MAX_CAPACITY: f64 = 1e9;
const MAX_SESSIONS: u32 = 100_000_000;
const MAX_RATE: f64 = 1e9;

/// A report whose values can be.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    pub instance: String,
    pub address: Option<SocketAddr>,
    pub pool: Option<String>,
    pub report: load::Report,
    /// Whether the instance says of itself that it serves; `None` if it does not say.
    pub up: Option<bool>,
}

impl Said {
    /// Holds every value against what can be. `now` is the router's clock, since 1970.
    pub fn check(sent: Report, now: Duration) -> Result<Self, Refused> {
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
        if !(1..=64).contains(&sent.instance.len()) || !sent.instance.chars().all(named) {
            return Err(Refused::new(
                ReportReason::Malformed,
                "`instance` is missing or not a name",
                "send the instance's name as in the configuration: 1 to 64 letters, digits, '-', '_', '.' or ':'",
            ));
        }
        check_clock(sent.time, now)?;
        within("cpu_capacity", sent.cpu_capacity, f64::MIN_POSITIVE, MAX_CAPACITY, "100 is usual")?;
        within("cpu_idle_percent", sent.cpu_idle_percent, 0.0, 100.0, "percent")?;
        within("temp_disk_used_percent", sent.temp_disk_used_percent, 0.0, 100.0, "percent")?;
        within("pages_per_second", sent.pages_per_second, 0.0, MAX_RATE, "pages")?;
        within("calls_per_core", sent.calls_per_core, 0.0, MAX_RATE, "requests for each processor")?;
        within("sessions", sent.sessions, 0, MAX_SESSIONS, "sessions")?;
        within("agent_value", sent.agent_value, -1, 100, "-1 means down")?;
        within("memory_total_bytes", sent.memory_total_bytes, MIN_MEMORY, MAX_MEMORY, "bytes")?;
        let total = sent.memory_total_bytes.unwrap_or(MAX_MEMORY);
        within("memory_free_bytes", sent.memory_free_bytes, 0, total, "bytes, at most memory_total_bytes")?;
        within("virtual_memory_free_bytes", sent.virtual_memory_free_bytes, 0, MAX_MEMORY, "bytes")?;
        if let Some(resources) = &sent.loaded_resources {
            let too_long = |resource: &String| !(1..=MAX_RESOURCE_BYTES).contains(&resource.len());
            if resources.len() > MAX_RESOURCES || resources.iter().any(too_long) {
                return Err(Refused::new(
                    ReportReason::OutOfRange,
                    format!(
                        "`loaded_resources` has {} entries, or one that is empty or too long",
                        resources.len()
                    ),
                    format!("send at most {MAX_RESOURCES} names of 1 to {MAX_RESOURCE_BYTES} bytes"),
                ));
            }
        }
        Ok(Said {
            instance: sent.instance,
            address: sent.address,
            pool: sent.pool,
            up: sent.agent_value.map(|value| value >= 0),
            report: load::Report {
                cpu_capacity: sent.cpu_capacity,
                cpu_idle_percent: sent.cpu_idle_percent,
                memory_total: sent.memory_total_bytes,
                memory_free: sent.memory_free_bytes,
                virtual_memory_free: sent.virtual_memory_free_bytes,
                sessions: sent.sessions,
                temp_disk_percent: sent.temp_disk_used_percent,
                paging: sent.pages_per_second,
                calls_per_core: sent.calls_per_core,
                agent_value: sent.agent_value.and_then(|value| u8::try_from(value).ok()),
                resources: sent.loaded_resources,
            },
        })
    }
}

fn check_clock(time: Option<f64>, now: Duration) -> Result<(), Refused> {
    let Some(time) = time else { return Ok(()) };
    let ahead = time - now.as_secs_f64();
    if ahead > CLOCK_TOLERANCE.as_secs_f64() {
        return Err(Refused::new(
            ReportReason::FutureClock,
            format!("`time` is {ahead:.0} s ahead of the router's clock"),
            "set the instance's clock (NTP), send seconds and not milliseconds, or leave `time` out",
        ));
    }
    if ahead < -MAX_AGE.as_secs_f64() {
        return Err(Refused::new(
            ReportReason::TooOld,
            format!("`time` is {:.0} s behind the router's clock", -ahead),
            "set the instance's clock (NTP), send reports at once, or leave `time` out",
        ));
    }
    Ok(())
}

/// NaN is never within.
fn within<T: Copy + PartialOrd + std::fmt::Display>(
    field: &str,
    value: Option<T>,
    low: T,
    high: T,
    unit: &str,
) -> Result<(), Refused> {
    match value {
        Some(value) if !(low..=high).contains(&value) => Err(Refused::new(
            ReportReason::OutOfRange,
            format!("`{field}` cannot be {value}"),
            format!("send a value from {low} to {high} ({unit})"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn reason(fields: &str) -> Option<ReportReason> {
        let text = format!("{{\"instance\":\"wp1\",{fields}}}");
        match serde_json::from_str(&text) {
            Ok(sent) => Said::check(sent, NOW).err().map(|refused| refused.reason),
            Err(_) => Some(ReportReason::Malformed),
        }
    }

    #[test]
    fn a_usual_report_is_taken_as_it_is() {
        let text = r#"{"instance":"wp1","time":1800000001.5,"cpu_capacity":500,"cpu_idle_percent":25,
            "memory_total_bytes":16000000000,"memory_free_bytes":4000000000,"sessions":7,"loaded_resources":["sales"]}"#;
        let said = Said::check(serde_json::from_str(text).unwrap(), NOW).unwrap();
        assert_eq!(said.report.cpu_spare(), Some(12_500.0));
        assert_eq!(said.report.memory_percent(), Some(75.0));
        assert_eq!((said.report.sessions, said.up), (Some(7), None));
    }

    #[test]
    fn absurd_values_wrong_units_and_wrong_clocks_are_refused_by_name() {
        for absurd in [
            "\"cpu_idle_percent\":-1",
            "\"cpu_idle_percent\":100.1",
            "\"cpu_capacity\":0",
            "\"cpu_capacity\":1e300",
            "\"memory_total_bytes\":16384",
            "\"memory_total_bytes\":16777216",
            "\"memory_total_bytes\":18446744073709551615",
            "\"memory_total_bytes\":64000000,\"memory_free_bytes\":64000001",
            "\"agent_value\":101",
            "\"agent_value\":-2",
            "\"sessions\":4000000000",
            "\"pages_per_second\":-0.5",
            "\"loaded_resources\":[\"\"]",
        ] {
            assert_eq!(reason(absurd), Some(ReportReason::OutOfRange), "{absurd}");
        }
        for malformed in [
            "\"cpu_idle\":3",
            "\"cpu_idle_percent\":\"30%\"",
            "\"sessions\":-1",
            "\"sessions\":1.5",
            "\"memory_total_bytes\":\"16 GB\"",
            "\"cpu_idle_percent\":NaN",
            "\"cpu_idle_percent\":1e999",
            "\"instance\":\"wp2\"",
        ] {
            assert_eq!(reason(malformed), Some(ReportReason::Malformed), "{malformed}");
        }
        assert_eq!(reason("\"time\":1800000006"), Some(ReportReason::FutureClock));
        assert_eq!(reason("\"time\":1800000000000"), Some(ReportReason::FutureClock), "milliseconds");
        assert_eq!(reason("\"time\":1799999939"), Some(ReportReason::TooOld));
        assert_eq!(reason("\"time\":1800000004"), None);
    }

    #[test]
    fn an_instance_may_say_of_itself_that_it_is_down() {
        let said = |value| {
            let sent = Report { instance: "a".to_owned(), agent_value: Some(value), ..Report::default() };
            Said::check(sent, NOW).unwrap()
        };
        let down = said(-1);
        assert_eq!((down.up, down.report.agent_value), (Some(false), None));
        let full = said(100);
        assert_eq!((full.up, full.report.agent_value), (Some(true), Some(100)));
    }

    proptest! {
        /// Whatever passes can be computed with.
        #[test]
        fn what_passes_is_finite(
            capacity in prop::option::of(any::<f64>()),
            idle in prop::option::of(any::<f64>()),
            total in prop::option::of(any::<u64>()),
            free in prop::option::of(any::<u64>()),
        ) {
            let sent = Report {
                instance: "a".to_owned(),
                cpu_capacity: capacity,
                cpu_idle_percent: idle,
                memory_total_bytes: total,
                memory_free_bytes: free,
                ..Report::default()
            };
            if let Ok(said) = Said::check(sent, NOW) {
                let report = said.report;
                prop_assert!(report.cpu_spare().is_none_or(|spare| (0.0..=1e11).contains(&spare)));
                prop_assert!(report.cpu_percent().is_none_or(|busy| (0.0..=100.0).contains(&busy)));
                prop_assert!(report.memory_percent().is_none_or(|used| (0.0..=100.0).contains(&used)));
            }
        }
    }
}
