//! Takes reports in: finds the instance in the table that is in force.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use router_common::abi::reason::ReportReason;

use crate::config::ReportsPlan;
use crate::control::reports::{Intake, Refused, ReportServer, ReportState, Said, Taken, Tokens};
use crate::core::counters::Counters;
use crate::core::pool::InstanceId;
use crate::core::table::RoutingTable;
use crate::probe::{Name, log_changes};

/// Listens for reports as the configuration says.
pub fn serve(
    plan: &ReportsPlan,
    table: Arc<ArcSwap<RoutingTable>>,
    counters: Arc<Counters>,
) -> anyhow::Result<ReportServer> {
    let tokens = Tokens::read(plan.tokens.iter().map(|token| (token.pool.as_str(), token.file.as_path())))?;
    let state = ReportState { tokens, intake: Box::new(LiveTable(table)), counters };
    let server = ReportServer::start(plan.listen, state)?;
    tracing::info!(address = %server.address(), "listening for reports");
    Ok(server)
}

/// The table that decisions are made with.
struct LiveTable(Arc<ArcSwap<RoutingTable>>);

impl Intake for LiveTable {
    fn take(&self, pools: &[&str], said: &Said, now: Instant) -> Result<Taken, Refused> {
        let table = self.0.load_full();
        let id = find(&table, pools, said).ok_or_else(|| unknown(pools, said))?;
        for (id, changes) in table.take_report(id, &said.report, said.up, now) {
            if changes != Default::default() {
                let (name, address) = name(&table, id);
                log_changes(&name, address, changes);
            }
        }
        let (Name { pool, instance }, _) = name(&table, id);
        let load = table.instance(id).status.load_status().name();
        Ok(Taken { pool, instance, load, registered: false })
    }
}

fn find(table: &RoutingTable, pools: &[&str], said: &Said) -> Option<InstanceId> {
    let (id, ..) = table
        .instances()
        .filter(|(_, pool, _)| pools.contains(&pool.name.as_str()))
        .filter(|(_, pool, _)| said.pool.as_ref().is_none_or(|wanted| *wanted == pool.name))
        .find(|(_, _, instance)| instance.name == said.instance)?;
    Some(id)
}

fn unknown(pools: &[&str], said: &Said) -> Refused {
    Refused::new(
        ReportReason::UnknownInstance,
        format!("there is no instance \"{}\" in {}", said.instance, pools.join(", ")),
        "use the instance's name in the configuration, and the token of its own pool",
    )
}

fn name(table: &RoutingTable, id: InstanceId) -> (Name, SocketAddr) {
    let instance = table.instance(id);
    (Name { pool: table.pool(id.pool).name.clone(), instance: instance.name.clone() }, instance.address)
}
