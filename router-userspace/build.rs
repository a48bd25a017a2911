//! Compiles the kernel programs and leaves the object as `OUT_DIR/router`, for the daemon to embed.

#[path = "build/toolchain.rs"]
mod toolchain;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, process};

use toolchain::{TARGET, Toolchain};

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
    for setting in ["ROUTER_BPF_RUSTC", "ROUTER_BPF_CARGO", "ROUTER_BPF_LINKER"] {
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
    let mut command = compile(&toolchain, root, &bpf_dir, &arch);
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

    let object = bpf_dir.join(TARGET).join("release/router");
    fs::copy(&object, out_dir.join("router"))
        .map_err(|error| format!("cannot copy {}: {error}", object.display()))?;
    Ok(())
}

/// The command that builds the kernel programs into `target_dir`, for hosts of the architecture `arch`.
fn compile(toolchain: &Toolchain, root: &Path, target_dir: &Path, arch: &str) -> Command {
    let mut linker = OsString::from("-Clinker=");
    linker.push(&toolchain.linker);
    let mut flags = OsString::from(format!("--cfg=bpf_target_arch=\"{arch}\""));
    // The instruction set of kernel 5.1 and later; BTF is what the loader and the verifier's log read.
    for flag in
        ["-Ctarget-cpu=v3", "-Cdebuginfo=2", "-Clink-arg=--btf"].map(OsString::from).iter().chain([&linker])
    {
        flags.push("\x1f");
        flags.push(flag);
    }
    let mut command = Command::new(&toolchain.cargo);
    toolchain::clean(&mut command)
        .current_dir(root)
        .args([
            "build",
            "--release",
            "--target",
            TARGET,
            "--package",
            "router-ebpf",
            "--bins",
            "--target-dir",
        ])
        .arg(target_dir)
        .env("RUSTC", &toolchain.rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .stdin(Stdio::null());
    if toolchain.build_core {
        command.arg("-Zbuild-std=core");
    }
    command
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
