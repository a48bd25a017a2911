//! Endings that our own stack announces for a connection that goes on.
//!
//! A daemon that is killed leaves sockets behind whose connections are flows already. The kernel closes them, with FIN, or with RST
//! where something was unread; and once they are gone, the stack answers what still comes up to them with RST. The peers would believe it: the
//! numbers are right. So these packets are stopped on their way out. What such a socket has sent before and nobody has acknowledged yet, the kernel
//! goes on sending: that passes.

use super::family::Family;
use super::parse::{Headers, Version, parse, version};
use super::ports::{Flows, Keys, Packet};
use super::sequence::Passage;
use crate::abi::key::Reversible;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::Ipv6;
use crate::wire::tcp::{FIN, RST};

/// Whether a packet that leaves this host would end a live flow that nobody has ended. Whoever ends one on purpose notes that in its
/// progress first.
#[inline(always)]
pub fn is_stray<P: Packet, F: Flows>(packet: &P, flows: &F) -> bool {
    match version(packet) {
        Ok(Version::V4) => is_stray_as::<Ipv4, P, F>(packet, flows),
        Ok(Version::V6) => is_stray_as::<Ipv6, P, F>(packet, flows),
        Err(_) => false,
    }
}

#[inline(always)]
fn is_stray_as<I: Family, P: Packet, F: Flows + Keys<I::Key>>(packet: &P, flows: &F) -> bool {
    // Nearly every packet ends nothing.
    let Some(headers) = packet.view::<Headers<I>>(0) else { return false };
    if headers.tcp.flags & (FIN | RST) == 0 {
        return false;
    }
    let Ok((key, segment)) = parse::<I, P>(packet) else { return false };
    let Some(found) = flows.find(&key.reversed()) else { return false };
    let Some(flow) = flows.flow(found.slot()) else { return false };
    let passage = Passage::new(flow, found.side(), &segment);
    if !passage.is_live_in::<I>() {
        return false;
    }
    let reset = passage.sender.rst_seen.get() | passage.receiver.rst_seen.get();
    // Our FIN towards one side passes on the other side's.
    reset == 0 && (segment.has(RST) || passage.receiver.fin_seen.get() == 0)
}
