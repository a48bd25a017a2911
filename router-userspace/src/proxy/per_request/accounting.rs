//! What ends with a request, however it ends: its session, its use of a connection, its line in the access log and its count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use router_common::abi::reason::RefuseReason;

use super::super::access::{How, Record};
use super::super::choice::Refusal;
use super::super::connection::count_refusal;
use super::shared::{InFlight, Shared};
use super::upstream::Upstream;
use crate::core::session::Session;

/// A response on its way. Dropped before its end, it takes the instance's connection along.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) session: Option<Session>,
    pub(super) upstream: Option<Upstream>,
    pub(super) shared: Arc<Shared>,
    pub(super) _in_flight: InFlight,
    pub(super) record: Option<Record>,
    pub(super) status: u16,
    pub(super) request: Arc<AtomicU64>,
    pub(super) response: u64,
}

impl Exchange {
    pub(super) fn passed(&mut self, bytes: usize) {
        self.response += bytes as u64;
    }

    /// The response is complete.
    pub(super) fn finish(mut self: Box<Self>) {
        self.session = None;
        if let Some(mut upstream) = self.upstream.take() {
            upstream.used = true;
            self.shared.keep(upstream);
        }
        self.log("complete");
    }

    /// The instance ended its connection within the response.
    pub(super) fn cut_short(mut self: Box<Self>) {
        self.log("instance_reset");
    }

    fn log(&mut self, ending: &'static str) {
        if let Some(record) = self.record.take() {
            let bytes = (self.request.load(Ordering::Relaxed), self.response);
            record.end(
                &self.shared.listener.settings.name,
                How::Answered { ending, status: self.status },
                bytes,
            );
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.log("client_reset");
    }
}

/// A request without an answer. Dropped with its record, it is counted as one whose client has gone.
pub(super) struct Unanswered<'a> {
    pub(super) shared: &'a Shared,
    pub(super) record: Option<Record>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        // What broke the connection is counted by its owner.
        if let Some(record) = self.record.take()
            && !self.shared.is_broken()
        {
            count_refusal(&self.shared.listener, &Refusal::bad(RefuseReason::ClientGone), false, &record);
        }
    }
}
