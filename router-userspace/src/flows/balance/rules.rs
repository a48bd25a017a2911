//! Rules by the client's address. A set of rules that changes gets a new number, is written whole, and then named by its service.

use std::collections::HashMap;

use ipnet::IpNet;
use router_common::abi::balance::{RuleKey, Service};
use router_common::abi::key::words_of;

use super::{ApplyError, Maps};

#[derive(Debug)]
pub struct Rules {
    /// The set in force of each service, by the service's place.
    sets: HashMap<u32, (u32, Vec<(IpNet, u32)>)>,
    next: u32,
    /// Whether sets of an earlier daemon may be there.
    adopted: bool,
}

impl Rules {
    pub fn adopt(services: &[Service]) -> Self {
        let last = services.iter().map(|service| service.rules.get()).max().unwrap_or(0);
        Self { sets: HashMap::new(), next: last.wrapping_add(1).max(1), adopted: last != 0 }
    }

    /// Makes `rules` those of a service.
    pub fn apply(&mut self, maps: &Maps, place: u32, rules: &[(IpNet, u32)]) -> Result<(), ApplyError> {
        let service = &maps.services[place as usize];
        let before = self.sets.get(&place);
        if before.is_some_and(|(_, held)| held == rules)
            || before.is_none() && rules.is_empty() && service.rules.get() == 0
        {
            return Ok(());
        }
        let set = if rules.is_empty() { 0 } else { self.next };
        for (network, value) in rules {
            let (key, length) = key(set, network);
            maps.rules.insert(&key, length, *value).map_err(ApplyError::Map)?;
        }
        if set != 0 {
            self.next = self.next.wrapping_add(1).max(1);
        }
        service.rules.publish(set);
        if let Some((old, held)) = self.sets.insert(place, (set, rules.to_vec())) {
            for (network, _) in held {
                let (key, length) = key(old, &network);
                maps.rules.remove(&key, length);
            }
        }
        Ok(())
    }

    /// Removes what an earlier daemon has left and no service names any more.
    pub fn tidy(&mut self, maps: &Maps) {
        if std::mem::take(&mut self.adopted) {
            let in_force: Vec<u32> = maps.services.iter().map(|service| service.rules.get()).collect();
            maps.rules.retain(|key| in_force.contains(&key.set));
        }
    }

    /// The service is gone.
    pub fn forget(&mut self, maps: &Maps, place: u32) {
        let (old, held) = self.sets.remove(&place).unwrap_or_default();
        for (network, _) in held {
            let (key, length) = key(old, &network);
            maps.rules.remove(&key, length);
        }
    }
}

/// The key of a network, and how many bits of it count.
fn key(set: u32, network: &IpNet) -> (RuleKey, u32) {
    (RuleKey { set, client: words_of(network.network()) }, 32 + u32::from(network.prefix_len()))
}
