//! `round-robin`: next in turn, each as often as its weight says, and spread out rather than in a row.
//!
//! Each instance's turns follow each other at its stride, which is shorter the greater the weight. A turn is due in the middle of its
//! stride and the earliest one is taken, so that turns of different weights interleave (weights 3 and 1: a b a a). The
//! round stands where the latest turn that was taken began. An instance whose turn was due before that could not
//! serve, or is new: its turn comes at once, but it does not catch up on those that it missed.

/// The stride of weight 1. No usual weight loses more than 0.01 % by rounding.
const WHOLE: u64 = 1 << 24;

fn stride(weight: u32) -> u64 {
    WHOLE / u64::from(weight.max(1))
}

/// A turn that could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// When it is due; never before the round.
    pub due: u64,
    /// Where the turn after it begins.
    pub next: u64,
}

/// The turn that begins at `start`, if the round stands at `round`.
pub(super) fn turn(start: u64, round: u64, weight: u32) -> Turn {
    let stride = stride(weight);
    let due = start + stride / 2;
    if due < round { Turn { due: round, next: round + stride } } else { Turn { due, next: start + stride } }
}
