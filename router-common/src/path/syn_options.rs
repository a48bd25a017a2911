//! Options that are erased from the SYN of a connection to an instance.
//!
//! Both legs of a handed-off connection need the same options, and a socket cannot be told to leave timestamps or
//! selective acknowledgements out of its SYN. So the daemon names the connection before it connects, and the options
//! become NOPs on their way out: the instance then does not agree them either (RFC 7323 §3.2, RFC 2018 §2).

use super::options;
use super::parse::{Headers, parse};
use super::ports::Packet;
use crate::abi::key::FlowKey;
use crate::wire::checksum::Diff;
use crate::wire::tcp::{ACK, SYN};

pub const ERASE_TIMESTAMPS: u32 = 1 << 0;
pub const ERASE_SACK: u32 = 1 << 1;

/// Erases from a SYN what `wanted` says for its tuple (`ERASE_*`). Any other packet is left alone.
#[inline(always)]
pub fn erase<P: Packet>(packet: &mut P, wanted: impl FnOnce(&FlowKey) -> Option<u32>) {
    let Some(headers) = packet.view::<Headers>(0) else { return };
    if headers.tcp.flags & (SYN | ACK) != SYN {
        return;
    }
    let Ok(segment) = parse(packet) else { return };
    let Some(wanted) = wanted(&segment.key) else { return };
    if segment.options_len == 0 {
        return;
    }
    let Some(scratch) = packet.load_options(Headers::OPTIONS, segment.options_len) else { return };
    options::locate(scratch);
    let mut diff = Diff::default();
    let timestamps = wanted & ERASE_TIMESTAMPS != 0 && scratch.timestamps.get() != 0;
    let sack = wanted & ERASE_SACK != 0 && scratch.sack_permitted.get() != 0;
    if timestamps && !options::erase_timestamps(packet, scratch, &mut diff)
        || sack && !options::erase_sack_permitted(packet, scratch, &mut diff)
    {
        return;
    }
    // A wrong checksum after a failure here costs one SYN, which is sent again.
    packet.fix_tcp_checksum(Headers::TCP_CHECKSUM, Diff::default(), diff);
}
