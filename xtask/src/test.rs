//! `cargo xtask test`: everything that this machine can run. What it leaves out it names, with the reason.

use std::env;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::{check, setup, verify, workspace};

/// A part of the run, and how it went.
enum Outcome {
    Passed,
    Failed(String),
    Skipped(&'static str),
}

pub fn run() -> Result<()> {
    let root = workspace::is_root();
    setup::ensure(if root { setup::For::Lab } else { setup::For::Building })?;
    let began = Instant::now();
    let mut outcomes = Vec::new();
    let mut part = |name: &'static str, action: &dyn Fn() -> Result<()>| {
        println!("== {name}");
        let outcome = match action() {
            Ok(()) => Outcome::Passed,
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        outcomes.push((name, outcome));
    };

    part("the rules of the house, formatting and lints", &check::run);
    part("tests that need no privileges", &|| cargo_test(&["--workspace"], &[]));
    if root {
        // The stories start the daemon, which `cargo test` alone does not build.
        part("the daemon and its tools", &|| {
            workspace::succeed(workspace::cargo().args(["build", "--package", "router-userspace", "--bins"]))
        });
        part("tests that need root: the stories in the lab, and the kernel's side", &|| {
            cargo_test(&["--workspace", "--lib", "--bins", "--tests"], &["--ignored", "--test-threads=1"])
        });
        part("the verifier's cost of the kernel programs", &|| verify::run(false));
    } else {
        let reason = "they need root, for network namespaces and BPF; run this as root";
        outcomes.push((
            "tests that need root: the stories in the lab, and the kernel's side",
            Outcome::Skipped(reason),
        ));
        outcomes.push(("the verifier's cost of the kernel programs", Outcome::Skipped(reason)));
    }
    summarise(&outcomes, began)
}

/// The test runner's own lines go to the terminal as they are.
fn cargo_test(selection: &[&str], runner: &[&str]) -> Result<()> {
    let mut command = workspace::cargo();
    command.arg("test").arg("--no-fail-fast").args(selection).arg("--").args(runner);
    workspace::succeed(command.stdin(Stdio::null()))
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
