//! Options that are erased from the SYN of a connection to an instance.
//!
//! Both legs of a handed-off connection need the same options, and a socket cannot be told to leave timestamps or
//! selective acknowledgements out of its SYN. So the daemon names the connection before it connects, and the options
//! become NOPs on their way out: the instance then does not agree them either (RFC 7323 §3.2, RFC 2018 §2).

use super::family::Family;
use super::options;
use super::parse::{Headers, Version, parse, version};
use super::ports::{Packet, UnwantedOptions, UnwantedOptionsOf};
use crate::wire::checksum::Diff;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::Ipv6;
use crate::wire::tcp::{ACK, SYN};

pub const ERASE_TIMESTAMPS: u32 = 1 << 0;
pub const ERASE_SACK: u32 = 1 << 1;

/// Erases from a SYN what is unwanted for its tuple (`ERASE_*`). Any other packet is left alone.
#[inline(always)]
pub fn erase<P: Packet, U: UnwantedOptions>(packet: &mut P, unwanted: &U) {
    match version(packet) {
        Ok(Version::V4) => erase_as::<Ipv4, P, U>(packet, unwanted),
        Ok(Version::V6) => erase_as::<Ipv6, P, U>(packet, unwanted),
        Err(_) => {}
    }
}

#[inline(always)]
fn erase_as<I: Family, P: Packet, U: UnwantedOptionsOf<I::Key>>(packet: &mut P, unwanted: &U) {
    let Some(headers) = packet.view::<Headers<I>>(0) else { return };
    if headers.tcp.flags & (SYN | ACK) != SYN {
        return;
    }
    let Ok((key, segment)) = parse::<I, P>(packet) else { return };
    let Some(unwanted) = unwanted.unwanted(&key) else { return };
    if segment.options_len == 0 {
        return;
    }
    let Some(scratch) = packet.load_options(segment.options_at, segment.options_len) else { return };
    options::locate(scratch);
    let mut diff = Diff::default();
    let timestamps = unwanted & ERASE_TIMESTAMPS != 0 && scratch.timestamps.get() != 0;
    let sack = unwanted & ERASE_SACK != 0 && scratch.sack_permitted.get() != 0;
    if timestamps && !options::erase_timestamps(packet, &segment, scratch, &mut diff)
        || sack && !options::erase_sack_permitted(packet, &segment, scratch, &mut diff)
    {
        return;
    }
    // A wrong checksum after a failure here costs one SYN, which is sent again.
    packet.fix_checksum(Headers::<I>::TCP_CHECKSUM, Diff::default(), diff, None);
}
