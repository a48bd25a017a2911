//! Numbers that the packet path needs for every Layer-4 packet.

use crate::abi::shared::Shared32;

/// A tick is 2^26 ns of the monotonic clock, about 67 ms; a 32-bit number of them lasts nine years.
pub const TICK_SHIFT: u32 = 26;

/// Written by the daemon only.
#[repr(C, align(64))]
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The time in ticks, as of the daemon's last sweep. It stands still while no daemon runs.
    pub now: Shared32,
    /// Which table of endpoints is in force: 1 or 2; 0 if there are no Layer-4 listeners.
    pub endpoints: Shared32,
    /// The seed of each table of endpoints.
    pub endpoint_seeds: [Shared32; 2],
    /// The seed of the flow table: random, so that nobody can aim at one bucket.
    pub flow_seed: Shared32,
    /// Buckets of the flow table.
    pub buckets: Shared32,
    /// Places of a ring.
    pub ring_size: Shared32,
    /// Pieces of a ring.
    pub ring_chunks: Shared32,
    /// New flows of one CPU in a second that are stored; 0 for no limit.
    pub new_flow_limit: Shared32,
    /// The lowest source port that belongs to Layer-4 flows, host byte order.
    pub first_port: Shared32,
    /// How many ports there are.
    pub ports: Shared32,
    /// Random: by it this host knows the headers that it has put around packets (`dsr-ipip`).
    pub tunnel_mark: Shared32,
    pub reserved: [Shared32; 4],
}

const _: () = assert!(size_of::<Settings>() == 64);
