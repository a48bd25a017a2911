//! Packets from instances to connections that this host has opened in a client's name, with the client's address.
//!
//! To the host's routing they are on their way to that client. While the connection is a socket's, they must come up here instead: what the
//! packet path passes up is looked up among the tuples that the daemon has named, and marked.

use super::icmp_error;
use super::parse::{self, Version};
use super::ports::{Flows, Keys, Packet};
use super::reporting::Reporting;
use crate::abi::reason::PacketReason;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::Ipv6;

/// Whether a packet that is passed up is such a connection's, or an ICMP error about a packet of one.
#[inline(always)]
pub fn is_for_a_socket<P: Packet, F: Flows>(packet: &P, flows: &F) -> bool {
    match parse::arriving(packet) {
        Ok(Version::V4) => is_for_a_socket_as::<Ipv4, P, F>(packet, flows),
        Ok(Version::V6) => is_for_a_socket_as::<Ipv6, P, F>(packet, flows),
        Err(_) => false,
    }
}

/// The same for a packet whose Ethernet header names this family.
#[inline(always)]
pub fn is_for_a_socket_as<I: Reporting, P: Packet, F: Flows + Keys<I::Key>>(packet: &P, flows: &F) -> bool {
    let key = match parse::arrived::<I, P>(packet) {
        Ok((key, _)) => key,
        Err(PacketReason::NotTcp) => match icmp_error::about::<I, P>(packet) {
            Ok((key, _)) => key,
            Err(_) => return false,
        },
        Err(_) => return false,
    };
    flows.is_transparent(&key)
}
