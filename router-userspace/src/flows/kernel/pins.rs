//! The directory where links and maps are kept.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya::maps::{Array, Map, MapData};
use aya::programs::links::{FdLink, LinkOrder, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{ProgramError, SchedClassifier};
use router_common::abi::LAYOUT_VERSION;

use super::hooks::Hook;
use super::{KernelError, io_error, refused};

/// Every map that is pinned. `LAYOUT` comes last: its presence tells that the others are complete.
pub(super) const PINNED_MAPS: [&str; 31] = [
    "KEYS",
    "KEYS6",
    "FLOWS",
    "NEXT_HOPS",
    "PACKETS",
    "SYN_OPTIONS",
    "SYN_OPTIONS6",
    "TRANSPARENT",
    "TRANSPARENT6",
    "BALANCE_SETTINGS",
    "ENDPOINTS",
    "SERVICES",
    "INSTANCES",
    "TUNNELS",
    "GROUPS",
    "RINGS",
    "L4_FLOWS",
    "REPLIES",
    "CLIENT_RULES",
    "AFFINITY",
    "NEW_FLOWS",
    "LINKS",
    "XDP_INTERFACES",
    "XDP_DEVICES",
    "XDP_FRAMES",
    "BINDING_SETTINGS",
    "BOUND_LISTENERS",
    "EMBRYOS",
    "EMBRYOS6",
    "STASHES",
    "LAYOUT",
];

/// Those whose size depends on whether connections are bound.
const BINDING_MAPS: [&str; 3] = ["EMBRYOS", "EMBRYOS6", "STASHES"];

/// Those whose size depends on whether there are Layer-4 listeners, and those that refer to them.
const BALANCE_MAPS: [&str; 9] = [
    "BALANCE_SETTINGS",
    "ENDPOINTS",
    "SERVICES",
    "INSTANCES",
    "TUNNELS",
    "GROUPS",
    "RINGS",
    "L4_FLOWS",
    "REPLIES",
];

const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// Where every distribution mounts the BPF file system.
pub(super) const BPF_FS: &str = "/sys/fs/bpf";

/// The directory where links and maps are kept.
pub(super) struct Pins<'a> {
    pub dir: &'a Path,
}

