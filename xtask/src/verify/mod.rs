//! `cargo xtask verify`: what each kernel program costs the verifier, and whether that has grown.

mod baseline;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use aya::programs::{Program, ProgramInfo};
use aya::{Ebpf, EbpfLoader};

use crate::topology::PinDirectory;
use crate::{build, workspace};
use baseline::Baseline;

/// What loading one program took.
#[derive(Debug)]
struct Cost {
    program: String,
    /// Instructions that the verifier followed, over all branches.
    verified: u32,
    /// Bytes after the verifier's rewriting.
    translated: u32,
    /// Bytes of machine code.
    jitted: u32,
    load_time: Duration,
}

/// Loads every program and compares with the recorded costs, or records them.
pub fn run(update: bool) -> Result<()> {
    if !workspace::is_root() {
        bail!("loading programs into the kernel needs root: run this as root");
    }
    build::run(false)?;
    let costs = measure()?;
    println!("{:<24} {:>10} {:>12} {:>10} {:>10}", "program", "verified", "translated", "jitted", "load");
    for cost in &costs {
        let milliseconds = cost.load_time.as_secs_f64() * 1e3;
        println!(
            "{:<24} {:>10} {:>10} B {:>8} B {milliseconds:>7.1} ms",
            cost.program, cost.verified, cost.translated, cost.jitted
        );
    }
    let path = workspace::root().join("xtask/src/verify/baseline.toml");
    if update {
        return Baseline::record(&costs).write(&path);
    }
    let regressions = Baseline::read(&path)?.regressions(&costs);
    if !regressions.is_empty() {
        bail!("{}\nIf this is meant to be, record it: cargo xtask verify --update", regressions.join("\n"));
    }
    Ok(())
}

fn measure() -> Result<Vec<Cost>> {
    let object = object()?;
    let bytes = fs::read(&object).with_context(|| format!("cannot read {}", object.display()))?;
    let pins = PinDirectory::new("verify")?;
    let mut ebpf = EbpfLoader::new()
        .default_map_pin_directory(pins.path())
        .load(&bytes)
        .context("cannot create the maps of the kernel programs")?;
    let mut names: Vec<String> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
    names.sort();
    if names.is_empty() {
        bail!("{} has no programs", object.display());
    }
    names.into_iter().map(|name| load(&mut ebpf, name)).collect()
}

fn load(ebpf: &mut Ebpf, name: String) -> Result<Cost> {
    let program = ebpf.program_mut(&name).expect("the name comes from the object");
    let began = Instant::now();
    let info = match program {
        Program::SchedClassifier(program) => program.load().and_then(|()| program.info()),
        Program::Xdp(program) => program.load().and_then(|()| program.info()),
        other => bail!("{name} is a {:?} program, which verify cannot load yet", other.prog_type()),
    };
    let load_time = began.elapsed();
    let info: ProgramInfo = info.with_context(|| format!("the verifier refuses {name}"))?;
    Ok(Cost {
        program: name,
        verified: info.verified_instruction_count().unwrap_or(0),
        translated: info.size_translated().unwrap_or(0),
        jitted: info.size_jitted(),
        load_time,
    })
}

/// The object that the build script has made.
fn object() -> Result<PathBuf> {
    let object = workspace::target_dir().join("bpf/bpfel-unknown-none/release/router");
    if !object.is_file() {
        bail!("{} is missing: cargo xtask build", object.display());
    }
    Ok(object)
}
