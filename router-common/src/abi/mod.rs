//! What the kernel programs and the daemon exchange. The only list of numbers and names.
//!
//! Every type here is `repr(C)` without implicit padding; sizes are asserted at compile time. A change of any
//! layout must raise [`LAYOUT_VERSION`]: pinned maps outlive the daemon that made them.

pub mod balance;
pub mod binding;
pub mod capture;
pub mod flow;
pub mod key;
pub mod next_hop;
pub mod reason;
pub mod shared;
pub mod trace;
pub mod transparent;
pub mod xdp;

/// Version of the pinned maps' layout, which `tests/layout.rs` records. A daemon refuses to adopt maps of another version.
pub const LAYOUT_VERSION: u32 = 11;
