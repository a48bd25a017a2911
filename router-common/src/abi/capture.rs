//! Samples of packets that are not simply carried on: which are wanted, and what is told of each.

use crate::abi::shared::Shared32;

/// Bytes of a packet that are copied, from its Ethernet header on.
pub const SNAP_LENGTH: usize = 256;

/// In [`Wanted::when`]: packets that are passed up.
pub const PASSED: u32 = 1 << 0;
/// Packets that are dropped.
pub const DROPPED: u32 = 1 << 1;

/// Which packets of one [`PacketReason`](super::reason::PacketReason) are wanted. Written by the daemon.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// [`PASSED`], [`DROPPED`], both, or 0 for none.
    pub when: Shared32,
    pub reserved: Shared32,
}

const _: () = assert!(size_of::<Wanted>() == 8);

/// How much is told.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct CaptureBudget {
    /// How many more packets may be told of, as a signed number. The daemon sets it again and again, so nothing is told for long where no daemon listens.
    pub left: Shared32,
    /// Packets that were wanted and not told of, because the budget was spent or the buffer full. Counted by the kernel programs.
    pub missed: Shared32,
}

const _: () = assert!(size_of::<CaptureBudget>() == 8);

/// One packet, as it lies in the buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Monotonic time, in ns.
    pub time: u64,
    /// A [`PacketReason`](super::reason::PacketReason), by its number.
    pub reason: u32,
    /// 1 if it was dropped, 0 if it was passed up.
    pub dropped: u32,
    /// The index of its interface.
    pub interface: u32,
    /// Of the whole frame, in bytes.
    pub length: u32,
    /// How many of `bytes` are the frame's.
    pub captured: u32,
    /// The VLAN tag that was taken off the frame: protocol in the high half, control information in the low one, both in host byte order; 0 without one.
    pub vlan: u32,
    pub bytes: [u8; SNAP_LENGTH],
}

const _: () = assert!(size_of::<Sample>() == 32 + SNAP_LENGTH);
