//! `cargo xtask fuzz`: runs the fuzz targets for a bounded time.

use std::env;
use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::workspace;

const VERSION: &str = "cargo-fuzz@0.13.1";

/// Targets that need nothing of the daemon, without which they are built much faster.
const PACKETS: [&str; 3] = ["packet_path", "icmp_error", "layer4"];

/// Runs one target, or all of them one after the other, for so many seconds each. New findings join `fuzz/corpus`, which is not kept;
/// `fuzz/seeds` is, and gives every run its start.
pub fn run(target: Option<String>, seconds: u64) -> Result<()> {
    install()?;
    let targets = match target {
        Some(target) => vec![target],
        None => list()?,
    };
    for target in targets {
        println!("== fuzzing {target} for {seconds} s");
        let limit = format!("-max_total_time={seconds}");
        let directory = |kind: &str| workspace::root().join("fuzz").join(kind).join(&target);
        let (corpus, seeds) = (directory("corpus"), directory("seeds"));
        fs::create_dir_all(&corpus).with_context(|| format!("cannot create {}", corpus.display()))?;
        let mut command = cargo_fuzz();
        command.arg("run");
        if PACKETS.contains(&target.as_str()) {
            command.arg("--no-default-features");
        }
        command.arg(&target).arg(corpus);
        if seeds.is_dir() {
            command.arg(seeds);
        }
        workspace::succeed(command.args(["--", &limit, "-rss_limit_mb=2048"]))?;
    }
    Ok(())
}

fn list() -> Result<Vec<String>> {
    let output = cargo_fuzz().arg("list").output().context("cannot start cargo-fuzz")?;
    if !output.status.success() {
        bail!("cargo fuzz list failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn install() -> Result<()> {
    if workspace::tools_dir().join("bin/cargo-fuzz").is_file() {
        return Ok(());
    }
    println!("building {VERSION}");
    let mut command = workspace::cargo();
    command.args(["install", VERSION, "--locked", "--root"]).arg(workspace::tools_dir());
    workspace::succeed(command.stdin(Stdio::null()))
}

/// The sanitisers are unstable flags, which a stable compiler accepts when it is told to.
fn cargo_fuzz() -> std::process::Command {
    let mut command = workspace::cargo();
    let path = env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(workspace::tools_dir().join("bin")).chain(env::split_paths(&path));
    command.arg("fuzz");
    command
        .env("PATH", env::join_paths(path).expect("PATH was a list of paths before"))
        .env("RUSTC_BOOTSTRAP", "1");
    command
}
