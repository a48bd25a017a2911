//! `cargo xtask bench`: the router against plain routing, nftables, HAProxy and nginx, in one run in the lab.
//!
//! The contenders take turns within every round, so that what disturbs the machine disturbs them alike. Figures of
//! different runs are not comparable.

mod contender;
mod document;
mod figures;
mod flood;
mod gateway;
mod layer4;
mod machine;
mod meter;
mod plot;
mod reloads;
mod report;
mod settings;
mod targets;
mod transfer;
mod workload;
mod wrk;

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::lab::RemovedAtTheEnd;
use crate::progress::Step;
use crate::topology::Lab;
use crate::{build, setup, workspace};
use contender::Contender;
use gateway::Gateway;
use machine::Machine;
use reloads::Reloaded;
use transfer::Window;
use workload::{Course, Measurement, Workload};

/// Beside the labs of tests and of people.
const LAB: &str = "rt-bench";

/// What is to be measured, and where it is to be written.
#[derive(Clone, Debug, clap::Args)]
pub struct Selection {
    /// Two short rounds, for a look.
    #[arg(long)]
    quick: bool,
    /// Write every measurement to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only these workloads; the documents are left alone then.
    #[arg(long = "workload", value_name = "NAME", value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Let only these contend; the documents are left alone then.
    #[arg(long = "contender", value_name = "NAME", value_delimiter = ',')]
    contenders: Vec<Contender>,
    /// How often everything is measured.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Only reload the router and HAProxy so often under load; the documents are left alone then.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=200),
          conflicts_with_all = ["workloads", "contenders", "rounds"])]
    reloads: Option<u16>,
    /// Only measure what a Layer-4 packet costs the kernel programs (BPF_PROG_TEST_RUN), and write it into docs/BENCHMARKS.md.
    #[arg(long, conflicts_with_all = ["workloads", "contenders", "rounds", "reloads"])]
    l4: bool,
    /// Only compare transfers through Layer-4 listeners with plain routing and nftables (iperf3), and write it into docs/BENCHMARKS.md.
    #[arg(long, conflicts_with_all = ["workloads", "contenders", "reloads", "l4"])]
    l4_throughput: bool,
    /// Only flood a listener whose connections have no socket, beside real clients, and write what they keep into docs/BENCHMARKS.md.
    #[arg(long, conflicts_with_all = ["workloads", "contenders", "rounds", "reloads", "l4", "l4_throughput"])]
    flood: bool,
}

impl Selection {
    fn workloads(&self) -> Vec<Workload> {
        if self.workloads.is_empty() { Workload::ALL.to_vec() } else { self.workloads.clone() }
    }

    fn contenders(&self) -> Vec<Contender> {
        if self.contenders.is_empty() { Contender::ALL.to_vec() } else { self.contenders.clone() }
    }

    fn is_whole(&self) -> bool {
        self.workloads.is_empty() && self.contenders.is_empty() && self.reloads.is_none()
    }

