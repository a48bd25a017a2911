//! Maps whose keys are connections: one of each kind for IPv4, and one for IPv6.

use std::sync::Mutex;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData, MapError};
use router_common::abi::key::{FlowKey, FlowKeyV4, FlowKeyV6};

use super::maps::take;
use super::{KernelError, lock, map_error};

/// A hash map for each family's keys.
pub(super) struct ByFamily<V: aya::Pod> {
    pub v4: Mutex<HashMap<MapData, FlowKeyV4, V>>,
    pub v6: Mutex<HashMap<MapData, FlowKeyV6, V>>,
}

impl<V: aya::Pod> ByFamily<V> {
    /// Takes the maps of these names: of IPv4 and of IPv6.
    pub fn take(ebpf: &mut Ebpf, [v4, v6]: [&str; 2]) -> Result<Self, KernelError> {
        Self::of(take(ebpf, v4)?, take(ebpf, v6)?)
    }

    pub fn of(v4: Map, v6: Map) -> Result<Self, KernelError> {
        let v4 = HashMap::try_from(v4).map_err(map_error)?;
        let v6 = HashMap::try_from(v6).map_err(map_error)?;
        Ok(Self { v4: Mutex::new(v4), v6: Mutex::new(v6) })
    }

    pub fn get(&self, key: FlowKey) -> Option<V> {
        match key {
            FlowKey::V4(key) => lock(&self.v4).get(&key, 0).ok(),
            FlowKey::V6(key) => lock(&self.v6).get(&key, 0).ok(),
        }
    }

    /// `flags` are those of `bpf(2)`.
    pub fn insert(&self, key: FlowKey, value: V, flags: u64) -> Result<(), MapError> {
        match key {
            FlowKey::V4(key) => lock(&self.v4).insert(key, value, flags),
            FlowKey::V6(key) => lock(&self.v6).insert(key, value, flags),
        }
    }

    /// Removes the entry of a key if there is one and its value is such.
    pub fn remove_if(&self, key: FlowKey, such: impl FnOnce(V) -> bool) {
        match key {
            FlowKey::V4(key) => remove_if(&mut lock(&self.v4), key, such),
            FlowKey::V6(key) => remove_if(&mut lock(&self.v6), key, such),
        }
    }
}

fn remove_if<K: aya::Pod, V: aya::Pod>(
    map: &mut HashMap<MapData, K, V>,
    key: K,
    such: impl FnOnce(V) -> bool,
) {
    if map.get(&key, 0).is_ok_and(such) {
        // The kernel may have removed it in between.
        let _ = map.remove(&key);
    }
}
