//! What XDP must know of an interface.

use super::shared::Shared32;

/// Interfaces that XDP can serve, by their index.
pub const MAX_INTERFACES: u32 = 4_096;

/// An interface of this index. Written by the daemon only; all zero where XDP has nothing to do with it.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// Its own Ethernet address: four bytes as they lie in a frame, then two.
    pub ethernet: [Shared32; 2],
    /// 1 where it sends what XDP gives to it.
    pub sends: Shared32,
    pub reserved: Shared32,
}

const _: () = assert!(size_of::<Interface>() == 16);
