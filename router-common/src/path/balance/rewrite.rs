//! New addresses and ports for packets that are not wrapped.

use super::datagram::{Datagram, Headers};
use super::tables::Tables;
use crate::abi::balance::{Flow, Link};
use crate::abi::next_hop::NextHop;
use crate::abi::shared::Shared32;
use crate::path::ports::Packet;
use crate::path::reporting::Reporting;
use crate::wire::checksum::Diff;
use crate::wire::ethernet::Ethernet;
use crate::wire::{Net32, PROTOCOL_TCP};

/// The Ethernet addresses towards a next hop, in the order of the header.
#[inline(always)]
pub fn link_to(next_hop: &NextHop) -> [u32; 3] {
    [next_hop.ethernet[0].get(), next_hop.ethernet[1].get(), next_hop.ethernet[2].get()]
}

/// Replaces both addresses and both ports. False, with nothing changed that matters, where the kernel refuses.
#[inline(always)]
pub fn translate<I: Reporting, P: Packet>(
    packet: &mut P,
    datagram: &Datagram,
    ethernet_addresses: [u32; 3],
    source: &[Shared32; 4],
    destination: &[Shared32; 4],
    ports: u32,
) -> bool {
    let Some(Headers { ethernet, ip, ports: old_ports, .. }) = packet.view_mut::<Headers<I>>(0) else {
        return false;
    };
    for (word, new) in ethernet.addresses.iter_mut().zip(ethernet_addresses) {
        word.set_raw(new);
    }
    let addresses = ip.replace_addresses(source, destination);
    let header = ip.refresh(addresses);
    let mut rest = Diff::default();
    rest.replace(old_ports.raw(), ports);
    old_ports.set_raw(ports);
    if datagram.is_tcp() {
        packet.fix_checksum(Headers::<I>::TCP_CHECKSUM, addresses, rest, header)
    } else {
        packet.fix_udp_checksum(Headers::<I>::UDP_CHECKSUM, addresses, rest, header)
    }
}

/// The same for a fragment. Only a first one has ports and a checksum, from `transport` on, and that covers nothing which changes in the others.
#[inline(always)]
pub fn translate_fragment<I: Reporting, P: Packet>(
    packet: &mut P,
    ethernet_addresses: [u32; 3],
    source: &[Shared32; 4],
    destination: &[Shared32; 4],
    first: Option<(u32, usize, u8)>,
) -> bool {
    let Some(ethernet) = packet.view_mut::<Ethernet>(0) else { return false };
    for (word, new) in ethernet.addresses.iter_mut().zip(ethernet_addresses) {
        word.set_raw(new);
    }
    let Some(ip) = packet.view_mut::<I>(Ethernet::LEN) else { return false };
    let addresses = ip.replace_addresses(source, destination);
    let header = ip.refresh(addresses);
    let Some((ports, transport, protocol)) = first else {
        if let Some(change) = header {
            packet.fix_sum(change);
        }
        return true;
    };
    let Some(old_ports) = packet.view_mut::<Net32>(transport) else { return false };
    let mut rest = Diff::default();
    rest.replace(old_ports.raw(), ports);
    old_ports.set_raw(ports);
    if protocol == PROTOCOL_TCP {
        packet.fix_checksum(transport + 16, addresses, rest, header)
    } else {
        packet.fix_udp_checksum(transport + 6, addresses, rest, header)
    }
}

/// Nothing but the Ethernet addresses changes.
#[inline(always)]
pub fn link_only<P: Packet>(packet: &mut P, next_hop: &NextHop) -> bool {
    let Some(ethernet) = packet.view_mut::<Ethernet>(0) else { return false };
    for (word, new) in ethernet.addresses.iter_mut().zip(&next_hop.ethernet) {
        word.set_raw(new.get());
    }
    true
}

/// Answers go back to the neighbour that the client's packets come from ("auto last hop"): it knows the way, and no route has to be asked.
#[inline(always)]
pub fn learn_way_back<P: Packet, T: Tables>(packet: &P, tables: &T, flow: &Flow) {
    let Some(ethernet) = packet.view::<Ethernet>(0) else { return };
    let interface = packet.interface().min(u16::MAX.into()) as u16;
    let [own_first, middle, last] = [0, 1, 2].map(|word: usize| ethernet.addresses[word].raw());
    let (neighbour, end) = (pair(second(middle), first(last)), second(last) as u16);
    if flow.neighbour.get() != neighbour
        || flow.neighbour_end.get() != end
        || flow.interface.get() != interface
    {
        flow.neighbour.set(neighbour);
        flow.neighbour_end.set(end);
        flow.interface.set(interface);
    }
    let own = [first(own_first), pair(second(own_first), first(middle))];
    if let Some(link) = tables.link(interface.into())
        && (link.address[0].get() != own[0] || link.address[1].get() != own[1])
    {
        link.address[0].set(own[0]);
        link.address[1].set(own[1]);
    }
}

/// The Ethernet addresses of an answer, in the order of the header.
#[inline(always)]
pub fn way_back(flow: &Flow, link: &Link) -> [u32; 3] {
    let [first, rest] = &link.address;
    [flow.neighbour.get(), pair(flow.neighbour_end.get().into(), first.get()), rest.get()]
}

/// The first two of four bytes in memory.
#[inline(always)]
const fn first(word: u32) -> u32 {
    if cfg!(target_endian = "little") { word & 0xffff } else { word >> 16 }
}

/// The last two.
#[inline(always)]
const fn second(word: u32) -> u32 {
    if cfg!(target_endian = "little") { word >> 16 } else { word & 0xffff }
}

/// Two bytes and two bytes behind them.
#[inline(always)]
const fn pair(first: u32, second: u32) -> u32 {
    if cfg!(target_endian = "little") { first | second << 16 } else { first << 16 | second }
}
