//! ICMP errors about packets of Layer-4 flows: `read → whose packet → rewrite → forward`.
//!
//! An error comes to the address that the packet had as its source: ours, the VIP, or with `transparent` the client's. It goes on to who sent the packet, and
//! shows the packet as that side knows it. Nobody follows sequence numbers here, so they are not judged: the receiver does that itself (RFC 5927 §4).

use super::datagram::{Datagram, join};
use super::encapsulate::{self, Outer};
use super::table::Key;
use super::tables::Tables;
use super::{Outcome, answer, place, rewrite, tunnel};
use crate::abi::balance::{Endpoint, Instance, Mode, Target};
use crate::abi::reason::PacketReason;
use crate::path::family::split;
use crate::path::icmp_error::{ErrorHeaders, Retold, retell};
use crate::path::ports::Packet;
use crate::wire::ethernet::Ethernet;
use crate::wire::icmp::Icmp;
use crate::wire::{PROTOCOL_TCP, PROTOCOL_UDP};

/// `None` if this is no error about a Layer-4 flow's packet; it is then unchanged.
#[inline(always)]
pub fn carry<I: Outer, P: Packet, T: Tables>(packet: &mut P, tables: &T) -> Option<Outcome> {
    packet.make_linear(ErrorHeaders::<I>::WITH_REST);
    if let Some(outcome) = tunnel::take_error::<I, P, T>(packet, tables) {
        return Some(outcome);
    }
    // As if it were a packet from whom it did not reach.
    let lost = &read::<I, P>(packet)?.back();
    if !packet.is_for_this_host() {
        return None;
    }
    let port = |port| Endpoint::pack_port(port, lost.protocol, I::IS_IPV6);
    let to = tables.target(&lost.destination, port(lost.destination_port));
    if let Some(Target::Service(service)) = Target::unpack(to) {
        return to_instance::<I, P, T>(packet, tables, lost, service);
    }
    let from = tables.target(&lost.source, port(lost.source_port));
    match Target::unpack(from) {
        Some(Target::Instance(instance)) => to_client::<I, P, T>(packet, tables, lost, instance),
        _ => None,
    }
}

/// The packet that did not arrive. The length is that of the error.
#[inline(always)]
fn read<I: Outer, P: Packet>(packet: &P) -> Option<Datagram> {
    packet.view::<I>(Ethernet::LEN)?.leads_to_icmp().ok()?;
    if !I::is_error(packet.view::<Icmp>(ErrorHeaders::<I>::ICMP)?) {
        return None;
    }
    let headers = packet.view::<ErrorHeaders<I>>(0)?;
    let available = packet.len() - Ethernet::LEN;
    let length = headers.ip.length(available);
    if length > available || length < ErrorHeaders::<I>::LEN - Ethernet::LEN {
        return None;
    }
    let protocol = headers.inner.carries()?;
    if protocol != PROTOCOL_TCP && protocol != PROTOCOL_UDP {
        return None;
    }
    let (source, destination) = headers.inner.addresses();
    let (source_port, destination_port) = split(headers.inner_ports);
    Some(Datagram {
        source,
        destination,
        source_port,
        destination_port,
        protocol,
        flags: 0,
        header: 0,
        length: length as u32,
        next: 0,
    })
}

/// An error about an answer: `lost` is as packets from its client are.
#[inline(never)]
fn to_instance<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    lost: &Datagram,
    index: u32,
) -> Option<Outcome> {
    let mode = Mode::of(tables.service(index)?.mode.get())?;
    let key = Key::new(lost.source, lost.source_port, index);
    let Some(id) = tables.flow_of(&key.client, key.origin) else {
        if mode.sees_answers() {
            return None;
        }
        // Where nothing is stored, the ring names the instance that has answered.
        let instance = tables.instance(place::unstored(tables, lost, index)?)?;
        return Some(as_it_is::<I, P, T>(packet, tables, mode, lost.length, instance));
    };
    let flow = tables.flows(id.bucket)?.flows.get(id.place as usize)?;
    let instance = tables.instance(flow.instance())?;
    if !mode.sees_answers() {
        return Some(as_it_is::<I, P, T>(packet, tables, mode, lost.length, instance));
    }
    let next_hop = instance.next_hop.get();
    let Some(hop) = tables.next_hop(next_hop).filter(|hop| hop.interface.get() != 0) else {
        return Some(Outcome::drop(PacketReason::L4NoRoute));
    };
    let (seen, port) = match mode {
        Mode::Snat => (&instance.source, flow.source_port()),
        _ => (&flow.client, flow.client_port()),
    };
    let retold = Retold {
        ethernet: rewrite::link_to(hop),
        source: seen,
        destination: &instance.address,
        ports: join(instance.port.get() as u16, port),
        protocol: lost.protocol,
        seq_delta: 0,
        ack_delta: 0,
    };
    Some(match retell::<I, P>(packet, &retold) {
        true => Outcome::forward(next_hop, hop, PacketReason::L4ErrorForwarded),
        false => Outcome::drop(PacketReason::WriteFailed),
    })
}

/// The instance has answered from the VIP itself and knows its own packet.
#[inline(always)]
fn as_it_is<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    mode: Mode,
    length: u32,
    instance: &Instance,
) -> Outcome {
    let index = instance.next_hop.get();
    let Some(hop) = tables.next_hop(index).filter(|hop| hop.interface.get() != 0) else {
        return Outcome::drop(PacketReason::L4NoRoute);
    };
    let longer = length + encapsulate::overhead::<I>(mode);
    let mtu = tunnel::mtu::<I, P, T>(packet, tables, mode, instance, hop, longer);
    if mtu != 0 && longer > mtu {
        // Nobody is told of an error about an error.
        return Outcome::drop(PacketReason::TooLongUnanswered);
    }
    let done = match mode {
        Mode::DsrIpip => {
            let mark = tables.settings().map_or(0, |settings| settings.tunnel_mark.get());
            encapsulate::wrap::<I, P>(packet, length, instance, hop, mark)
        }
        _ => rewrite::link_only(packet, hop),
    };
    match done {
        true => Outcome::forward(index, hop, PacketReason::L4ErrorForwarded),
        false => Outcome::drop(PacketReason::WriteFailed),
    }
}

/// An error about a packet to an instance: `lost` is as that instance's answers are.
#[inline(never)]
fn to_client<I: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    lost: &Datagram,
    index: u32,
) -> Option<Outcome> {
    let (flow, _) = answer::flow_of(tables, lost, index)?;
    let service = tables.service(flow.service())?;
    let interface = flow.interface.get().into();
    let retold = Retold {
        ethernet: rewrite::way_back(flow, tables.link(interface)?),
        source: &service.address,
        destination: &flow.client,
        ports: join(flow.client_port(), service.port.get() as u16),
        protocol: lost.protocol,
        seq_delta: 0,
        ack_delta: 0,
    };
    Some(match retell::<I, P>(packet, &retold) {
        true => Outcome::redirect(interface, PacketReason::L4ErrorForwarded),
        false => Outcome::drop(PacketReason::WriteFailed),
    })
}
