//! TCP (RFC 9293) and the options that a translation must touch (RFC 7323, RFC 2018).

use super::{Net16, Net32, Wire};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    /// Source and destination port.
    pub ports: Net32,
    pub seq: Net32,
    pub ack: Net32,
    /// Data offset in 32-bit words in the high half.
    pub data_offset: u8,
    pub flags: u8,
    pub window: Net16,
    pub checksum: Net16,
    pub urgent: Net16,
}

// SAFETY: byte arrays and bytes only.
unsafe impl Wire for Tcp {}

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;

pub const OPTION_END: u8 = 0;
pub const OPTION_NOP: u8 = 1;
pub const OPTION_MAX_SEGMENT: u8 = 2;
pub const OPTION_WINDOW_SCALE: u8 = 3;
pub const OPTION_SACK_PERMITTED: u8 = 4;
pub const OPTION_SACK: u8 = 5;
pub const OPTION_TIMESTAMPS: u8 = 8;
/// The greatest window scale (RFC 7323 §2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;
/// Length of the timestamps option, kind and length included.
pub const TIMESTAMPS_LEN: u8 = 10;

impl Tcp {
    /// Length without options.
    pub const LEN: usize = 20;
    /// Greatest length of all options together.
    pub const MAX_OPTIONS: usize = 40;

    /// Header length in bytes with options: 0–60.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        ((self.data_offset >> 4) as usize) * 4
    }
}

const _: () = assert!(size_of::<Tcp>() == Tcp::LEN);

/// `a < b` in sequence space (RFC 9293 §3.4): true when `b` is at most 2^31 ahead of `a`. At exactly that distance each is before the
/// other, as in the common stacks.
#[inline(always)]
pub const fn seq_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// `a <= b` in sequence space.
#[inline(always)]
pub const fn seq_before_eq(a: u32, b: u32) -> bool {
    !seq_before(b, a)
}
