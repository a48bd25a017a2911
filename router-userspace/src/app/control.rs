//! The control server over the daemon's live parts.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;

use super::configuration::Configuration;
use super::heads::Heads;
use crate::config::DaemonPlan;
use crate::control::protocol::Listener;
use crate::control::{Opened, Server, Settings, StartError, State, Timeouts};
use crate::core::counters::Counters;
use crate::core::preload::Planner;
use crate::core::table::RoutingTable;
use crate::flows::balance::Balancer;
use crate::flows::capture::{Captures, KernelCaptures};
use crate::flows::ports::PortAllocator;
use crate::flows::table::{FlowTable, Layer4Flows};
use crate::flows::trace::{Tracer, Traces};

/// What the control server shows of the daemon.
pub struct Live {
    pub table: Arc<ArcSwap<RoutingTable>>,
    pub counters: Arc<Counters>,
    /// `None` if no kernel data path is loaded.
    pub flows: Option<Arc<dyn FlowTable>>,
    pub balancer: Option<Arc<Balancer>>,
    pub tracer: Option<Arc<Tracer>>,
    pub captures: Option<Arc<KernelCaptures>>,
    pub ports: Arc<PortAllocator>,
    /// One line: where the data path is attached, or why it is not loaded.
    pub datapath: String,
    pub heads: Arc<Heads>,
    pub listeners: Arc<ArcSwap<Vec<Listener>>>,
    pub configuration: Arc<Configuration>,
    pub preloads: Arc<Mutex<Planner>>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("datapath", &self.datapath).finish_non_exhaustive()
    }
}

/// Opens the control socket and the admin address, unless another daemon answers there.
pub fn open(daemon: &DaemonPlan) -> Result<Opened, StartError> {
    Opened::new(&Settings {
        socket: daemon.control_socket.clone(),
        group: daemon.control_group.clone(),
        admin_listen: daemon.admin_listen,
        timeouts: Timeouts::default(),
    })
}

/// Answers on the opened sockets. Whoever gets an answer takes the daemon to be ready, so this comes after the listeners.
pub fn serve(opened: Opened, config_file: &Path, live: Live) -> Result<Server, StartError> {
    opened.serve(Arc::new(State {
        table: live.table,
        counters: live.counters,
        flows: live.flows,
        layer4: live.balancer.map(|balancer| balancer as Arc<dyn Layer4Flows>),
        tracer: live.tracer.map(|tracer| tracer as Arc<dyn Traces>),
        captures: live.captures.map(|captures| captures as Arc<dyn Captures>),
        ports: live.ports,
        datapath: live.datapath,
        heads: Box::new(live.heads),
        listeners: live.listeners,
        configurator: live.configuration,
        preloads: live.preloads,
        config_file: Some(config_file.to_owned()),
        started: Instant::now(),
        started_at: SystemTime::now(),
    }))
}
