//! What the parts of one client's connection know of each other.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use router_common::abi::reason::RefuseReason;
use tokio::time::Instant;

use super::super::announced::Client;
use super::super::choice::Refusal;
use super::super::settings::Listener;
use super::interim::InterimHeads;
use super::upgrade::Upgraded;
use super::upstream::{Kept, Upstream};

/// Why no further request of the connection is served.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The client has closed its direction between two requests. It still gets what it asked for.
    ClientDone,
    /// The next head is refused, after the answers to the requests before it. `any_received`: something of it has come.
    BadHead { reason: RefuseReason, any_received: bool },
    /// The request in progress ends here and now.
    Broken(Refusal),
}

/// When something last moved on the client's connection or on one to an instance.
#[derive(Debug)]
pub(super) struct Activity {
    began: Instant,
    milliseconds: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self { began: Instant::now(), milliseconds: AtomicU64::new(0) }
    }

    pub(super) fn moved(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.milliseconds.store(now, Ordering::Relaxed);
    }

    pub(super) fn last(&self) -> Instant {
        self.began + Duration::from_millis(self.milliseconds.load(Ordering::Relaxed))
    }
}

/// State of one client's connection.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) listener: Arc<Listener>,
    pub(super) client: Client,
    pub(super) activity: Arc<Activity>,
    pub(super) interim: InterimHeads,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Heads that have passed every check and that the library has yet to bring back.
    vetted: VecDeque<Vec<u8>>,
    /// Requests whose response is not complete.
    in_flight: usize,
    /// Of these, whether one has no response yet.
    undecided: bool,
    /// Who waits for a response to be complete.
    waiting: Option<Waker>,
    verdict: Option<Verdict>,
    kept: Kept,
    reached: bool,
    upgraded: Option<Box<Upgraded>>,
}

impl Shared {
    pub(super) fn new(listener: &Arc<Listener>, client: Client) -> Arc<Self> {
        let (listener, activity) = (Arc::clone(listener), Arc::new(Activity::new()));
        let interim = InterimHeads::default();
        Arc::new(Self { listener, client, activity, interim, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A head has passed. Says whether a request before it is still to be answered.
    pub(super) fn vetted(&self, head: Vec<u8>) -> bool {
        let mut state = self.state();
        state.vetted.push_back(head);
        state.in_flight += 1;
        state.in_flight > 1
    }

    /// The next head in order.
    pub(super) fn next_head(&self) -> Option<Vec<u8>> {
        self.state().vetted.pop_front()
    }

    /// The verdict on the rest of the connection; the first one stays.
    pub(super) fn end(&self, verdict: Verdict) {
        self.state().verdict.get_or_insert(verdict);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().verdict.is_some()
    }

    /// Whether not even the response in progress is waited for.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self.state().verdict, Some(Verdict::Broken(_)))
    }

    pub(super) fn take_verdict(&self) -> Option<Verdict> {
        self.state().verdict.take()
    }

    /// Whether a request is still to be answered; `cx` is woken when one has been.
    pub(super) fn poll_in_flight(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.state();
        let in_flight = state.in_flight > 0;
        state.waiting = in_flight.then(|| cx.waker().clone());
        in_flight
    }

    /// Whether a request waits for its instance or its response's head, which has a time-out of its own.
    pub(super) fn is_undecided(&self) -> bool {
        self.state().undecided
    }

    pub(super) fn keep(&self, upstream: Upstream) {
        self.state().kept.put(upstream);
    }

    pub(super) fn kept(&self, instance: SocketAddr) -> Option<Upstream> {
        self.state().kept.take(instance)
    }

    /// An instance gets a request of this connection.
    pub(super) fn reached(&self) {
        self.state().reached = true;
    }

    pub(super) fn has_reached(&self) -> bool {
        self.state().reached
    }

    pub(super) fn upgrade(&self, upgraded: Upgraded) {
        self.state().upgraded = Some(Box::new(upgraded));
    }

    pub(super) fn take_upgraded(&self) -> Option<Box<Upgraded>> {
        self.state().upgraded.take()
    }
}

/// A request in flight, until its response is complete.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Shared>);

impl InFlight {
    /// The request begins to be served.
    pub(super) fn begin(shared: &Arc<Shared>) -> Self {
        shared.state().undecided = true;
        Self(Arc::clone(shared))
    }

    /// Its response's head is known.
    pub(super) fn answered(&self) {
        self.0.state().undecided = false;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.in_flight -= 1;
        state.undecided = false;
        if let Some(waiting) = state.waiting.take() {
            waiting.wake();
        }
    }
}
