//! Processes that run in a namespace. All of them are the lab's own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Ends every process in the namespace: politely, and after two seconds by force.
pub fn end_all(namespace: &Path) -> Result<()> {
    let began = Instant::now();
    let mut asked = Vec::new();
    loop {
        let running = running_in(namespace);
        if running.is_empty() {
            return Ok(());
        }
        let elapsed = began.elapsed();
        if elapsed > Duration::from_secs(10) {
            bail!("processes {running:?} in {} do not end", namespace.display());
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

/// Processes whose network namespace is this one, ourselves excepted.
fn running_in(namespace: &Path) -> Vec<i32> {
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
