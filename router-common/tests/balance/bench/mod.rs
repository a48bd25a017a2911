//! A bench for Layer-4 packets: services of every mode over both versions of IP, their instances, and builders of frames.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part of the bench")]

pub mod case;
pub mod check;
pub mod frames;
#[allow(clippy::duplicate_mod, reason = "a test binary may have both benches")]
#[path = "../../bench/ip.rs"]
pub mod ip;

use std::net::{IpAddr, Ipv4Addr};

use etherparse::PacketBuilder;
use router_common::abi::balance::{
    AFFINITY, Endpoint, FlowBucket, Group, Instance, Mode, NO_RING, ReplyBucket, RingChunk, Service,
    TAKES_FLOWS, TAKES_RETURNING_CLIENTS, Target, Tunnel,
};
use router_common::abi::key::words_of;
use router_common::abi::next_hop::NextHop;
use router_common::path::balance::memory::MemoryTables;
use router_common::path::balance::{self, Outcome};
use router_common::path::memory::Frame;
use router_common::wire::checksum::Diff;
use router_common::wire::ipv4::PROTOCOL_IPIP;
use router_common::wire::ipv6::PROTOCOL_IPV6;
use router_common::wire::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, checksum};

use ip::Ip;

pub use frames::{assert_checksums, cut};

pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 10);
/// One none of whose listeners has an instance.
pub const IDLE_VIP: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 11);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
pub const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 1);
pub const RING_SIZE: u32 = 251;
pub const TUNNEL_MARK: u32 = 0x9abc_def0;
pub const INTERFACE: u32 = 12;
pub const NOW: u32 = 1_000;
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const OWN_MAC: [u8; 6] = [0; 6];
pub const INSTANCE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub const SYN: u8 = 0x02;
pub const ACK: u8 = 0x10;
pub const FIN: u8 = 0x01;
pub const RST: u8 = 0x04;

/// The port of the service with each mode; TCP and UDP alike.
pub const fn port_of(mode: Mode) -> u16 {
    match mode {
        Mode::Snat => 80,
        Mode::Transparent => 81,
        Mode::DsrL2 => 82,
        Mode::DsrIpip => 83,
    }
}

pub const MODES: [Mode; 4] = [Mode::Snat, Mode::Transparent, Mode::DsrL2, Mode::DsrIpip];

pub fn words(address: impl Into<IpAddr>) -> [u32; 4] {
    words_of(address.into())
}

pub fn vip(ip: Ip) -> IpAddr {
    match ip {
        Ip::V4 => VIP.into(),
        Ip::V6 => [0xfd77, 1, 0, 0, 0, 0, 0, 0x10].into(),
    }
}

/// The router's address towards instances.
pub fn source(ip: Ip) -> IpAddr {
    match ip {
        Ip::V4 => SOURCE.into(),
        Ip::V6 => [0xfd77, 2, 0, 0, 0, 0, 0, 1].into(),
    }
}

/// One of 256 clients; the first is [`CLIENT`].
pub fn client(ip: Ip, number: u8) -> IpAddr {
    match ip {
        Ip::V4 => {
            let [a, b, c, d] = CLIENT.octets();
            [a, b, c, d.wrapping_add(number)].into()
        }
        Ip::V6 => [0xfd77, 1, number.into(), 0, 0x1234, 0, 0, 2 + u16::from(number)].into(),
    }
}

pub fn instance_address(number: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 2, 10 + number as u8)
}

pub fn instance(ip: Ip, number: u32) -> IpAddr {
    match ip {
        Ip::V4 => instance_address(number).into(),
        Ip::V6 => [0xfd77, 2, 0, 0, 0, 0, 0, 10 + number as u16].into(),
    }
}

/// The same of instances and services over this version of IP, which stand behind those of the other.
pub const fn behind(ip: Ip, index: u32) -> u32 {
    match ip {
        Ip::V4 => index,
        Ip::V6 => index + 8,
    }
}

/// Instance `number` of the services of one protocol.
pub const fn instance_index(protocol: u8, number: u32) -> u32 {
    if protocol == PROTOCOL_TCP { number } else { number + INSTANCES }
}

pub const INSTANCES: u32 = 4;

