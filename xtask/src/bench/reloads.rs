//! What clients notice of reloads: small requests while the configuration is changed again and again, for the router and
//! for HAProxy, one after the other. Half of the connections are kept alive, half serve one request; of the router's, half are
//! handed off.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use super::contender::{Contender, instance};
use super::gateway::{self, with_children};
use super::settings;
use super::wrk::{self, Counted};
use crate::daemon::{Daemon, Profile};
use crate::progress::Step;
use crate::topology::{Host, Lab};
use crate::workspace;

/// Between two reloads.
const PAUSE: Duration = Duration::from_millis(200);
/// How long one reload may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of each of the four loads.
const CONNECTIONS: u16 = 16;

/// What the clients of one contender have seen.
#[derive(Clone, Debug, Serialize)]
pub struct Reloaded {
    pub contender: &'static str,
    pub reloads: u16,
    pub seen: Counted,
}

/// Both contenders in turn.
pub fn run(lab: &Lab, reloads: u16, interrupted: &AtomicBool) -> Result<Vec<Reloaded>> {
    let step = Step::begin("reloading under load");
    fs::create_dir_all(lab.host_dir(Host::Gateway))?;
    let mut all = Vec::new();
    for (number, begin) in [Router::start as Start, Haproxy::start].into_iter().enumerate() {
        let mut contender = begin(lab, interrupted)?;
        let loads = contender.loads(lab)?;
        for count in 1..=reloads {
            if interrupted.load(Ordering::Relaxed) {
                return Ok(all);
            }
            sleep(PAUSE);
            contender.reload(count).with_context(|| format!("reload {count} of {}", contender.name()))?;
            step.at((50 * number + 50 * usize::from(count) / usize::from(reloads)) as u64, contender.name());
        }
        sleep(PAUSE);
        let mut seen = Counted::default();
        for load in loads {
            seen += load.end()?;
        }
        ensure!(seen.requests > 0, "{} answered nothing", contender.name());
        all.push(Reloaded { contender: contender.name(), reloads, seen });
        contender.stop()?;
    }
    step.done();
    Ok(all)
}

type Start = for<'a> fn(&'a Lab, &AtomicBool) -> Result<Box<dyn Reloads + 'a>>;

/// A balancer whose configuration can be changed while it works.
trait Reloads {
    fn name(&self) -> &'static str;
    /// Where its clients connect to: one for kept-alive and one for short connections, each twice.
    fn entries(&self) -> [Contender; 2];
    /// Changes the configuration, and returns when the change is in force.
    fn reload(&mut self, count: u16) -> Result<()>;
    fn stop(self: Box<Self>) -> Result<()>;

    fn loads(&self, lab: &Lab) -> Result<Vec<wrk::Load>> {
        let mut loads = Vec::new();
        for entry in self.entries() {
            for keep_alive in [true, false] {
                loads.push(wrk::Load::start(lab, entry, keep_alive, CONNECTIONS)?);
            }
        }
        Ok(loads)
    }
}

/// The weight of the only instance: no other than the last time, and without effect on what is measured.
fn weight(count: u16) -> u16 {
    50 + count % 50
}

/// A configuration file that is written anew for each reload.
struct Configuration {
    file: PathBuf,
    text: String,
}

impl Configuration {
    fn write(file: PathBuf, text: String) -> Result<Self> {
        fs::write(&file, &text)?;
        Ok(Self { file, text })
    }

    /// With `to` in place of `from`, which is in the text as it was written first.
    fn rewrite(&self, from: &str, to: &str) -> Result<()> {
        Ok(fs::write(&self.file, self.text.replace(from, to))?)
    }
}

struct Router {
    daemon: Daemon,
    configuration: Configuration,
}

impl Router {
    fn start<'a>(lab: &'a Lab, interrupted: &AtomicBool) -> Result<Box<dyn Reloads + 'a>> {
        let directory = lab.host_dir(Host::Gateway);
        let text = settings::router(&directory.join("control.sock"), &lab.pin_dir());
        let configuration = Configuration::write(directory.join("reloaded.toml"), text)?;
        let mut daemon = Daemon::start(lab, &configuration.file, Profile::Release)?;
        daemon.wait_for_instances(interrupted)?;
        Ok(Box::new(Self { daemon, configuration }))
    }
}

impl Reloads for Router {
    fn name(&self) -> &'static str {
        "router"
    }

    fn entries(&self) -> [Contender; 2] {
        [Contender::RouterHandoff, Contender::RouterRelay]
    }

    fn reload(&mut self, count: u16) -> Result<()> {
        let instance = "name = \"instance1\"\n";
        self.configuration.rewrite(instance, &format!("{instance}weight = {}\n", weight(count)))?;
        let mut command = Command::new(self.daemon.routerctl_path());
        command.arg("--socket").arg(self.daemon.socket()).arg("reload");
        let output = command.output().context("cannot start routerctl")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(said.contains("weight"), "{said}{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.daemon.stop()
    }
}

/// With a master process that passes its listening sockets on to new workers.
struct Haproxy {
    master: Child,
    directory: PathBuf,
    configuration: Configuration,
}

impl Haproxy {
    fn start<'a>(lab: &'a Lab, interrupted: &AtomicBool) -> Result<Box<dyn Reloads + 'a>> {
        let directory = lab.host_dir(Host::Gateway);
        let text = settings::haproxy_that_reloads(&directory.join("haproxy.sock"));
        let configuration = Configuration::write(directory.join("reloaded.cfg"), text)?;
        let master = gateway::start(lab, &directory, "haproxy", &["-W", "-db", "-f"], &configuration.file)?;
        gateway::wait_until_it_answers(lab, Contender::HaproxyHttp)?;
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(Box::new(Self { master, directory, configuration }))
    }

    /// The newest of the master's workers.
    fn worker(&self) -> Option<u32> {
        with_children(self.master.id()).into_iter().skip(1).max()
    }
}

impl Reloads for Haproxy {
    fn name(&self) -> &'static str {
        "HAProxy, http"
    }

    fn entries(&self) -> [Contender; 2] {
        [Contender::HaproxyHttp; 2]
    }

    fn reload(&mut self, count: u16) -> Result<()> {
        let server = format!("server instance1 {}", instance());
        self.configuration.rewrite(&server, &format!("{server} weight {}", weight(count)))?;
        let before = self.worker();
        workspace::signal(&mut self.master, libc::SIGUSR2);
        let began = Instant::now();
        while self.worker() == before {
            if began.elapsed() > PATIENCE {
                let log = gateway::log_of("haproxy", &self.directory);
                bail!("HAProxy starts no new worker; its log:\n{log}");
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        workspace::terminate(&mut self.master);
        self.master.wait()?;
        Ok(())
    }
}
