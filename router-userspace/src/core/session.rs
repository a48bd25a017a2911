//! Session accounting: how many live sessions each instance has, counted from real beginnings and ends.
//!
//! A connection holds a [`Session`] guard from the decision until its real end. A handed-off connection
//! parks its guard in the flow table, whose sweep drops it when the flow ends; so no path can forget to count down.
//!
//! Workers decide at the same moment, so choosing an instance and beginning a session on it must be one step.
//! The live count and the turn of the last choice share one atomic word: a worker reads the words, chooses, and
//! claims by compare-exchange. If the word changed meanwhile, another worker was faster and it chooses again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use super::memory::places::Presence;
use super::memory::queue::Queues;
use super::memory::resources::Opened;
use super::methods::response::ResponseTime;

/// Bits of the word that hold the live count: up to 16.7 million sessions on one instance.
const LIVE_BITS: u32 = 24;
const LIVE_MASK: u64 = (1 << LIVE_BITS) - 1;

/// What the counters of an instance said at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally(u64);

impl Tally {
    fn new(live: u32, turn: Turn) -> Self {
        Self(turn.0 << LIVE_BITS | u64::from(live))
    }

    /// Sessions that were alive.
    pub fn live(self) -> u32 {
        (self.0 & LIVE_MASK) as u32
    }

    /// When the instance was last chosen.
    pub fn last_chosen(self) -> Turn {
        Turn(self.0 >> LIVE_BITS)
    }
}

/// A number that grows by one with every choice among the same instances. It wraps after 2^40 choices, and
/// is compared as a serial number (RFC 1982).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn(u64);

impl Turn {
    /// The turn of an instance that was never chosen.
    pub const NEVER: Turn = Turn(0);

    pub fn is_after(self, other: Turn) -> bool {
        (self.0.wrapping_sub(other.0) << LIVE_BITS).cast_signed() > 0
    }

    pub fn latest(self, other: Turn) -> Turn {
        if other.is_after(self) { other } else { self }
    }

    pub fn next(self) -> Turn {
        Turn((self.0 + 1) & (u64::MAX >> LIVE_BITS))
    }
}

/// Live counters of one instance. Shared by every snapshot that contains the instance, so that a
/// reload keeps the counts. A decision reads one cache line of it, which workers share with no other instance.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct InstanceCounters {
    /// The instance's [`Tally`].
    word: AtomicU64,
    total: AtomicU64,
    /// Where its next turn of round-robin begins.
    turn_start: AtomicU64,
    /// Where its last turn of round-robin began.
    last_turn: AtomicU64,
    response: ResponseTime,
    /// Who is told when a session ends.
    queues: ArcSwapOption<Queues>,
}

/// Tells instances apart as long as they live, whatever snapshots of the routing table contain them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceKey(usize);

impl InstanceCounters {
    /// Live count and last choice, read together.
    pub fn tally(&self) -> Tally {
        Tally(self.word.load(Ordering::Acquire))
    }

    /// What tells this instance from others.
    pub fn key(self: &Arc<Self>) -> InstanceKey {
        InstanceKey(Arc::as_ptr(self).addr())
    }

    /// How long it takes to answer.
    pub fn response(&self) -> &ResponseTime {
        &self.response
    }

    /// Where its next turn of round-robin begins.
    pub(super) fn turn_start(&self) -> u64 {
        self.turn_start.load(Ordering::Acquire)
    }

    /// Where its last turn of round-robin began.
    pub(super) fn last_turn(&self) -> u64 {
        self.last_turn.load(Ordering::Acquire)
    }

    /// Lets those who wait know when a session ends here.
    pub(super) fn announce_ends_to(&self, queues: &Arc<Queues>) {
        self.queues.store(Some(Arc::clone(queues)));
    }

    /// Sessions that are alive now.
    pub fn live(&self) -> u32 {
        self.tally().live()
    }

    /// Sessions begun since the daemon started.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Begins a session that no decision chose: a flow adopted from an earlier daemon.
    pub fn begin(self: &Arc<Self>) -> Session {
        self.word.fetch_add(1, Ordering::AcqRel);
        self.started()
    }

    /// Begins a session if nothing has changed since `seen`; `None` if another worker was faster.
    pub fn claim(self: &Arc<Self>, seen: Tally, turn: Turn) -> Option<Session> {
        if seen.0 & LIVE_MASK == LIVE_MASK {
            return None;
        }
        let claimed = Tally::new(seen.live() + 1, turn);
        self.word.compare_exchange(seen.0, claimed.0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(self.started())
    }

    /// Begins a session in a turn of round-robin, if the turn that was seen has not been taken since. Whoever takes
    /// the turn holds it, so only the limit is looked at again.
    pub(super) fn claim_turn(
        self: &Arc<Self>,
        seen: u64,
        next: u64,
        max: Option<u32>,
        turn: Turn,
    ) -> Option<Session> {
        self.turn_start.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        self.last_turn.fetch_max(seen, Ordering::AcqRel);
        loop {
            let tally = self.tally();
            if max.is_some_and(|max| tally.live() >= max) || tally.live() == LIVE_MASK as u32 {
                return None;
            }
            if let Some(session) = self.claim(tally, turn) {
                return Some(session);
            }
        }
    }

    fn started(self: &Arc<Self>) -> Session {
        self.total.fetch_add(1, Ordering::Relaxed);
        Session { counters: Arc::clone(self), attached: None }
    }
}

/// One live session on an instance. Dropping it ends the session.
#[derive(Debug)]
pub struct Session {
    counters: Arc<InstanceCounters>,
    attached: Option<Box<Attached>>,
}

/// What ends together with a session's connection.
#[derive(Debug)]
pub(super) struct Attached {
    pub _presence: Option<Presence>,
    pub _opened: Option<Opened>,
}

impl Session {
    pub(super) fn attach(&mut self, attached: Attached) {
        self.attached = Some(Box::new(attached));
    }

    /// The instance's counters.
    pub fn counters(&self) -> &Arc<InstanceCounters> {
        &self.counters
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.counters.word.fetch_sub(1, Ordering::AcqRel);
        self.attached = None;
        if let Some(queues) = &*self.counters.queues.load() {
            queues.freed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_counts_until_it_is_dropped() {
        let counters = Arc::new(InstanceCounters::default());
        let adopted = counters.begin();
        let chosen = counters.claim(counters.tally(), Turn::NEVER.next()).unwrap();
        assert_eq!((counters.live(), counters.total()), (2, 2));
        drop(adopted);
        drop(chosen);
        assert_eq!((counters.live(), counters.total()), (0, 2));
        assert_eq!(
            counters.tally().last_chosen(),
            Turn::NEVER.next(),
            "an end does not forget the last choice"
        );
    }

    #[test]
    fn a_claim_fails_when_another_worker_was_faster_even_if_its_session_has_ended() {
        let counters = Arc::new(InstanceCounters::default());
        let seen = counters.tally();
        drop(counters.claim(seen, Turn::NEVER.next()).unwrap());
        assert_eq!(counters.live(), 0);
        assert!(counters.claim(seen, Turn::NEVER.next()).is_none());
    }

    #[test]
    fn turns_keep_their_order_when_the_number_wraps() {
        let last = Turn(u64::MAX >> LIVE_BITS);
        assert_eq!(last.next(), Turn(0));
        assert!(last.next().is_after(last));
        assert!(!last.is_after(last.next()));
        assert_eq!(last.latest(last.next()), last.next());
        assert!(!last.is_after(last));
    }
}
