//! `consistent-hash`: the same key goes to the same instance, and when an instance comes or goes few other keys move.
//!
//! A ring is a table of [`maglev`]. It is built with the routing table. An instance that cannot serve is skipped at the time of the decision, and
//! only its own keys go elsewhere.

use std::hash::Hasher;

use super::maglev::{self, Member};
use crate::core::pool::{Instance, InstanceId};

/// Places of a ring, a prime. It does not grow with the instances, or each addition could move every key; only a ring of
/// very many instances has more places.
const PLACES: usize = 65_537;
const PLACES_OF_MANY: usize = 655_373;
/// From here on there are many.
const MANY: usize = 1_000;

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
        let members: Vec<_> = instances.filter(|(_, instance)| instance.weight > 0).collect();
        let size = if members.len() < MANY { PLACES } else { PLACES_OF_MANY };
        let fillers: Vec<_> = members
            .iter()
            .map(|(_, instance)| Member { name: &instance.name, weight: instance.weight })
            .collect();
        let places = maglev::fill(size, &fillers);
        Self { instances: members.into_iter().map(|(id, _)| id).collect(), places }
    }

    /// The instance of this key, then those that follow in the ring; one may come more than once.
    pub fn from(&self, key: u64) -> impl Iterator<Item = InstanceId> {
        let start = (key % self.places.len() as u64) as usize;
        let (before, after) = self.places.split_at(start);
        after.iter().chain(before).filter_map(|&number| self.instances.get(number as usize).copied())
    }
}
