//! Routing by mark: what the kernel programs have marked is delivered to this host, whatever address it bears. As
//! `ip rule add priority 29295 fwmark 0x726f7574 lookup 29295` and `ip route add local default dev lo table 29295` do.

use std::io::{self, ErrorKind};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use router_common::abi::transparent::MARK;

use super::netlink::Netlink;

/// Of the routing table, and the rule's priority: any before the rule of the main table (32766).
pub const TABLE: u32 = 29_295;

/// Sees to it that marked packets of a family come to this host's sockets.
pub fn install(is_ipv4: bool) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let new = NLM_F_CREATE | NLM_F_EXCL;
    known(netlink.change(RouteNetlinkMessage::NewRoute(route(is_ipv4)?), new))?;
    known(netlink.change(RouteNetlinkMessage::NewRule(rule(is_ipv4)), new))
}

/// Leaves the host as it was found. Fine if there is nothing to remove.
pub fn remove(is_ipv4: bool) {
    let Ok(mut netlink) = Netlink::open() else { return };
    let _ = netlink.change(RouteNetlinkMessage::DelRule(rule(is_ipv4)), 0);
    if let Ok(route) = route(is_ipv4) {
        let _ = netlink.change(RouteNetlinkMessage::DelRoute(route), 0);
    }
}

/// It may be there already.
fn known(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

fn family(is_ipv4: bool) -> AddressFamily {
    if is_ipv4 { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn route(is_ipv4: bool) -> io::Result<RouteMessage> {
    let mut route = RouteMessage::default();
    route.header.address_family = family(is_ipv4);
    route.header.protocol = RouteProtocol::Static;
    route.header.scope = RouteScope::Host;
    route.header.kind = RouteType::Local;
    let loopback = nix::net::if_::if_nametoindex("lo").map_err(io::Error::from)?;
    route.attributes = vec![RouteAttribute::Table(TABLE), RouteAttribute::Oif(loopback)];
    Ok(route)
}

fn rule(is_ipv4: bool) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = family(is_ipv4);
    rule.header.action = RuleAction::ToTable;
    rule.attributes = vec![
        RuleAttribute::Priority(TABLE),
        RuleAttribute::FwMark(MARK),
        RuleAttribute::FwMask(u32::MAX),
        RuleAttribute::Table(TABLE),
    ];
    rule
}
