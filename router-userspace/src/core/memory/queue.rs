//! Requests that wait until an instance frees: one line for each pool, first come, first served.
//!
//! Whoever is first in its line is called when a session ends anywhere. The one who is called decides again; if that
//! succeeds it leaves the line, which calls the next. What has no event of its own (an instance that comes up, a load that falls) is
//! seen because the first of a line also looks from time to time.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::core::counters::Count;

#[derive(Debug, Default)]
struct Waiter {
    called: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Waiter {
    fn call(&self) {
        self.called.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }
}

/// How waiting requests fared.
#[derive(Debug, Default)]
pub struct QueueCounts {
    /// Requests that began to wait.
    pub entered: Count,
    /// Requests that got an instance in the end.
    pub served: Count,
    /// Requests whose client left.
    pub left: Count,
    /// Requests that waited as long as they may.
    pub timed_out: Count,
    /// Requests that found the line full.
    pub full: Count,
}

/// The lines of all pools, by pool name.
#[derive(Debug, Default)]
pub struct Queues {
    waiting: AtomicUsize,
    lines: Mutex<HashMap<String, VecDeque<Arc<Waiter>>>>,
    pub counts: QueueCounts,
}

/// A place in a line; dropping it leaves the line.
#[derive(Debug)]
pub struct Ticket {
    queues: Arc<Queues>,
    pool: String,
    waiter: Arc<Waiter>,
}

impl Queues {
    /// Requests that wait, in all lines together.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Requests that wait for `pool`.
    pub fn waiting_for(&self, pool: &str) -> usize {
        if self.waiting() == 0 {
            return 0;
        }
        self.lines().get(pool).map_or(0, VecDeque::len)
    }

    /// Takes the last place in the pool's line; `None` if `limit` requests wait there already.
    pub fn enter(self: &Arc<Self>, pool: &str, limit: usize) -> Option<Ticket> {
        let mut lines = self.lines();
        let line = lines.entry(pool.to_owned()).or_default();
        if line.len() >= limit {
            self.counts.full.add(1);
            return None;
        }
        let waiter = Arc::new(Waiter::default());
        line.push_back(Arc::clone(&waiter));
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.counts.entered.add(1);
        Some(Ticket { queues: Arc::clone(self), pool: pool.to_owned(), waiter })
    }

    /// Something has become free: calls the first of each line. Costs one load while nobody waits.
    pub fn freed(&self) {
        if self.waiting() == 0 {
            return;
        }
        let first: Vec<_> = self.lines().values().filter_map(|line| line.front().cloned()).collect();
        first.iter().for_each(|waiter| waiter.call());
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Arc<Waiter>>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Whether everybody who came before has gone.
    pub fn is_first(&self) -> bool {
        let lines = self.queues.lines();
        lines.get(&self.pool).and_then(VecDeque::front).is_some_and(|first| Arc::ptr_eq(first, &self.waiter))
    }

    /// Returns when this request is called.
    pub async fn called(&self) {
        poll_fn(|context| {
            *self.waiter.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            if self.waiter.called.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut lines = self.queues.lines();
        let Some(line) = lines.get_mut(&self.pool) else { return };
        let was_first = line.front().is_some_and(|first| Arc::ptr_eq(first, &self.waiter));
        line.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
        self.queues.waiting.fetch_sub(1, Ordering::AcqRel);
        let next = line.front().filter(|_| was_first).cloned();
        if line.is_empty() {
            lines.remove(&self.pool);
        }
        drop(lines);
        if let Some(next) = next {
            next.call();
        }
    }
}
