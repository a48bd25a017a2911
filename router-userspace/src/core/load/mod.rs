//! How busy an instance is: from what it [reports](Report) to its [`LoadStatus`].
//!
//! The route: a report's values → a time-weighted [`Average`] for each [`Metric`] → compared with [`Thresholds`] that
//! have an enter and a leave value → the worst of them is the status. What methods compare, such as spare CPU, is
//! published beside it in [`Gauges`], which a decision reads without a lock.

mod average;
mod gauges;
mod monitor;
mod report;
mod share;
mod threshold;

use std::time::Duration;

pub use average::Average;
pub use gauges::{Clock, Gauges, NEVER};
pub use monitor::{LoadMonitor, Reading};
pub use report::Report;
pub use threshold::{Levels, Metric, Threshold, Thresholds};

/// How much room an instance has. The better status is the smaller one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoadStatus {
    /// Nothing is known that speaks against it.
    #[default]
    Available,
    /// Busy: others are preferred.
    Strained,
    /// Gets nothing new.
    Exhausted,
}

impl LoadStatus {
    pub const ALL: [LoadStatus; 3] = [Self::Available, Self::Strained, Self::Exhausted];

    pub fn name(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Strained => "strained",
            Self::Exhausted => "exhausted",
        }
    }
}

/// How a pool judges the load of its instances.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPolicy {
    pub thresholds: Thresholds,
    /// Values are averaged over so much time.
    pub window: Duration,
    /// How long a report counts. After that, what it said is not known any more.
    pub report_ttl: Duration,
    /// Whether an instance that is silent for longer than `report_ttl` is out of contact.
    pub must_report: bool,
}

impl Default for LoadPolicy {
    fn default() -> Self {
        Self {
            thresholds: Thresholds::default(),
            window: Duration::from_secs(10),
            report_ttl: Duration::from_secs(10),
            must_report: false,
        }
    }
}
