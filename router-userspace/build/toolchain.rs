//! Finds the compiler and the linker that turn `router-ebpf` into a BPF object.
//!
//! Used by the build script, which builds with them, and by `cargo xtask setup`, which installs what is missing.
//! A stable Rust toolchain from rustup has no `core` for BPF, so one of these is needed, in this order:
//!
//! 1. an explicit setting: `ROUTER_BPF_RUSTC` (and `ROUTER_BPF_CARGO`, by default the `cargo` beside it);
//! 2. rustup's nightly with its `rust-src` component;
//! 3. Debian's `rustc-web`, `cargo-web` and `libstd-rust-web-dev-bpf`.
//!
//! The linker is `bpf-linker` from `ROUTER_BPF_LINKER`, `target/tools/bin`, or `PATH`. It reads the compiler's LLVM
//! bitcode, so its LLVM must be at least as new: a nightly that is too new for ours is passed over.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The only target that the programs are built for: both the hosts and the kernels are little-endian.
pub const TARGET: &str = "bpfel-unknown-none";

/// The LLVM release that setup's `bpf-linker` in `target/tools` is built with.
pub const LINKER_LLVM: u32 = 22;

/// A compiler that can make BPF code, and the linker for it.
#[derive(Clone, Debug)]
pub struct Toolchain {
    pub rustc: PathBuf,
    pub cargo: PathBuf,
    pub linker: PathBuf,
    /// `core` must be compiled from source, because none comes with the compiler.
    pub build_core: bool,
}

/// The part of a toolchain that was not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No compiler has `core` for BPF, neither compiled nor as source.
    Compiler,
    /// A compiler was named by a setting, but it does not run.
    Setting(&'static str, PathBuf),
    /// No working `bpf-linker`.
    Linker,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Compiler => f.write_str(
                "no Rust compiler for BPF, neither rustup's nightly with rust-src nor Debian's rustc-web, \
                 cargo-web and libstd-rust-web-dev-bpf, with an LLVM that bpf-linker can read",
            ),
            Missing::Setting(name, path) => {
                write!(f, "{name} names {}, which does not run: correct or unset it", path.display())
            }
            Missing::Linker => {
                f.write_str("no bpf-linker that runs, neither in target/tools/bin nor in PATH")
            }
        }
    }
}

/// Finds a toolchain, or says everything that is missing. `tools` is `target/tools/bin`.
pub fn find(tools: &Path) -> Result<Toolchain, Vec<Missing>> {
    let linker = find_linker(tools);
    let ours = linker.as_ref().map_or(true, |linker| linker.starts_with(tools));
    let compiler = find_compiler(if ours { LINKER_LLVM } else { u32::MAX });
    match (compiler, linker) {
        (Ok((rustc, cargo, build_core)), Ok(linker)) => Ok(Toolchain { rustc, cargo, linker, build_core }),
        (compiler, linker) => Err([compiler.err(), linker.err()].into_iter().flatten().collect()),
    }
}

/// The compiler, its cargo, and whether `core` must be built. A setting's compiler is taken at its word.
fn find_compiler(newest_llvm: u32) -> Result<(PathBuf, PathBuf, bool), Missing> {
    if let Some(rustc) = env::var_os("ROUTER_BPF_RUSTC").map(PathBuf::from) {
        let cargo = match env::var_os("ROUTER_BPF_CARGO") {
            Some(cargo) => PathBuf::from(cargo),
            None => rustc.with_file_name("cargo"),
        };
        if !runs(&rustc) {
            return Err(Missing::Setting("ROUTER_BPF_RUSTC", rustc));
        }
        if !runs(&cargo) {
            return Err(Missing::Setting("ROUTER_BPF_CARGO", cargo));
        }
        let build_core = !has_core(&rustc);
        return Ok((rustc, cargo, build_core));
    }
    if let Some(rustc) = nightly_rustc()
        && let Some(sysroot) = output(&rustc, &["--print", "sysroot"])
        && Path::new(&sysroot).join("lib/rustlib/src/rust/library/core").is_dir()
        && llvm(&rustc).is_some_and(|llvm| llvm <= newest_llvm)
    {
        let cargo = rustc.with_file_name("cargo");
        return Ok((rustc, cargo, true));
    }
    let (rustc, cargo) = (PathBuf::from("/usr/bin/rustc"), PathBuf::from("/usr/bin/cargo"));
    if has_core(&rustc) && runs(&cargo) && llvm(&rustc).is_some_and(|llvm| llvm <= newest_llvm) {
        return Ok((rustc, cargo, false));
    }
    Err(Missing::Compiler)
}

fn nightly_rustc() -> Option<PathBuf> {
    let mut rustup = Command::new("rustup");
    // Without this, asking for a toolchain may install it.
    rustup.args(["which", "--toolchain", "nightly", "rustc"]).env("RUSTUP_AUTO_INSTALL", "0");
    output_of(&mut rustup).map(PathBuf::from)
}

/// The major release of the compiler's LLVM.
fn llvm(rustc: &Path) -> Option<u32> {
    let versions = output(rustc, &["-vV"])?;
    let version = versions.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()?.parse().ok()
}

/// Whether a compiled `core` for BPF lies where this compiler looks for it.
fn has_core(rustc: &Path) -> bool {
    let Some(directory) = output(rustc, &["--print", "target-libdir", "--target", TARGET]) else {
        return false;
    };
    let Ok(entries) = Path::new(&directory).read_dir() else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libcore-") && name.ends_with(".rlib")
    })
}

fn find_linker(tools: &Path) -> Result<PathBuf, Missing> {
    if let Some(linker) = env::var_os("ROUTER_BPF_LINKER").map(PathBuf::from) {
        return if runs(&linker) { Ok(linker) } else { Err(Missing::Setting("ROUTER_BPF_LINKER", linker)) };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    std::iter::once(tools.to_owned())
        .chain(env::split_paths(&path))
        .map(|directory| directory.join("bpf-linker"))
        .find(|linker| linker.is_file() && runs(linker))
        .ok_or(Missing::Linker)
}

/// A tool can be there and still not run, when the libraries that it was built with have been removed.
fn runs(program: &Path) -> bool {
    output(program, &["--version"]).is_some()
}

fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    output_of(Command::new(program).args(arguments))
}

fn output_of(command: &mut Command) -> Option<String> {
    let output = clean(command).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Removes what an outer cargo or rustup says about *its* compiler, target and flags. Where to find and how to
/// fetch packages stays.
pub fn clean(command: &mut Command) -> &mut Command {
    const KEPT: [&str; 6] =
        ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_TERM_"];
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let of_rust = ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "RUSTUP_TOOLCHAIN", "CLIPPY_"]
            .iter()
            .any(|prefix| text.starts_with(prefix));
        if of_rust && !KEPT.iter().any(|kept| text.starts_with(kept)) {
            command.env_remove(&name);
        }
    }
    command
}
