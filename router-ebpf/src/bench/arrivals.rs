//! Which frames arrive, one in each round: what the bench's host side and its kernel programs share.

/// The longest frame that is restored, in bytes.
pub const LONGEST: usize = 80;
/// Frames have this length, or [`LONGEST`].
pub const SHORT: usize = 64;

/// One frame, from sources that take turns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Arrivals {
    /// Its bytes; the last four of its source address are 0, and its checksums are right for that.
    pub frame: [u64; LONGEST / 8],
    /// In bytes: [`SHORT`] means TCP over IPv4, [`LONGEST`] TCP over IPv6.
    pub length: u32,
    /// The last four bytes of the first source's address, as a number.
    pub first_source: u32,
    /// How many sources there are, at least 1.
    pub sources: u32,
    /// How many sources further each round goes; without a common divisor with their number, all take their turn.
    pub stride: u32,
    /// Rounds so far. Written by the kernel programs.
    pub turn: u64,
}
