//! The file system in which BPF programs and maps are pinned. Systemd mounts it; containers and small systems do not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::run;

/// The mounted file system. If it was not mounted before, dropping this unmounts it again.
#[derive(Debug)]
pub struct BpfFileSystem {
    ours: bool,
}

impl BpfFileSystem {
    pub const PATH: &str = "/sys/fs/bpf";

    /// Mounts it where it is missing.
    pub fn mounted() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
        let there = mounts.lines().any(|line| line.split(' ').nth(1) == Some(Self::PATH));
        if !there {
            run(Command::new("mount").args(["-t", "bpf", "bpf", Self::PATH]))?;
        }
        Ok(Self { ours: !there })
    }

    /// Leaves it as it is; says whether it has to be unmounted later.
    pub fn leave_mounted(mut self) -> bool {
        std::mem::take(&mut self.ours)
    }

    /// Unmounts it unless something is pinned: pins keep programs alive, perhaps someone else's.
    pub fn unmount() {
        // The kernel's own iterators are always there.
        let is_pin = |entry: fs::DirEntry| !entry.file_name().to_string_lossy().ends_with(".debug");
        let pins = fs::read_dir(Self::PATH).is_ok_and(|entries| entries.flatten().any(is_pin));
        if !pins {
            let _ = Command::new("umount").arg(Self::PATH).output();
        }
    }
}

impl Drop for BpfFileSystem {
    fn drop(&mut self) {
        if self.ours {
            Self::unmount();
        }
    }
}

/// A directory for the maps that programs pin when they are loaded by themselves: a router on this host keeps its own.
#[derive(Debug)]
pub struct PinDirectory {
    path: PathBuf,
    _file_system: BpfFileSystem,
}

impl PinDirectory {
    /// `purpose` becomes part of its name. Goes away with its pins when dropped.
    pub fn new(purpose: &str) -> Result<Self> {
        let file_system = BpfFileSystem::mounted()?;
        let path = Path::new(BpfFileSystem::PATH).join(format!("router-{purpose}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path, _file_system: file_system })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PinDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
