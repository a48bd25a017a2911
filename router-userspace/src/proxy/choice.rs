//! Chooses an instance for a request: by the rules, again when one cannot be reached, and after waiting in a line if the pool says so.
//!
//! The caller connects. Until that has succeeded no byte has been sent, so another instance may be tried.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use router_common::abi::reason::{CookieEvent, RefuseReason};

use super::access::Record;
use super::connect::ConnectError;
use super::decision_log;
use super::line::Line;
use super::refuse;
use super::settings::Listener;
use crate::core::decide::{Attempt, Outcome};
use crate::core::health::{Failure, Observation};
use crate::core::persistence::unix_time;
use crate::core::pool::{InstanceId, OnUnavailable};
use crate::core::request::Request;
use crate::core::session::Session;
use crate::core::table::{RoutingTable, RuleRef};

/// Why a complete head led to no instance.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: RefuseReason,
    pub(super) action: Action,
}

#[derive(Debug)]
pub(super) enum Action {
    /// `without_body`: the request was HEAD.
    Answer {
        status: u16,
        without_body: bool,
    },
    Reset,
    Silent,
}

impl Refusal {
    pub(super) fn bad(reason: RefuseReason) -> Self {
        Self::answer(reason, false)
    }

    pub(super) fn answer(reason: RefuseReason, without_body: bool) -> Self {
        let status = refuse::status(reason).unwrap_or(400);
        Self { reason, action: Action::Answer { status, without_body } }
    }
}

/// An instance that the rules chose; the session on it has begun.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) table: Arc<RoutingTable>,
    pub(super) rule: RuleRef,
    pub(super) id: InstanceId,
    pub(super) session: Session,
    /// What the request's persistence cookie was worth.
    pub(super) cookie: Option<CookieEvent>,
}

/// The choice for one request.
#[derive(Debug)]
pub(super) struct Choice<'a> {
    listener: &'a Listener,
    request: &'a Request<'a>,
    without_body: bool,
    table: Arc<RoutingTable>,
    tried: Vec<InstanceId>,
    failure: Option<RefuseReason>,
    line: Option<Line>,
    counted: bool,
}

impl<'a> Choice<'a> {
    pub(super) fn new(listener: &'a Listener, request: &'a Request<'a>) -> Self {
        let without_body = request.http.is_some_and(|http| http.method == "HEAD");
        let table = listener.context.table.load_full();
        let (tried, failure, line) = (Vec::new(), None, None);
        Self { listener, request, without_body, table, tried, failure, line, counted: false }
    }

    /// The same for a request that went to these instances in vain.
    pub(super) fn again(listener: &'a Listener, request: &'a Request<'a>, tried: Vec<InstanceId>) -> Self {
        Self { tried, ..Self::new(listener, request) }
    }

    /// Those that were tried.
    pub(super) fn into_tried(self) -> Vec<InstanceId> {
        self.tried
    }

    /// The next instance to try, if there is one now. The request has not been counted if there is none: whoever waits, or answers, decides
    /// again.
    pub(super) fn now(&mut self, record: &mut Record) -> Option<Candidate> {
        let now = Instant::now();
        let unix_time = unix_time(SystemTime::now());
        let attempt = Attempt { tried: &self.tried, now, unix_time, first_in_line: false };
        let sampler = &self.listener.context.decision_log;
        let decision = decision_log::decide(&self.table, self.request, &attempt, sampler);
        let Outcome::Instance { id, session } = decision.outcome else { return None };
        record.routed(self.table.rule_name(decision.rule), &self.table.instance(id).name);
        let (table, rule) = (Arc::clone(&self.table), decision.rule);
        Some(Candidate { table, rule, id, session, cookie: decision.cookie })
    }

