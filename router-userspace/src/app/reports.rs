//! Takes reports in: finds the instance in the table that is in force.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use router_common::abi::reason::ReportReason;

use super::configuration::Configuration;
use crate::control::reports::{Intake, Refused, ReportServer, ReportState, Said, Taken, Tokens};
use crate::core::counters::Counters;
use crate::core::pool::{InstanceId, PoolId};
use crate::core::registry::RegistrationError;
use crate::core::table::RoutingTable;
use crate::probe::{Name, log_changes};

/// Listens for reports.
pub fn serve(
    listen: SocketAddr,
    tokens: Arc<Tokens>,
    table: Arc<ArcSwap<RoutingTable>>,
    registry: Arc<dyn Registry>,
    counters: Arc<Counters>,
) -> anyhow::Result<ReportServer> {
    let state = ReportState { tokens, intake: Box::new(LiveTable { table, registry }), counters };
    let server = ReportServer::start(listen, state)?;
    tracing::info!(address = %server.address(), "listening for reports");
    Ok(server)
}

/// How often leases are looked at.
const LEASES: Duration = Duration::from_secs(1);

/// Removes instances whose lease has ended, for ever.
pub(super) async fn end_leases(configuration: Arc<Configuration>) {
    loop {
        tokio::time::sleep(LEASES).await;
        configuration.forget_silent(Instant::now());
    }
}

/// The table that decisions are made with.
struct LiveTable {
    table: Arc<ArcSwap<RoutingTable>>,
    registry: Arc<dyn Registry>,
}

/// Where instances join.
pub trait Registry: Send + Sync {
    /// The table with the instance in it, once that is in force. `pool` is of the table that is in force now.
    fn register(
        &self,
        pool: PoolId,
        name: &str,
        address: SocketAddr,
        now: Instant,
    ) -> Result<Arc<RoutingTable>, RegistrationError>;
}

impl Intake for LiveTable {
    fn take(&self, pools: &[&str], said: &Said, now: Instant) -> Result<Taken, Refused> {
        let table = self.table.load_full();
        let (table, id, registered) = match find(&table, pools, said) {
            Some(id) => (table, id, false),
            None => {
                let table = self.join(&table, pools, said, now)?;
                let id = find(&table, pools, said).ok_or_else(|| unknown(pools, said))?;
                (table, id, true)
            }
        };
        for (id, changes) in table.take_report(id, &said.report, said.up, now) {
            if changes != Default::default() {
                let (name, address) = name(&table, id);
                log_changes(&name, address, changes);
            }
        }
        let (Name { pool, instance }, _) = name(&table, id);
        let load = table.instance(id).status.load_status().name();
        Ok(Taken { pool, instance, load, registered })
    }
}

impl LiveTable {
    fn join(
        &self,
        table: &RoutingTable,
        pools: &[&str],
        said: &Said,
        now: Instant,
    ) -> Result<Arc<RoutingTable>, Refused> {
        let joinable = table.pools().iter().zip(0..).find(|(pool, _)| {
            pools.contains(&pool.name.as_str())
                && said.pool.as_ref().is_none_or(|wanted| *wanted == pool.name)
                && pool.registration.is_some()
        });
        let Some((pool, number)) = joinable else { return Err(unknown(pools, said)) };
        let Some(address) = said.address else {
            let error = format!("there is no instance \"{}\" in {}", said.instance, pool.name);
            let help = "to join the pool, send its `address` too, such as \"10.0.2.14:80\"";
            return Err(Refused::new(ReportReason::UnknownInstance, error, help));
        };
        let joined = self.registry.register(PoolId(number), &said.instance, address, now);
        let table = joined.map_err(|error| {
            let (reason, help) = match error {
                RegistrationError::Full => {
                    (ReportReason::RegistryFull, "raise max_registered of the pool's `reports`")
                }
                _ => {
                    (ReportReason::RegistrationConflict, "give the instance a name and an address of its own")
                }
            };
            Refused::new(reason, format!("\"{}\" at {address} cannot join: {error}", said.instance), help)
        })?;
        tracing::info!(pool = pool.name, instance = said.instance, %address, "instance joined by reporting");
        Ok(table)
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
