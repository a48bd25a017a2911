//! How the kernel side is to be set up.

use std::path::PathBuf;

use crate::flows::xdp::Wishes;

/// How the kernel side is to be set up.
#[derive(Clone, Debug)]
pub struct KernelSettings {
    /// Interfaces that carry clients or instances.
    pub interfaces: Vec<String>,
    /// A directory on a BPF file system.
    pub pin_dir: PathBuf,
    /// Greatest number of flows; ignored where maps are adopted.
    pub max_flows: u32,
    /// Where the interfaces' packets are to be met.
    pub attach: Wishes,
    /// Start anew instead of adopting: existing handed-off connections end.
    pub replace: bool,
    /// `None` if there is no Layer-4 listener: then its tables are as small as can be.
    pub balance: Option<BalanceSizes>,
    /// Whether connections of some listener are bound.
    pub binding: bool,
    /// Workers that bind them: 1–[`MAX_RINGS`](router_common::abi::binding::MAX_RINGS).
    pub binders: usize,
}

/// How large the tables of Layer-4 listeners are to be; ignored where such tables are adopted.
#[derive(Clone, Copy, Debug)]
pub struct BalanceSizes {
    /// Greatest number of stored flows.
    pub max_flows: u32,
    /// Places of a Maglev table.
    pub ring_size: u32,
    /// Maglev tables, those included that are being built.
    pub rings: u32,
    /// Clients that are remembered.
    pub clients: u32,
}
