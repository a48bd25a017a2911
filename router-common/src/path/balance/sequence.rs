//! How far the bytes of each side of a TCP flow have come, as far as two bytes can tell it, and whether an ending fits that.
//!
//! A blind sender who knows the tuple must not be able to end a flow (RFC 5961). Its receiver judges that exactly; here a FIN or a reset counts if its number lies near
//! the highest one that was seen of its side. Who does not know it has to try thousands.

use crate::abi::shared::Shared16;

/// Pieces of 64 KiB by which a segment may lie beyond all before it and still be believed: what was lost on its way here. A mark that has
/// fallen further behind is met again when the numbers have gone round, after 4 GiB.
const AHEAD: u16 = 16;
/// Pieces by which an ending may lie behind: a host that has forgotten its connection resets with the number that the other side expects, which has lost
/// what lies between.
const BEHIND: u16 = 4;

/// The piece that holds this sequence number.
#[inline(always)]
pub const fn piece(number: u32) -> u16 {
    (number >> 16) as u16
}

/// Moves the mark of a side that has sent a segment up to `next`, unless that lies nowhere near it.
#[inline(always)]
pub fn advance(mark: &Shared16, next: u32) {
    let piece = piece(next);
    if piece.wrapping_sub(mark.get()).wrapping_sub(1) < AHEAD {
        mark.set(piece);
    }
}

/// Whether an ending with this number is one of the side with this mark.
#[inline(always)]
pub fn fits(mark: &Shared16, number: u32) -> bool {
    piece(number).wrapping_sub(mark.get()).wrapping_add(BEHIND) <= BEHIND + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_goes_along_with_its_side_and_with_nobody_else() {
        let mark = Shared16::new(0xfff0);
        for (next, then) in [
            (0xfff0_ffff, 0xfff0),
            (0xfff1_0000, 0xfff1),
            (0xffef_0000, 0xfff1),
            (0x0001_0000, 0x0001),
            (0x0012_0000, 0x0001),
            (0x8001_0000, 0x0001),
            (0x0011_ffff, 0x0011),
        ] {
            advance(&mark, next);
            assert_eq!(mark.get(), then, "{next:#x}");
        }
    }

    #[test]
    fn an_ending_is_believed_near_the_mark() {
        let mark = Shared16::new(2);
        for (number, believed) in [
            (0x0002_0000, true),
            (0x0003_ffff, true),
            (0x0004_0000, false),
            (0xfffe_0000, true),
            (0xfffd_ffff, false),
            (0x8000_0000, false),
        ] {
            assert_eq!(fits(&mark, number), believed, "{number:#x}");
        }
        let hits = (0..=u16::MAX).filter(|piece| fits(&mark, u32::from(*piece) << 16)).count();
        assert_eq!(hits, 6, "of 65,536 guesses");
    }

    #[test]
    fn whoever_leads_a_mark_to_where_he_wants_it_needs_as_many_segments_as_guesses() {
        let mark = Shared16::new(0x1234);
        let steps = (0..=u16::MAX).step_by(usize::from(AHEAD));
        assert_eq!(steps.clone().count(), 4_096);
        steps.for_each(|piece| advance(&mark, u32::from(piece) << 16));
        assert!(fits(&mark, 0xfff0_0000), "after so many he has it");
    }
}
