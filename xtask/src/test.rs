//! `cargo xtask test`: everything that this machine can run. What it leaves out it names, with the reason.

use std::env;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::{setup, workspace};

/// A part of the run, and how it went.
enum Outcome {
    Passed,
    Failed(String),
    Skipped(&'static str),
}

/// A part that takes longer than this hangs: the longest, the stories, takes less than half of it on an idle machine. (Each story has a bound of its own.)
const PART_LIMIT: Duration = Duration::from_secs(60 * 60);

const STORIES: &str = "tests that need root: the stories in the lab, and the kernel's side";
const VERIFIER: &str = "the verifier's cost of the kernel programs";

pub fn run() -> Result<()> {
    let root = workspace::is_root();
    setup::ensure(if root { setup::For::Lab } else { setup::For::Building })?;
    let began = Instant::now();
    let interrupted = workspace::interruption()?;
    let mut outcomes = Vec::new();
    let mut part = |name: &'static str, command: &mut Command| {
        println!("== {name}");
        let ran = workspace::succeed_within(command.stdin(Stdio::null()), PART_LIMIT, &interrupted);
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        outcomes.push((
            name,
            ran.map_or_else(|error| Outcome::Failed(format!("{error:#}")), |()| Outcome::Passed),
        ));
        Ok(())
    };

    part("the rules of the house, formatting and lints", workspace::cargo().args(["xtask", "check"]))?;
    part("tests that need no privileges", &mut cargo_test(&["--workspace"], &[]))?;
    if root {
        // The stories start the daemon, which `cargo test` alone does not build.
        let daemon = ["build", "--package", "router-userspace", "--package", "router-agent", "--bins"];
        part("the daemon and its tools", workspace::cargo().args(daemon))?;
        let privileged = ["--workspace", "--lib", "--bins", "--tests"];
        part(STORIES, &mut cargo_test(&privileged, &["--ignored", "--test-threads=1"]))?;
        part(VERIFIER, workspace::cargo().args(["xtask", "verify"]))?;
    } else {
        let reason = "they need root, for network namespaces and BPF; run this as root";
        outcomes.extend([STORIES, VERIFIER].map(|name| (name, Outcome::Skipped(reason))));
    }
    summarise(&outcomes, began)
}

/// The test runner's own lines go to the terminal as they are.
fn cargo_test(selection: &[&str], runner: &[&str]) -> Command {
    let mut command = workspace::cargo();
    command.arg("test").arg("--no-fail-fast").args(selection).arg("--").args(runner);
    command
}

fn summarise(outcomes: &[(&str, Outcome)], began: Instant) -> Result<()> {
    println!("== summary, after {:.0?}", began.elapsed());
    let mut failed = 0;
    for (name, outcome) in outcomes {
        match outcome {
            Outcome::Passed => println!("passed   {name}"),
            Outcome::Skipped(reason) => println!("skipped  {name}: {reason}"),
            Outcome::Failed(error) => {
                failed += 1;
                println!("FAILED   {name}: {error}");
            }
        }
    }
    let skipped = outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_))).count();
    if failed > 0 {
        bail!("{failed} of {} parts failed", outcomes.len());
    }
    if skipped > 0 && env::var_os("CI").is_some_and(|ci| ci == "true") {
        bail!("{skipped} of {} parts were skipped, and CI=true wants all of them", outcomes.len());
    }
    Ok(())
}
