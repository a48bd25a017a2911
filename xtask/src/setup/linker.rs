//! `bpf-linker`, built into `target/tools` with the LLVM of Debian's BPF compiler.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::progress::Step;
use crate::{toolchain, workspace};

const VERSION: &str = "bpf-linker@0.13.0";

/// Crates that the linker is made of, counted once; only the progress bar depends on it.
const CRATES: u64 = 85;

pub fn install() -> Result<()> {
    let step = Step::begin(format!("building {VERSION}"));
    let mut child =
        command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start cargo")?;
    let mut log = Vec::new();
    let mut compiled = 0;
    for line in BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines() {
        let line = line.context("reading cargo's output")?;
        if line.trim_start().starts_with("Compiling") {
            compiled += 1;
        }
        step.at(compiled * 100 / CRATES, line.trim());
        log.push(line);
    }
    if !child.wait()?.success() {
        let tail = log.len().saturating_sub(30);
        bail!("`{}` failed:\n{}", shown(), log[tail..].join("\n"));
    }
    step.done();
    Ok(())
}

fn command() -> Command {
    let mut command = workspace::cargo();
    command
        .args([
            "install",
            VERSION,
            "--locked",
            "--force",
            "--no-default-features",
            "--features",
            "llvm-22",
            "--root",
        ])
        .arg(workspace::tools_dir())
        .env("LLVM_PREFIX", llvm_prefix())
        .stdin(Stdio::null());
    command
}

fn llvm_prefix() -> String {
    format!("/usr/lib/llvm-{}", toolchain::LINKER_LLVM)
}

/// The command as one would type it.
pub fn shown() -> String {
    format!("LLVM_PREFIX={} {}", llvm_prefix(), workspace::shown(&command()))
}
