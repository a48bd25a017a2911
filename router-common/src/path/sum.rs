//! The sum of a packet's bytes, for checksums that cover all of it.

use super::ports::Packet;

/// Most bytes that can be summed up.
pub const LONGEST: usize = 9_216;
/// Bytes that are summed up at a time.
const CHUNK: usize = 64;

/// The sum of `len` bytes (at least 4, at most [`LONGEST`]) from `offset` on, in words of 32 bits as they lie in memory. `None` where the packet is too short.
///
/// `opaque` returns its number, of which the kernel's verifier knows nothing any more: what follows the first loop is then one path for it, and not one for each
/// round.
#[inline(always)]
pub fn of<P: Packet>(packet: &P, offset: usize, len: usize, opaque: impl Fn(u32) -> u32) -> Option<u64> {
    let (mut sum, mut done) = (0, 0);
    for _ in 0..LONGEST / CHUNK {
        if done + CHUNK > len {
            break;
        }
        for word in packet.load::<{ CHUNK / 4 }>(offset + done)? {
            sum += u64::from(word);
        }
        done += CHUNK;
    }
    let (mut at, mut left) = (opaque((offset + done) as u32), opaque((len - done) as u32));
    for _ in 0..CHUNK / 4 - 1 {
        if left < 4 {
            break;
        }
        let [word] = packet.load(at as usize)?;
        sum += u64::from(word);
        (at, left) = (at.wrapping_add(4), left - 4);
    }
    if left & 3 != 0 {
        // The last word, without those of its bytes that have been summed up.
        let [word] = packet.load(offset + len - 4)?;
        sum += u64::from((u32::from_le(word) >> (32 - 8 * (left & 3))).to_le());
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::path::memory::Frame;
    use crate::wire::checksum;

    #[test]
    fn any_length_from_any_place_is_summed_up() {
        let bytes: Vec<u8> = (0..1_000_u32).map(|at| (at * 7 + at / 256) as u8).collect();
        let packet = Frame(bytes.clone());
        for offset in [0, 1, 34, 54] {
            for len in 4..300 {
                let sum = of(&packet, offset, len, |number| number).unwrap();
                assert_eq!(
                    checksum::of_sum(sum),
                    checksum::full(&bytes[offset..offset + len], 0),
                    "{offset}, {len}"
                );
            }
            assert_eq!(of(&packet, offset, 1_001 - offset, |number| number), None, "{offset}");
        }
    }
}
