//! The gateway in a contender's turn. Whoever costs others something while it is idle is there only for its own.

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};

use super::contender::{self, Contender, Hook};
use crate::daemon::{Daemon, Profile};
use crate::topology::{Host, Lab};

#[derive(Debug)]
pub struct Gateway<'a> {
    lab: &'a Lab,
    interrupted: &'a AtomicBool,
    daemon: Option<(Hook, Daemon)>,
    tracking: bool,
}

impl<'a> Gateway<'a> {
    pub fn new(lab: &'a Lab, interrupted: &'a AtomicBool) -> Self {
        Self { lab, interrupted, daemon: None, tracking: false }
    }

    /// Gives the turn to `contender`.
    pub fn turn(&mut self, contender: Contender) -> Result<()> {
        let wanted = match contender {
            Contender::Router(hook, _) => Some(hook),
            Contender::Routing | Contender::Nftables => None,
        };
        if self.daemon.as_ref().map(|(hook, _)| *hook) != wanted {
            self.stop()?;
        }
        self.track(contender == Contender::Nftables)?;
        if let Some(hook) = wanted.filter(|_| self.daemon.is_none()) {
            let directory = self.lab.host_dir(Host::Gateway);
            fs::create_dir_all(&directory)?;
            let file = directory.join("layer4.toml");
            let text = contender::router(hook, &directory.join("control.sock"), &self.lab.pin_dir());
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            // What carries packets lies in the kernel and is the same in every build.
            let mut daemon = Daemon::start(self.lab, &file, Profile::Debug)?;
            daemon.wait_for_instances(self.interrupted)?;
            self.daemon = Some((hook, daemon));
        }
        Ok(())
    }

    /// Packets that the router has carried, by both hooks.
    pub fn carried(&self) -> Result<Option<u64>> {
        let Some((_, daemon)) = &self.daemon else { return Ok(None) };
        let reasons = daemon.ask(&["reasons"])?;
        let packets = reasons["packet"].as_array().context("routerctl reasons has no packets")?;
        let names = ["l4_forwarded", "l4_placed", "l4_answered"];
        let carried = packets.iter().filter(|one| names.iter().any(|name| one["name"] == *name));
        Ok(Some(carried.filter_map(|one| one["count"].as_u64()).sum()))
    }

    fn track(&mut self, wanted: bool) -> Result<()> {
        if wanted && !self.tracking {
            self.nft(&contender::nftables())?;
        } else if self.tracking && !wanted {
            self.nft("delete table inet bench\n")?;
            // Entries outlive the rules, and their number is limited.
            let mut flush = self.lab.command(Host::Gateway, "conntrack");
            flush.arg("-F").output().context("cannot start conntrack")?;
        }
        self.tracking = wanted;
        Ok(())
    }

    /// Ends the router, and with it its kernel programs, which outlive a daemon.
    pub fn stop(&mut self) -> Result<()> {
        if let Some((_, daemon)) = self.daemon.take() {
            daemon.stop()?;
            fs::remove_dir_all(self.lab.pin_dir())?;
            self.nft("flush ruleset\n")?;
        }
        Ok(())
    }

    fn nft(&self, rules: &str) -> Result<()> {
        let mut command = self.lab.command(Host::Gateway, "nft");
        let mut child =
            command.args(["-f", "-"]).stdin(Stdio::piped()).spawn().context("cannot start nft")?;
        child.stdin.take().expect("stdin is a pipe").write_all(rules.as_bytes())?;
        if !child.wait()?.success() {
            bail!("nft refuses:\n{rules}");
        }
        Ok(())
    }
}
