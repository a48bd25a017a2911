//! Where things lie, and how the commands are started from here.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

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

/// The same for a command that may hang: it gets a process group of its own, which is ended when `limit` is over or `interrupted`
/// is set.
pub fn succeed_within(command: &mut Command, limit: Duration, interrupted: &AtomicBool) -> Result<()> {
    let mut child = command
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            if !status.success() {
                bail!("`{}` failed ({status})", shown(command));
            }
            return Ok(());
        }
        if interrupted.load(Ordering::Relaxed) {
            end_group(&mut child)?;
            bail!("`{}` was interrupted", shown(command));
        }
        if began.elapsed() >= limit {
            end_group(&mut child)?;
            bail!("`{}` hangs: it was ended with all its processes after {limit:.0?}", shown(command));
        }
        sleep(Duration::from_millis(20));
    }
}

/// Ends the process group that a child leads: politely, and after ten seconds by force.
fn end_group(child: &mut Child) -> Result<()> {
    let group = -(child.id() as i32);
    // SAFETY: kill has no memory effects. Until the leader is waited for, or a member lives, the number is this group's.
    let signal = |number| unsafe { libc::kill(group, number) } == 0;
    signal(libc::SIGTERM);
    let began = Instant::now();
    while signal(0) && began.elapsed() < Duration::from_secs(10) {
        // A leader that has ended counts as a member until it is waited for.
        child.try_wait()?;
        sleep(Duration::from_millis(20));
    }
    signal(libc::SIGKILL);
    child.wait()?;
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
    signal(child, libc::SIGTERM);
}

/// Sends a signal to a child that nobody has waited for.
pub fn signal(child: &mut Child, signal: i32) {
    // SAFETY: kill has no memory effects; the borrow is exclusive and nobody has waited for the child, so the number is its own.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// Ctrl-C, or being asked to end in another way, sets this flag: what is up can then be taken down in order.
pub fn interruption() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot handle signals")?;
    }
    Ok(flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that starts a process of its own and tells its number, and waits.
    fn hanging(file: &Path) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("sleep 1000 & echo $! > {}; wait", file.display()));
        command
    }

    fn lives(file: &Path) -> bool {
        let pid = std::fs::read_to_string(file).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_everything_that_it_started() {
        let file = env::temp_dir().join(format!("xtask-hanging-{}", std::process::id()));
        let limit = Duration::from_millis(500);
        let error =
            succeed_within(&mut hanging(&file), limit, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.contains("hangs: it was ended with all its processes after 500ms"), "{error}");
        assert!(!lives(&file), "its process outlives it");

        let error = succeed_within(&mut hanging(&file), Duration::from_secs(600), &AtomicBool::new(true));
        assert!(error.unwrap_err().to_string().ends_with("was interrupted"));
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_command_that_ends_by_itself_succeeds_or_fails_as_it_did() {
        let run = |program: &str| {
            succeed_within(&mut Command::new(program), Duration::from_secs(600), &AtomicBool::new(false))
        };
        assert!(run("true").is_ok());
        assert!(run("false").unwrap_err().to_string().contains("exit status: 1"));
    }
}
