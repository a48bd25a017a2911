//! The table of Layer-4 flows: one cache line a flow, in buckets whose first line tells which flows they hold.
//!
//! The kernel programs insert, the daemon removes; both see the same memory. A flow belongs to the bucket that its hash names or, if
//! that is full, to a second one. A tag is part of the hash and says how far the flow is:
//! free (0) → busy (being filled) → live → dead (nobody finds it any more) → free.

use crate::abi::shared::{Shared16, Shared32, Shared64};

/// Flows of one bucket.
pub const BUCKET_FLOWS: usize = 15;
/// References of one reply bucket.
pub const REPLY_REFS: usize = 16;

/// The two lowest bits of a tag.
pub const TAG_STATE: u32 = 0b11;
pub const TAG_BUSY: u32 = 0b01;
pub const TAG_DEAD: u32 = 0b10;
pub const TAG_LIVE: u32 = 0b11;

/// The client has sent more than the first packet (TCP: not only SYNs).
pub const ESTABLISHED: u32 = 1 << 0;
/// The instance has answered; known only where answers pass through this host.
pub const REPLIED: u32 = 1 << 1;
pub const CLIENT_FIN: u32 = 1 << 2;
pub const INSTANCE_FIN: u32 = 1 << 3;
/// Either side has reset; a later packet that is no reset takes this back.
pub const RESET: u32 = 1 << 4;
/// Both sides have finished, and the last acknowledgement may still come.
pub const CLOSED: u32 = CLIENT_FIN | INSTANCE_FIN;

/// Whether a TCP flow has ended, as far as the router sees both sides.
#[inline(always)]
pub const fn closed(state: u32) -> bool {
    state & RESET != 0 || state & CLOSED == CLOSED
}

/// A flow from a client to an instance. Written by the kernel programs, removed by the daemon.
#[repr(C, align(64))]
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Network byte order; IPv4 uses the first word.
    pub client: [Shared32; 4],
    /// The client's port as it lies in the packet in the low half, the index of the service in the high half.
    pub origin: Shared32,
    /// The index of the instance in the low half; with `snat`, our port as it lies in the packet in the high half.
    pub target: Shared32,
    /// When its last packet came, in ticks.
    pub last_seen: Shared32,
    /// When it began, in ticks. A flow that begins anew on the same tuple has another one.
    pub born: Shared32,
    /// Bytes from the client, from the IP header on.
    pub bytes_to_instance: Shared64,
    /// Bytes from the instance, where they pass through this host.
    pub bytes_to_client: Shared64,
    /// The neighbour that the client's packets come from, to which answers go: the first four bytes of its Ethernet address as they lie in the
    /// packet, and the last two.
    pub neighbour: Shared32,
    pub neighbour_end: Shared16,
    /// How far the client has come (TCP): the high half of the sequence number of its next byte, in host byte order.
    pub client_next: Shared16,
    /// The index of the interface by which the client's packets come, or 65535 for any that is higher.
    pub interface: Shared16,
    /// How far the instance has come, once it has answered.
    pub instance_next: Shared16,
    /// [`ESTABLISHED`] and the others.
    pub state: Shared32,
}

/// The flows with one hash.
#[repr(C, align(64))]
#[derive(Clone, Debug, Default)]
pub struct FlowBucket {
    /// How many flows of this bucket lie in their second one.
    pub overflow: Shared32,
    /// One for each flow; 0 marks a free place.
    pub tags: [Shared32; BUCKET_FLOWS],
    pub flows: [Flow; BUCKET_FLOWS],
}

/// Where a flow lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId {
    pub bucket: u32,
    /// Its place in the bucket.
    pub place: u32,
}

/// Flows by the tuple of their answers, as references: the place of the flow in the low 24 bits, which are never 0,
/// and a tag above.
#[repr(C, align(64))]
#[derive(Clone, Debug, Default)]
pub struct ReplyBucket {
    pub refs: [Shared32; REPLY_REFS],
}

impl FlowId {
    /// In the low 24 bits, never 0.
    #[inline(always)]
    pub const fn pack(self) -> u32 {
        self.bucket << 4 | (self.place + 1)
    }

    /// From a word whose low 24 bits are not 0.
    #[inline(always)]
    pub const fn unpack(word: u32) -> Self {
        Self { bucket: (word & 0x00ff_ffff) >> 4, place: (word & 15).wrapping_sub(1) }
    }
}

const _: () = assert!(size_of::<Flow>() == 64);
const _: () = assert!(size_of::<FlowBucket>() == 1024);
const _: () = assert!(size_of::<ReplyBucket>() == 64);
const _: () = assert!(BUCKET_FLOWS < 16);

impl Flow {
    #[inline(always)]
    pub fn service(&self) -> u32 {
        self.origin.get() >> 16
    }

    #[inline(always)]
    pub fn instance(&self) -> u32 {
        self.target.get() & 0xffff
    }

    /// The client's port as it lies in the packet.
    #[inline(always)]
    pub fn client_port(&self) -> u16 {
        self.origin.get() as u16
    }

    /// Our port towards the instance as it lies in the packet; 0 without `snat`.
    #[inline(always)]
    pub fn source_port(&self) -> u16 {
        (self.target.get() >> 16) as u16
    }
}
