//! What the control server reads.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use router_common::abi::reason::RefuseReason;

use super::configuration::Configurator;
use super::protocol::Listener;
use crate::config::{ListenerPlan, Offload};
use crate::core::counters::Counters;
use crate::core::preload::Planner;
use crate::core::request::HttpRequest;
use crate::core::table::RoutingTable;
use crate::flows::capture::Captures;
use crate::flows::ports::PortAllocator;
use crate::flows::table::{FlowTable, Layer4Flows};
use crate::flows::trace::Traces;

/// Reads a head exactly as a listener does, so that `explain` judges what traffic would meet.
pub trait HeadReader: Send + Sync {
    /// Gives `then` the request that the head makes, or returns why the listener would refuse it.
    fn read(
        &self,
        listener: &str,
        head: &[u8],
        then: &mut dyn FnMut(HttpRequest<'_>),
    ) -> Result<(), RefuseReason>;

    /// A server name as rules would see it, or why a TLS listener would refuse it.
    fn server_name<'n>(&self, name: &'n str) -> Result<&'n str, RefuseReason>;
}

impl<R: HeadReader + ?Sized> HeadReader for Arc<R> {
    fn read(
        &self,
        listener: &str,
        head: &[u8],
        then: &mut dyn FnMut(HttpRequest<'_>),
    ) -> Result<(), RefuseReason> {
        (**self).read(listener, head, then)
    }

    fn server_name<'n>(&self, name: &'n str) -> Result<&'n str, RefuseReason> {
        (**self).server_name(name)
    }
}

/// The live parts of the daemon that questions are answered from. The daemon's composition root builds it.
pub struct State {
    /// The snapshot that decisions are made with at the moment.
    pub table: Arc<ArcSwap<RoutingTable>>,
    pub counters: Arc<Counters>,
    /// `None` if no kernel data path is loaded.
    pub flows: Option<Arc<dyn FlowTable>>,
    /// The flows of Layer-4 listeners; `None` if no kernel data path is loaded.
    pub layer4: Option<Arc<dyn Layer4Flows>>,
    /// Answers where packets would go; `None` if no kernel data path is loaded.
    pub tracer: Option<Arc<dyn Traces>>,
    /// Samples packets that are not carried on; `None` if no kernel data path is loaded.
    pub captures: Option<Arc<dyn Captures>>,
    /// The router's ports towards instances.
    pub ports: Arc<PortAllocator>,
    /// One line: where the data path is attached, or why it is not loaded.
    pub datapath: String,
    pub heads: Box<dyn HeadReader>,
    pub listeners: Arc<ArcSwap<Vec<Listener>>>,
    pub configurator: Arc<dyn Configurator>,
    /// What is opened on instances ahead of users.
    pub preloads: Arc<Mutex<Planner>>,
    pub config_file: Option<PathBuf>,
    /// When the daemon started.
    pub started: Instant,
    /// The same moment on the wall clock, for metrics.
    pub started_at: SystemTime,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("datapath", &self.datapath).finish_non_exhaustive()
    }
}

impl From<&ListenerPlan> for Listener {
    fn from(plan: &ListenerPlan) -> Self {
        let offload = match plan.offload {
            _ if plan.protocol.is_layer4() => "kernel",
            Offload::Auto => "auto",
            Offload::Bind => "bind",
            Offload::Handoff => "handoff",
            Offload::Relay => "relay",
        };
        Self {
            name: plan.name.clone(),
            address: plan.address,
            protocol: plan.protocol.name().to_owned(),
            source: plan.source.name().to_owned(),
            offload: offload.to_owned(),
        }
    }
}
