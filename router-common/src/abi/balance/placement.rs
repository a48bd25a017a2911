//! Where new flows go: rules by the client's address, groups, rings, and what is remembered of clients.

use crate::abi::shared::{Shared16, Shared32};

/// In a ring: no instance.
pub const NOBODY: u16 = u16::MAX;
/// In a group: there is nobody to serve.
pub const NO_RING: u32 = u32::MAX;
/// Instances in one piece of a ring.
pub const RING_CHUNK: usize = 32;

/// The key of the longest-prefix match; its prefix length counts the set's 32 bits as well.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleKey {
    /// Which rules. A new set gets a new number, so that it comes into force in one step.
    pub set: u32,
    /// The client's address, network byte order; IPv4 uses the first word.
    pub client: [u32; 4],
}

const _: () = assert!(size_of::<RuleKey>() == 20);

/// A rule's value: clients are refused, as [`SILENT`] says. Otherwise the value is a group.
pub const DENY: u32 = 1 << 31;
/// Nobody answers the refused; without it the stack does, with a reset or an ICMP error.
pub const SILENT: u32 = 1 << 30;

/// The instances that a rule leads to. Written by the daemon only.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Index of the ring in force, or [`NO_RING`].
    pub ring: Shared32,
    /// What happens without one: 0 or [`SILENT`].
    pub otherwise: Shared32,
}

/// A piece of a ring: indexes of instances, or [`NOBODY`].
#[repr(C, align(64))]
#[derive(Clone, Debug, Default)]
pub struct RingChunk(pub [Shared16; RING_CHUNK]);

const _: () = assert!(size_of::<RingChunk>() == 64);

/// A client of one service.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AffinityKey {
    pub service: u32,
    /// Network byte order; IPv4 uses the first word.
    pub client: [u32; 4],
}

const _: () = assert!(size_of::<AffinityKey>() == 20);

/// Where it was served, and when it was last seen (in ticks).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    pub instance: u32,
    pub seen: u32,
}

/// New flows of one CPU in the current second, and a word of its own.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct NewFlows {
    /// When the second began, in ticks.
    pub began: Shared32,
    pub count: Shared32,
    /// Written and read by one packet.
    pub scratch: Shared32,
    pub reserved: Shared32,
}

#[cfg(feature = "user")]
mod user {
    use super::{Affinity, AffinityKey, RuleKey};

    // SAFETY: `repr(C)` without padding, any bit pattern is valid.
    unsafe impl aya::Pod for RuleKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for AffinityKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Affinity {}
}
