//! `consistent-hash`: the same key goes to the same instance, and when an instance comes or goes few other keys move.
//!
//! A ring is a Maglev table (Eisenbud et al., NSDI 2016): each instance fills places in an order of its own, in turns, as many
//! as its weight says. It is built with the routing table. An instance that cannot serve is skipped at the time of the decision, and
//! only its own keys go elsewhere.

use std::hash::Hasher;

use crate::core::pool::{Instance, InstanceId};

/// Places of a ring, a prime. It does not grow with the instances, or each addition could move every key; only a ring of
/// very many instances has more places.
const PLACES: usize = 65_537;
const PLACES_OF_MANY: usize = 655_373;
/// From here on there are many.
const MANY: usize = 1_000;

/// A place in the ring that no instance fills: nobody has a weight.
const NOBODY: u32 = u32::MAX;

/// Which instance each key belongs to.
#[derive(Clone, Debug)]
pub struct Ring {
    instances: Vec<InstanceId>,
    /// Indexes into `instances`.
    places: Box<[u32]>,
}

/// A hash that is the same in every run and on every host (FNV-1a, then mixed), so that two routers agree.
pub fn stable_hash(bytes: &[u8]) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    hash.write(bytes);
    hash.finish()
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Mixed by the finalizer of SplitMix64: FNV alone leaves the high bits of short keys alike.
    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Ring {
    /// Instances are told apart by their names, so the ring stays what it is when the configuration's order changes.
    pub fn build<'a>(instances: impl Iterator<Item = (InstanceId, &'a Instance)>) -> Self {
        let mut members: Vec<_> = instances.filter(|(_, instance)| instance.weight > 0).collect();
        members.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
        let size = if members.len() < MANY { PLACES } else { PLACES_OF_MANY };
        let mut places = vec![NOBODY; size].into_boxed_slice();
        let heaviest = members.iter().map(|(_, instance)| u64::from(instance.weight)).max().unwrap_or(1);
        let mut fillers: Vec<_> = members.iter().map(|(_, instance)| Filler::new(instance, size)).collect();
        let mut empty = if members.is_empty() { 0 } else { size };
        'rounds: while empty > 0 {
            for (filler, number) in fillers.iter_mut().zip(0..) {
                filler.credit += filler.weight;
                if filler.credit < heaviest {
                    continue;
                }
                filler.credit -= heaviest;
                let place = filler.next_empty(&places);
                places[place] = number;
                empty -= 1;
                if empty == 0 {
                    break 'rounds;
                }
            }
        }
        Self { instances: members.into_iter().map(|(id, _)| id).collect(), places }
    }

    /// The instance of this key, then those that follow in the ring; one may come more than once.
    pub fn from(&self, key: u64) -> impl Iterator<Item = InstanceId> {
        let start = (key % self.places.len() as u64) as usize;
        let (before, after) = self.places.split_at(start);
        after.iter().chain(before).filter_map(|&number| self.instances.get(number as usize).copied())
    }
}

/// One instance on its way through the places.
struct Filler {
    weight: u64,
    credit: u64,
    next: usize,
    skip: usize,
}

impl Filler {
    fn new(instance: &Instance, size: usize) -> Self {
        let name = stable_hash(instance.name.as_bytes());
        let size = size as u64;
        Self {
            weight: u64::from(instance.weight),
            credit: 0,
            next: (name % size) as usize,
            // Not 0, and the size is a prime: every place is reached.
            skip: (name.rotate_left(32) % (size - 1) + 1) as usize,
        }
    }

    fn next_empty(&mut self, places: &[u32]) -> usize {
        loop {
            let place = self.next;
            self.next = (self.next + self.skip) % places.len();
            if places[place] == NOBODY {
                return place;
            }
        }
    }
}
