//! What the router is to reach.

use serde::Serialize;

use super::contender::Contender;
use super::figures;
use super::workload::{Measurement, Workload};

#[derive(Clone, Copy, Debug)]
struct Target {
    workload: Workload,
    contender: Contender,
    /// At least so many times as fast as `other`.
    times: f64,
    other: Contender,
}

const TARGETS: [Target; 14] = [
    Target {
        workload: Workload::Downloads,
        contender: Contender::RouterHandoff,
        times: 0.9,
        other: Contender::Routing,
    },
    Target {
        workload: Workload::Downloads,
        contender: Contender::RouterHandoff,
        times: 5.0,
        other: Contender::HaproxyHttp,
    },
    Target {
        workload: Workload::KeepAlive,
        contender: Contender::RouterAuto,
        times: 0.93,
        other: Contender::Routing,
    },
    Target {
        workload: Workload::Connections,
        contender: Contender::RouterAuto,
        times: 1.0,
        other: Contender::HaproxyHttp,
    },
    Target {
        workload: Workload::Connections,
        contender: Contender::RouterBind,
        times: 0.93,
        other: Contender::Routing,
    },
    Target {
        workload: Workload::Connections,
        contender: Contender::RouterBind,
        times: 1.0,
        other: Contender::Nftables,
    },
    Target {
        workload: Workload::Connections,
        contender: Contender::RouterBind,
        times: 1.1,
        other: Contender::Nginx,
    },
    Target {
        workload: Workload::Connections,
        contender: Contender::RouterBind,
        times: 1.5,
        other: Contender::HaproxyHttp,
    },
    Target {
        workload: Workload::KeepAlive,
        contender: Contender::RouterBind,
        times: 0.95,
        other: Contender::Routing,
    },
    Target {
        workload: Workload::ManyConnections,
        contender: Contender::RouterBind,
        times: 0.93,
        other: Contender::Routing,
    },
    Target {
        workload: Workload::ManyConnections,
        contender: Contender::RouterBind,
        times: 1.0,
        other: Contender::Nftables,
    },
    Target {
        workload: Workload::ManyConnections,
        contender: Contender::RouterBind,
        times: 1.1,
        other: Contender::Nginx,
    },
    Target {
        workload: Workload::ManyConnections,
        contender: Contender::RouterBind,
        times: 1.5,
        other: Contender::HaproxyHttp,
    },
    Target {
        workload: Workload::SingleConnections,
        contender: Contender::RouterBind,
        times: 1.0,
        other: Contender::Nginx,
    },
];

/// A target, and what was reached.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub target: String,
    /// `None` if it could not be measured.
    pub reached: Option<f64>,
    pub passed: bool,
}

impl Verdict {
    pub fn word(&self) -> &'static str {
        match (self.reached, self.passed) {
            (None, _) => "not measured",
            (_, true) => "pass",
            (_, false) => "short",
        }
    }

    /// The ratio, for people.
    pub fn shown(&self) -> String {
        self.reached.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
    }
}

pub fn verdicts(measurements: &[Measurement]) -> Vec<Verdict> {
    let verdict = |target: &Target| {
        let Target { workload, contender, times, other } = *target;
        let reached = figures::ratio(measurements, workload, contender, other, Measurement::rate);
        let (name, who, whom) = (workload.name(), contender.name(), other.name());
        Verdict {
            target: format!("{name}: {who} at least {times} × {whom}"),
            reached,
            passed: reached.is_some_and(|reached| reached >= times),
        }
    };
    TARGETS.iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::measurement;
    use super::*;

    #[test]
    fn a_target_passes_falls_short_or_was_not_measured() {
        let words = |auto| {
            let measurements =
                [measurement(0, Contender::Routing, 1000), measurement(0, Contender::RouterAuto, auto)];
            verdicts(&measurements).iter().map(Verdict::word).collect::<Vec<_>>()
        };
        let mut expected = ["not measured"; TARGETS.len()];
        expected[2] = "pass";
        assert_eq!(words(930), expected);
        assert_eq!(words(929)[2], "short");
    }
}