    /// How often the configuration is changed under load.
    fn reloads(&self) -> u16 {
        let whole = if self.quick { 10 } else { 50 };
        self.reloads.unwrap_or(if self.is_whole() { whole } else { 0 })
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Extent {
    rounds: usize,
    window: Window,
    requests_for: Duration,
}

impl Extent {
    fn new(selection: &Selection) -> Self {
        let (ramp, length, requests_for, rounds) =
            if selection.quick { (200, 1000, 2, 2) } else { (300, 2000, 3, 5) };
        Self {
            rounds: selection.rounds.map_or(rounds, usize::from),
            window: Window { ramp: Duration::from_millis(ramp), length: Duration::from_millis(length) },
            requests_for: Duration::from_secs(requests_for),
        }
    }
}

pub fn run(selection: &Selection) -> Result<()> {
    if !workspace::is_root() {
        bail!("the bench works in network namespaces and in the kernel: run this as root");
    }
    let _alone = claim_the_machine()?;
    if selection.l4 {
        return layer4::cost::run(selection.quick, selection.json.as_deref());
    }
    if selection.l4_throughput {
        let (rounds, seconds) = if selection.quick { (1, 1) } else { (3, 2) };
        let rounds = selection.rounds.map_or(rounds, usize::from);
        let extent = layer4::throughput::Extent { rounds, seconds, quick: selection.quick };
        return layer4::throughput::run(extent, selection.json.as_deref());
    }
    if selection.flood {
        return flood::run(selection.quick, selection.json.as_deref());
    }
    setup::ensure(setup::For::Lab)?;
    build::run(true)?;
    let interrupted = workspace::interruption()?;
    let _lab_is_removed = RemovedAtTheEnd(LAB);
    // The server's storage and its counters begin afresh.
    Lab::down(LAB)?;
    let lab = Lab::up(LAB, 1)?;
    let extent = Extent::new(selection);
    let (measurements, mut failures) = match selection.reloads {
        Some(_) => (Vec::new(), Vec::new()),
        None => measure(&lab, selection, extent, &interrupted)?,
    };
    let reloaded = match selection.reloads() {
        0 => Vec::new(),
        count => reloads::run(&lab, count, &interrupted).unwrap_or_else(|error| {
            failures.push(format!("reloads under load: {error:#}"));
            Vec::new()
        }),
    };
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted; nothing is written");
    }
    publish(selection, extent, &measurements, &reloaded)?;
    for failure in &failures {
        eprintln!("FAILED: {failure}");
    }
    if !failures.is_empty() {
        bail!("{} of {} turns failed", failures.len(), failures.len() + measurements.len());
    }
    Ok(())
}

/// Two benches at a time would take each other's lab down. An abstract socket is a lock that leaves nothing behind.
fn claim_the_machine() -> Result<UnixListener> {
    let address = SocketAddr::from_abstract_name("router-bench").context("abstract socket addresses")?;
    UnixListener::bind_addr(&address).context("another bench is running; wait for it")
}

/// All turns of all rounds: what was measured, and what failed.
fn measure(
    lab: &Lab,
    selection: &Selection,
    extent: Extent,
    interrupted: &AtomicBool,
) -> Result<(Vec<Measurement>, Vec<String>)> {
    let gateway = Gateway::start(lab, interrupted)?;
    let mut course = Course::new(lab, gateway, extent.window, extent.requests_for)?;
    let (mut measurements, mut failures) = (Vec::new(), Vec::new());
    let step = Step::begin("measuring");
    let (workloads, mut contenders) = (selection.workloads(), selection.contenders());
    let turns = extent.rounds * workloads.len() * contenders.len();
    for round in 0..extent.rounds {
        for &workload in &workloads {
            for &contender in &contenders {
                if interrupted.load(Ordering::Relaxed) {
                    return Ok((measurements, failures));
                }
                let doing = format!("{}: {}", workload.name(), contender.name());
                let done = measurements.len() + failures.len();
                step.at((100 * done / turns) as u64, &doing);
                match course.measure(round, workload, contender) {
                    Ok(measurement) => measurements.push(measurement),
                    Err(error) => failures.push(format!("round {}, {doing}: {error:#}", round + 1)),
                }
            }
        }
        let next = 3 % contenders.len();
        contenders.rotate_left(next);
    }
    step.done();
    course.end()?;
    Ok((measurements, failures))
}

/// The table, the document, the plot, and if wanted the raw figures.
fn publish(
    selection: &Selection,
    extent: Extent,
    measurements: &[Measurement],
    reloaded: &[Reloaded],
) -> Result<()> {
    let figures = figures::of(measurements);
    let mut verdicts = targets::verdicts(measurements);
    verdicts.retain(|verdict| selection.is_whole() || verdict.reached.is_some());
    println!("{}", report::table(&figures, &verdicts, reloaded));
    let machine = Machine::look();
    let course = report::Course {
        rounds: extent.rounds,
        quick: selection.quick,
        transfer_seconds: extent.window.length.as_secs_f64(),
        request_seconds: extent.requests_for.as_secs_f64(),
    };
    let write = |path: &Path, text: String| {
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    if selection.is_whole() {
        let docs = workspace::root().join("docs");
        document::publish_main(&report::document(&machine, course, &figures, &verdicts, reloaded))?;
        write(&docs.join("benchmarks.svg"), plot::svg(&figures))?;
        println!("written: docs/benchmarks.svg");
    }
    if let Some(path) = &selection.json {
        let all = json!({
            "machine": machine,
            "quick": selection.quick,
            "rounds": extent.rounds,
            "figures": figures,
            "targets": verdicts,
            "reloads": reloaded,
            "measurements": measurements,
        });
        write(path, serde_json::to_string_pretty(&all)? + "\n")?;
        println!("written: {}", path.display());
    }
    Ok(())
}
