//! The maps of the programs that carry packets, to be read only.

use std::os::fd::AsFd;

use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap, Map, MapData, PerCpuArray, PerCpuValues};
use router_common::abi::balance::{
    Affinity, AffinityKey, Course, EndpointBucket, FlowBucket, Group, Instance, Link, ReplyBucket, RingChunk,
    RuleKey, Service, Settings, Tunnel,
};
use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKey, FlowRef};
use router_common::abi::next_hop::NextHop;
use router_common::path::fragment::DatagramKey;

use super::{ByFamily, Kernel, KernelError, io_error, lock, map_error, mapped};
use crate::flows::mapped::Mapped;

/// A key, an answer's budget and a counter as they lie in their maps.
pub(super) type DatagramKeyBytes = [u8; size_of::<DatagramKey>()];
pub(super) type BudgetBytes = [u32; 2];
pub(super) type NewFlowsBytes = [u32; 4];

/// Prefix length of a rule's key that holds an address whole: the set's number and the address.
const WHOLE_RULE_KEY: u32 = 32 + 128;

/// What the packet path of this host knows at the moment.
pub struct LiveMaps {
    pub flows: Mapped<Flow>,
    pub next_hops: Mapped<NextHop>,
    pub settings: Mapped<Settings>,
    pub endpoints: Mapped<EndpointBucket>,
    pub services: Mapped<Service>,
    pub instances: Mapped<Instance>,
    pub tunnels: Mapped<Tunnel>,
    pub groups: Mapped<Group>,
    pub rings: Mapped<RingChunk>,
    pub l4_flows: Mapped<FlowBucket>,
    pub replies: Mapped<ReplyBucket>,
    pub links: Mapped<Link>,
    keys: ByFamily<FlowRef>,
    rules: LpmTrie<MapData, RuleKey, u32>,
    clients: HashMap<MapData, AffinityKey, Affinity>,
    datagrams: HashMap<MapData, DatagramKeyBytes, [u32; 2]>,
    courses: HashMap<MapData, DatagramKeyBytes, Course>,
    answer_budget: PerCpuArray<MapData, BudgetBytes>,
    new_flows: PerCpuArray<MapData, NewFlowsBytes>,
}

impl std::fmt::Debug for LiveMaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveMaps").finish_non_exhaustive()
    }
}

impl LiveMaps {
    /// The maps of this kernel side.
    pub fn of(kernel: &Kernel) -> Result<Self, KernelError> {
        let pinned = |name: &str| MapData::from_pin(kernel.pin_dir.join(name)).map_err(map_error);
        let array = |name: &str| pinned(name).map(Map::Array);
        let own = |name: &str| own(&lock(&kernel.ebpf), name);
        Ok(Self {
            flows: mapped(&array("FLOWS")?)?,
            next_hops: mapped(&array("NEXT_HOPS")?)?,
            settings: mapped(&array("BALANCE_SETTINGS")?)?,
            endpoints: mapped(&array("ENDPOINTS")?)?,
            services: mapped(&array("SERVICES")?)?,
            instances: mapped(&array("INSTANCES")?)?,
            tunnels: mapped(&array("TUNNELS")?)?,
            groups: mapped(&array("GROUPS")?)?,
            rings: mapped(&array("RINGS")?)?,
            l4_flows: mapped(&array("L4_FLOWS")?)?,
            replies: mapped(&array("REPLIES")?)?,
            keys: ByFamily::of(Map::HashMap(pinned("KEYS")?), Map::HashMap(pinned("KEYS6")?))?,
            rules: LpmTrie::try_from(Map::LpmTrie(pinned("CLIENT_RULES")?)).map_err(map_error)?,
            clients: HashMap::try_from(Map::LruHashMap(pinned("AFFINITY")?)).map_err(map_error)?,
            links: mapped(&array("LINKS")?)?,
            datagrams: HashMap::try_from(Map::LruHashMap(own("DATAGRAMS")?)).map_err(map_error)?,
            courses: HashMap::try_from(Map::LruHashMap(own("L4_DATAGRAMS")?)).map_err(map_error)?,
            answer_budget: PerCpuArray::try_from(Map::PerCpuArray(own("ANSWER_BUDGET")?))
                .map_err(map_error)?,
            new_flows: PerCpuArray::try_from(Map::PerCpuArray(pinned("NEW_FLOWS")?)).map_err(map_error)?,
        })
    }

    pub fn find(&self, key: FlowKey) -> Option<FlowRef> {
        self.keys.get(key)
    }

    /// The value of the longest prefix that holds the client.
    pub fn rule(&self, key: &RuleKey) -> Option<u32> {
        self.rules.get(&Key::new(WHOLE_RULE_KEY, *key), 0).ok()
    }

    pub fn client(&self, key: &AffinityKey) -> Option<Affinity> {
        self.clients.get(key, 0).ok()
    }

    /// A flow and a time, as in [`Datagram`](router_common::path::fragment::Datagram).
    pub fn datagram(&self, key: &DatagramKey) -> Option<[u32; 2]> {
        self.datagrams.get(&bytes_of_key(key), 0).ok()
    }

    /// Where a fragmented datagram of a Layer-4 flow goes.
    pub fn course(&self, key: &DatagramKey) -> Option<Course> {
        self.courses.get(&bytes_of_key(key), 0).ok()
    }

    pub(super) fn answer_budget(&self) -> Option<PerCpuValues<BudgetBytes>> {
        self.answer_budget.get(&0, 0).ok()
    }

    pub(super) fn new_flows(&self) -> Option<PerCpuValues<NewFlowsBytes>> {
        self.new_flows.get(&0, 0).ok()
    }
}

/// A second handle of a map that is not pinned.
fn own(ebpf: &Ebpf, name: &str) -> Result<MapData, KernelError> {
    let (Map::LruHashMap(data) | Map::PerCpuArray(data)) =
        ebpf.map(name).expect("the object is built together with this file")
    else {
        unreachable!("it is of one of these kinds")
    };
    let handle = data.fd().as_fd().try_clone_to_owned();
    let handle = handle.map_err(|source| io_error(format!("cannot share the map {name}"), source))?;
    MapData::from_fd(handle).map_err(map_error)
}

/// A key as it lies in the map.
pub(super) fn bytes_of_key(key: &DatagramKey) -> DatagramKeyBytes {
    // SAFETY: it is made of integers of one size.
    unsafe { std::mem::transmute_copy(key) }
}
