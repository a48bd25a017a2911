//! What the packet path looks things up in: a service of each mode and family, and a Maglev table over their instances.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use router::core::methods::maglev::{self, Member};
use router_common::abi::balance::{
    Endpoint, Group, Instance, Mode, RING_CHUNK, RingChunk, Service, TAKES_FLOWS, TAKES_RETURNING_CLIENTS,
    Target,
};
use router_common::abi::next_hop::NextHop;
use router_common::abi::shared::Shared32;
use router_common::path::balance::memory::MemoryTables;
use router_common::wire::PROTOCOL_TCP;

pub const MODES: [Mode; 4] = [Mode::Snat, Mode::Transparent, Mode::DsrL2, Mode::DsrIpip];
/// Instances of each family.
const INSTANCES: u16 = 256;
/// Places of a Maglev table, as the daemon has by default.
const PLACES: u32 = 65_537;
pub const INSTANCE_PORT: u16 = 8080;
/// The interface that all frames leave by.
const INTERFACE: u32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    pub fn vip(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(10, 77, 1, 10).into(),
            Self::V6 => Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, 10).into(),
        }
    }

    /// The router's address towards the instances.
    pub fn router(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(10, 77, 2, 1).into(),
            Self::V6 => Ipv6Addr::new(0xfd77, 2, 0, 0, 0, 0, 0, 1).into(),
        }
    }

    fn instance(self, number: u16) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 4, 0)) + u32::from(number)).into(),
            Self::V6 => Ipv6Addr::new(0xfd77, 4, 0, 0, 0, 0, 0, number).into(),
        }
    }
}

/// The port of the service of this mode.
pub const fn port_of(mode: Mode) -> u16 {
    80 + mode as u16
}

/// Everything but flows, for a flow table of so many buckets.
pub fn tables(buckets: u32) -> MemoryTables {
    let mut tables = MemoryTables::default();
    let chunks = PLACES.div_ceil(RING_CHUNK as u32);
    let settings = &tables.settings;
    settings.flow_seed.set(77);
    settings.buckets.set(buckets);
    settings.ring_size.set(PLACES);
    settings.ring_chunks.set(chunks);
    settings.first_port.set(20_000);
    settings.ports.set(40_000);
    tables.next_hops = vec![NextHop::default(), next_hop()];
    tables.services.push(Service::default());
    tables.instances.push(Instance::default());
    for (ring, family) in (0..).zip(Family::BOTH) {
        let (group, is_ipv6) = (tables.groups.len() as u32, family == Family::V6);
        tables.groups.push(Group::default());
        tables.groups[ring as usize].ring.set(ring);
        let first = tables.instances.len() as u32;
        for number in 1..=INSTANCES {
            let (index, address) = (tables.instances.len() as u32, words(family.instance(number)));
            tables.instances.push(instance(family, address));
            tables.enter(address, INSTANCE_PORT.to_be(), PROTOCOL_TCP, is_ipv6, Target::Instance(index));
        }
        tables.rings.extend(ring_of(first, chunks));
        for mode in MODES {
            let (service, index) = (Service::default(), tables.services.len() as u32);
            set(&service.address, words(family.vip()));
            service.port.set(Endpoint::pack_port(port_of(mode).to_be(), PROTOCOL_TCP, is_ipv6));
            service.mode.set(mode as u32);
            service.group.set(group);
            tables.services.push(service);
            let port = port_of(mode).to_be();
            tables.enter(words(family.vip()), port, PROTOCOL_TCP, is_ipv6, Target::Service(index));
        }
    }
    tables
}

/// The Maglev table of the instances from this index on.
fn ring_of(first: u32, chunks: u32) -> Vec<RingChunk> {
    let names: Vec<String> = (0..INSTANCES).map(|number| format!("instance{number}")).collect();
    let members: Vec<Member<'_>> = names.iter().map(|name| Member { name, weight: 1 }).collect();
    let places = maglev::fill(PLACES as usize, &members);
    let ring: Vec<RingChunk> = (0..chunks).map(|_| RingChunk::default()).collect();
    for (place, member) in places.iter().enumerate() {
        ring[place / RING_CHUNK].0[place % RING_CHUNK].set((first + member) as u16);
    }
    ring
}

fn instance(family: Family, address: [u32; 4]) -> Instance {
    let instance = Instance::default();
    set(&instance.address, address);
    set(&instance.source, words(family.router()));
    let port = Endpoint::pack_port(INSTANCE_PORT.to_be(), PROTOCOL_TCP, family == Family::V6);
    instance.port.set(port);
    instance.next_hop.set(1);
    instance.flags.set(TAKES_FLOWS | TAKES_RETURNING_CLIENTS);
    instance
}

fn next_hop() -> NextHop {
    let hop = NextHop::default();
    hop.interface.set(INTERFACE);
    hop.resolved.set(1);
    hop.mtu.set(1500);
    for (word, bytes) in hop.ethernet.iter().zip([[2, 0, 0, 0], [0, 2, 2, 0], [0, 0, 0, 9]]) {
        word.set(u32::from_ne_bytes(bytes));
    }
    hop
}

fn set(cells: &[Shared32; 4], address: [u32; 4]) {
    for (cell, word) in cells.iter().zip(address) {
        cell.set(word);
    }
}

/// An address as the tables have it.
fn words(address: IpAddr) -> [u32; 4] {
    let mut words = [0; 4];
    let bytes = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_ne_bytes(bytes.try_into().expect("chunks of four"));
    }
    words
}
