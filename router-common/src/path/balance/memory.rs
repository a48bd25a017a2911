//! The tables of this route in plain memory: for host tests, and for comparison with the kernel programs.

use core::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::vec::Vec;

use super::hash;
use super::tables::Tables;
use crate::abi::balance::{
    Affinity, AffinityKey, Course, ENDPOINT_BUCKETS, Endpoint, EndpointBucket, FlowBucket, Group, Instance,
    Link, NewFlows, ReplyBucket, RingChunk, RuleKey, Service, Settings, Target, Tunnel,
};
use crate::abi::next_hop::NextHop;
use crate::abi::shared::Shared32;
use crate::path::fragment::DatagramKey;

/// The tables, with a clock that stands still.
#[derive(Clone, Debug, Default)]
pub struct MemoryTables {
    pub settings: Settings,
    /// Large, and not changed by packets: clones share it.
    pub endpoints: Arc<Vec<EndpointBucket>>,
    pub services: Vec<Service>,
    pub instances: Vec<Instance>,
    pub tunnels: Vec<Tunnel>,
    pub groups: Vec<Group>,
    pub rings: Vec<RingChunk>,
    pub flows: Vec<FlowBucket>,
    pub replies: Vec<ReplyBucket>,
    pub next_hops: Vec<NextHop>,
    /// Prefix lengths count the set's 32 bits as well.
    pub rules: Vec<(RuleKey, u32, u32)>,
    pub clients: RefCell<HashMap<AffinityKey, Affinity>>,
    pub datagrams: RefCell<HashMap<DatagramKey, Course>>,
    pub new_flows: NewFlows,
    pub links: Vec<Link>,
    pub ticks: u32,
}

impl MemoryTables {
    /// Enters an endpoint into the first table.
    pub fn enter(&mut self, address: [u32; 4], port: u16, protocol: u8, is_ipv6: bool, target: Target) {
        self.enter_packed(address, Endpoint::pack_port(port, protocol, is_ipv6), target);
    }

    /// The same for later fragments.
    pub fn enter_any_port(&mut self, address: [u32; 4], protocol: u8, is_ipv6: bool, target: Target) {
        self.enter_packed(address, Endpoint::pack_port(0, protocol, is_ipv6) | Endpoint::ANY_PORT, target);
    }

    fn enter_packed(&mut self, address: [u32; 4], port: u32, target: Target) {
        let endpoints = Arc::make_mut(&mut self.endpoints);
        endpoints.resize_with(2 * ENDPOINT_BUCKETS as usize, EndpointBucket::default);
        let hash = hash::of(self.settings.endpoint_seeds[0].get(), &address, port);
        let bucket = &endpoints[hash::scale((hash >> 32) as u32, ENDPOINT_BUCKETS) as usize];
        let place = bucket.endpoints.iter().find(|place| place.port.get() == 0).expect("few endpoints");
        for (word, value) in place.address.iter().zip(address) {
            word.set(value);
        }
        place.target.set(target.pack());
        place.port.set(port);
        self.settings.endpoints.set(1);
    }
}

impl Tables for MemoryTables {
    fn settings(&self) -> Option<&Settings> {
        Some(&self.settings)
    }

    fn endpoints(&self, bucket: u32) -> Option<&EndpointBucket> {
        self.endpoints.get(bucket as usize)
    }

    fn service(&self, index: u32) -> Option<&Service> {
        self.services.get(index as usize)
    }

    fn instance(&self, index: u32) -> Option<&Instance> {
        self.instances.get(index as usize)
    }

    fn tunnel(&self, index: u32) -> Option<&Tunnel> {
        self.tunnels.get(index as usize)
    }

    fn group(&self, index: u32) -> Option<&Group> {
        self.groups.get(index as usize)
    }

    fn ring(&self, chunk: u32) -> Option<&RingChunk> {
        self.rings.get(chunk as usize)
    }

    fn flows(&self, bucket: u32) -> Option<&FlowBucket> {
        self.flows.get(bucket as usize)
    }

    fn replies(&self, bucket: u32) -> Option<&ReplyBucket> {
        self.replies.get(bucket as usize)
    }

    fn next_hop(&self, index: u32) -> Option<&NextHop> {
        self.next_hops.get(index as usize)
    }

    fn rule(&self, key: &RuleKey) -> Option<u32> {
        let holds = |(network, length, _): &&(RuleKey, u32, u32)| {
            let bits = length.saturating_sub(32);
            let word = |at: usize| {
                let left = bits.saturating_sub(32 * at as u32).min(32);
                let mask = if left == 0 { 0 } else { u32::MAX << (32 - left) };
                let bytes = |words: &[u32; 4]| u32::from_be_bytes(words[at].to_ne_bytes());
                (bytes(&network.client) ^ bytes(&key.client)) & mask == 0
            };
            network.set == key.set && (0..4).all(word)
        };
        let longest = self.rules.iter().filter(holds).max_by_key(|(_, length, _)| *length);
        longest.map(|(_, _, value)| *value)
    }

    fn affinity(&self, key: &AffinityKey) -> Option<Affinity> {
        self.clients.borrow().get(key).copied()
    }

    fn remember(&self, key: &AffinityKey, affinity: Affinity) {
        self.clients.borrow_mut().insert(*key, affinity);
    }

    fn recall(&self, key: &DatagramKey) -> Option<Course> {
        self.datagrams.borrow().get(key).copied()
    }

    fn note(&self, key: &DatagramKey, course: Course) {
        self.datagrams.borrow_mut().insert(*key, course);
    }

    fn new_flows(&self) -> Option<&NewFlows> {
        Some(&self.new_flows)
    }

    fn link(&self, interface: u32) -> Option<&Link> {
        self.links.get(interface as usize)
    }

    fn swap_if(&self, word: &Shared32, old: u32, new: u32) -> u32 {
        word.swap_if(old, new)
    }

    fn add(&self, word: &Shared32, count: u32) {
        word.add(count);
    }

    fn opaque(&self, number: u32) -> u32 {
        number
    }

    fn ticks(&self) -> u32 {
        self.ticks
    }
}
