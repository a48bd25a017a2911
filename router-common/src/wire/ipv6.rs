//! IPv6 (RFC 8200).

use super::{Net16, Net32, Wire};

/// IPv6 in IP (RFC 2473).
pub const PROTOCOL_IPV6: u8 = 41;

/// The extension headers that may stand before a transport header, by IANA's numbers.
pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const AUTHENTICATION: u8 = 51;
pub const DESTINATION_OPTIONS: u8 = 60;
pub const MOBILITY: u8 = 135;
pub const HOST_IDENTITY: u8 = 139;
pub const SHIM6: u8 = 140;

/// The header without extensions, which is all that the packet path translates.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ipv6 {
    /// Version in the highest 4 bits, traffic class in the next 8, flow label in the lowest 20.
    pub version_class_flow: Net32,
    /// Bytes behind this header.
    pub payload_length: Net16,
    pub next_header: u8,
    pub hop_limit: u8,
    pub source: [Net32; 4],
    pub destination: [Net32; 4],
}

// SAFETY: byte arrays and bytes only.
unsafe impl Wire for Ipv6 {}

impl Ipv6 {
    pub const LEN: usize = 40;

    #[inline(always)]
    pub fn is_version_6(&self) -> bool {
        self.version_class_flow.raw() & 0xf000_0000_u32.to_be() == 0x6000_0000_u32.to_be()
    }
}

const _: () = assert!(size_of::<Ipv6>() == Ipv6::LEN);

/// The extension header of a fragment (RFC 8200 §4.5).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FragmentHeader {
    pub next_header: u8,
    pub reserved: u8,
    /// Offset in units of 8 bytes in the 13 highest bits, "more fragments" in the lowest.
    pub offset_and_more: Net16,
    pub identification: Net32,
}

// SAFETY: byte arrays and bytes only.
unsafe impl Wire for FragmentHeader {}

impl FragmentHeader {
    pub const LEN: usize = 8;

    /// Whether the datagram begins with this fragment; it may be the only one (RFC 6946).
    #[inline(always)]
    pub fn is_first(&self) -> bool {
        self.offset_and_more.raw() & 0xfff8_u16.to_be() == 0
    }
}

const _: () = assert!(size_of::<FragmentHeader>() == FragmentHeader::LEN);
