//! What the kernel programs spend on a packet, by the kernel's own clocks (`BPF_ENABLE_STATS`).

use anyhow::{Context, Result, ensure};
use aya::programs::{ProgramInfo, loaded_programs};
use aya::sys::{Stats, enable_stats};
use serde::Serialize;

use super::sender::Sent;

/// Both have their part in a packet of a flood.
const PROGRAMS: [&str; 2] = ["router_ingress", "router_binding"];

/// For one packet, ns: of all programs, and of the last one alone, which answers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    pub all: f64,
    pub answering: f64,
}

/// Of the packets that `flood` sends. The kernel measures only meanwhile, since its clock costs something too.
pub fn of(flood: impl FnOnce() -> Result<Sent>) -> Result<Cost> {
    let _measuring = enable_stats(Stats::RunTime).context("the kernel measures its programs")?;
    let before = PROGRAMS.map(spent);
    let sent = flood()?;
    let mut costs = Vec::new();
    for (before, program) in before.into_iter().zip(PROGRAMS) {
        let ((time, runs), (time_before, runs_before)) = (spent(program)?, before?);
        let runs = runs - runs_before;
        ensure!(runs >= u64::from(sent.packets), "{program} has met {runs} of {} packets", sent.packets);
        costs.push((time - time_before) as f64 / runs as f64);
    }
    Ok(Cost { all: costs.iter().sum(), answering: costs[1] })
}

/// Time in ns and runs of all loaded programs with this name: each interface's.
fn spent(name: &str) -> Result<(u64, u64)> {
    let mut spent = (0, 0);
    for program in loaded_programs() {
        let program: ProgramInfo = program.context("the kernel's programs can be listed")?;
        if program
            .name_as_str()
            .is_some_and(|found| name.starts_with(found) && found.len() >= name.len().min(15))
        {
            spent.0 += program.run_time().as_nanos() as u64;
            spent.1 += program.run_count();
        }
    }
    Ok(spent)
}
