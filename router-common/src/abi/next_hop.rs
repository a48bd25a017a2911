//! Where the packets of a flow leave the host.
//!
//! Flows name a next hop by its index, so that one write of the daemon corrects every flow when a
//! neighbour's link-layer address changes.

use super::shared::Shared32;

/// Address families, by Linux's numbers.
pub const AF_INET: u32 = 2;
pub const AF_INET6: u32 = 10;

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
    /// `AF_*` of `address`, which need not be that of the packets: IPv4 may be routed through an IPv6 neighbour (RFC 8950).
    pub family: Shared32,
    /// Address of the neighbour, network byte order; IPv4 uses the first word.
    pub address: [Shared32; 4],
    /// Destination and source Ethernet addresses, in the order of the Ethernet header.
    pub ethernet: [Shared32; 3],
    /// The interface's MTU, in bytes from the IP header on; 0 where it is not known.
    pub mtu: Shared32,
    pub reserved: Shared32,
}

const _: () = assert!(size_of::<NextHop>() == 48);
