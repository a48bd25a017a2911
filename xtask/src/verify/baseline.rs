//! The recorded costs. They differ a little between kernels, so only growth beyond a tolerance counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Cost;

/// Growth that is no regression, in per cent.
const TOLERANCE: u64 = 10;

/// A program that loads faster than this is never too slow: times of few milliseconds are noise.
const FAST_MS: u64 = 200;

#[derive(Debug, Serialize, Deserialize)]
pub struct Baseline {
    /// The kernel on which the costs were recorded.
    kernel: String,
    programs: BTreeMap<String, Recorded>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    verified_instructions: u32,
    translated_bytes: u32,
    load_ms: u64,
}

impl Baseline {
    pub fn record(costs: &[Cost]) -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let recorded = |cost: &Cost| Recorded {
            verified_instructions: cost.verified,
            translated_bytes: cost.translated,
            load_ms: cost.load_time.as_millis() as u64,
        };
        let programs = costs.iter().map(|cost| (cost.program.clone(), recorded(cost))).collect();
        Self { kernel: kernel.trim().to_owned(), programs }
    }

    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| {
            format!("cannot read {}; record it: cargo xtask verify --update", path.display())
        })?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let text = format!("# Written by `cargo xtask verify --update`.\n\n{}", toml::to_string(self)?);
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// One sentence for every program that has become dearer, has appeared or has gone.
    pub fn regressions(&self, costs: &[Cost]) -> Vec<String> {
        let mut found = Vec::new();
        for cost in costs {
            let name = &cost.program;
            let Some(recorded) = self.programs.get(name) else {
                found.push(format!("{name} is not in the record"));
                continue;
            };
            let load_ms = cost.load_time.as_millis() as u64;
            let figures = [
                (
                    "verified instructions",
                    u64::from(recorded.verified_instructions),
                    u64::from(cost.verified),
                    TOLERANCE,
                ),
                (
                    "translated bytes",
                    u64::from(recorded.translated_bytes),
                    u64::from(cost.translated),
                    TOLERANCE,
                ),
                // Other work on the machine slows loading down: only a multiple counts.
                ("ms to load", recorded.load_ms.max(FAST_MS), load_ms, 200),
            ];
            for (what, before, now, tolerance) in figures {
                if now * 100 > before * (100 + tolerance) {
                    found.push(format!("{name}: {now} {what}, recorded {before} on kernel {}", self.kernel));
                }
            }
        }
        let gone = self.programs.keys().filter(|name| costs.iter().all(|cost| cost.program != **name));
        found.extend(gone.map(|name| format!("{name} is in the record and not in the object")));
        found
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cost(verified: u32, load_ms: u64) -> Cost {
        let load_time = Duration::from_millis(load_ms);
        Cost { program: "ingress".into(), verified, translated: 1000, jitted: 900, load_time }
    }

    #[test]
    fn growth_beyond_the_tolerance_is_a_regression() {
        let baseline = Baseline::record(&[cost(1000, 50)]);
        assert_eq!(baseline.regressions(&[cost(1100, 500)]), Vec::<String>::new());
        assert_eq!(baseline.regressions(&[cost(1101, 50)]).len(), 1);
        assert_eq!(baseline.regressions(&[cost(10, 601)]).len(), 1);
    }

    #[test]
    fn programs_that_come_and_go_must_be_recorded() {
        let baseline = Baseline::record(&[cost(1000, 50)]);
        let other = Cost { program: "egress".into(), ..cost(5, 5) };
        assert_eq!(baseline.regressions(&[other]).len(), 2);
    }
}
