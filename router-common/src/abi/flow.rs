//! One flow: everything that the packet path needs to carry a connection between its two legs.
//!
//! A flow has two senders, the client and the instance. For each sender there is a [`Translation`], written by
//! the daemon and only read by the kernel, and a [`Progress`], written by the kernel and only read by the daemon
//! (except while the flow is being filled and not yet reachable by any key). Each is one cache line with one
//! writer, so the two sides never fight over a line.
//!
//! Sequence numbers are named after where they are seen. What a sender writes in its own packets is in its
//! *own space*; the same byte in the translated packet has `own + seq_delta`. An acknowledgement by a sender is in the
//! other sender's translated space.

use super::shared::{Shared32, Shared64};

use super::key::Side;

/// The slot holds a flow. Clear in a free slot.
pub const FLAG_LIVE: u32 = 1 << 0;
/// The daemon's sockets are closed: nothing is in custody any more and every packet is translated.
pub const FLAG_DIRECT: u32 = 1 << 1;
/// The sender's packets carry timestamps, and the other leg negotiated them too.
pub const FLAG_TIMESTAMPS: u32 = 1 << 2;
/// The other leg did not negotiate timestamps: the sender's are replaced by NOPs.
pub const FLAG_ERASE_TIMESTAMPS: u32 = 1 << 3;
/// Both legs are IPv6; clear where both are IPv4.
pub const FLAG_IPV6: u32 = 1 << 4;

/// No instance has answered yet: instead of [`FLAG_LIVE`], until the kernel binds the two sides.
pub const FLAG_BINDING: u32 = 1 << 5;
/// What the instance gets first lies in a stash, for as long as the instance has not acknowledged it all.
pub const FLAG_STASH: u32 = 1 << 6;

/// How the packets of one sender become packets of the other leg. Written by the daemon.
#[repr(C, align(64))]
#[derive(Clone, Debug, Default)]
pub struct Translation {
    /// New source address, network byte order; IPv4 uses the first word.
    pub source: [Shared32; 4],
    /// New destination address, network byte order; IPv4 uses the first word.
    pub destination: [Shared32; 4],
    /// New source port in the low half as it lies in the packet, new destination port in the high half:
    /// the four bytes that begin the transport header.
    pub ports: Shared32,
    /// Added to the sequence number.
    pub seq_delta: Shared32,
    /// Highest acknowledgement by this sender that only concerns bytes which our socket sent it.
    pub ack_cut: Shared32,
    /// End of the bytes of this sender that our socket answered for, in the sender's own space: the head that
    /// was replaced by another one.
    pub seq_cut: Shared32,
    /// Our socket's timestamp clock on the other leg minus the monotonic clock, in ms.
    pub clock_offset: Shared32,
    /// Ones' complement difference between new and old addresses, for the pseudo-header's checksum and that of IPv4 headers.
    pub address_diff: Shared32,
    /// Index of the next hop.
    pub next_hop: Shared32,
    /// `FLAG_*` in bits 0–7, the sender's window scale in bits 8–15, our window scale on the other leg in bits 16–23.
    pub traits: Shared32,
}

impl Translation {
    /// Packs flags and window scales (0–14, RFC 7323) for `traits`.
    pub const fn pack_traits(flags: u32, sender_scale: u8, our_scale: u8) -> u32 {
        flags | (sender_scale as u32) << 8 | (our_scale as u32) << 16
    }
}

/// How far one sender has come. Written by the kernel.
#[repr(C, align(64))]
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Monotonic time of the last translated packet, in ns.
    pub last_seen: Shared64,
    /// Translated packets; a GRO super-packet counts as one.
    pub packets: Shared64,
    /// Translated bytes, from the IP header on.
    pub bytes: Shared64,
    /// Monotonic time of the flow's insertion in ns; written by the daemon.
    pub born: Shared64,
    /// Highest acknowledgement seen from this sender.
    pub max_ack: Shared32,
    /// Highest sequence number that follows a byte seen from this sender.
    pub max_seq: Shared32,
    /// Right edge of the window that this sender has opened to the other.
    pub window_edge: Shared32,
    /// The sequence number behind the FIN, valid if `fin_seen`.
    pub fin_end: Shared32,
    /// 1 after an acceptable FIN.
    pub fin_seen: Shared32,
    /// 1 after an acceptable RST.
    pub rst_seen: Shared32,
    /// Added to TSval; 0 until the first packet fixes it.
    pub timestamp_delta: Shared32,
    /// In the client's: which stash the flow has, plus 1, while it has [`FLAG_STASH`]; written by the daemon.
    pub stash: Shared32,
}

/// One slot of the flow array.
#[repr(C, align(64))]
#[derive(Clone, Debug, Default)]
pub struct Flow {
    pub translations: [Translation; 2],
    pub progress: [Progress; 2],
}

const _: () = assert!(size_of::<Translation>() == 64);
const _: () = assert!(size_of::<Progress>() == 64);
const _: () = assert!(size_of::<Flow>() == 256);

impl Flow {
    pub fn translation(&self, side: Side) -> &Translation {
        &self.translations[side as usize]
    }

    pub fn progress(&self, side: Side) -> &Progress {
        &self.progress[side as usize]
    }
}
