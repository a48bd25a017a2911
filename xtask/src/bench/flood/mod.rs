//! Floods at a listener whose connections have no socket: what real clients keep of their rate, and what a forged packet costs.

mod cost;
#[path = "../../../../tests/support/link.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod link;
mod report;
mod sender;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::contender::Contender;
use super::document::{self, Part};
use super::gateway::Gateway;
use super::machine::Machine;
use super::meter::Meter;
use super::workload::Workload;
use super::wrk;
use crate::lab::RemovedAtTheEnd;
use crate::progress::Step;
use crate::topology::Lab;
use crate::{build, setup, workspace};
use cost::Cost;
use sender::{Kind, Sender};

const LAB: &str = "rt-flood";
const CONTENDER: Contender = Contender::RouterBind;
/// Forged packets that are sent in each turn at least.
const PACKETS: u32 = 1_000_000;

/// Real clients beside one flood, or none.
#[derive(Clone, Debug, Serialize)]
struct Turn {
    round: usize,
    flood: Option<Kind>,
    /// Connections a second of the real clients.
    rate: f64,
    /// Forged packets, and how many a second.
    packets: u32,
    packet_rate: f64,
    /// Resident memory of routerd afterwards, bytes.
    resident: u64,
}

/// What everything has come to.
#[derive(Debug, Serialize)]
struct Outcome {
    turns: Vec<Turn>,
    costs: Vec<(Kind, Cost)>,
}

pub fn run(quick: bool, json: Option<&Path>) -> Result<()> {
    setup::ensure(setup::For::Lab)?;
    build::run(true)?;
    let interrupted = workspace::interruption()?;
    let _lab_is_removed = RemovedAtTheEnd(LAB);
    Lab::down(LAB)?;
    let lab = Lab::up(LAB, 1)?;
    let mut gateway = Gateway::start(&lab, &interrupted)?;
    gateway.turn(CONTENDER)?;
    let (rounds, seconds) = if quick { (1, 2) } else { (5, 3) };
    let sender = Sender::new(&lab, CONTENDER.address())?;
    let outcome = measure(&lab, &gateway, &sender, (rounds, Duration::from_secs(seconds)), &interrupted)?;
    gateway.stop()?;
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted; nothing is written");
    }
    println!("{}", report::table(&outcome));
    if let Some(path) = json {
        fs::write(path, serde_json::to_string_pretty(&outcome)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if quick {
        return Ok(());
    }
    document::publish(Part::Flood, &report::section(&outcome, rounds, &Machine::look()))
}

fn measure(
    lab: &Lab,
    gateway: &Gateway<'_>,
    sender: &Sender,
    (rounds, length): (usize, Duration),
    interrupted: &AtomicBool,
) -> Result<Outcome> {
    let step = Step::begin("flooding");
    // The first connections find the way to the instance.
    clients(lab, gateway, Duration::from_secs(1))?;
    let floods = [None, Some(Kind::Syn), Some(Kind::Ack)];
    let mut turns = Vec::new();
    for round in 0..rounds {
        for flood in floods {
            if interrupted.load(Ordering::Relaxed) {
                return Ok(Outcome { turns, costs: Vec::new() });
            }
            let doing = flood.map_or("no flood", Kind::name);
            step.at((100 * turns.len() / (rounds * floods.len())) as u64, doing);
            let (rate, sent) = match flood {
                None => (clients(lab, gateway, length)?, sender::Sent::default()),
                Some(kind) => sender.beside(kind, PACKETS, || clients(lab, gateway, length))?,
            };
            gateway.settle()?;
            let resident = resident(gateway)?;
            let packet_rate = sent.rate();
            turns.push(Turn { round, flood, rate, packets: sent.packets, packet_rate, resident });
        }
    }
    let mut costs = Vec::new();
    for kind in [Kind::Syn, Kind::Ack] {
        costs.push((kind, cost::of(|| sender.send(kind, PACKETS / 2))?));
    }
    step.done();
    Ok(Outcome { turns, costs })
}

/// Connections a second.
fn clients(lab: &Lab, gateway: &Gateway<'_>, length: Duration) -> Result<f64> {
    let meter = Meter::new(gateway.processes(CONTENDER));
    let answered = wrk::run(lab, CONTENDER, Workload::Connections, length, &meter)?;
    Ok(answered.requests as f64 / answered.seconds)
}

fn resident(gateway: &Gateway<'_>) -> Result<u64> {
    let mut bytes = 0;
    for pid in gateway.processes(CONTENDER) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("routerd has ended")?;
        let line =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no resident memory")?;
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().context("not a number")?;
        bytes += kilobytes << 10;
    }
    Ok(bytes)
}
