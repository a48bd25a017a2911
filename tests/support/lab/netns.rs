//! Network namespaces: named as `ip netns` names them, so that its other commands work on them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{io, thread};

use anyhow::{Context, Result};

use super::{Host, run};

const DIRECTORY: &str = "/run/netns";

pub fn full_name(lab: &str, host: Host) -> String {
    format!("{lab}-{host}")
}

pub fn path(lab: &str, host: Host) -> PathBuf {
    Path::new(DIRECTORY).join(full_name(lab, host))
}

/// The hosts of this lab whose namespaces exist.
pub fn list(lab: &str) -> Vec<Host> {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return Vec::new() };
    let host =
        |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix(lab)?.strip_prefix('-')?.parse().ok();
    entries.flatten().filter_map(host).collect()
}

pub fn add(lab: &str, host: Host) -> Result<()> {
    run(Command::new("ip").args(["netns", "add", &full_name(lab, host)])).map(drop)
}

pub fn remove(lab: &str, host: Host) -> Result<()> {
    run(Command::new("ip").args(["netns", "delete", &full_name(lab, host)])).map(drop)
}

/// `ip netns add` leaves its directory behind as a mount; an empty one is of no use to anybody.
pub fn tidy() {
    if fs::read_dir(DIRECTORY).is_ok_and(|mut entries| entries.next().is_none()) {
        let _ = Command::new("umount").arg(DIRECTORY).output();
        let _ = fs::remove_dir(DIRECTORY);
    }
}

/// `nsenter` changes the network namespace only; `/sys/fs/bpf` stays the host's.
pub fn command(lab: &str, host: Host, program: &OsStr) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path(lab, host).display())).arg("--").arg(program);
    command
}

pub fn inside<T: Send>(lab: &str, host: Host, action: impl FnOnce() -> T + Send) -> Result<T> {
    let path = path(lab, host);
    let namespace =
        File::open(&path).with_context(|| format!("the lab has no {host}: {}", path.display()))?;
    let work = || -> io::Result<T> {
        // SAFETY: the descriptor is open, and only this thread, which ends here, changes its namespace.
        if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(action())
    };
    let result = thread::scope(|scope| scope.spawn(work).join());
    let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    result.with_context(|| format!("cannot enter {}", path.display()))
}
