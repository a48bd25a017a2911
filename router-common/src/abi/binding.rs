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
    /// The window that clients get before an instance has opened its own, in bytes.
    pub window: u16,
}

/// The client has sent nothing yet.
pub const EMBRYO_OPEN: u32 = 0;
/// The daemon has its first packet.
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
    /// The greatest segment that the client takes, in bytes, or a usual one below.
    pub segment: u16,
    /// The client's window scale (RFC 7323).
    pub scale: u8,
    /// `AGREED_*`
    pub agreed: u8,
}

const _: () = assert!(size_of::<Embryo>() == 24);

pub const AGREED_TIMESTAMPS: u8 = 1 << 0;
pub const AGREED_SACK: u8 = 1 << 1;
pub const AGREED_SCALING: u8 = 1 << 2;

/// Our own window scale towards clients that have one.
pub const OUR_SCALE: u8 = 7;

/// Bytes of a TCP header, and of as much behind it as one segment holds.
pub const ARRIVAL_BYTES: usize = 1976;

/// [`Arrival::event`]: a client's first packet.
pub const ARRIVAL_FIRST: u32 = 0;
/// The instance has refused the connection: only `slot` counts.
pub const ARRIVAL_REFUSED: u32 = 1;

/// What the programs tell the daemon.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
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
    /// How many of `bytes` there are.
    pub length: u32,
    pub embryo: Embryo,
    /// From the TCP header on.
    pub bytes: [u8; ARRIVAL_BYTES],
}

const _: () = assert!(size_of::<Arrival>() == 72 + ARRIVAL_BYTES);

/// Bytes that a stash holds: what fits in one segment on Ethernet.
pub const STASH_BYTES: usize = 1472;

/// What the instance gets first. Filled by the daemon before a key names its flow.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Stash {
    /// How many bytes there are; at least 1.
    pub length: Shared32,
    /// Their ones' complement sum, as if they began at an even offset.
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
    pub reserved: [Shared32; 5],
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
            reserved: Default::default(),
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
