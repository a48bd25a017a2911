//! What lies in a router's pinned maps, byte for byte: for stories in which nothing may change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use aya::Pod;
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use router_common::abi::binding::{BindingSettings, EMBRYO_OPEN, EMBRYO_TAKEN};
use router_common::abi::reason::PacketReason;

/// Entries by map and by key or index.
pub type Contents = BTreeMap<String, Vec<u8>>;

/// What hosts say unasked (neighbour discovery, group membership) is counted under these.
const UNASKED: [PacketReason; 5] = [
    PacketReason::NotIp,
    PacketReason::NotTcp,
    PacketReason::OtherHost,
    PacketReason::ExtensionHeader,
    PacketReason::Multicast,
];

/// Flows and their keys, clients, ways back, counts of new flows, and counts of packets by reason.
pub fn contents(pins: &Path) -> Result<Contents> {
    let mut contents = Contents::new();
    array::<256>(pins, "FLOWS", &mut contents)?;
    array::<1024>(pins, "L4_FLOWS", &mut contents)?;
    array::<64>(pins, "REPLIES", &mut contents)?;
    array::<16>(pins, "LINKS", &mut contents)?;
    array::<8>(pins, "TUNNELS", &mut contents)?;
    flow_keys(pins, &mut contents)?;
    hash::<[u8; 20], [u8; 8]>(Map::LruHashMap(open(pins, "AFFINITY")?), "AFFINITY", &mut contents)?;
    let new_flows: PerCpuArray<_, [u8; 16]> = Map::PerCpuArray(open(pins, "NEW_FLOWS")?).try_into()?;
    contents.insert("NEW_FLOWS".to_owned(), new_flows.get(&0, 0)?.concat());
    let packets: PerCpuArray<_, u64> = Map::PerCpuArray(open(pins, "PACKETS")?).try_into()?;
    for reason in PacketReason::ALL.iter().filter(|reason| !UNASKED.contains(reason)) {
        let counts = packets.get(&(reason.index() as u32), 0)?;
        let bytes = counts.iter().flat_map(|count| count.to_ne_bytes()).collect();
        contents.insert(format!("PACKETS {}", reason.name()), bytes);
    }
    Ok(contents)
}

/// # Panics
/// If a key leads to a flow that the daemon has made, or a client without a socket waits for the daemon.
pub fn assert_no_connection_is_left(pins: &Path) {
    let mut keys = Contents::new();
    flow_keys(pins, &mut keys).expect("the maps are pinned");
    assert!(keys.is_empty(), "keys of flows are left: {keys:?}");
    let mut embryos = Contents::new();
    let open = |name| Map::LruHashMap(open(pins, name).expect("the map is pinned"));
    hash::<[u8; 16], [u8; 32]>(open("EMBRYOS"), "EMBRYOS", &mut embryos).expect("the map can be read");
    hash::<[u8; 40], [u8; 32]>(open("EMBRYOS6"), "EMBRYOS6", &mut embryos).expect("the map can be read");
    let mut settings = Contents::new();
    array::<{ size_of::<BindingSettings>() }>(pins, "BINDING_SETTINGS", &mut settings)
        .expect("the map can be read");
    let generation = settings.into_values().next().expect("it has one entry")[12..16].to_vec();
    // What an earlier daemon has taken and nobody has sent again is over: the client was reset.
    let waits = |embryo: &Vec<u8>| {
        let (state, _) = embryo.split_first_chunk().expect("an embryo begins with its state");
        let state = u32::from_ne_bytes(*state);
        state == EMBRYO_OPEN || state == EMBRYO_TAKEN && embryo[4..8] == generation
    };
    embryos.retain(|_, embryo| waits(embryo));
    assert!(embryos.is_empty(), "clients wait: {embryos:?}");
}

fn flow_keys(pins: &Path, contents: &mut Contents) -> Result<()> {
    hash::<[u8; 16], [u8; 4]>(Map::HashMap(open(pins, "KEYS")?), "KEYS", contents)?;
    hash::<[u8; 40], [u8; 4]>(Map::HashMap(open(pins, "KEYS6")?), "KEYS6", contents)
}

/// What has changed: each entry's bytes before and after.
pub fn differences(before: &Contents, after: &Contents) -> Vec<String> {
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differ = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    differ.map(|name| format!("{name}: {:?}, then {:?}", before.get(name), after.get(name))).collect()
}

fn open(pins: &Path, name: &str) -> Result<MapData> {
    Ok(MapData::from_pin(pins.join(name))?)
}

fn array<const N: usize>(pins: &Path, name: &str, contents: &mut Contents) -> Result<()> {
    let map: Array<_, [u8; N]> = Map::Array(open(pins, name)?).try_into()?;
    for index in 0..map.len() {
        let value = map.get(&index, 0)?;
        if value.iter().any(|byte| *byte != 0) {
            contents.insert(format!("{name} {index}"), value.to_vec());
        }
    }
    Ok(())
}

fn hash<K: Pod + AsRef<[u8]>, V: Pod + AsRef<[u8]>>(
    map: Map,
    name: &str,
    contents: &mut Contents,
) -> Result<()> {
    let map: HashMap<_, K, V> = map.try_into()?;
    for entry in map.iter() {
        let (key, value) = entry?;
        contents.insert(format!("{name} {:?}", key.as_ref()), value.as_ref().to_vec());
    }
    Ok(())
}
