//! Where things lie, and how the commands are started from here.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};

/// The folder that holds the workspace's `Cargo.toml`.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in its workspace")
}

/// Cargo's target directory.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |directory| root().join(directory))
}

/// Tools that are built for this workspace only; not on anyone's `PATH`.
pub fn tools_dir() -> PathBuf {
    target_dir().join("tools")
}

/// The cargo that runs us, started in the workspace.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command to its end with our own output and fails if it fails.
pub fn succeed(command: &mut Command) -> Result<()> {
    let status =
        command.status().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// A command as one would type it.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// Finds a program in `PATH` or in the directories for administrators, which a plain user's `PATH` lacks.
pub fn which(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Asks a child to end.
pub fn terminate(child: &mut Child) {
    // SAFETY: kill has no memory effects; while we hold the child, nobody has waited for it, so the number is its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
}

/// Ctrl-C, or being asked to end in another way, sets this flag: what is up can then be taken down in order.
pub fn interruption() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot handle signals")?;
    }
    Ok(flag)
}
