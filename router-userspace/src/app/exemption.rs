//! The exemption of the router's connections from connection tracking: when it is installed, for what, and when it goes.

use std::sync::Arc;
use std::time::Duration;

use super::configuration::Configuration;
use crate::config::{DatapathPlan, ListenerPlan, Offload};
use crate::core::table::RoutingTable;
use crate::flows::notrack::{self, Exempt};
use crate::flows::table::FlowTable;
use crate::flows::tracking::Tracking;

/// How often it is looked whether the host has begun to track connections.
const LOOK: Duration = Duration::from_secs(1);

/// Without it the daemon works all the same, but entries pile up in the host's connection tracking.
#[derive(Debug)]
pub struct Exemption {
    /// In nftables.
    name: String,
    source_ports: std::ops::RangeInclusive<u16>,
    /// `None` if the operator does without.
    tracking: Option<Tracking>,
}

impl Exemption {
    /// Finds out whether there is something to be exempted from.
    pub fn prepare(plan: &DatapathPlan) -> Self {
        let name = notrack::table_name(&plan.pin_dir);
        let tracking = plan.notrack.then(Tracking::probe);
        if let Some(tracking) = &tracking
            && !tracking.is_active()
            && notrack::is_installed(&name)
        {
            // An earlier daemon has seen it, and its own connections show nothing.
            tracking.presume();
        }
        Self { name, source_ports: plan.source_ports.clone(), tracking }
    }

    /// Exempts what may be handed off, in place of what was exempted before; once connections are tracked.
    pub fn install(&self, listeners: &[ListenerPlan], table: &RoutingTable) {
        let name = &self.name;
        let Some(tracking) = &self.tracking else {
            // An earlier daemon may have been told otherwise. Without nft there is nothing to remove.
            let _ = notrack::remove(name);
            return;
        };
        if !tracking.is_active() {
            return;
        }
        let may_leave = listeners
            .iter()
            .filter(|listener| !listener.protocol.is_layer4() && listener.offload != Offload::Relay);
        let exempt = Exempt {
            vips: may_leave.map(|listener| listener.address).collect(),
            instances: table.instances().map(|(_, _, instance)| instance.address).collect(),
            source_ports: self.source_ports.clone(),
        };
        match notrack::install(name, &exempt) {
            Ok(()) => tracing::info!(
                table = name,
                "this host tracks connections: those that may be handed off are exempted (nftables)"
            ),
            Err(error) => tracing::warn!(
                %error,
                "this host tracks connections, and entries of handed-off ones stay for days; install nftables, or exempt the listeners and `source_ports` by hand (notrack) and set `notrack = false` in [datapath]"
            ),
        }
    }

    /// Leaves the host as it was found, except for what flows that go on still need.
    pub fn end(&self, flows: &dyn FlowTable) {
        if self.tracking.as_ref().is_some_and(Tracking::is_active)
            && flows.is_empty()
            && let Err(error) = notrack::remove(&self.name)
        {
            tracing::warn!(%error, "the nftables table {} stays", self.name);
        }
    }
}

/// Installs the exemption as soon as the host tracks connections: a firewall may be loaded at any time.
pub(super) async fn watch(exemption: Arc<Exemption>, configuration: Arc<Configuration>) {
    let Some(tracking) = &exemption.tracking else { return };
    while !tracking.is_active() {
        tokio::time::sleep(LOOK).await;
        if tracking.look() {
            configuration.exempt_from_tracking();
        }
    }
}
