//! Session accounting: how many live sessions each instance has, counted from real beginnings and ends.
//!
//! A connection holds a [`Session`] guard from the decision until its real end. A handed-off connection
//! parks its guard in the flow table, whose sweep drops it when the flow ends; so no path can forget to count down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Live counters of one instance. Shared by every snapshot that contains the instance, so that a
/// reload keeps the counts.
#[derive(Debug, Default)]
pub struct InstanceCounters {
    live: AtomicU32,
    total: AtomicU64,
    last_chosen: AtomicU64,
}

impl InstanceCounters {
    /// Sessions that are alive now.
    pub fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed)
    }

    /// Sessions begun since the daemon started.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// The turn (a number that only grows) at which the instance was last chosen; 0 if never.
    pub fn last_chosen(&self) -> u64 {
        self.last_chosen.load(Ordering::Relaxed)
    }

    /// Records that the decision of turn `turn` chose this instance.
    pub fn chosen(&self, turn: u64) {
        self.last_chosen.fetch_max(turn, Ordering::Relaxed);
    }

    /// Begins a session; it ends when the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> Session {
        self.live.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        Session { counters: Arc::clone(self) }
    }
}

/// One live session on an instance. Dropping it ends the session.
#[derive(Debug)]
pub struct Session {
    counters: Arc<InstanceCounters>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.counters.live.fetch_sub(1, Ordering::Relaxed);
    }
}
