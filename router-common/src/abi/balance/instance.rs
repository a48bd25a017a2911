//! The instances that Layer-4 flows are sent to.

use crate::abi::shared::Shared32;

/// New flows may be placed here by the ring.
pub const TAKES_FLOWS: u32 = 1 << 0;
/// New flows of a client that has been here within its idle time-out may come here, also while the instance drains.
pub const TAKES_RETURNING_CLIENTS: u32 = 1 << 1;
/// Its checks say that it is down: flows to it are given up.
pub const UNREACHABLE: u32 = 1 << 2;

/// One instance as seen by services of one protocol. Written by the daemon only.
#[repr(C, align(64))]
#[derive(Clone, Debug, Default)]
pub struct Instance {
    /// Network byte order; IPv4 uses the first word.
    pub address: [Shared32; 4],
    /// The router's address towards it: what it sees with `snat`, and the outer source with `dsr-ipip`.
    pub source: [Shared32; 4],
    /// As [`Endpoint::port`](super::Endpoint::port); 0 marks an unused entry.
    pub port: Shared32,
    /// Index of the next hop.
    pub next_hop: Shared32,
    /// [`TAKES_FLOWS`] and the others.
    pub flags: Shared32,
    /// Index of the [`Tunnel`](super::Tunnel) to its address (`dsr-ipip`).
    pub tunnel: Shared32,
    pub reserved: [Shared32; 4],
}

const _: () = assert!(size_of::<Instance>() == 64);
