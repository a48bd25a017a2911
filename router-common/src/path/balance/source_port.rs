//! Finding a free source port for a flow with `snat`, without user space.
//!
//! A port is free if the bucket of its answers holds no reference with their tag. Choosing the port is choosing the bucket, so one that
//! is full, or holds a like tag by chance, is simply another port's turn. Two CPUs that choose the same port at the same moment see
//! each other's reference, and at least one of them goes on.

use super::hash;
use super::place::Arrival;
use super::table::ReplyKey;
use super::tables::Tables;
use crate::abi::balance::FlowId;

/// How many ports are tried. With nine tenths of them in use, four in five flows still find one.
const TRIES: u32 = 16;

/// A port as it lies in the packet.
#[inline(never)]
pub fn take<T: Tables>(tables: &T, arrival: &Arrival<'_>, instance: u32, id: FlowId) -> Option<u16> {
    let settings = arrival.settings;
    let mut random = arrival.hash as u32;
    for _ in 0..TRIES {
        random = random.wrapping_mul(0x915f_77f5).wrapping_add(0x9e37_79b9);
        let number = hash::scale(random, settings.ports.get());
        let port = (settings.first_port.get().wrapping_add(number) as u16).to_be();
        if tables.enter(&ReplyKey { to: [0; 4], port: port.into(), instance }, id) {
            return Some(port);
        }
    }
    None
}

/// Whether answers to the client's own port are now this flow's.
#[inline(never)]
pub fn keep<T: Tables>(tables: &T, arrival: &Arrival<'_>, instance: u32, id: FlowId) -> bool {
    let datagram = arrival.datagram;
    tables.enter(&ReplyKey { to: datagram.source, port: datagram.source_port.into(), instance }, id)
}
