//! Incremental Internet checksums (RFC 1071, RFC 1624).
//!
//! The idea: the checksum is the complement of a ones' complement sum, so replacing a word `old` by `new` changes
//! the sum by `new + !old`, whatever else the packet holds. A [`Diff`] collects such changes and is applied once.
//!
//! The trap: the sum is over 16-bit words that start at even offsets. Words may be summed in either byte order as long as
//! it is the same for all, so everything here takes bytes as they lie in memory; but a value that starts at an *odd* offset (a TCP
//! option may) lies across words, and its contribution must be rotated by one byte.

/// A change of a ones' complement sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diff(u64);

impl Diff {
    /// The change that was precomputed by [`Diff::fold`].
    #[inline(always)]
    pub const fn from_folded(sum: u32) -> Self {
        Self(sum as u64)
    }

    /// Four bytes at an even offset change from `old` to `new`.
    #[inline(always)]
    pub fn replace(&mut self, old: u32, new: u32) {
        self.0 += !old as u64 + new as u64;
    }

    /// Four bytes that were not there, or 0.
    #[inline(always)]
    pub fn insert(&mut self, new: u32) {
        self.0 += new as u64;
    }

    /// Two bytes that were not there, or 0.
    #[inline(always)]
    pub fn insert16(&mut self, new: u16) {
        self.0 += new as u64;
    }

    /// Two bytes at an even offset change from `old` to `new`.
    #[inline(always)]
    pub fn replace16(&mut self, old: u16, new: u16) {
        self.0 += !old as u64 + new as u64;
    }

    /// Four bytes at an offset that may be odd change from `old` to `new`.
    #[inline(always)]
    pub fn replace_at(&mut self, offset: usize, old: u32, new: u32) {
        if offset & 1 == 0 {
            self.replace(old, new);
        } else {
            // Rotating a 32-bit ones' complement sum by a byte swaps the bytes of its 16-bit fold.
            self.0 += (!old).rotate_left(8) as u64 + new.rotate_left(8) as u64;
        }
    }

    #[inline(always)]
    pub fn add(&mut self, other: Diff) {
        self.0 += fold32(other.0) as u64;
    }

    /// The change as a 32-bit ones' complement sum, which is what the kernel's checksum helpers take.
    #[inline(always)]
    pub const fn fold(self) -> u32 {
        fold32(self.0)
    }

    /// The checksum field that follows from `checksum` by this change, bytes as in memory.
    #[inline(always)]
    pub const fn apply(self, checksum: u16) -> u16 {
        !fold16(!checksum as u64 + fold32(self.0) as u64)
    }
}

#[inline(always)]
const fn fold32(sum: u64) -> u32 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

#[inline(always)]
const fn fold16(sum: u64) -> u16 {
    let sum = fold32(sum);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The Internet checksum of words whose sum is this; bytes as in memory.
#[inline(always)]
pub const fn of_sum(sum: u64) -> u16 {
    !fold16(sum)
}

/// The Internet checksum over whole bytes with a starting sum, for builders and tests; bytes as in memory.
pub fn full(bytes: &[u8], mut sum: u64) -> u16 {
    let mut words = bytes.chunks_exact(2);
    for word in &mut words {
        sum += u16::from_ne_bytes([word[0], word[1]]) as u64;
    }
    if let [last] = words.remainder() {
        sum += u16::from_ne_bytes([*last, 0]) as u64;
    }
    !fold16(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn replacing_any_words_gives_the_checksum_of_the_new_bytes(
            mut bytes in proptest::collection::vec(any::<u8>(), 64),
            changes in proptest::collection::vec((0usize..60, any::<u32>()), 1..20),
        ) {
            let before = full(&bytes, 0);
            let mut diff = Diff::default();
            for (offset, new) in changes {
                let old = u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap());
                diff.replace_at(offset, old, new);
                bytes[offset..offset + 4].copy_from_slice(&new.to_ne_bytes());
            }
            let (incremental, whole) = (diff.apply(before), full(&bytes, 0));
            // 0x0000 and 0xffff are the same number in ones' complement; only all-zero bytes can tell them apart.
            prop_assert!(incremental == whole || (incremental | whole == 0xffff && incremental & whole == 0));
        }
    }
}
