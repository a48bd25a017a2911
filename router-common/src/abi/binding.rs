//! Delayed binding: connections that have no socket here. The kernel programs answer the client's handshake, the daemon sees its first packet and
//! chooses an instance, and the programs bind the two. What they tell each other for that.

use super::shared::{Shared32, Shared64};

/// What the programs must know for all listeners. Written by the daemon.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct BindingSettings {
    /// Monotonic time, in ns, until which the daemon takes first packets. Later, the stack gets what would lead to one.
    pub attended_until: Shared64,
    /// Our timestamp clock minus the monotonic one, in ms.
    pub clock_offset: Shared32,
    /// Another one for each start of the daemon.
    pub generation: Shared32,
    /// How many rings of arrivals are read: 1–[`MAX_RINGS`].
    pub rings: Shared32,
    pub reserved: Shared32,
}

const _: () = assert!(size_of::<BindingSettings>() == 24);

/// Rings of arrivals: so many workers can bind.
pub const MAX_RINGS: usize = 8;

/// A VIP and port; network byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoundEndpoint {
    /// IPv4 uses the first word.
    pub address: [u32; 4],
    pub port: u16,
    /// 1 for IPv6.
    pub is_ipv6: u16,
}

const _: () = assert!(size_of::<BoundEndpoint>() == 20);

/// How connections to a VIP begin.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundListener {
    /// Greatest segment that clients may send, in bytes.
    pub max_segment: u16,
    /// The window that clients get before an instance has opened its own, in bytes; at most [`MAX_FIRST_WINDOW`].
    pub window: u16,
}

/// What clients usually send before the first acknowledgement: ten segments (RFC 6928 §2). More is never asked for.
pub const MAX_FIRST_WINDOW: u16 = 14_600;

/// The client has sent nothing yet.
pub const EMBRYO_OPEN: u32 = 0;
/// The daemon has a part of what it sends first, or all.
pub const EMBRYO_TAKEN: u32 = 1;
/// A flow or a socket has taken over: whatever meets neither is the stack's.
pub const EMBRYO_DONE: u32 = 2;
/// The client has closed without a word, and was answered.
pub const EMBRYO_CLOSED: u32 = 3;

/// A connection whose client has completed the handshake with us. Numbers are in host byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Embryo {
    /// `EMBRYO_*`
    pub state: u32,
    /// The daemon that has it, if it is taken.
    pub generation: u32,
    /// The sequence number of the client's first byte.
    pub seq: u32,
    /// That of our first byte.
    pub ack: u32,
    /// Our timestamp, as the client has echoed it; 0 without timestamps.
    pub echo: u32,
    /// Behind the last byte up to which the daemon has all.
    pub told: u32,
    /// The greatest segment that the client takes, in bytes, or a usual one below.
    pub segment: u16,
    /// The window that it was given.
    pub window: u16,
    /// Its window scale (RFC 7323).
    pub scale: u8,
    /// `AGREED_*`
    pub agreed: u8,
    /// How many of its segments the daemon was told; at most [`MAX_TOLD`].
    pub segments: u8,
    /// The ring of the worker that is told.
    pub ring: u8,
}

const _: () = assert!(size_of::<Embryo>() == 32);

impl Embryo {
    /// Whether both are of one connection: a tuple may have several, one after the other.
    pub const fn is_same(&self, other: &Self) -> bool {
        self.seq == other.seq && self.ack == other.ack
    }
}

/// In more segments than these nobody is told what a client sends first. A head of ten segments that come one by one, each twice and in any order, is one of
/// far fewer.
pub const MAX_TOLD: u8 = 64;

pub const AGREED_TIMESTAMPS: u8 = 1 << 0;
pub const AGREED_SACK: u8 = 1 << 1;
pub const AGREED_SCALING: u8 = 1 << 2;

/// Our own window scale towards clients that have one.
pub const OUR_SCALE: u8 = 7;

/// Bytes of a TCP header, and of as much behind it as one segment holds.
pub const ARRIVAL_BYTES: usize = 1968;
/// The same for segments that were put together on their way up (GRO): as much as the greatest window lets in.
pub const LARGE_ARRIVAL_BYTES: usize = 14_672;

const _: () = assert!(LARGE_ARRIVAL_BYTES >= 60 + MAX_FIRST_WINDOW as usize);

