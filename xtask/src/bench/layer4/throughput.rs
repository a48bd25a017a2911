//! Transfers through Layer-4 listeners of each mode, against plain routing and nftables, in one run in the lab.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use serde::Serialize;

use super::contender::{self, Contender};
use super::gateway::Gateway;
use super::iperf::{self, Load, Moved, Servers};
use super::report;
use crate::bench::document::{self, Part};
use crate::bench::machine::Machine;
use crate::bench::meter::Meter;
use crate::lab::RemovedAtTheEnd;
use crate::progress::Step;
use crate::topology::{Family, Host, Lab};
use crate::{build, setup, workspace};

const LAB: &str = "rt-bench4";

/// One contender's turn.
#[derive(Clone, Debug, Serialize)]
pub struct Turn {
    pub round: usize,
    #[serde(skip)]
    pub family: Family,
    pub load: Load,
    pub contender: Contender,
    pub moved: Moved,
    /// CPU time of the whole machine, s.
    pub cpu: f64,
    pub seconds: f64,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub rounds: usize,
    pub seconds: u64,
    pub quick: bool,
}

pub fn run(extent: Extent, json: Option<&Path>) -> Result<()> {
    setup::ensure(setup::For::Lab)?;
    build::run(false)?;
    let interrupted = workspace::interruption()?;
    let _lab_is_removed = RemovedAtTheEnd(LAB);
    Lab::down(LAB)?;
    let lab = Lab::up(LAB, 1)?;
    prepare(&lab)?;
    let _unwrapper = unwrap_at_the_instance(&lab)?;
    let _servers = Servers::start(&lab, &contender::served())?;
    let mut gateway = Gateway::new(&lab, &interrupted);
    let (turns, failures) = measure(&lab, &mut gateway, extent, &interrupted)?;
    gateway.stop()?;
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted; nothing is written");
    }
    println!("{}", report::table(&turns));
    if let Some(path) = json {
        fs::write(path, serde_json::to_string_pretty(&turns)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if !failures.is_empty() {
        bail!("{} turns failed:\n{}", failures.len(), failures.join("\n"));
    }
    if extent.quick {
        return Ok(());
    }
    document::publish(Part::Layer4Throughput, &report::section(&turns, extent, &Machine::look()))
}

/// What instances that answer directly must be set up with, and a gateway through which their answers come all the same.
fn prepare(lab: &Lab) -> Result<()> {
    for family in Family::BOTH {
        let vip = family.vip();
        let address = if vip.is_ipv4() { format!("{vip}/32") } else { format!("{vip}/128") };
        let mut command = lab.command(Host::Backend(1), "ip");
        command.args(["address", "add", &address, "dev", "lo"]);
        workspace::succeed(command.args(vip.is_ipv6().then_some("nodad")))?;
    }
    for key in ["net.ipv4.conf.all.accept_local", "net.ipv4.conf.backends.accept_local"] {
        lab.sysctl(Host::Gateway, key, "1")?;
    }
    lab.sysctl(Host::Gateway, "net.ipv4.conf.backends.rp_filter", "0")
}

/// Takes outer IP headers off, by a kernel program: this works on kernels without tunnel devices.
fn unwrap_at_the_instance(lab: &Lab) -> Result<Ebpf> {
    let object = workspace::target_dir().join("bpf/bpfel-unknown-none/release/router-bench");
    let bytes = fs::read(&object).with_context(|| format!("cannot read {}", object.display()))?;
    let mut ebpf = EbpfLoader::new().load(&bytes).context("cannot load the bench's kernel programs")?;
    let program: &mut SchedClassifier =
        ebpf.program_mut("unwrapping").context("no program unwrapping")?.try_into()?;
    program.load().context("the verifier refuses unwrapping")?;
    lab.inside(Host::Backend(1), || {
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        program.attach_with_options("eth0", TcAttachType::Ingress, options).map(drop)
    })??;
    Ok(ebpf)
}

/// All turns of all rounds, and what failed.
fn measure(
    lab: &Lab,
    gateway: &mut Gateway<'_>,
    extent: Extent,
    interrupted: &AtomicBool,
) -> Result<(Vec<Turn>, Vec<String>)> {
    let (mut turns, mut failures) = (Vec::new(), Vec::new());
    let mut contenders = Contender::all();
    let step = Step::begin("measuring");
    let all = extent.rounds * Family::BOTH.len() * contenders.len() * Load::ALL.len();
    for round in 0..extent.rounds {
        for family in Family::BOTH {
            for &contender in &contenders {
                gateway.turn(contender)?;
                for load in Load::ALL {
                    if interrupted.load(Ordering::Relaxed) {
                        return Ok((turns, failures));
                    }
                    let doing = format!("{}, {family:?}: {}", load.name(), contender.name());
                    step.at((100 * (turns.len() + failures.len()) / all) as u64, &doing);
                    match turn(lab, gateway, (round, family, load, contender), extent.seconds) {
                        Ok(turn) => turns.push(turn),
                        Err(error) => failures.push(format!("round {}, {doing}: {error:#}", round + 1)),
                    }
                }
            }
        }
        // Those that share a daemon stay together.
        contenders.rotate_left(2);
    }
    step.done();
    Ok((turns, failures))
}

fn turn(
    lab: &Lab,
    gateway: &Gateway<'_>,
    (round, family, load, contender): (usize, Family, Load, Contender),
    seconds: u64,
) -> Result<Turn> {
    let meter = Meter::new(Vec::new());
    let (before, began) = (gateway.carried()?, meter.read()?);
    let moved = iperf::run(lab, load, contender.address(family), load.seconds(seconds))?;
    let usage = meter.read()? - began;
    if let (Some(before), Some(after)) = (before, gateway.carried()?) {
        ensure!(after > before + 100, "the router has carried {} packets only", after - before);
    }
    Ok(Turn { round, family, load, contender, moved, cpu: usage.machine, seconds: usage.elapsed })
}

/// The version of iperf3, for the report.
pub fn version() -> String {
    let output = Command::new("iperf3").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