    /// The next instance to try. Waits in the pool's line if need be, for as long as the client is there.
    pub(super) async fn next(
        &mut self,
        client: BorrowedFd<'_>,
        record: &mut Record,
    ) -> Result<Candidate, Refusal> {
        let without_body = self.without_body;
        loop {
            let first_in_line = self.line.as_ref().is_some_and(Line::is_first);
            let unix_time = unix_time(SystemTime::now());
            let attempt = Attempt { tried: &self.tried, now: Instant::now(), unix_time, first_in_line };
            let sampler = &self.listener.context.decision_log;
            let decision = decision_log::decide(&self.table, self.request, &attempt, sampler);
            if !std::mem::replace(&mut self.counted, true) {
                self.table.hits(decision.rule).add(1);
            }
            match decision.outcome {
                Outcome::Instance { id, session } => {
                    record.routed(self.table.rule_name(decision.rule), &self.table.instance(id).name);
                    let (table, rule) = (Arc::clone(&self.table), decision.rule);
                    return Ok(Candidate { table, rule, id, session, cookie: decision.cookie });
                }
                Outcome::Deny { status } => {
                    let action = Action::Answer { status, without_body };
                    return Err(Refusal { reason: RefuseReason::Denied, action });
                }
                Outcome::AmbiguousPath => {
                    return Err(Refusal::answer(RefuseReason::AmbiguousPath, without_body));
                }
                Outcome::Unavailable { action: OnUnavailable::Queue { patience }, pool: Some(pool) } => {
                    let refuse = |reason| unavailable(reason, OnUnavailable::Status503, without_body);
                    if self.line.is_none() {
                        let queues = &self.table.memory().queues;
                        let entered = Line::enter(queues, self.table.pool(pool), patience);
                        self.line = Some(entered.map_err(refuse)?);
                    }
                    if let Some(line) = &self.line {
                        line.turn(client).await.map_err(refuse)?;
                    }
                    // The world may have changed meanwhile, and what was tried in the old one with it.
                    self.table = self.listener.context.table.load_full();
                    self.tried.clear();
                }
                Outcome::Unavailable { action, .. } => {
                    let reason = self.failure.unwrap_or(RefuseReason::Unavailable);
                    return Err(unavailable(reason, action, without_body));
                }
            }
        }
    }

    /// The candidate could not be connected to. An error if no other is to be tried.
    pub(super) fn failed(&mut self, candidate: &Candidate, error: &ConnectError) -> Result<(), Refusal> {
        note_failure(&candidate.table, candidate.id, error);
        self.tried.push(candidate.id);
        if self.tried.len() >= self.listener.settings.connect_attempts
            || matches!(error, ConnectError::Local(_))
        {
            return Err(Refusal::answer(error.reason(), self.without_body));
        }
        self.listener.context.counters.retries.add(1);
        self.failure = Some(error.reason());
        Ok(())
    }

    /// The candidate serves the request.
    pub(super) fn served(self) {
        if let Some(line) = self.line {
            line.served();
        }
    }
}

fn unavailable(reason: RefuseReason, action: OnUnavailable, without_body: bool) -> Refusal {
    let action = match action {
        // Nobody is left to read an answer.
        _ if reason == RefuseReason::ClientGone => Action::Reset,
        OnUnavailable::Reset => Action::Reset,
        OnUnavailable::Silent => Action::Silent,
        OnUnavailable::Status503 | OnUnavailable::Pool(_) | OnUnavailable::Queue { .. } => {
            return Refusal::answer(reason, without_body);
        }
    };
    Refusal { reason, action }
}

/// Logs why an instance was left out, and takes it into account for later requests.
pub(super) fn note_failure(table: &RoutingTable, id: InstanceId, error: &ConnectError) {
    let (pool, instance) = (&table.pool(id.pool).name, &table.instance(id).name);
    match error {
        ConnectError::Instance(failure) => {
            tracing::debug!(pool, instance, %failure, "connecting failed");
            observe(table, id, *failure);
        }
        error => tracing::warn!(pool, instance, "{error}"),
    }
}

pub(super) fn observe(table: &RoutingTable, id: InstanceId, failure: Failure) {
    if table.observe(id, Observation::TrafficFailed(failure), Instant::now()).is_some() {
        let (pool, instance) = (&table.pool(id.pool).name, &table.instance(id).name);
        tracing::warn!(pool, instance, %failure, "instance is down");
    }
}