/// [`Arrival::event`]: a segment of what a client sends first.
pub const ARRIVAL_SEGMENT: u32 = 0;
/// The instance has refused the connection: only `slot` counts.
pub const ARRIVAL_REFUSED: u32 = 1;
/// The instance takes smaller segments, or less, than was laid out for it: only `slot` counts.
pub const ARRIVAL_UNFIT: u32 = 2;
/// A flow was bound whose client has sent more already: only `slot` counts.
pub const ARRIVAL_BOUND: u32 = 3;

/// What the programs tell the daemon; the bytes of a segment follow, from the TCP header on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// `ARRIVAL_*`
    pub event: u32,
    /// The flow's slot.
    pub slot: u32,
    /// Source and destination as in the packet; IPv4 uses the first word.
    pub source: [u32; 4],
    pub destination: [u32; 4],
    /// 1 for IPv6.
    pub is_ipv6: u32,
    /// How many bytes follow.
    pub length: u32,
    pub embryo: Embryo,
}

const _: () = assert!(size_of::<Arrival>() == 80);

/// A record of the ring: an arrival with room for so many bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrivalRecord<const BYTES: usize> {
    pub arrival: Arrival,
    pub bytes: [u8; BYTES],
}

const _: () = assert!(size_of::<ArrivalRecord<ARRIVAL_BYTES>>() == 2048);

/// Bytes that a stash holds: what fits in one segment on Ethernet.
pub const STASH_BYTES: usize = 1472;

/// Segments that an instance may get first: ten of the client's, and what is put before and into the head.
pub const MAX_STASHES: usize = 16;

/// One segment of what the instance gets first. Filled by the daemon before a key names its flow.
///
/// A flow leads to the first of them, and each to the next. What is not said of its bytes counts in the first alone.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Stash {
    /// How many bytes there are; at least 1.
    pub length: Shared32,
    /// Their ones' complement sum.
    pub sum: Shared32,
    /// The sequence number of the first.
    pub seq: Shared32,
    /// Our timestamp in the SYN, which goes with them.
    pub timestamp: Shared32,
    /// The sequence number of our first byte to the client.
    pub client_ack: Shared32,
    /// [`Embryo::echo`]
    pub client_echo: Shared32,
    /// The window that the client has opened, as in its packet.
    pub window: Shared32,
    /// `AGREED_*` with the client in bits 0–7, its window scale in bits 8–15.
    pub agreed: Shared32,
    /// The instance's first sequence number; written by the kernel.
    pub instance_seq: Shared32,
    /// The instance's timestamp; written by the kernel.
    pub instance_timestamp: Shared32,
    /// The greatest segment that the client takes, in bytes.
    pub segment: Shared32,
    /// The index of the next one, plus 1; 0 in the last.
    pub next: Shared32,
    /// How many bytes there are in all.
    pub total: Shared32,
    /// 1 once the daemon was told of more that the client has sent.
    pub early: Shared32,
    /// The greatest segment that the instance takes, in bytes; written by the kernel.
    pub instance_segment: Shared32,
    /// [`Embryo::ring`]
    pub ring: Shared32,
    pub bytes: [Shared64; STASH_BYTES / 8],
}

const _: () = assert!(size_of::<Stash>() == 64 + STASH_BYTES);

impl Default for Stash {
    fn default() -> Self {
        let zero = Shared32::default;
        Self {
            length: zero(),
            sum: zero(),
            seq: zero(),
            timestamp: zero(),
            client_ack: zero(),
            client_echo: zero(),
            window: zero(),
            agreed: zero(),
            instance_seq: zero(),
            instance_timestamp: zero(),
            segment: zero(),
            next: zero(),
            total: zero(),
            early: zero(),
            instance_segment: zero(),
            ring: zero(),
            bytes: core::array::from_fn::<_, { STASH_BYTES / 8 }, _>(|_| Shared64::default()),
        }
    }
}

#[cfg(feature = "user")]
mod user {
    use super::{BoundEndpoint, BoundListener, Embryo};

    // SAFETY: `repr(C)` without padding, any bit pattern is valid.
    unsafe impl aya::Pod for BoundEndpoint {}
    // SAFETY: as above.
    unsafe impl aya::Pod for BoundListener {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Embryo {}
}
