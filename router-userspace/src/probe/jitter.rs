//! Random numbers that spread what is done at intervals, so that many instances are not all looked at in the same moment.

use std::hash::{BuildHasher, RandomState};

/// Evenly distributed numbers, different for each task.
pub(super) fn random_numbers() -> impl FnMut() -> u32 {
    // A `RandomState` has random keys, so what it makes of a counter is random enough to spread checks.
    let state = RandomState::new();
    let mut turn = 0u64;
    move || {
        turn += 1;
        (state.hash_one(turn) >> 32) as u32
    }
}
