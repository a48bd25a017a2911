//! ICMP (RFC 792, RFC 1191) and ICMPv6 (RFC 4443).

use super::checksum;
use super::{Net16, Net32, Wire};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Icmp {
    pub kind: u8,
    pub code: u8,
    pub checksum: Net16,
    /// In the errors that name a path's MTU, that: of ICMP in the low half, of ICMPv6 in all of it.
    pub rest: Net32,
}

// SAFETY: byte arrays and bytes only.
unsafe impl Wire for Icmp {}

impl Icmp {
    pub const LEN: usize = 8;

    /// A header with its checksum. `sum` is that of everything else that the checksum covers, bytes as in memory.
    #[inline(always)]
    pub fn new([kind, code]: [u8; 2], rest: u32, sum: u64) -> Self {
        let sum = sum + u16::from_ne_bytes([kind, code]) as u64 + rest.to_be() as u64;
        let checksum = Net16(checksum::of_sum(sum).to_ne_bytes());
        Self { kind, code, checksum, rest: Net32(rest.to_be_bytes()) }
    }
}

const _: () = assert!(size_of::<Icmp>() == Icmp::LEN);

/// Of ICMP.
pub mod v4 {
    pub const ECHO_REPLY: u8 = 0;
    pub const UNREACHABLE: u8 = 3;
    pub const ECHO_REQUEST: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
    pub const PARAMETER_PROBLEM: u8 = 12;
    /// The code of [`UNREACHABLE`] that tells a sender of the MTU.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
}

/// Of ICMPv6.
pub mod v6 {
    pub const UNREACHABLE: u8 = 1;
    pub const PACKET_TOO_BIG: u8 = 2;
    pub const TIME_EXCEEDED: u8 = 3;
    pub const PARAMETER_PROBLEM: u8 = 4;
    pub const ECHO_REQUEST: u8 = 128;
    pub const ECHO_REPLY: u8 = 129;
}
