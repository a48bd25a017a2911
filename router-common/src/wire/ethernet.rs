//! Ethernet II (IEEE 802.3 clause 3).

use super::{Net16, Net32, Wire};

pub const ETHERTYPE_IPV4: u16 = 0x0800;
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Destination and source address are kept as three words, which is how the packet path replaces them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ethernet {
    pub addresses: [Net32; 3],
    pub ethertype: Net16,
}

// SAFETY: byte arrays only.
unsafe impl Wire for Ethernet {}

impl Ethernet {
    pub const LEN: usize = 14;

    /// Multicast or broadcast: the first bit of the destination on the wire (IEEE 802 clause 8.2).
    #[inline(always)]
    pub fn is_to_a_group(&self) -> bool {
        self.addresses[0].0[0] & 1 != 0
    }

    /// Whether the source is an address of one host.
    #[inline(always)]
    pub fn is_from_a_host(&self) -> bool {
        self.addresses[1].0[2] & 1 == 0
    }

    /// The header of a frame to whoever sent one with this header.
    #[inline(always)]
    pub fn back(&self) -> Self {
        let [a, b, c] = self.addresses.map(|word| word.0);
        let addresses = [[b[2], b[3], c[0], c[1]], [c[2], c[3], a[0], a[1]], [a[2], a[3], b[0], b[1]]];
        Self { addresses: addresses.map(Net32), ethertype: self.ethertype }
    }
}

const _: () = assert!(size_of::<Ethernet>() == Ethernet::LEN);
