//! Keeps one checking task, and one that asks the agent, for each instance that has a check or an agent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::agent::{self, Agent};
use super::check::Checker;
use super::jitter::random_numbers;
use super::log::Name;
use super::origin::Origin;
use super::tasks::{self, Tasks};
use crate::core::health::{CheckSpec, Observation, Reachability, Transition};
use crate::core::proxy_protocol::ProxyProtocol;
use crate::core::status::InstanceStatus;
use crate::core::table::RoutingTable;

/// Runs the active checks and asks the agents. Dropping it ends them.
#[derive(Debug)]
pub struct Prober {
    runtime: Handle,
    origin: Arc<Origin>,
    checks: Mutex<Tasks<Target>>,
    agents: Mutex<Tasks<Agent>>,
}

/// What a task checks.
#[derive(Clone, Debug)]
struct Target {
    name: Name,
    address: SocketAddr,
    spec: CheckSpec,
    proxy_protocol: Option<ProxyProtocol>,
    status: Arc<InstanceStatus>,
}

impl tasks::Target for Target {
    fn name(&self) -> &Name {
        &self.name
    }

    fn is_same(&self, other: &Target) -> bool {
        self.address == other.address
            && self.spec == other.spec
            && self.proxy_protocol == other.proxy_protocol
            && Arc::ptr_eq(&self.status, &other.status)
    }
}

impl Prober {
    /// Checks will run on `runtime` once a table is installed.
    pub fn new(runtime: Handle, origin: Origin) -> Prober {
        Prober { runtime, origin: Arc::new(origin), checks: Mutex::default(), agents: Mutex::default() }
    }

    /// Checks exactly the instances of `table`, and asks exactly their agents. An instance that has not changed is not
    /// disturbed: its task goes on, and with it the count of successes and failures. Call it after the table has
    /// taken over live state.
    pub fn install(&self, table: &RoutingTable) {
        let checks = table.instances().filter_map(|(_, pool, instance)| {
            Some(Target {
                name: Name { pool: pool.name.clone(), instance: instance.name.clone() },
                address: instance.address,
                spec: pool.check.clone()?,
                proxy_protocol: pool.proxy_protocol,
                status: Arc::clone(&instance.status),
            })
        });
        let origin = || Arc::clone(&self.origin);
        self.checks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(checks, |target| self.runtime.spawn(run(target.clone(), origin())).abort_handle());
        let agents = table.instances().filter_map(|(_, pool, instance)| {
            Some(Agent {
                name: Name { pool: pool.name.clone(), instance: instance.name.clone() },
                address: instance.address,
                spec: pool.agent.clone()?,
                policy: pool.load.clone(),
                thresholds: pool.thresholds(instance).clone(),
                status: Arc::clone(&instance.status),
            })
        });
        self.agents
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(agents, |agent| self.runtime.spawn(agent::run(agent.clone(), origin())).abort_handle());
    }

    /// How many instances are being checked.
    pub fn checked(&self) -> usize {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Checks one instance for ever.
async fn run(target: Target, origin: Arc<Origin>) {
    let mut random = random_numbers();
    let mut could_check = true;
    let checker = match Checker::new(target.spec.clone(), target.proxy_protocol) {
        Ok(checker) => checker,
        Err(error) => {
            let Name { pool, instance } = &target.name;
            return warn!(%pool, %instance, address = %target.address, %error, "instance is not being checked");
        }
    };
    sleep(target.spec.first_check(random())).await;
    loop {
        let started = Instant::now();
        let seen = checker.check(target.address, &origin).await;
        match &seen {
            Ok(seen) => observe(&target, *seen),
            // Nothing is concluded about the instance; say so once, not at each interval.
            Err(error) if could_check => {
                let Name { pool, instance } = &target.name;
                warn!(%pool, %instance, address = %target.address, %error, "instance is not being checked");
            }
            Err(_) => {}
        }
        could_check = seen.is_ok();
        sleep_until(started + target.spec.next_check(random())).await;
    }
}

fn observe(target: &Target, seen: Observation) {
    let Target { name: Name { pool, instance }, address, spec, status, .. } = target;
    let first = !status.health().checked();
    match (status.observe(Some(spec), seen, Instant::now().into_std()), seen) {
        (Some(Transition { to: Reachability::Up, .. }), _) => {
            info!(%pool, %instance, %address, "instance is up");
        }
        (Some(Transition { to: Reachability::OutOfContact, .. }), _) => {
            warn!(%pool, %instance, %address, "instance passes its checks, but is out of contact: it does not report");
        }
        (Some(Transition { to: Reachability::Down, failure }), _) => {
            let reason = failure.map(|failure| failure.to_string()).unwrap_or_default();
            warn!(%pool, %instance, %address, %reason, "instance is down");
        }
        // Assumed down and found down is no change, but the operator should know why it does not serve.
        (None, Observation::CheckFailed(reason)) if first => {
            warn!(%pool, %instance, %address, %reason, "instance is down: its first check failed");
        }
        (None, _) => {}
    }
}
