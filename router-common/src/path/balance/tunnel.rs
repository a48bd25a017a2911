//! The path MTU of the tunnels to instances with `dsr-ipip` (RFC 2003 §5.1, RFC 2473 §7.2): `error → whose tunnel → judge → note`, and what is noted.
//!
//! A router between here and an instance tells us, and not the client, which MTU a wrapped packet has exceeded; often with too little of it to tell which client's it
//! was. So the MTU is noted for the instance's address, and the next client whose packet is too long is told. It is forgotten after ten minutes, since nobody tells of a way
//! that has become wider (RFC 1191 §6.3, RFC 8201 §5.3).
//!
//! Anybody can send an error in any router's name. It is believed if it shows a header that only this host puts around packets: one between its addresses, with its mark.

use super::Outcome;
use super::encapsulate::Outer;
use super::table;
use super::tables::Tables;
use crate::abi::balance::{Endpoint, Instance, Mode, Settings, TICK_SHIFT, Target, Tunnel};
use crate::abi::next_hop::NextHop;
use crate::abi::reason::PacketReason;
use crate::path::icmp_error::ErrorHeaders;
use crate::path::ports::Packet;
use crate::wire::ethernet::Ethernet;

/// How long an MTU is believed, in ticks.
const LIFETIME: u32 = ((10 * 60 * 1_000_000_000_u64) >> TICK_SHIFT) as u32;

/// The MTU of a packet's way to its instance, in bytes; 0 if it is not known. `length` is that of the packet as it will leave.
#[inline(always)]
pub fn mtu<I: Outer, P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    mode: Mode,
    instance: &Instance,
    next_hop: &NextHop,
    length: u32,
) -> u32 {
    let link = next_hop.mtu.get();
    if mode as u32 != Mode::DsrIpip as u32 || length <= I::LEAST_MTU {
        return link;
    }
    match noted::<I, P, T>(packet, tables, instance) {
        0 => link,
        path if link != 0 && link < path => link,
        path => path,
    }
}

/// What is noted of this packet's way; 0 if nothing is.
#[inline(always)]
fn noted<I: Outer, P: Packet, T: Tables>(packet: &P, tables: &T, instance: &Instance) -> u32 {
    let (Some(settings), Some(tunnel)) = (tables.settings(), tables.tunnel(instance.tunnel.get())) else {
        return 0;
    };
    let mtu = tunnel.path_mtu.get();
    // What may be fragmented is, by the router in question.
    if mtu == 0 || is_old(settings, tunnel) || !packet.view::<I>(Ethernet::LEN).is_some_and(I::is_atomic) {
        return 0;
    }
    mtu
}

#[inline(always)]
fn is_old(settings: &Settings, tunnel: &Tunnel) -> bool {
    settings.now.get().wrapping_sub(tunnel.told.get()) > LIFETIME
}

/// Takes an error about a packet that was wrapped here. `None` if this is none; its headers can be read.
#[inline(always)]
pub fn take_error<I: Outer, P: Packet, T: Tables>(packet: &P, tables: &T) -> Option<Outcome> {
    let settings = tables.settings()?;
    let headers = packet.view::<ErrorHeaders<I>>(0)?;
    headers.ip.leads_to_icmp().ok()?;
    let available = packet.len() - Ethernet::LEN;
    let length = headers.ip.length(available);
    if !I::is_error(&headers.icmp)
        || length > available
        || length < ErrorHeaders::<I>::LEN - Ethernet::LEN
        || headers.inner.carries()? != I::IN_IP
    {
        return None;
    }
    let (source, destination) = headers.inner.addresses();
    let port = Endpoint::pack_port(0, I::IN_IP, I::IS_IPV6);
    let Some(Target::Instance(index)) = Target::unpack(tables.target(&destination, port)) else {
        return None;
    };
    let instance = tables.instance(index)?;
    let tunnel = tables.tunnel(instance.tunnel.get())?;
    if !table::same::<I>(&instance.source, &source) || !packet.is_for_this_host() {
        return None;
    }
    let Some(told) = I::mtu_told(&headers.icmp) else {
        return Some(Outcome::pass(PacketReason::L4TunnelError));
    };
    if !headers.inner.bears(settings.tunnel_mark.get(), headers.inner_ports.raw()) {
        return Some(Outcome::drop(PacketReason::L4TunnelErrorForged));
    }
    // Routers of before RFC 1191 tell 0.
    let told = if told < I::LEAST_MTU { I::LEAST_MTU } else { told };
    let known = tunnel.path_mtu.get();
    if known == 0 || told <= known || is_old(settings, tunnel) {
        tunnel.path_mtu.set(told);
        tunnel.told.set(settings.now.get());
    }
    Some(Outcome::drop(PacketReason::L4TunnelMtu))
}
