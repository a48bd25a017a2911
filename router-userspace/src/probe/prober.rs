//! Keeps one checking task for each instance that is to be checked, across changes of the routing table.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::check::check;
use super::origin::Origin;
use crate::core::health::{CheckSpec, Observation, Reachability, Transition};
use crate::core::status::InstanceStatus;
use crate::core::table::RoutingTable;

/// Runs the active checks. Dropping it ends them.
#[derive(Debug)]
pub struct Prober {
    runtime: Handle,
    origin: Arc<Origin>,
    running: Mutex<HashMap<Name, Running>>,
}

/// An instance's name within its pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    pool: String,
    instance: String,
}

/// What a task checks.
#[derive(Clone, Debug)]
struct Target {
    name: Name,
    address: SocketAddr,
    spec: CheckSpec,
    status: Arc<InstanceStatus>,
}

/// A checking task, ended when this is dropped.
#[derive(Debug)]
struct Running {
    target: Target,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Target {
    fn is_same(&self, other: &Target) -> bool {
        self.address == other.address && self.spec == other.spec && Arc::ptr_eq(&self.status, &other.status)
    }
}

impl Prober {
    /// Checks will run on `runtime` once a table is installed.
    pub fn new(runtime: Handle, origin: Origin) -> Prober {
        Prober { runtime, origin: Arc::new(origin), running: Mutex::default() }
    }

    /// Checks exactly the instances of `table`. An instance that has not changed is not disturbed: its task goes on,
    /// and with it the count of successes and failures. Call it after the table has taken over live state.
    pub fn install(&self, table: &RoutingTable) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = HashMap::new();
        for (_, pool, instance) in table.instances() {
            let Some(spec) = &pool.check else { continue };
            let name = Name { pool: pool.name.clone(), instance: instance.name.clone() };
            let target = Target {
                name: name.clone(),
                address: instance.address,
                spec: spec.clone(),
                status: Arc::clone(&instance.status),
            };
            let task = match running.remove(&name) {
                Some(task) if task.target.is_same(&target) => task,
                _ => self.start(target),
            };
            next.insert(name, task);
        }
        *running = next;
    }

    /// How many instances are being checked.
    pub fn checked(&self) -> usize {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn start(&self, target: Target) -> Running {
        let task = run(target.clone(), Arc::clone(&self.origin));
        Running { target, task: self.runtime.spawn(task).abort_handle() }
    }
}

/// Checks one instance for ever.
async fn run(target: Target, origin: Arc<Origin>) {
    let mut random = random_numbers();
    let mut could_check = true;
    sleep(target.spec.first_check(random())).await;
    loop {
        let started = Instant::now();
        let seen = check(&target.spec, target.address, &origin).await;
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
    let Target { name: Name { pool, instance }, address, spec, status } = target;
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

/// Evenly distributed numbers for jitter, different for each task.
fn random_numbers() -> impl FnMut() -> u32 {
    // A `RandomState` has random keys, so what it makes of a counter is random enough to spread checks.
    let state = RandomState::new();
    let mut turn = 0u64;
    move || {
        turn += 1;
        (state.hash_one(turn) >> 32) as u32
    }
}
