//! Compiles the kernel programs and leaves the object as `OUT_DIR/router`, for the daemon to embed.

#[path = "build/toolchain.rs"]
mod toolchain;

use std::path::{Path, PathBuf};
use std::{env, fs, process};

fn main() {
    if let Err(message) = build() {
        println!("cargo::error={message}");
        process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let manifest_dir = variable("CARGO_MANIFEST_DIR")?;
    let root = manifest_dir.parent().ok_or("the package lies outside of its workspace")?;
    let out_dir = variable("OUT_DIR")?;
    for setting in toolchain::SETTINGS {
        println!("cargo::rerun-if-env-changed={setting}");
    }
    for input in ["build.rs", "build", "../Cargo.lock"] {
        println!("cargo::rerun-if-changed={input}");
    }
    for package in ["router-ebpf", "router-common"] {
        for input in ["Cargo.toml", "src"] {
            println!("cargo::rerun-if-changed={}", root.join(package).join(input).display());
        }
    }

    let target_dir = target_dir(&out_dir);
    let toolchain = toolchain::find(&target_dir.join("tools/bin")).map_err(|missing| {
        let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
        format!("cannot build the kernel programs: {}. Run `cargo xtask setup`.", missing.join("; "))
    })?;
    println!("cargo::rerun-if-changed={}", toolchain.rustc.display());
    println!("cargo::rerun-if-changed={}", toolchain.linker.display());

    // A target directory of its own: cargo holds a lock on the outer one while this script runs.
    let bpf_dir = target_dir.join("bpf");
    let arch =
        env::var("CARGO_CFG_TARGET_ARCH").map_err(|error| format!("CARGO_CFG_TARGET_ARCH: {error}"))?;
    let mut command = toolchain.build(root, "router-ebpf", &bpf_dir, &arch);
    let output = command
        .output()
        .map_err(|error| format!("cannot start {}: {error}", command.get_program().display()))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        for line in log.lines() {
            println!("cargo::error={line}");
        }
        return Err("the kernel programs do not compile; the compiler's own words are above".to_owned());
    }
    for line in log.lines().filter(|line| line.starts_with("warning: ") && !line.contains("generated")) {
        println!("cargo::warning=router-ebpf: {}", line.trim_start_matches("warning: "));
    }

    let object = bpf_dir.join(toolchain::TARGET).join("release/router");
    fs::copy(&object, out_dir.join("router"))
        .map_err(|error| format!("cannot copy {}: {error}", object.display()))?;
    Ok(())
}

fn variable(name: &str) -> Result<PathBuf, String> {
    env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("cargo did not set {name}"))
}

/// The outer cargo's target directory: it is marked, wherever it lies, and shared by all profiles, so that the
/// kernel programs are compiled once for all of them.
fn target_dir(out_dir: &Path) -> PathBuf {
    let marked = out_dir.ancestors().find(|directory| directory.join("CACHEDIR.TAG").is_file());
    marked.unwrap_or(out_dir).to_owned()
}
