//! Where the packets of a flow leave the host.
//!
//! Flows name a next hop by its index, so that one write of the daemon corrects every flow when a
//! neighbour's link-layer address changes.

use super::shared::Shared32;

/// One neighbour on one interface. Written by the daemon only.
///
/// An update of the addresses is not atomic: the daemon clears `resolved` first, writes, and sets it again.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct NextHop {
    /// Interface index; 0 marks an unused entry.
    pub interface: Shared32,
    /// 1 when the two link-layer addresses may be used; 0 leaves resolution to the kernel.
    pub resolved: Shared32,
    /// IPv4 address of the neighbour, network byte order.
    pub address: Shared32,
    /// Destination and source Ethernet addresses, in the order of the Ethernet header.
    pub ethernet: [Shared32; 3],
}

const _: () = assert!(size_of::<NextHop>() == 24);
