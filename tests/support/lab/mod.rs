//! The lab: the router's surroundings in network namespaces of this machine, with real peers.
//!
//! Tests, benchmarks, `cargo xtask lab` and `cargo xtask run` all use this one description. It stands by itself,
//! so that `xtask` can include the source without depending on the tests. Needs root.
//!
//! Nothing touches the host's own network: links are created inside the namespaces. A process belongs to the lab
//! when it runs in one of its namespaces, so whatever was killed half-way can be found and ended.
//!
//! Enter a namespace with [`Lab::command`] or [`Lab::inside`], not with `ip netns exec`: that one mounts a fresh
//! `/sys`, which hides the BPF file system.

mod bpf_file_system;
mod host;
mod netns;
mod network;
pub mod peers;
mod processes;

pub use bpf_file_system::{BpfFileSystem, PinDirectory};
pub use host::{Family, Host, address};

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Where the client finds the router.
pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 10);

/// Greatest number of instances: their addresses are 10.77.2.(10+N).
pub const MAX_BACKENDS: u8 = 200;

/// A lab that is up.
#[derive(Clone, Debug)]
pub struct Lab {
    name: String,
    backends: u8,
}

/// The lab that `cargo xtask lab` and `cargo xtask run` use: its name is the prefix of its namespaces.
/// Labs of other names, such as that of the tests, have the same addresses and do not meet it.
pub const DEFAULT_NAME: &str = "rt";

impl Lab {
    /// Raises the lab. One that is up and complete stays as it is; any other is taken down first.
    pub fn up(name: &str, backends: u8) -> Result<Self> {
        if !(1..=MAX_BACKENDS).contains(&backends) {
            bail!("a lab has 1 to {MAX_BACKENDS} backends, not {backends}");
        }
        if let Some(lab) = Self::find(name).filter(|lab| lab.backends == backends && lab.is_complete()) {
            return Ok(lab);
        }
        Self::down(name)?;
        let lab = Self { name: name.to_owned(), backends };
        let raised = lab.raise();
        if raised.is_err() {
            Self::down(name)?;
        }
        raised.context("cannot raise the lab")?;
        Ok(lab)
    }

    fn raise(&self) -> Result<()> {
        fs::create_dir_all(self.state_dir())?;
        if BpfFileSystem::mounted()?.leave_mounted() {
            fs::write(self.state_dir().join(MOUNTED_BPF), "")?;
        }
        network::create(self)?;
        peers::start(self)
    }

    /// The lab that is up, complete or not.
    pub fn find(name: &str) -> Option<Self> {
        let hosts = netns::list(name);
        let backends = hosts.iter().filter(|host| matches!(host, Host::Backend(_))).count();
        (!hosts.is_empty()).then_some(Self { name: name.to_owned(), backends: backends as u8 })
    }

    fn is_complete(&self) -> bool {
        netns::list(&self.name).len() == self.hosts().len()
            && (1..=self.backends).all(|number| peers::answers(self, number))
    }

    /// Ends every process of the lab, and removes its namespaces, its state and what it mounted. Fine when there is none.
    pub fn down(name: &str) -> Result<()> {
        let state = state_dir(name);
        let namespaces: Vec<_> = netns::list(name).into_iter().map(|host| netns::path(name, host)).collect();
        processes::end_all(&namespaces, &state)?;
        for host in netns::list(name) {
            netns::remove(name, host)?;
        }
        netns::tidy();
        let pins = pin_dir(name);
        if pins.exists() {
            fs::remove_dir_all(&pins).with_context(|| format!("cannot remove {}", pins.display()))?;
        }
        if state.join(MOUNTED_BPF).exists() {
            BpfFileSystem::unmount();
        }
        if state.exists() {
            fs::remove_dir_all(&state).with_context(|| format!("cannot remove {}", state.display()))?;
        }
        // Shared with labs of other names.
        let _ = fs::remove_dir(STATE_ROOT);
        Ok(())
    }

