//! Instances that join a pool by reporting, and leave it when they have been silent for long.

use std::net::SocketAddr;
use std::time::Instant;

use super::pool::{Instance, PoolId};
use super::table::RoutingTable;

/// Why an instance cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    #[error("the pool does not let instances join")]
    NotAllowed,
    #[error("another instance has this name")]
    NameTaken,
    #[error("another instance has this address")]
    AddressTaken,
    #[error("nobody can be served at this address")]
    Unusable,
    #[error("as many instances as may have joined the pool already")]
    Full,
}

/// Whether connections can be opened to an address as it stands there: one host's own, without an interface, and in its family's form.
fn can_be_an_instance(address: SocketAddr) -> bool {
    let ip = address.ip();
    let in_its_form = match address {
        SocketAddr::V4(_) => true,
        SocketAddr::V6(v6) => {
            v6.ip().to_ipv4_mapped().is_none() && !v6.ip().is_unicast_link_local() && v6.scope_id() == 0
        }
    };
    in_its_form && !ip.is_unspecified() && !ip.is_multicast() && address.port() != 0
}

impl RoutingTable {
    /// A table in which `pool` has one more instance. It is not assumed to be up: its check comes first, if it has one.
    pub fn register(
        &self,
        pool: PoolId,
        name: &str,
        address: SocketAddr,
        now: Instant,
    ) -> Result<RoutingTable, RegistrationError> {
        let joins = self.pool(pool);
        let registration = joins.registration.ok_or(RegistrationError::NotAllowed)?;
        if !can_be_an_instance(address) {
            return Err(RegistrationError::Unusable);
        }
        if self.has_name(name) {
            return Err(RegistrationError::NameTaken);
        }
        if self.has_address(address) {
            return Err(RegistrationError::AddressTaken);
        }
        let joined = joins.instances.iter().filter(|instance| instance.registered).count();
        if joined >= registration.max_instances || joins.instances.len() >= usize::from(u16::MAX) {
            return Err(RegistrationError::Full);
        }
        let instance = Instance { registered: true, ..Instance::new(name, address, joins.check.as_ref()) };
        instance.status.begin_slow_start(now);
        let mut pools = self.pools().to_vec();
        pools[usize::from(pool.0)].instances.push(instance);
        Ok(self.with_pools(pools))
    }

    /// A table without the instances that joined and have not reported for longer than their pool remembers, and their
    /// names; `None` if there is none. One that is not to be in the pool any more goes with the next reload.
    pub fn forget_silent(&self, now: Instant) -> Option<(RoutingTable, Vec<String>)> {
        let is_silent = |pool: &super::pool::Pool, instance: &Instance| {
            let reported = instance.status.reported();
            instance.registered
                && pool.registration.zip(reported).is_some_and(|(registration, reported)| {
                    now.saturating_duration_since(reported) > registration.forget_after
                })
        };
        let silent: Vec<_> = self
            .instances()
            .filter(|(_, pool, instance)| is_silent(pool, instance))
            .map(|(_, _, instance)| instance.name.clone())
            .collect();
        if silent.is_empty() {
            return None;
        }
        let mut pools = self.pools().to_vec();
        for pool in &mut pools {
            pool.instances.retain(|instance| !silent.contains(&instance.name));
        }
        Some((self.with_pools(pools), silent))
    }
}