/// Tables with a TCP and a UDP service for each mode, and `buckets` buckets for flows.
pub fn tables(buckets: usize) -> MemoryTables {
    let mut tables = MemoryTables { ticks: NOW, ..MemoryTables::default() };
    tables.settings.now.set(NOW);
    tables.settings.flow_seed.set(77);
    tables.settings.buckets.set(buckets as u32);
    tables.settings.ring_size.set(RING_SIZE);
    let chunks = RING_SIZE.div_ceil(32);
    tables.settings.ring_chunks.set(chunks);
    tables.settings.first_port.set(10_000);
    tables.settings.ports.set(10_000);
    tables.flows.resize_with(buckets, FlowBucket::default);
    tables.replies.resize_with(buckets, ReplyBucket::default);
    tables.links.resize_with(64, Default::default);
    tables.tunnels.resize_with(1 + 4 * INSTANCES as usize, Tunnel::default);
    tables.settings.tunnel_mark.set(TUNNEL_MARK);
    tables.next_hops = vec![NextHop::default(), next_hop()];
    tables.services.push(Service::default());
    tables.instances.push(Instance::default());
    tables.groups.push(Group::default());
    tables.rings.resize_with(chunks as usize, RingChunk::default);
    for (address, echo) in [(VIP, true), (IDLE_VIP, false)] {
        tables.enter(words(address), 0, PROTOCOL_ICMP, false, Target::Vip { echo });
    }
    tables.enter(words(vip(Ip::V6)), 0, PROTOCOL_ICMPV6, true, Target::Vip { echo: true });
    for (ip, protocol) in
        Ip::BOTH.into_iter().flat_map(|ip| [PROTOCOL_TCP, PROTOCOL_UDP].map(|protocol| (ip, protocol)))
    {
        let is_ipv6 = ip == Ip::V6;
        let group = group_index(ip, protocol);
        for number in 1..=INSTANCES {
            let index = behind(ip, instance_index(protocol, number));
            let address = words(instance(ip, number));
            let instance = new_instance(ip, address, protocol);
            let tunnel = behind(ip, number);
            instance.tunnel.set(tunnel);
            tables.instances.push(instance);
            if protocol == PROTOCOL_TCP {
                let in_ip = if is_ipv6 { PROTOCOL_IPV6 } else { PROTOCOL_IPIP };
                tables.enter(address, 0, in_ip, is_ipv6, Target::Instance(tunnel));
            }
            tables.enter(address, 8080u16.to_be(), protocol, is_ipv6, Target::Instance(index));
        }
        for mode in MODES {
            let service = Service::default();
            set(&service.address, words(vip(ip)));
            service.port.set(Endpoint::pack_port(port_of(mode).to_be(), protocol, is_ipv6));
            service.mode.set(mode as u32);
            service.group.set(group);
            let index = tables.services.len() as u32;
            tables.services.push(service);
            tables.enter(words(vip(ip)), port_of(mode).to_be(), protocol, is_ipv6, Target::Service(index));
            if mode == Mode::Snat {
                tables.enter_any_port(words(vip(ip)), protocol, is_ipv6, Target::Service(index));
            }
        }
        let in_force = Group::default();
        in_force.ring.set(group);
        tables.groups.push(in_force);
        for chunk in 0..chunks {
            let content = RingChunk::default();
            for (place, cell) in content.0.iter().enumerate() {
                let number = 1 + (chunk * 32 + place as u32) % INSTANCES;
                cell.set(behind(ip, instance_index(protocol, number)) as u16);
            }
            tables.rings.push(content);
        }
    }
    tables
}

pub fn service_index(protocol: u8, mode: Mode) -> u32 {
    let first = if protocol == PROTOCOL_TCP { 1 } else { 5 };
    first + MODES.iter().position(|one| *one == mode).unwrap() as u32
}

/// The only group of the services of a protocol, and its ring.
pub fn group_index(ip: Ip, protocol: u8) -> u32 {
    let first = if protocol == PROTOCOL_TCP { 1 } else { 2 };
    if ip == Ip::V6 { first + 2 } else { first }
}

fn new_instance(ip: Ip, address: [u32; 4], protocol: u8) -> Instance {
    let instance = Instance::default();
    set(&instance.address, address);
    set(&instance.source, words(source(ip)));
    instance.port.set(Endpoint::pack_port(8080u16.to_be(), protocol, ip == Ip::V6));
    instance.next_hop.set(1);
    instance.flags.set(TAKES_FLOWS | TAKES_RETURNING_CLIENTS);
    instance
}

pub fn set(cells: &[router_common::abi::shared::Shared32; 4], address: [u32; 4]) {
    for (cell, word) in cells.iter().zip(address) {
        cell.set(word);
    }
}

fn next_hop() -> NextHop {
    let hop = NextHop::default();
    hop.interface.set(INTERFACE);
    hop.resolved.set(1);
    hop.mtu.set(1500);
    let both = [INSTANCE_MAC, [2, 0, 0, 0, 0, 9]].concat();
    for (word, bytes) in hop.ethernet.iter().zip(both.chunks_exact(4)) {
        word.set(u32::from_ne_bytes(bytes.try_into().unwrap()));
    }
    hop
}

/// A frame from a client to a service.
pub fn from_client(client: (Ipv4Addr, u16), mode: Mode, protocol: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    frame(client, (VIP, port_of(mode)), protocol, flags, payload)
}

