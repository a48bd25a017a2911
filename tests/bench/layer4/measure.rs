//! Measures one case: medians, net of what restoring the frame and an empty program take.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use router::flows::balance::FLOWS_PER_BUCKET;
use router_common::path::balance::memory::MemoryTables;
use support::layer4::Layer4;
use support::restoring::{Hook, Restoring, Sources};
use support::xdp_maps::KnownInterfaces;

use crate::cases::{Case, Meets};
use crate::frames::{self, Segment};
use crate::tables::{Family, tables};

/// Buckets of the flow table: as many as the daemon has by default (`l4_max_flows`), and more for millions of new flows.
const BUCKETS: u32 = 1_000_000 / FLOWS_PER_BUCKET as u32;
const MANY_BUCKETS: u32 = 250_000;
/// New flows a second and CPU that are stored: the default of `l4_new_flows`.
const NEW_FLOWS: u32 = 100_000;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub runs: usize,
    /// Frames of one run.
    pub rounds: u32,
    /// The same where each is a packet of its own.
    pub packets: u32,
    /// Addresses that a flood comes from.
    pub flood: u32,
}

impl Extent {
    /// New flows of one run: they take longer, and room in the table.
    fn new_flows(&self) -> u32 {
        self.rounds / 2
    }
}

/// ns of one frame.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub median: f64,
    pub least: f64,
    pub greatest: f64,
    /// Frames of all runs.
    pub frames: u64,
}

pub struct Bench {
    extent: Extent,
    tables: MemoryTables,
    layer4: Layer4,
    restoring: Restoring,
    /// What it takes without the program: by hook, frame and whether each frame is a packet of its own.
    empty: BTreeMap<(Hook, Family, bool), f64>,
}

impl Bench {
    pub fn load(extent: Extent) -> Result<Self> {
        let tables = tables(BUCKETS);
        let layer4 = Layer4::load_with_buckets(&tables, MANY_BUCKETS)?;
        layer4.xdp.hold(&KnownInterfaces::sending(|_| true))?;
        Ok(Self { extent, tables, layer4, restoring: Restoring::load()?, empty: BTreeMap::new() })
    }

    /// Bytes of map memory for each flow that the daemon promises to hold.
    pub fn memory_of_a_flow(&self) -> Result<f64> {
        let bytes = self.layer4.memory("L4_FLOWS")? + self.layer4.memory("REPLIES")?;
        Ok(bytes as f64 / (f64::from(MANY_BUCKETS) * FLOWS_PER_BUCKET as f64))
    }

    pub fn measure(&mut self, hook: Hook, case: &Case) -> Result<Cost> {
        let new_packets = case.wants_new_packets(hook);
        let sources = self.prepare(case)?;
        let (runs, rounds) = match case.meets {
            Meets::Flood { sources } => (1, sources),
            Meets::NewFlow => (self.extent.runs, self.extent.new_flows()),
            _ if new_packets => (self.extent.runs, self.extent.packets),
            _ => (self.extent.runs, self.extent.rounds),
        };
        let empty = self.empty(hook, case.family, new_packets, &sources)?;
        self.restoring.measure(
            hook,
            match hook {
                Hook::Tc => self.layer4.tc()?,
                Hook::Xdp => self.layer4.xdp_program()?,
            },
        )?;
        let mut costs = Vec::new();
        for _ in 0..runs {
            if case.meets == Meets::NewFlow {
                self.layer4.forget_flows()?;
            }
            self.restoring.arrive(&sources)?;
            let before = self.layer4.packets()?;
            costs.push(self.run(hook, &sources, rounds, new_packets)? - empty);
            let after = self.layer4.packets()?;
            let counted: u64 =
                case.reasons().iter().map(|reason| after[reason.index()] - before[reason.index()]).sum();
            // XDP, which also begins the flows, leaves to TC what looks as if a network card were to make its checksum: one packet in 65,536.
            let left = if hook == Hook::Xdp || sources.count > 1 { u64::from(rounds / 10_000) } else { 0 };
            ensure!(
                (u64::from(rounds) - left..=u64::from(rounds)).contains(&counted),
                "{counted} of {rounds} frames met what they should"
            );
        }
        let (least, median, greatest) = middle(costs);
        Ok(Cost { median, least, greatest, frames: runs as u64 * u64::from(rounds) })
    }

    /// Makes the flow table what the case wants, and returns the frames that are to arrive.
    fn prepare(&mut self, case: &Case) -> Result<Sources> {
        let &Case { meets, mode, family, .. } = case;
        let limit = if let Meets::Flood { .. } = meets { NEW_FLOWS } else { 0 };
        self.tables.settings.new_flow_limit.set(limit);
        self.tables.settings.buckets.set(if meets == Meets::NewFlow { MANY_BUCKETS } else { BUCKETS });
        self.layer4.hold(&self.tables)?;
        self.layer4.forget_flows()?;
        let from_clients = |segment, clients| frames::from_clients(family, mode, segment, clients);
        Ok(match meets {
            Meets::Flow { among } => {
                self.open(&from_clients(Segment::Syn, among))?;
                from_clients(Segment::Ack, among)
            }
            Meets::Answered => {
                let question = frames::first(&from_clients(Segment::Syn, 1));
                frames::answer(family, &self.layer4.run(&question, 1)?.frame)
            }
            Meets::Maglev => from_clients(Segment::Fin, 1),
            Meets::NewFlow => from_clients(Segment::Syn, self.extent.new_flows()),
            Meets::Flood { sources } => from_clients(Segment::Syn, sources),
        })
    }

    /// Begins a flow of each source.
    fn open(&mut self, sources: &Sources) -> Result<()> {
        self.restoring.measure(Hook::Xdp, self.layer4.xdp_program()?)?;
        self.restoring.arrive(sources)?;
        self.restoring.run(Hook::Xdp, sources, sources.count)?;
        Ok(())
    }

    fn empty(&mut self, hook: Hook, family: Family, new_packets: bool, sources: &Sources) -> Result<f64> {
        if let Some(known) = self.empty.get(&(hook, family, new_packets)) {
            return Ok(*known);
        }
        self.restoring.measure_nothing(hook)?;
        let rounds = if new_packets { self.extent.packets } else { self.extent.rounds };
        let mut costs = Vec::new();
        for _ in 0..self.extent.runs {
            self.restoring.arrive(sources)?;
            costs.push(self.run(hook, sources, rounds, new_packets)?);
        }
        let (_, median, _) = middle(costs);
        self.empty.insert((hook, family, new_packets), median);
        Ok(median)
    }

    /// ns of one round: the mean, or the median where each frame is a packet of its own, which each may be interrupted.
    fn run(&self, hook: Hook, sources: &Sources, rounds: u32, new_packets: bool) -> Result<f64> {
        if !new_packets {
            return Ok(self.restoring.run(hook, sources, rounds)?.as_nanos() as f64);
        }
        let each = (0..rounds).map(|_| Ok(self.restoring.run(hook, sources, 1)?.as_nanos() as f64));
        let (_, median, _) = middle(each.collect::<Result<_>>()?);
        Ok(median)
    }
}

/// The least, the median and the greatest.
fn middle(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}