impl Pins<'_> {
    pub fn prepare(&self) -> Result<(), KernelError> {
        if self.dir.starts_with(BPF_FS) && !is_bpf_fs(Path::new(BPF_FS)) {
            mount_bpf_fs();
        }
        // Judged by what exists already, so that nothing is created elsewhere.
        if !self.dir.ancestors().find(|path| path.exists()).is_some_and(is_bpf_fs) {
            return Err(KernelError::NotBpfFs { path: self.dir.to_owned() });
        }
        fs::create_dir_all(self.dir)
            .map_err(|source| io_error(format!("cannot create {}", self.dir.display()), source))
    }

    /// Whether there are maps to adopt. Those of a daemon that did not come to its end of [`Kernel::open`](super::Kernel::open) have carried nothing, and are
    /// removed.
    pub fn check_layout(&self) -> Result<bool, KernelError> {
        if !PINNED_MAPS.iter().any(|name| self.dir.join(name).exists()) {
            return Ok(false);
        }
        let found = MapData::from_pin(self.dir.join("LAYOUT"))
            .and_then(|data| Array::<_, u32>::try_from(Map::Array(data)))
            .and_then(|layout| layout.get(&0, 0))
            .unwrap_or(0);
        match found {
            LAYOUT_VERSION => Ok(true),
            0 => self.remove_all().map(|()| false),
            found => Err(KernelError::Layout { path: self.dir.to_owned(), found }),
        }
    }

    /// Entries of the table of endpoints: 1 if it was made without any Layer-4 listener, `None` if there is none to adopt.
    fn endpoints(&self) -> Option<u32> {
        let data = MapData::from_pin(self.dir.join("ENDPOINTS")).ok()?;
        data.info().ok().map(|info| info.max_entries())
    }

    /// Whether there are tables of Layer-4 listeners to adopt.
    pub fn balances(&self) -> bool {
        self.endpoints().is_some_and(|entries| entries > 1)
    }

    /// Maps that were made without any Layer-4 listener hold nothing and have no room: they are made anew.
    pub fn make_room_for_balancing(&self) -> Result<(), KernelError> {
        if self.endpoints() == Some(1) {
            for name in BALANCE_MAPS.iter().chain(&["AFFINITY"]) {
                self.unpin(name)?;
            }
        }
        Ok(())
    }

    /// Whether there are tables of bound connections to adopt.
    pub fn binds(&self) -> bool {
        self.stashes().is_some_and(|entries| entries > 1)
    }

    /// As [`Pins::make_room_for_balancing`], for connections that are bound.
    pub fn make_room_for_binding(&self) -> Result<(), KernelError> {
        if self.stashes() == Some(1) {
            for name in BINDING_MAPS {
                self.unpin(name)?;
            }
        }
        Ok(())
    }

    fn stashes(&self) -> Option<u32> {
        let data = MapData::from_pin(self.dir.join("STASHES")).ok()?;
        data.info().ok().map(|info| info.max_entries())
    }

    pub fn remove_all(&self) -> Result<(), KernelError> {
        for entry in self.entries()? {
            self.unpin(&entry)?;
        }
        Ok(())
    }

    /// Attaches, or puts the new program behind the link that an earlier daemon left.
    pub fn attach(
        &self,
        program: &mut SchedClassifier,
        interface: &str,
        hook: &Hook,
    ) -> Result<(), KernelError> {
        let pin = self.dir.join(hook.link(interface));
        if let Ok(link) = PinnedLink::from_pin(&pin) {
            let replaced = SchedClassifierLink::try_from(FdLink::from(link))
                .ok()
                .and_then(|link| program.attach_to_link(link).ok());
            if let Some(link) = replaced {
                // The pin holds the link; this handle is not needed.
                drop(program.take_link(link));
                return Ok(());
            }
            // The interface was deleted and made again: the old link hangs in the air.
            self.unpin(&hook.link(interface))?;
        }
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        let link =
            program.attach_with_options(interface, hook.attach_type, options).map_err(
                |error| match error {
                    ProgramError::SyscallError(error)
                        if error.io_error.raw_os_error() == Some(libc::EINVAL) =>
                    {
                        KernelError::NoTcx
                    }
                    error => refused(&format!("to attach to {interface}"), error),
                },
            )?;
        let link = program.take_link(link).map_err(|error| refused("a link", error))?;
        FdLink::try_from(link)
            .map_err(|error| refused("a link", error))?
            .pin(&pin)
            .map_err(|error| refused("to pin a link", error))?;
        Ok(())
    }

    /// Detaches from interfaces that are no longer configured, and what is no longer needed: all but these links.
    pub fn detach_others(&self, wanted: &BTreeSet<String>) -> Result<(), KernelError> {
        for entry in self.entries()? {
            if !PINNED_MAPS.contains(&entry.as_str()) && !wanted.contains(&entry) {
                self.unpin(&entry)?;
            }
        }
        Ok(())
    }

    fn entries(&self) -> Result<Vec<String>, KernelError> {
        let doing = || format!("cannot read {}", self.dir.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(self.dir).map_err(|source| io_error(doing(), source))? {
            let entry = entry.map_err(|source| io_error(doing(), source))?;
            // The shadow's directory, if a daemon was killed while it loaded.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn unpin(&self, name: &str) -> Result<(), KernelError> {
        let path = self.dir.join(name);
        fs::remove_file(&path).map_err(|source| io_error(format!("cannot remove {}", path.display()), source))
    }
}

fn is_bpf_fs(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: all-zero is a valid `statfs`.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a terminated path and a valid place for the result.
    unsafe { libc::statfs(path.as_ptr(), &mut stat) == 0 && stat.f_type as i64 == BPF_FS_MAGIC }
}

/// Hosts without systemd may not have it mounted. A failure shows in the check that follows.
fn mount_bpf_fs() {
    let target = CString::new(BPF_FS).expect("no NUL");
    // SAFETY: terminated strings; no data.
    unsafe { libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null()) };
}
