//! The interfaces by which clients' packets come, and answers go.

use crate::abi::shared::Shared32;

/// One interface.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// Our own Ethernet address, as clients' packets have it: two bytes as they lie in a packet in the low half of the first word, then four. Written by the kernel programs.
    pub address: [Shared32; 2],
    /// In bytes; 0 if it is not known. Written by the daemon.
    pub mtu: Shared32,
    pub reserved: Shared32,
}

const _: () = assert!(size_of::<Link>() == 16);
