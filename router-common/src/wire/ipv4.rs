//! IPv4 (RFC 791).

use super::{Net16, Net32, Wire};

/// IPv4 in IP (RFC 2003).
pub const PROTOCOL_IPIP: u8 = 4;

/// In the fragment field, host byte order.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// The fixed part of the header; the packet path translates packets without IP options only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ipv4 {
    /// Version in the high, header length in 32-bit words in the low half.
    pub version_ihl: u8,
    pub tos: u8,
    pub total_length: Net16,
    pub identification: Net16,
    /// Flags in the three highest bits, fragment offset in units of 8 bytes below.
    pub fragment: Net16,
    pub ttl: u8,
    pub protocol: u8,
    pub checksum: Net16,
    pub source: Net32,
    pub destination: Net32,
}

// SAFETY: byte arrays and bytes only.
unsafe impl Wire for Ipv4 {}

impl Ipv4 {
    pub const LEN: usize = 20;
    /// Version 4, header length 20: no options.
    pub const VERSION_4_NO_OPTIONS: u8 = 0x45;
    /// In `fragment`, in host byte order.
    pub const DONT_FRAGMENT: u16 = 0x4000;

    /// A fragment that begins its datagram, but does not end it.
    #[inline(always)]
    pub fn is_first_fragment(&self) -> bool {
        self.fragment.raw() & 0x3fff_u16.to_be() == 0x2000_u16.to_be()
    }

    /// First, middle or last fragment of a fragmented datagram.
    #[inline(always)]
    pub fn is_fragment(&self) -> bool {
        // More-fragments flag or a non-zero offset.
        self.fragment.raw() & 0x3fff_u16.to_be() != 0
    }
}

const _: () = assert!(size_of::<Ipv4>() == Ipv4::LEN);
