//! What only the application knows: its sessions, its loaded resources, its own idea of how busy it is.
//!
//! It is asked by a command, or writes it into a file; both are JSON. What cannot be had is left out of the report.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use router_report::{MAX_BODY_BYTES, Report};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

/// How often a command that has said everything is asked whether it has ended.
const END_POLL: Duration = Duration::from_millis(5);

/// Where an instance's status comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The application writes it; older than this it is not believed. `{instance}` stands for the instance's name.
    File { path: String, max_age: Duration },
    /// Run with the instance's name as its only argument.
    Command(PathBuf),
}

/// Each field may be left out; they mean what they mean in a report.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Status {
    sessions: Option<u32>,
    calls_per_core: Option<f64>,
    agent_value: Option<i16>,
    loaded_resources: Option<Vec<String>>,
}

/// Why an instance's status is not known.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error("cannot read --status-file {}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("--status-file {} was not written for {} s", .path.display(), .age.as_secs())]
    Stale { path: PathBuf, age: Duration },
    #[error("cannot run --status-command {}: {source}", .path.display())]
    Command { path: PathBuf, source: io::Error },
    #[error("--status-command did not end within {0:?}")]
    Slow(Duration),
    #[error("--status-command failed ({0})")]
    Failed(ExitStatus),
    #[error("the status is longer than {MAX_BODY_BYTES} bytes")]
    TooLong,
    #[error(
        "the status is not understood: {0}; write JSON such as {{\"sessions\": 12, \"loaded_resources\": [\"sales\"]}}"
    )]
    Malformed(#[from] serde_json::Error),
}

impl Status {
    /// Fills in what the application says.
    pub fn add_to(self, report: &mut Report) {
        report.sessions = self.sessions;
        report.calls_per_core = self.calls_per_core;
        report.agent_value = self.agent_value;
        report.loaded_resources = self.loaded_resources;
    }
}

impl Source {
    /// Asks for the status of `instance`. A command may take `patience`.
    pub fn ask(&self, instance: &str, patience: Duration) -> Result<Status, StatusError> {
        let text = match self {
            Self::File { path, max_age } => read_file(path.replace("{instance}", instance).into(), *max_age)?,
            Self::Command(path) => run(path, instance, patience)?,
        };
        Ok(serde_json::from_slice(&text)?)
    }
}

fn read_file(path: PathBuf, max_age: Duration) -> Result<Vec<u8>, StatusError> {
    let read = || {
        let file = std::fs::File::open(&path)?;
        let written = file.metadata()?.modified()?;
        let mut text = Vec::new();
        file.take(MAX_BODY_BYTES as u64 + 1).read_to_end(&mut text)?;
        Ok((written, text))
    };
    let (written, text) = match read() {
        Ok(found) => found,
        Err(source) => return Err(StatusError::File { path, source }),
    };
    // A file from the future is as good as a fresh one: clocks are set back at times.
    let age = SystemTime::now().duration_since(written).unwrap_or_default();
    if age > max_age {
        return Err(StatusError::Stale { path, age });
    }
    if text.len() > MAX_BODY_BYTES {
        return Err(StatusError::TooLong);
    }
    Ok(text)
}

/// What the command writes to its standard output.
fn run(path: &Path, instance: &str, patience: Duration) -> Result<Vec<u8>, StatusError> {
    let failed = |source| StatusError::Command { path: path.to_owned(), source };
    let deadline = Instant::now() + patience;
    // A process group of its own, so that whatever it has started ends with it.
    let spawned =
        Command::new(path).arg(instance).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn();
    let mut command = Running { child: spawned.map_err(failed)?, ended: None };
    let mut output = command.child.stdout.take().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
    let Some(text) = read_until(&mut output, deadline).map_err(failed)? else {
        return Err(StatusError::Slow(patience));
    };
    if text.len() > MAX_BODY_BYTES {
        return Err(StatusError::TooLong);
    }
    let status = loop {
        match command.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => return Err(StatusError::Slow(patience)),
            None => std::thread::sleep(END_POLL),
        }
    };
    if status.success() { Ok(text) } else { Err(StatusError::Failed(status)) }
}

