//! The table of services.

use std::collections::HashSet;

use ipnet::IpNet;
use router_common::abi::balance::{AFFINITY, ENDED, Service};
use router_common::abi::key::words_of;

use super::rings::word;
use super::rules::Rules;
use super::slots::Slots;
use super::{ApplyError, EndpointKey, Maps, WantedService, endpoint_of, in_ticks, pack_port};

/// Listeners that are configured, and those that still have flows.
#[derive(Debug)]
pub struct Services {
    slots: Slots,
    wanted: HashSet<EndpointKey>,
}

impl Services {
    pub fn adopt(table: &[Service]) -> Self {
        let used = (0..).zip(table).filter_map(|(place, entry)| Some((key_of(entry)?, place)));
        Self { slots: Slots::new("Layer-4 listeners", table.len(), used), wanted: HashSet::new() }
    }

    pub fn apply(
        &mut self,
        maps: &Maps,
        rules: &mut Rules,
        wanted: &[WantedService],
        groups: &[u32],
    ) -> Result<(), ApplyError> {
        for service in wanted {
            let (place, new) = self.slots.take(service.endpoint)?;
            let entry = &maps.services[place as usize];
            // The largest network stands for whoever is in no other.
            let (everybody, others) = service.rules.split_first().expect("one covers all addresses");
            entry.group.set(word(everybody.1, groups));
            let others: Vec<(IpNet, u32)> =
                others.iter().map(|(network, to)| (*network, word(*to, groups))).collect();
            rules.apply(maps, place, &others)?;
            entry.affinity_idle.set(service.affinity.map_or(0, in_ticks));
            let affinity = if service.affinity.is_some() { AFFINITY } else { 0 };
            if entry.flags.get() != affinity {
                entry.flags.set(affinity);
            }
            if new || entry.mode.get() != service.mode as u32 {
                for (word, value) in entry.address.iter().zip(words_of(service.endpoint.address.ip())) {
                    word.set(value);
                }
                entry.mode.set(service.mode as u32);
                entry.port.publish(pack_port(service.endpoint));
            }
        }
        rules.tidy(maps);
        self.wanted = wanted.iter().map(|service| service.endpoint).collect();
        for (_, place) in self.slots.iter().filter(|(key, _)| !self.wanted.contains(key)) {
            let entry = &maps.services[place as usize];
            entry.flags.set(entry.flags.get() | ENDED);
        }
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = (EndpointKey, u32)> {
        self.slots.iter()
    }

    /// Gives up the places of services that are neither wanted nor named by a flow.
    pub fn release(&mut self, maps: &Maps, rules: &mut Rules, is_named: impl Fn(u32) -> bool) {
        let idle: Vec<_> = self
            .slots
            .iter()
            .filter(|(key, place)| !self.wanted.contains(key) && !is_named(*place))
            .collect();
        for (key, place) in idle {
            let entry = &maps.services[place as usize];
            entry.port.set(0);
            entry.mode.set(0);
            entry.rules.set(0);
            rules.forget(maps, place);
            self.slots.release(&key);
        }
    }
}

/// The endpoint of an entry that is in use.
pub fn key_of(entry: &Service) -> Option<EndpointKey> {
    endpoint_of(&entry.address, entry.port.get())
}
