//! The lab's processes: all that run in its namespaces, and those that it has started.
//!
//! The latter are recorded, since a namespace that somebody removed by hand no longer tells who lives in it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// In the lab's state directory: a line with number and beginning for each process.
const RECORD: &str = "processes";

/// Notes a process that the lab has started.
pub fn record(state: &Path, pid: u32) -> Result<()> {
    let Some(began) = began(pid as i32) else { return Ok(()) };
    let mut file = File::options().create(true).append(true).open(state.join(RECORD))?;
    writeln!(file, "{pid} {began}")?;
    Ok(())
}

/// Ends every process in these namespaces and every recorded one: politely, and after two seconds by force.
pub fn end_all(namespaces: &[PathBuf], state: &Path) -> Result<()> {
    let start = Instant::now();
    let mut asked = Vec::new();
    loop {
        let mut running = recorded(state);
        running.extend(namespaces.iter().flat_map(|namespace| running_in(namespace)));
        if running.is_empty() {
            return Ok(());
        }
        let elapsed = start.elapsed();
        if elapsed > Duration::from_secs(10) {
            bail!("processes {running:?} of the lab do not end");
        }
        let force = elapsed > Duration::from_secs(2);
        for pid in running {
            if force || !asked.contains(&pid) {
                asked.push(pid);
                // SAFETY: kill has no memory effects; a process that is gone meanwhile gives an error only.
                unsafe { libc::kill(pid, if force { libc::SIGKILL } else { libc::SIGTERM }) };
            }
        }
        sleep(Duration::from_millis(20));
    }
}

/// Recorded processes that still run.
fn recorded(state: &Path) -> Vec<i32> {
    let text = fs::read_to_string(state.join(RECORD)).unwrap_or_default();
    let entry = |line: &str| {
        let (pid, noted) = line.split_once(' ')?;
        let pid = pid.parse().ok()?;
        (began(pid)? == noted).then_some(pid)
    };
    text.lines().filter_map(entry).collect()
}

/// When a process began, in clock ticks since the machine did: what tells it from a later one with its number.
/// None if it runs no more.
fn began(pid: i32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18).map(str::to_owned)
}

/// Processes whose network namespace is this one, ourselves excepted.
pub fn running_in(namespace: &Path) -> Vec<i32> {
    let Ok(wanted) = fs::metadata(namespace) else { return Vec::new() };
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ours = std::process::id() as i32;
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != ours)
        .filter(|pid| {
            fs::metadata(format!("/proc/{pid}/ns/net"))
                .is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
        })
        .collect()
}
