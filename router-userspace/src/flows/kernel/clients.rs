//! Maps whose keys are clients of Layer-4 listeners.

use std::sync::Mutex;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap, MapData};
use router_common::abi::balance::{Affinity, AffinityKey, RuleKey};

use super::{lock, map_error};

/// Groups by the client's address.
#[derive(Debug)]
pub struct ClientRules(pub(super) Mutex<LpmTrie<MapData, RuleKey, u32>>);

impl ClientRules {
    /// Enters a network: the first `length` bits of the key count.
    pub fn insert(&self, key: &RuleKey, length: u32, value: u32) -> Result<(), String> {
        let mut trie = lock(&self.0);
        trie.insert(&Key::new(length, *key), value, 0).map_err(|error| map_error(error).to_string())
    }

    /// Fine if there is none.
    pub fn remove(&self, key: &RuleKey, length: u32) {
        let _ = lock(&self.0).remove(&Key::new(length, *key));
    }

    /// Removes what `keep` does not want.
    pub fn retain(&self, keep: impl Fn(&RuleKey) -> bool) {
        let mut trie = lock(&self.0);
        let gone: Vec<_> = trie.keys().flatten().filter(|key| !keep(&key.data())).collect();
        for key in gone {
            let _ = trie.remove(&key);
        }
    }
}

/// Where clients were served.
#[derive(Debug)]
pub struct ClientMemory(pub(super) Mutex<HashMap<MapData, AffinityKey, Affinity>>);

impl ClientMemory {
    /// Notes that a client is still served by an instance, unless it has another one meanwhile.
    pub fn note(&self, key: AffinityKey, affinity: Affinity) {
        let mut clients = lock(&self.0);
        let known = clients.get(&key, 0).ok();
        let newer = |known: Affinity| {
            known.instance == affinity.instance && affinity.seen.wrapping_sub(known.seen).cast_signed() > 0
        };
        if known.is_none_or(newer) {
            // A client that is forgotten is placed by the ring.
            let _ = clients.insert(key, affinity, 0);
        }
    }
}
