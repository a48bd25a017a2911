//! What is known of the ways that wrapped packets go (`dsr-ipip`).

use crate::abi::shared::Shared32;

/// The way to an address of instances. Written by the kernel programs; emptied by the daemon when its place gets another address.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Tunnel {
    /// The least MTU on it that a router has told, in bytes of the outer packet; 0 if none has.
    pub path_mtu: Shared32,
    /// When it was told, in ticks.
    pub told: Shared32,
}

const _: () = assert!(size_of::<Tunnel>() == 8);
