//! The tables about load and reports: `thresholds`, `agent`, `reports` of a pool, and `[reports]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use super::reader::{Placed, Section, describe};
use super::report::Span;
use super::values::{self, Found, Wrong};
use crate::core::load::{Metric, Threshold};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// The greatest number that a threshold without a unit of its own may have.
const MAX_COUNT: f64 = 1_000_000_000.0;
/// Bytes that an agent may be sent.
const MAX_SEND: usize = 256;

/// `[reports]`
pub(super) struct Reports {
    pub listen: Option<Placed<SocketAddr>>,
}

/// `reports` of a pool.
pub(super) struct PoolReports {
    pub span: Span,
    pub token_file: Option<Placed<PathBuf>>,
    pub ttl: Placed<Duration>,
    pub required: Placed<bool>,
    pub allow_registration: Placed<bool>,
    pub forget_after: Placed<Duration>,
    pub max_registered: Placed<u16>,
}

/// `agent` of a pool.
pub(super) struct Agent {
    pub port: Option<Placed<u16>>,
    pub interval: Placed<Duration>,
    pub timeout: Placed<Duration>,
    pub require_response: Placed<bool>,
    pub send: Placed<String>,
}

/// A threshold, or `None` where it is switched off.
pub(super) type Passing = Option<Threshold>;

/// The two thresholds of a metric, as far as the table has them.
pub(super) struct Pair {
    pub metric: Metric,
    pub strained: Option<Placed<Passing>>,
    pub exhausted: Option<Placed<Passing>>,
}

pub(super) fn reports(section: Section<'_, '_>) -> Reports {
    let reports = Reports { listen: section.required("listen", values::socket_address) };
    section.finish();
    reports
}

pub(super) fn pool_reports(section: Section<'_, '_>) -> PoolReports {
    let reports = PoolReports {
        span: section.span.clone(),
        token_file: section.required("token_file", values::path),
        ttl: section.defaulted("ttl", values::duration(SECOND..=DAY)),
        required: section.defaulted("required", values::boolean),
        allow_registration: section.defaulted("allow_registration", values::boolean),
        forget_after: section.defaulted("forget_after", values::duration(SECOND..=30 * DAY)),
        max_registered: section.defaulted("max_registered", values::integer(1..=10_000)),
    };
    section.finish();
    reports
}

pub(super) fn agent(section: Section<'_, '_>) -> Agent {
    section.defaulted("type", values::choice(&[("check", ())]));
    let agent = Agent {
        port: section.required("port", values::integer(1..=65_535)),
        interval: section.defaulted("interval", values::duration(100 * MILLISECOND..=DAY)),
        timeout: section.defaulted("timeout", values::duration(10 * MILLISECOND..=DAY)),
        require_response: section.defaulted("require_response", values::boolean),
        send: section.defaulted("send", send),
    };
    section.finish();
    agent
}

/// Keys of the thresholds of each metric: strained, exhausted.
const KEYS: [(Metric, &str, &str); 6] = [
    (Metric::Cpu, "strained_cpu", "exhausted_cpu"),
    (Metric::Memory, "strained_memory", "exhausted_memory"),
    (Metric::Sessions, "strained_sessions", "exhausted_sessions"),
    (Metric::TempDisk, "strained_temp_disk", "exhausted_temp_disk"),
    (Metric::Paging, "strained_paging", "exhausted_paging"),
    (Metric::CallsPerCore, "strained_calls_per_core", "exhausted_calls_per_core"),
];

/// A pool's thresholds, defaults included.
pub(super) fn thresholds(section: Section<'_, '_>) -> (Vec<Pair>, Placed<Duration>) {
    let pair = |(metric, strained, exhausted)| Pair {
        metric,
        strained: Some(section.defaulted(strained, threshold(metric))),
        exhausted: Some(section.defaulted(exhausted, threshold(metric))),
    };
    let pairs = KEYS.map(pair).into();
    let window = section.defaulted("window", values::duration(MILLISECOND..=3_600 * SECOND));
    section.finish();
    (pairs, window)
}

/// What an instance says otherwise than its pool.
pub(super) fn own_thresholds(section: Section<'_, '_>) -> Vec<Pair> {
    let pair = |(metric, strained, exhausted)| Pair {
        metric,
        strained: section.optional(strained, threshold(metric)),
        exhausted: section.optional(exhausted, threshold(metric)),
    };
    let pairs = KEYS.map(pair).into();
    section.finish();
    pairs
}

/// A number, from which the value to leave follows; or both values; or -1.
fn threshold(metric: Metric) -> impl Fn(Found<'_>) -> Result<Passing, Wrong> {
    let max = if metric.is_percent() { 100.0 } else { MAX_COUNT };
    move |found| {
        let wrong = |found: Found<'_>| {
            Wrong::new(format!("must be a number from 0 to {max}, or -1, not {}", describe(found)))
                .help("write where it begins, or [begin, end], or -1 to switch it off")
        };
        let number = |found: Found<'_>| {
            number(found).filter(|number| (0.0..=max).contains(number)).ok_or_else(|| wrong(found))
        };
        if let DeValue::Array(both) = found {
            let [enter, leave] = &both[..] else {
                return Err(Wrong::new("must be one number or two")
                    .help("write where it begins and where it ends, such as [50, 45]"));
            };
            let (enter, leave) = (number(enter.get_ref())?, number(leave.get_ref())?);
            if leave > enter {
                return Err(Wrong::new(format!("ends above its begin: {leave} is greater than {enter}"))
                    .help(format!("write [{leave}, {enter}]")));
            }
            return Ok(Some(Threshold { enter, leave }));
        }
        if self::number(found) == Some(-1.0) {
            return Ok(None);
        }
        let enter = number(found)?;
        // Far enough below that the usual noise does not cross both.
        let leave = if metric.is_percent() { enter - 5.0 } else { 0.9 * enter };
        Ok(Some(Threshold { enter, leave: leave.max(0.0) }))
    }
}

fn number(found: Found<'_>) -> Option<f64> {
    match found {
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number as f64)
        }
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => None,
    }
}

/// What an agent is sent once it is connected to.
fn send(found: Found<'_>) -> Result<String, Wrong> {
    let text = values::string(found)?;
    if text.len() > MAX_SEND {
        return Err(Wrong::new(format!("is {} bytes long, more than {MAX_SEND}", text.len())));
    }
    Ok(text)
}
