//! Endings that our own stack announces for a connection that goes on.
//!
//! A daemon that is killed leaves sockets behind whose connections are flows already. The kernel closes them, with FIN, or with RST
//! where something was unread; and once they are gone, the stack answers what still comes up to them with RST. The peers would believe it: the
//! numbers are right. So these packets are stopped on their way out. What such a socket has sent before and nobody has acknowledged yet, the kernel
//! goes on sending: that passes.

use super::parse::{Headers, parse};
use super::ports::{Flows, Packet};
use crate::abi::flow::FLAG_LIVE;
use crate::wire::tcp::{FIN, RST};

/// Whether a packet that leaves this host would end a live flow that nobody has ended. Whoever ends one on purpose notes that in its
/// progress first.
#[inline(always)]
pub fn is_stray<P: Packet, F: Flows>(packet: &P, flows: &F) -> bool {
    let Some(headers) = packet.view::<Headers>(0) else { return false };
    if headers.tcp.flags & (FIN | RST) == 0 {
        return false;
    }
    let Ok(segment) = parse(packet) else { return false };
    let Some(found) = flows.find(&segment.key.reversed()) else { return false };
    let Some(flow) = flows.flow(found.slot()) else { return false };
    if flow.translation(found.side()).traits.get() & FLAG_LIVE == 0 {
        return false;
    }
    let reset = flow.progress[0].rst_seen.get() | flow.progress[1].rst_seen.get();
    // Our FIN towards one side passes on the other side's.
    let other = &flow.progress[1 - found.side() as usize];
    reset == 0 && (segment.has(RST) || other.fin_seen.get() == 0)
}
