//! Groups and their rings. A ring is written where nobody looks, and then named by its group: one word.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use router_common::abi::balance::{DENY, NO_RING, NOBODY, RING_CHUNK, SILENT};

use super::{ApplyError, BalanceSettings, Destination, Maps, WantedGroup};

/// A program that has just read a group may still look at its old ring. Programs run for microseconds.
const REST: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Rings {
    groups: HashMap<String, Held>,
    /// The one that has rested longest is first.
    free_groups: Vec<u32>,
    free_rings: Vec<(u32, Option<Instant>)>,
    /// Of an earlier daemon; they are given up once the groups of this one are in force.
    adopted: Vec<(u32, u32)>,
}

/// A group as it is in force.
#[derive(Debug)]
struct Held {
    place: u32,
    ring: Option<Written>,
}

/// A ring, the places that it was written from, and the instances that those referred to.
type Written = (u32, Arc<[u32]>, Arc<[u32]>);

impl Rings {
    pub fn adopt(maps: &Maps) -> Self {
        let chunks = maps.settings[0].ring_chunks.get();
        let rings = (maps.rings.len() as u32).checked_div(chunks).unwrap_or(0);
        let services = maps.services.iter().filter(|service| service.port.get() != 0);
        // Rules name groups too; without services in force there are none of either.
        let in_force = services.count() > 0;
        let adopted: Vec<(u32, u32)> = (0..)
            .zip(maps.groups.iter())
            .filter(|_| in_force)
            .map(|(place, group)| (place, group.ring.get()))
            .filter(|(place, ring)| *place != 0 && *ring != 0)
            .collect();
        let used_ring = |ring: u32| adopted.iter().any(|(_, used)| *used == ring);
        let used_group = |place: u32| adopted.iter().any(|(used, _)| *used == place);
        Self {
            groups: HashMap::new(),
            free_groups: (1..maps.groups.len() as u32).rev().filter(|place| !used_group(*place)).collect(),
            // Ring 0 is never used, so that an empty group names none.
            free_rings: (1..rings).filter(|ring| !used_ring(*ring)).map(|ring| (ring, None)).collect(),
            adopted,
        }
    }

    /// Brings the rings up to date. Returns each group's word for services and rules.
    pub fn apply(
        &mut self,
        maps: &Maps,
        settings: &BalanceSettings,
        wanted: &[WantedGroup],
        instances: &[u32],
        now: Instant,
    ) -> Result<Vec<u32>, ApplyError> {
        let instances: Arc<[u32]> = instances.into();
        wanted.iter().map(|group| self.apply_one(maps, settings, group, &instances, now)).collect()
    }

    fn apply_one(
        &mut self,
        maps: &Maps,
        settings: &BalanceSettings,
        wanted: &WantedGroup,
        instances: &Arc<[u32]>,
        now: Instant,
    ) -> Result<u32, ApplyError> {
        if !self.groups.contains_key(&wanted.name) {
            let most = maps.groups.len() - 1;
            let place = self
                .free_groups
                .pop()
                .ok_or(ApplyError::TooMany { what: "rules and pools of Layer-4 listeners", most })?;
            maps.groups[place as usize].ring.set(NO_RING);
            self.groups.insert(wanted.name.clone(), Held { place, ring: None });
        }
        let free = &mut self.free_rings;
        let held = self.groups.get_mut(&wanted.name).expect("it was inserted");
        let group = &maps.groups[held.place as usize];
        let otherwise = if wanted.silent { SILENT } else { 0 };
        if group.otherwise.get() != otherwise {
            group.otherwise.set(otherwise);
        }
        let same = match (&held.ring, &wanted.ring) {
            (None, None) => true,
            (Some((_, places, names)), Some(ring)) => {
                (Arc::ptr_eq(places, ring) || places == ring) && names == instances
            }
            _ => false,
        };
        if same {
            return Ok(held.place);
        }
        let old = held.ring.take();
        match &wanted.ring {
            None => group.ring.set(NO_RING),
            Some(places) => {
                let rested = |(_, since): &(u32, Option<Instant>)| {
                    since.is_none_or(|since| now.saturating_duration_since(since) >= REST)
                };
                let Some(at) = free.iter().position(rested) else {
                    held.ring = old;
                    let most = maps.rings.len() / maps.settings[0].ring_chunks.get().max(1) as usize;
                    return Err(ApplyError::TooMany { what: "Maglev tables", most });
                };
                let (ring, _) = free.remove(at);
                write(maps, settings, ring, places, instances);
                group.ring.publish(ring);
                held.ring = Some((ring, Arc::clone(places), Arc::clone(instances)));
            }
        }
        if let Some((ring, ..)) = old {
            free.push((ring, Some(now)));
        }
        Ok(held.place)
    }

    /// Gives up the groups that are not wanted any more, after nothing names them.
    pub fn release(&mut self, maps: &Maps, in_force: &[u32], now: Instant) {
        for (place, ring) in std::mem::take(&mut self.adopted) {
            maps.groups[place as usize].ring.set(0);
            self.free_groups.insert(0, place);
            if ring != NO_RING {
                self.free_rings.push((ring, Some(now)));
            }
        }
        let gone: Vec<String> = self
            .groups
            .iter()
            .filter(|(_, held)| !in_force.contains(&held.place))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            let Some(held) = self.groups.remove(&name) else { continue };
            maps.groups[held.place as usize].ring.set(0);
            // Last in the queue: a program may have read its number from a rule that was in force until now.
            self.free_groups.insert(0, held.place);
            if let Some((ring, ..)) = held.ring {
                self.free_rings.push((ring, Some(now)));
            }
        }
    }
}

/// The word by which services and rules name a destination.
pub fn word(destination: Destination, groups: &[u32]) -> u32 {
    match destination {
        Destination::Group(number) => groups[number],
        Destination::Deny { silent: false } => DENY,
        Destination::Deny { silent: true } => DENY | SILENT,
    }
}

fn write(maps: &Maps, settings: &BalanceSettings, ring: u32, places: &[u32], instances: &[u32]) {
    let start = (ring * maps.settings[0].ring_chunks.get()) as usize;
    let count = (settings.ring_size as usize).min(places.len());
    for (chunk, values) in maps.rings[start..].iter().zip(places[..count].chunks(RING_CHUNK)) {
        for (cell, value) in chunk.0.iter().zip(values) {
            cell.set(instances.get(*value as usize).map_or(NOBODY, |place| *place as u16));
        }
    }
}
