//! What simulated instances report of themselves: processors and memory that grow with what they serve.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::core::load::Report;
use crate::core::table::RoutingTable;

/// How busy a host gets by what its instances serve. A host of weight 200 has twice the processors and memory of one of 100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadModel {
    /// Percent of the processors of a host of weight 100 that one session takes.
    pub cpu_per_session: f64,
    /// Percent of the memory of such a host that one loaded resource takes.
    pub memory_per_resource: f64,
    /// How often every instance reports; above zero.
    pub every: Duration,
}

/// What an instance is doing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub sessions: u32,
    pub resources: u32,
}

/// A host's memory in the reports, in bytes.
const MEMORY: u64 = 64 << 30;
/// How long an idle instance takes to answer.
const IDLE_RESPONSE: Duration = Duration::from_millis(10);
/// A host that is busier is taken to answer as slowly as at this share.
const BUSIEST: f64 = 0.99;

#[derive(Debug)]
pub(super) struct Hosts {
    model: LoadModel,
    /// The host of each instance.
    of_instance: Vec<usize>,
    /// Weight of each host, in hundreds.
    sizes: Vec<f64>,
}

impl Hosts {
    /// Instances of one `node` share a host.
    pub fn new(model: LoadModel, table: &RoutingTable) -> Self {
        let mut nodes = HashMap::new();
        let (mut of_instance, mut sizes) = (Vec::new(), Vec::new());
        for (_, _, instance) in table.instances() {
            let own = sizes.len();
            let host = instance.node.as_deref().map_or(own, |node| *nodes.entry(node).or_insert(own));
            if host == own {
                sizes.push(0.0);
            }
            sizes[host] += f64::from(instance.weight.max(1)) / 100.0;
            of_instance.push(host);
        }
        Self { model, of_instance, sizes }
    }

    pub fn every(&self) -> Duration {
        self.model.every
    }

    /// Every instance reports what it is doing.
    pub fn report(&self, table: &RoutingTable, work: &[Work], now: Instant) {
        let mut hosts = vec![(0.0, 0.0); self.sizes.len()];
        for (&host, work) in self.of_instance.iter().zip(work) {
            let (cpu, memory) = &mut hosts[host];
            *cpu += f64::from(work.sessions) * self.model.cpu_per_session / self.sizes[host];
            *memory += f64::from(work.resources) * self.model.memory_per_resource / self.sizes[host];
        }
        for (((_, pool, instance), &host), work) in table.instances().zip(&self.of_instance).zip(work) {
            let (cpu, memory) = (hosts[host].0.min(100.0), hosts[host].1.min(100.0));
            let report = Report {
                cpu_capacity: Some(100.0 * self.sizes[host]),
                cpu_idle_percent: Some(100.0 - cpu),
                memory_total: Some(MEMORY),
                memory_free: Some((MEMORY as f64 * (1.0 - memory / 100.0)) as u64),
                sessions: Some(work.sessions),
                agent_value: Some(cpu.max(memory) as u8),
                ..Report::default()
            };
            let status = &instance.status;
            status.report(&report, &pool.load, pool.thresholds(instance), now);
            let slowed = IDLE_RESPONSE.div_f64(1.0 - (cpu / 100.0).min(BUSIEST));
            status.sessions().response().observe(slowed, now);
        }
    }
}
