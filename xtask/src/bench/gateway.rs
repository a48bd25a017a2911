//! The contenders at work on the lab's gateway. Whoever costs others something while it is idle is there only for its own
//! turn: the router's kernel programs see every packet, and so does connection tracking.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::contender::Contender;
use super::settings;
use crate::daemon::{Daemon, Profile};
use crate::topology::{Host, Lab};
use crate::workspace;

const ROUTER_FILE: &str = "router.toml";
/// How long the contenders may take to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// Flows that have ended are swept within seconds. So many are left to it while the next contender is measured.
const FLOWS_LEFT: u64 = 100;

#[derive(Debug)]
pub struct Gateway<'a> {
    lab: &'a Lab,
    interrupted: &'a AtomicBool,
    haproxy: Child,
    nginx: Child,
    /// While it is the router's turn.
    daemon: Option<Daemon>,
    /// Whether nftables' rules are loaded.
    tracking: bool,
}

impl<'a> Gateway<'a> {
    pub fn start(lab: &'a Lab, interrupted: &'a AtomicBool) -> Result<Self> {
        let directory = lab.host_dir(Host::Gateway);
        fs::create_dir_all(directory.join("temporary"))?;
        let file = |name: &str, text: String| -> Result<_> {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            Ok(path)
        };
        file(ROUTER_FILE, settings::router(&directory.join("control.sock"), &lab.pin_dir()))?;
        let haproxy = file("haproxy.cfg", settings::haproxy())?;
        let haproxy = start(lab, &directory, "haproxy", &["-db", "-f"], &haproxy)?;
        let nginx = file("nginx.conf", settings::nginx(&directory))?;
        let nginx = start(lab, &directory, "nginx", &["-e", "stderr", "-c"], &nginx)?;
        Ok(Self { lab, interrupted, haproxy, nginx, daemon: None, tracking: false })
    }

    /// Gives the turn to `contender`. Fails unless it accepts connections then.
    pub fn turn(&mut self, contender: Contender) -> Result<()> {
        if !contender.is_router()
            && let Some(daemon) = self.daemon.take()
        {
            daemon.stop()?;
            // Pinned programs outlive the daemon, and so does an exemption from connection tracking.
            fs::remove_dir_all(self.lab.pin_dir())?;
            self.nft("flush ruleset\n")?;
        }
        // A daemon looks at its start whether this host tracks connections.
        self.track(contender == Contender::Nftables)?;
        if contender.is_router() && self.daemon.is_none() {
            let file = self.lab.host_dir(Host::Gateway).join(ROUTER_FILE);
            let mut daemon = Daemon::start(self.lab, &file, Profile::Release)?;
            daemon.wait_for_instances(self.interrupted)?;
            self.daemon = Some(daemon);
        }
        wait_until_it_answers(self.lab, contender)
    }

    fn track(&mut self, wanted: bool) -> Result<()> {
        if wanted && !self.tracking {
            self.nft(&settings::nftables())?;
        } else if self.tracking && !wanted {
            self.nft("delete table ip bench\n")?;
            // Entries outlive the rules, and their number is limited.
            self.lab
                .command(Host::Gateway, "conntrack")
                .arg("-F")
                .output()
                .context("cannot start conntrack")?;
        }
        self.tracking = wanted;
        Ok(())
    }

    /// The processes of a contender; those that work in the kernel alone have none.
    pub fn processes(&self, contender: Contender) -> Vec<u32> {
        match contender {
            Contender::Routing | Contender::Nftables => Vec::new(),
            router if router.is_router() => self.daemon.iter().map(Daemon::pid).collect(),
            Contender::HaproxyTcp | Contender::HaproxyHttp => vec![self.haproxy.id()],
            _ => with_children(self.nginx.id()),
        }
    }

    /// What routerd has counted so far.
    fn counts(daemon: &Daemon) -> Result<Counts> {
        let status = daemon.ask(&["status"])?;
        let connections = &status["connections"];
        let count = |name: &str| {
            connections[name].as_u64().with_context(|| format!("routerctl status has no count of {name}"))
        };
        Ok(Counts {
            requests: count("requests")?,
            handed_off: count("handed_off")? + count("bound")?,
            relayed: serde_json::from_value(status["relayed"].clone())
                .context("routerctl status has no reasons for relaying")?,
            flows: status["datapath"]["flows"].as_u64().unwrap_or(0),
            open: count("open")?,
        })
    }

    /// Waits until routerd has cleared away what was done, which is part of its cost, and returns what it has counted.
    /// `None` if it is not the router's turn.
    pub fn settle(&self) -> Result<Option<Counts>> {
        let Some(daemon) = &self.daemon else { return Ok(None) };
        let began = Instant::now();
        loop {
            let counts = Self::counts(daemon)?;
            if counts.open == 0 && counts.flows <= FLOWS_LEFT {
                return Ok(Some(counts));
            }
            if began.elapsed() > Duration::from_secs(10) {
                bail!("routerd still has {} connections and {} flows", counts.open, counts.flows);
            }
            sleep(Duration::from_millis(100));
        }
    }

    pub fn stop(mut self) -> Result<()> {
        for mut child in [self.haproxy, self.nginx] {
            workspace::terminate(&mut child);
            child.wait()?;
        }
        self.daemon.take().map_or(Ok(()), Daemon::stop)
    }

    fn nft(&self, rules: &str) -> Result<()> {
        let mut child = self
            .lab
            .command(Host::Gateway, "nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start nft")?;
        child.stdin.take().expect("stdin is a pipe").write_all(rules.as_bytes())?;
        if !child.wait()?.success() {
            bail!("nft refuses:\n{rules}");
        }
        Ok(())
    }
}

/// What routerd counts.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub requests: u64,
    /// Bound ones included: the packet path carries them.
    pub handed_off: u64,
    /// Connections by the reason that they were not handed off.
    pub relayed: BTreeMap<String, u64>,
    /// Now, as the next.
    pub flows: u64,
    /// Connections that the daemon itself holds.
    pub open: u64,
}

/// Fails if `contender` does not accept connections in time.
pub fn wait_until_it_answers(lab: &Lab, contender: Contender) -> Result<()> {
    let began = Instant::now();
    let connect = || TcpStream::connect_timeout(&contender.address(), Duration::from_secs(1)).map(drop);
    while let Err(error) = lab.inside(Host::Client, connect)? {
        if began.elapsed() > PATIENCE {
            let logs = ["haproxy", "nginx"].map(|program| log_of(program, &lab.host_dir(Host::Gateway)));
            bail!("{} does not answer: {error}\n{}", contender.name(), logs.concat());
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Starts one of HAProxy and nginx with this configuration; its log lies in `directory`.
pub fn start(lab: &Lab, directory: &Path, program: &str, options: &[&str], file: &Path) -> Result<Child> {
    let log = File::create(log_file(directory, program))?;
    lab.command(Host::Gateway, program)
        .args(options)
        .arg(file)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {program}"))
}

/// A process and those that it has started.
pub fn with_children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    std::iter::once(pid).chain(children).collect()
}

/// What a program that was started in `directory` has printed.
pub fn log_of(program: &str, directory: &Path) -> String {
    fs::read_to_string(log_file(directory, program)).unwrap_or_default()
}

fn log_file(directory: &Path, program: &str) -> PathBuf {
    directory.join(format!("{program}.log"))
}
