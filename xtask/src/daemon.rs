//! routerd on the lab's gateway, and asked through routerctl.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::topology::{Host, Lab};
use crate::workspace;

/// How long routerd may take to start, and its instances to be found healthy.
const PATIENCE: Duration = Duration::from_secs(20);

/// Which build of routerd and routerctl is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    Debug,
    Release,
}

#[derive(Debug)]
pub struct Daemon {
    child: Child,
    profile: Profile,
    socket: PathBuf,
    lab_dir: PathBuf,
}

impl Daemon {
    /// Starts routerd with this configuration, which names its `control_socket`.
    pub fn start(lab: &Lab, configuration: &Path, profile: Profile) -> Result<Self> {
        let shown = configuration.display();
        let text = fs::read_to_string(configuration).with_context(|| format!("cannot read {shown}"))?;
        let settings: toml::Table = text.parse().with_context(|| shown.to_string())?;
        let socket = settings.get("daemon").and_then(|daemon| daemon.get("control_socket")?.as_str());
        let socket = PathBuf::from(socket.with_context(|| format!("{shown} has no control_socket"))?);
        let lab_dir = lab.state_dir();
        let log = File::create(log_file(&lab_dir))?;
        let child = lab
            .command(Host::Gateway, binary("routerd", profile))
            .arg("--config")
            .arg(configuration)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start routerd")?;
        Ok(Self { child, profile, socket, lab_dir })
    }

    /// Waits until every instance may be chosen.
    pub fn wait_for_instances(&mut self, interrupted: &AtomicBool) -> Result<()> {
        let began = Instant::now();
        while !interrupted.load(Ordering::Relaxed) {
            self.must_be_running()?;
            let instances = self.ask(&["instances"]).unwrap_or_default();
            let instances = instances.as_array().map(Vec::as_slice).unwrap_or_default();
            if !instances.is_empty() && instances.iter().all(|instance| instance["serving"] == true) {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                bail!("not every instance serves after {PATIENCE:?}; routerd's log:\n{}", self.log());
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    pub fn must_be_running(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("routerd has ended ({status}); its log:\n{}", self.log());
        }
        Ok(())
    }

    /// What `routerctl --json` answers.
    pub fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(self.routerctl_path());
        command.arg("--socket").arg(&self.socket).arg("--json").args(arguments);
        let output = command.output().context("cannot start routerctl")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("routerctl printed no JSON")
    }

    /// Asks routerd to end, and fails if it ends badly.
    pub fn stop(mut self) -> Result<()> {
        workspace::terminate(&mut self.child);
        let began = Instant::now();
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("routerd has ended badly ({status}); its log:\n{}", self.log()),
                None if began.elapsed() > PATIENCE => bail!("routerd does not end; its log:\n{}", self.log()),
                None => sleep(Duration::from_millis(20)),
            }
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn lab_dir(&self) -> &Path {
        &self.lab_dir
    }

    pub fn log_file(&self) -> PathBuf {
        log_file(&self.lab_dir)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub fn routerctl_path(&self) -> PathBuf {
        binary("routerctl", self.profile)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

fn log_file(lab_dir: &Path) -> PathBuf {
    lab_dir.join("routerd.log")
}

fn binary(name: &str, profile: Profile) -> PathBuf {
    let directory = match profile {
        Profile::Debug => "debug",
        Profile::Release => "release",
    };
    workspace::target_dir().join(directory).join(name)
}
