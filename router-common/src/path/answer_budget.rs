//! How many packets this host may answer with an error (RFC 1812 §4.3.2.8, RFC 4443 §2.4(f)): one CPU's share.

use crate::abi::shared::Shared32;

/// Answers a CPU may give at once after a rest; beyond, one a millisecond.
pub const BURST: u32 = 100;

/// A bucket that gains an answer each millisecond. All zero, it is full. One CPU at a time uses it.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct AnswerBudget {
    left: Shared32,
    /// Monotonic time in ms of the last look, wrapping.
    looked: Shared32,
}

impl AnswerBudget {
    /// Takes one answer out of the bucket, if there is one. `now` is monotonic, in ns.
    #[inline(always)]
    pub fn spend(&self, now: u64) -> bool {
        let now = (now / 1_000_000) as u32;
        let gained = now.wrapping_sub(self.looked.get());
        let left = self.left.get();
        let left = if gained >= BURST || left + gained > BURST { BURST } else { left + gained };
        self.looked.set(now);
        if left == 0 {
            self.left.set(0);
            return false;
        }
        self.left.set(left - 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    fn spent_at(budget: &AnswerBudget, now: u64) -> u32 {
        (0..2 * BURST).map(|_| u32::from(budget.spend(now))).sum()
    }

    #[test]
    fn after_a_burst_there_is_one_answer_a_millisecond() {
        let budget = AnswerBudget::default();
        let start = 10_000 * MILLISECOND;
        assert_eq!(spent_at(&budget, start), BURST);
        assert_eq!(spent_at(&budget, start + MILLISECOND - 1), 0);
        assert_eq!(spent_at(&budget, start + MILLISECOND), 1);
        assert_eq!(spent_at(&budget, start + 8 * MILLISECOND), 7);
        assert_eq!(spent_at(&budget, start + 3_600_000 * MILLISECOND), BURST, "it never holds more");
    }

    #[test]
    fn the_clock_of_32_bits_may_wrap() {
        let budget = AnswerBudget::default();
        let wrap = (1u64 << 32) * MILLISECOND;
        spent_at(&budget, wrap - MILLISECOND);
        assert_eq!(spent_at(&budget, wrap + MILLISECOND), 2);
    }
}