/// A frame with correct checksums.
///
/// # Panics
/// If the two ends are of different versions of IP.
pub fn frame(
    source: (impl Into<IpAddr>, u16),
    destination: (impl Into<IpAddr>, u16),
    protocol: u8,
    flags: u8,
    payload: &[u8],
) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(CLIENT_MAC, OWN_MAC);
    let builder = match (source.0.into(), destination.0.into()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 61),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 61),
        ends => panic!("two versions of IP: {ends:?}"),
    };
    let mut bytes = Vec::new();
    if protocol == PROTOCOL_UDP {
        builder.udp(source.1, destination.1).write(&mut bytes, payload).unwrap();
        return bytes;
    }
    let mut tcp = builder.tcp(source.1, destination.1, 1_000, 65_000);
    if flags & SYN != 0 {
        tcp = tcp.syn();
    }
    if flags & ACK != 0 {
        tcp = tcp.ack(2_000);
    }
    if flags & FIN != 0 {
        tcp = tcp.fin();
    }
    if flags & RST != 0 {
        tcp = tcp.rst();
    }
    tcp.write(&mut bytes, payload).unwrap();
    bytes
}

/// A TCP frame without options with this sequence number.
pub fn numbered(mut frame: Vec<u8>, number: u32) -> Vec<u8> {
    let ip = if frame[14] >> 4 == 4 { Ip::V4 } else { Ip::V6 };
    let (at, checksum) = (ip.tcp() + 4, ip.tcp() + 16);
    let old = u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let mut change = Diff::default();
    change.replace(old.to_be(), number.to_be());
    frame[at..at + 4].copy_from_slice(&number.to_be_bytes());
    let sum = u16::from_ne_bytes([frame[checksum], frame[checksum + 1]]);
    frame[checksum..checksum + 2].copy_from_slice(&change.apply(sum).to_ne_bytes());
    frame
}

/// What becomes of a frame; `None` if it is not a Layer-4 listener's.
pub fn carry(tables: &MemoryTables, frame: &[u8]) -> (Option<Outcome>, Vec<u8>) {
    let mut packet = Frame(frame.to_vec());
    let outcome = balance::carry(&mut packet, tables);
    (outcome, packet.0)
}

/// Source and destination of a frame, and where its IPv4 header begins.
pub fn ends(frame: &[u8], ip: usize) -> ((Ipv4Addr, u16), (Ipv4Addr, u16)) {
    let address = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    ((address(ip + 12), port(ip + 20)), (address(ip + 16), port(ip + 22)))
}

/// Lets a service remember clients for this many ticks.
pub fn remember_clients(tables: &MemoryTables, protocol: u8, mode: Mode, idle: u32) {
    let service = &tables.services[service_index(protocol, mode) as usize];
    service.flags.set(AFFINITY);
    service.affinity_idle.set(idle);
}

/// Takes the instances of a protocol away.
pub fn without_instances(tables: &MemoryTables, protocol: u8) {
    tables.groups[if protocol == PROTOCOL_TCP { 1 } else { 2 }].ring.set(NO_RING);
}

/// An echo request of so many bytes, from the ICMP header on.
///
/// # Panics
/// If there is no room for that header.
pub fn echo_request(source: Ipv4Addr, vip: Ipv4Addr, len: usize) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
    icmp.extend((0..len - 8).map(|place| (place * 7) as u8));
    let checksum = checksum::full(&icmp, 0).to_ne_bytes();
    icmp[2..4].copy_from_slice(&checksum);
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(CLIENT_MAC, OWN_MAC)
        .ipv4(source.octets(), vip.octets(), 61)
        .write(&mut bytes, etherparse::ip_number::ICMP, &icmp)
        .unwrap();
    bytes
}

/// An ICMP error that tells the sender of the packet in `frame`, from `ip` on, of an MTU. It shows the packet's first `shown` bytes.
pub fn too_long(frame: &[u8], ip: usize, router: Ipv4Addr, mtu: u16, shown: usize) -> Vec<u8> {
    let shown = &frame[ip..frame.len().min(ip + shown)];
    let receiver: [u8; 4] = shown[12..16].try_into().unwrap();
    let mut icmp = vec![3, 4, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8];
    icmp.extend(shown);
    let checksum = checksum::full(&icmp, 0).to_ne_bytes();
    icmp[2..4].copy_from_slice(&checksum);
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(CLIENT_MAC, OWN_MAC)
        .ipv4(router.octets(), receiver, 60)
        .write(&mut bytes, etherparse::ip_number::ICMP, &icmp)
        .unwrap();
    bytes
}

/// # Panics
/// If a checksum of an ICMP error, or that of the IP header inside, is wrong.
pub fn assert_icmp_checksums(frame: &[u8]) {
    assert_eq!(checksum::full(&frame[14..34], 0), 0, "the IPv4 header's");
    assert_eq!(checksum::full(&frame[34..], 0), 0, "ICMP's");
    assert_eq!(checksum::full(&frame[42..62], 0), 0, "the inner IPv4 header's");
}
