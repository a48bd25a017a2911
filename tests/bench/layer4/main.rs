//! What a Layer-4 packet costs the loaded kernel programs (BPF_PROG_TEST_RUN), at TC and in XDP. `cargo xtask bench --l4` runs this and shows it.
//!
//! 64 bytes of TCP on one CPU; the frame is restored before every round, and what that and an empty program take is subtracted.

mod cases;
mod frames;
mod measure;
mod tables;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use measure::{Bench, Cost, Extent};
use serde_json::{Value, json};
use support::layer4::stay_on_this_cpu;
use support::restoring::Hook;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let (quick, file) = arguments()?;
    let extent = match quick {
        true => Extent { runs: 3, rounds: 200_000, packets: 10_000, flood: 2_000_000 },
        false => Extent { runs: 11, rounds: 2_000_000, packets: 100_000, flood: 100_000_000 },
    };
    stay_on_this_cpu();
    let mut bench = Bench::load(extent)?;
    let mut rows = Vec::new();
    for case in cases::all(extent.flood) {
        let (name, family) = (case.name(), case.family.name());
        let mut row = json!({ "case": name, "family": family, "limit": case.limit, "katran": case.katran });
        for hook in Hook::BOTH.into_iter().filter(|hook| case.runs_at(*hook)) {
            let cost =
                bench.measure(hook, &case).with_context(|| format!("{name}, {family}, {}", hook.name()))?;
            eprintln!("{:>7.1} ns  {name}, {family}, {}", cost.median, hook.name());
            row[hook.name()] = shown(&cost, case.wants_new_packets(hook));
        }
        rows.push(row);
    }
    let all = json!({
        "runs": extent.runs,
        "rounds": extent.rounds,
        "packets": extent.packets,
        "flow_bytes": bench.memory_of_a_flow()?,
        "cases": rows,
    });
    match file {
        Some(file) => fs::write(&file, all.to_string()).with_context(|| file.display().to_string()),
        None => {
            println!("{all:#}");
            Ok(())
        }
    }
}

fn shown(cost: &Cost, new_packets: bool) -> Value {
    let Cost { median, least, greatest, frames } = *cost;
    json!({ "ns": median, "least": least, "greatest": greatest, "frames": frames, "new_packets": new_packets })
}

/// Whether a short look is wanted, and where the figures go.
fn arguments() -> Result<(bool, Option<PathBuf>)> {
    let (mut quick, mut file) = (false, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => quick = true,
            "--json" => file = Some(arguments.next().context("--json wants a file")?.into()),
            // cargo's own.
            "--bench" => {}
            other => bail!("unknown argument {other}: --quick, --json FILE"),
        }
    }
    Ok((quick, file))
}
