//! What the daemon counts about connections and requests. The proxy writes, the control socket reads.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use router_common::abi::reason::{
    ControlReason, CookieEvent, InterimEvent, RefuseReason, RelayReason, ReportReason, UnboundReason,
};

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An enum of reasons that can be counted.
pub trait Reason: Copy + 'static {
    const ALL: &'static [Self];
    fn index(self) -> usize;
}

macro_rules! counted {
    ($($reason:ident),+ $(,)?) => { $(
        impl Reason for $reason {
            const ALL: &'static [Self] = $reason::ALL;
            fn index(self) -> usize {
                self.index()
            }
        }
    )+ };
}

counted!(RelayReason, UnboundReason, RefuseReason, CookieEvent, InterimEvent, ControlReason, ReportReason);

/// One count for each reason.
#[derive(Debug)]
pub struct CountByReason<R> {
    counts: Box<[Count]>,
    reason: PhantomData<R>,
}

impl<R: Reason> Default for CountByReason<R> {
    fn default() -> Self {
        Self { counts: R::ALL.iter().map(|_| Count::default()).collect(), reason: PhantomData }
    }
}

impl<R: Reason> CountByReason<R> {
    pub fn add(&self, reason: R) {
        self.counts[reason.index()].add(1);
    }

    pub fn get(&self, reason: R) -> u64 {
        self.counts[reason.index()].get()
    }

    /// Every reason with its count, in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = (R, u64)> {
        R::ALL.iter().map(|&reason| (reason, self.get(reason)))
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().map(Count::get).sum()
    }
}

/// Counts of the whole daemon.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: Count,
    closed: Count,
    /// First requests read completely; every request where each is routed by itself.
    pub requests: Count,
    /// Requests that came with or before the end of the response to the one before; behind a first request they go on unread.
    pub pipelined: Count,
    /// Connections handed to the packet path.
    pub handoffs: Count,
    /// Times that a request was tried again: on another instance after connecting to one had failed, or on a new connection after a kept one
    /// had been closed.
    pub retries: Count,
    /// Connections relayed in user space, by reason.
    pub relayed: CountByReason<RelayReason>,
    /// Connections bound to an instance without a socket of ours.
    pub bound: Count,
    /// Connections that began without a socket and were given one, by reason.
    pub unbound: CountByReason<UnboundReason>,
    /// Connections and requests refused, by reason.
    pub refused: CountByReason<RefuseReason>,
    /// What became of persistence cookies.
    pub cookies: CountByReason<CookieEvent>,
    /// What became of interim responses (1xx), where each request is routed by itself.
    pub interim: CountByReason<InterimEvent>,
    /// Connections of clients of the control socket and the admin address that the daemon closed or lost, by reason.
    pub control_closed: CountByReason<ControlReason>,
    /// Reports pushed by instances and refused, by reason.
    pub reports_refused: CountByReason<ReportReason>,
}

impl Counters {
    /// Counts an accepted connection; it is open until the guard is dropped.
    pub fn accept(self: &Arc<Self>) -> OpenConnection {
        self.accepted.add(1);
        OpenConnection { counters: Arc::clone(self) }
    }

    /// Accepted connections that the daemon itself still holds: handed-off ones have left it.
    pub fn open(&self) -> u64 {
        // Read in this order, so that a connection that opens and closes between the reads is never negative.
        let closed = self.closed.get();
        self.accepted.get().saturating_sub(closed)
    }
}

/// An accepted connection in the daemon's hands.
#[derive(Debug)]
pub struct OpenConnection {
    counters: Arc<Counters>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.counters.closed.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_come_back_to_zero() {
        let counters = Arc::new(Counters::default());
        let first = counters.accept();
        let second = counters.accept();
        assert_eq!(counters.open(), 2);
        drop((first, second));
        assert_eq!((counters.open(), counters.accepted.get()), (0, 2));
    }

    #[test]
    fn each_reason_has_its_own_count() {
        let refused = CountByReason::<RefuseReason>::default();
        refused.add(RefuseReason::Denied);
        refused.add(RefuseReason::Denied);
        refused.add(RefuseReason::Unavailable);
        let counted: Vec<_> = refused.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(RefuseReason::Denied, 2), (RefuseReason::Unavailable, 1)]);
        assert_eq!(refused.total(), 3);
    }
}