    /// The prefix of its namespaces.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Processes that run on `host`.
    pub fn processes(&self, host: Host) -> Vec<i32> {
        processes::running_in(&netns::path(&self.name, host))
    }

    pub fn backends(&self) -> u8 {
        self.backends
    }

    /// Every host, the switch between gateway and backends included.
    pub fn hosts(&self) -> Vec<Host> {
        let backends = (1..=self.backends).map(Host::Backend);
        [Host::Client, Host::Gateway, Host::Switch].into_iter().chain(backends).collect()
    }

    /// Configuration, logs, served files and uploads of the lab; removed with it.
    pub fn state_dir(&self) -> PathBuf {
        state_dir(&self.name)
    }

    /// Where a router in the lab pins its programs and maps; removed with the lab.
    pub fn pin_dir(&self) -> PathBuf {
        pin_dir(&self.name)
    }

    /// The directory that holds what one host reads and writes.
    pub fn host_dir(&self, host: Host) -> PathBuf {
        self.state_dir().join(host.to_string())
    }

    /// A command that will run on `host`.
    pub fn command(&self, host: Host, program: impl AsRef<std::ffi::OsStr>) -> Command {
        netns::command(&self.name, host, program.as_ref())
    }

    /// Runs a closure in a thread on `host`: the sockets that it opens belong to that host for good.
    pub fn inside<T: Send>(&self, host: Host, action: impl FnOnce() -> T + Send) -> Result<T> {
        netns::inside(&self.name, host, action)
    }

    /// Sets a kernel parameter of `host`, such as `net.ipv4.tcp_sack`.
    pub fn sysctl(&self, host: Host, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        self.inside(host, || fs::write(&path, value))?.with_context(|| format!("cannot set {key} on {host}"))
    }

    /// Reads a file whose content depends on the reader's namespace, such as `/proc/net/netstat`.
    pub fn read(&self, host: Host, path: &str) -> Result<String> {
        self.inside(host, || fs::read_to_string(path))?
            .with_context(|| format!("cannot read {path} on {host}"))
    }

    /// Drops this many of a thousand TCP segments as they arrive at `host`; 0 ends it. Resets are spared: nobody sends one
    /// again, so what a lost one leaves behind says nothing about the router.
    ///
    /// On arrival, because a sender is told of a packet that is dropped on its way out, and does not back off.
    pub fn lose(&self, host: Host, permille: u16) -> Result<()> {
        let condition =
            format!("tcp flags & rst == 0 numgen random mod 1000 <= {}", permille.clamp(1, 1000) - 1);
        network::discard(self, host, (permille > 0).then_some(&condition))
    }

    /// Drops those packets arriving at `host` that match `condition`, such as `meta length > 100`. [`Lab::lose`] of 0 ends it.
    pub fn discard(&self, host: Host, condition: &str) -> Result<()> {
        network::discard(self, host, Some(condition))
    }

    /// How many packets have been dropped so far by [`Lab::lose`] or [`Lab::discard`].
    pub fn discarded(&self, host: Host) -> u64 {
        let listed = self.command(host, "nft").args(["list", "table", "netdev", "loss"]).output();
        let text =
            listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let count =
            text.split_once("counter packets ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        count.unwrap_or(0)
    }

    pub fn backend_address(&self, number: u8) -> IpAddr {
        address(Host::Backend(number))
    }
}

/// In the state directory: the BPF file system was not mounted before the lab.
const MOUNTED_BPF: &str = "mounted-bpf";

const STATE_ROOT: &str = "/run/router-lab";

fn pin_dir(name: &str) -> PathBuf {
    Path::new(BpfFileSystem::PATH).join(format!("router-lab-{name}"))
}

fn state_dir(name: &str) -> PathBuf {
    Path::new(STATE_ROOT).join(name)
}

/// Runs a command to its end; its error output becomes the error.
fn run(command: &mut Command) -> Result<String> {
    let output =
        command.output().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
