//! The table of instances.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use router_common::abi::balance::{Instance, TAKES_FLOWS, TAKES_RETURNING_CLIENTS, UNREACHABLE};
use router_common::abi::key::words_of;

use super::slots::Slots;
use super::{ApplyError, EndpointKey, Maps, WantedInstance, endpoint_of, pack_port};
use crate::flows::next_hops::NextHopTable;

/// Instances that are configured, and those that still have flows.
#[derive(Debug)]
pub struct Instances {
    slots: Slots,
    /// Those whose answers pass through this host, now or while their flows live.
    answering: HashSet<EndpointKey>,
    wanted: HashSet<EndpointKey>,
}

impl Instances {
    pub fn adopt(table: &[Instance]) -> Self {
        let used: Vec<_> =
            (0..).zip(table).filter_map(|(place, entry)| Some((key_of(entry)?, place))).collect();
        Self {
            answering: used.iter().map(|(key, _)| *key).collect(),
            wanted: HashSet::new(),
            slots: Slots::new("instances of Layer-4 listeners", table.len(), used),
        }
    }

    /// The places of the wanted instances, in their order.
    pub fn apply(
        &mut self,
        maps: &Maps,
        next_hops: &NextHopTable,
        wanted: &[WantedInstance],
    ) -> Result<Vec<u32>, ApplyError> {
        let mut places = Vec::with_capacity(wanted.len());
        for instance in wanted {
            let (place, new) = self.slots.take(instance.endpoint)?;
            let entry = &maps.instances[place as usize];
            if new {
                fill(entry, instance);
                maps.tunnels[place as usize].path_mtu.set(0);
            }
            if instance.answers {
                self.answering.insert(instance.endpoint);
            }
            direct(entry, next_hops, instance.endpoint.address);
            set(&entry.flags, flags(instance));
            places.push(place);
        }
        self.wanted = wanted.iter().map(|instance| instance.endpoint).collect();
        for (key, place) in self.slots.iter().filter(|(key, _)| !self.wanted.contains(key)) {
            // Its flows go on; no new ones come.
            let entry = &maps.instances[place as usize];
            set(&entry.flags, 0);
            direct(entry, next_hops, key.address);
        }
        let tunnels = self.tunnels();
        for (key, place) in self.slots.iter() {
            set(&maps.instances[place as usize].tunnel, tunnels[&key.address.ip()]);
        }
        Ok(places)
    }

    /// The place of one instance for each address, which is that of the tunnel to it.
    pub fn tunnels(&self) -> BTreeMap<IpAddr, u32> {
        let mut tunnels = BTreeMap::new();
        for (key, place) in self.slots.iter() {
            let first = tunnels.entry(key.address.ip()).or_insert(place);
            *first = place.min(*first);
        }
        tunnels
    }

    /// Those whose packets may be answers.
    pub fn answering(&self) -> impl Iterator<Item = (EndpointKey, u32)> {
        self.slots.iter().filter(|(key, _)| self.answering.contains(key))
    }

    /// Gives up the places of instances that are neither wanted nor named by a flow.
    pub fn release(&mut self, maps: &Maps, is_named: impl Fn(u32) -> bool) {
        let idle: Vec<_> = self
            .slots
            .iter()
            .filter(|(key, place)| !self.wanted.contains(key) && !is_named(*place))
            .collect();
        for (key, place) in idle {
            maps.instances[place as usize].port.set(0);
            self.answering.remove(&key);
            self.slots.release(&key);
        }
    }
}

/// The endpoint of an entry that is in use.
pub fn key_of(entry: &Instance) -> Option<EndpointKey> {
    endpoint_of(&entry.address, entry.port.get())
}

fn fill(entry: &Instance, instance: &WantedInstance) {
    for (word, value) in entry.address.iter().zip(words_of(instance.endpoint.address.ip())) {
        word.set(value);
    }
    for (word, value) in entry.source.iter().zip(words_of(instance.source)) {
        word.set(value);
    }
    entry.port.set(pack_port(instance.endpoint));
}

/// Where packets to the instance leave the host. Without a route, or with one that leads where no program is, the old way is as good as any.
fn direct(entry: &Instance, next_hops: &NextHopTable, address: SocketAddr) {
    let Ok(index) = next_hops.towards_any(address.ip()) else { return };
    if entry.next_hop.get() != index {
        entry.next_hop.set(index);
    }
}

fn flags(instance: &WantedInstance) -> u32 {
    let mut flags = 0;
    if instance.takes_flows {
        flags |= TAKES_FLOWS;
    }
    if instance.takes_returning_clients {
        flags |= TAKES_RETURNING_CLIENTS;
    }
    if instance.down {
        flags |= UNREACHABLE;
    }
    flags
}

fn set(word: &router_common::abi::shared::Shared32, value: u32) {
    if word.get() != value {
        word.set(value);
    }
}