/// A command that does not outlive the one who asked it.
struct Running {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Running {
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.ended = self.child.try_wait()?;
        Ok(self.ended)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // Nobody has waited for it, so the number is still its own.
            let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            let _ = self.child.wait();
        }
    }
}

/// Everything up to the end of the output, or a little more than may be; `None` if it does not come in time.
fn read_until(output: &mut ChildStdout, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    let mut chunk = [0; 8_192];
    while text.len() <= MAX_BODY_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match output.read(&mut chunk)? {
            0 => break,
            length => text.extend_from_slice(&chunk[..length]),
        }
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("router-agent-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn command(&self, script: &str) -> Source {
            let path = self.0.join("command");
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
            Source::Command(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_for_each_instance_says_what_the_application_knows() {
        let folder = Folder::new("files");
        let path = folder.0.join("{instance}.json").display().to_string();
        let source = |max_age| Source::File { path: path.clone(), max_age };
        std::fs::write(folder.0.join("gis1.json"), r#"{"sessions": 7, "loaded_resources": ["sales"]}"#)
            .unwrap();
        let mut report = Report::default();
        source(SOON).ask("gis1", SOON).unwrap().add_to(&mut report);
        assert_eq!(report.sessions, Some(7));
        assert_eq!(report.loaded_resources.as_deref(), Some(&["sales".to_owned()][..]));

        assert!(matches!(source(SOON).ask("gis2", SOON), Err(StatusError::File { .. })));
        std::thread::sleep(Duration::from_millis(20));
        let stale = source(Duration::from_millis(1)).ask("gis1", SOON);
        assert!(matches!(stale, Err(StatusError::Stale { .. })), "its writer has died");
        std::fs::write(folder.0.join("gis1.json"), r#"{"cpu_idle_percent": 7}"#).unwrap();
        let error = source(SOON).ask("gis1", SOON).unwrap_err().to_string();
        assert!(error.contains("unknown field `cpu_idle_percent`"), "{error}");
        std::fs::write(folder.0.join("gis1.json"), vec![b' '; MAX_BODY_BYTES + 1]).unwrap();
        assert!(matches!(source(SOON).ask("gis1", SOON), Err(StatusError::TooLong)));
    }

    #[test]
    fn a_command_is_told_the_instance_and_its_output_counts_only_if_it_succeeds() {
        let folder = Folder::new("command");
        let good = folder.command(r#"[ "$1" = gis1 ] && echo '{"agent_value": 42}'"#);
        assert_eq!(good.ask("gis1", SOON).unwrap().agent_value, Some(42));
        assert!(matches!(good.ask("gis2", SOON), Err(StatusError::Failed(_))));
        let failing = folder.command("echo '{}'; exit 3");
        assert!(matches!(failing.ask("gis1", SOON), Err(StatusError::Failed(_))));
        let endless = folder.command("while :; do echo 0123456789012345678901234567890123456789; done");
        assert!(matches!(endless.ask("gis1", SOON), Err(StatusError::TooLong)));
        let missing = Source::Command(folder.0.join("missing"));
        assert!(matches!(missing.ask("gis1", SOON), Err(StatusError::Command { .. })));
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_all_that_it_has_started() {
        let folder = Folder::new("hanging");
        let number = folder.0.join("number");
        let hanging = folder.command(&format!("sleep 600 & echo $! > {}; wait", number.display()));
        let patience = Duration::from_millis(500);
        assert!(matches!(hanging.ask("gis1", patience), Err(StatusError::Slow(_))));
        let sleeper = std::fs::read_to_string(&number).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", sleeper.trim()));
        let began = Instant::now();
        // It is gone, or a zombie that nobody has waited for.
        while state().is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(began.elapsed() < SOON, "it still runs");
            std::thread::sleep(Duration::from_millis(10));
        }
        let forking = folder.command("sleep 600 & exit 0");
        assert!(
            matches!(forking.ask("gis1", patience), Err(StatusError::Slow(_))),
            "its child could say more"
        );
        let silent = folder.command("exec >&-; sleep 600");
        assert!(
            matches!(silent.ask("gis1", patience), Err(StatusError::Slow(_))),
            "it has said all and stays"
        );
    }
}
