//! The route of a first request: `accept → read head → parse → decide → connect → hand off → session accounting`.
//!
//! Read [`serve`] first; from the instance on it goes on in `carry`. One task carries a connection from its first byte to the handoff or, relayed, to its end.
//! The session that began with the decision moves along with the connection, so it ends when the connection does.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use router_common::abi::reason::RefuseReason;
use socket2::Socket;

use super::access::{How, Record};
use super::buffer::Buffer;
use super::carry::carry;
use super::connect::{ConnectError, Connected, ForHandoff, connect};
use super::cookies;
use super::endpoint::Endpoint;
use super::head::{FirstBytes, HeadFailure, read_head};
use super::http::fields::Framing;
use super::http::rewrite::rewrite;
use super::http::{self, HttpHead};
use super::line::Line;
use super::offload::{self, Trigger};
use super::settings::{Listener, Offload};
use super::{refuse, sockopt};
use crate::core::decide::{Attempt, Outcome};
use crate::core::health::{Failure, Observation};
use crate::core::persistence::unix_time;
use crate::core::pool::{InstanceId, OnUnavailable};
use crate::core::request::Request;
use crate::core::session::Session;
use crate::core::table::{RoutingTable, RuleRef};
use crate::flows::ports::PortLease;

/// Serves one accepted connection.
pub async fn serve(listener: Arc<Listener>, socket: Socket, peer: SocketAddr) {
    let Listener { context, settings } = &*listener;
    let _open = context.counters.accept();
    let address = peer.ip().to_canonical();
    let mut record = Record::begin(SocketAddr::new(address, peer.port()));
    let client = Endpoint::Detached(socket);
    if settings.offload != Offload::Relay && context.flows.is_some() {
        offload::expect_handoff(client.as_fd());
    }

    let read = read_head(client, address, &settings.head, settings.header_timeout, &context.heads);
    let (client, first) = match read.await {
        Ok(complete) => complete,
        Err(failure) => return refuse_head(&listener, failure, &record).await,
    };
    context.counters.requests.add(1);
    match reach(&listener, address, &client, first, &mut record).await {
        Ok(reached) => carry(&listener, client, reached, &record).await,
        Err(refusal) => refuse_request(&listener, client, refusal, &record).await,
    }
}

/// An instance that waits for the first request.
pub(super) struct Reached {
    pub(super) instance: Endpoint,
    pub(super) source_port: Option<PortLease>,
    pub(super) session: Session,
    /// What the instance is to get: the head, rewritten, and the surplus behind it.
    pub(super) first: Buffer,
    /// Length of the head as the client sent it.
    pub(super) head_len: usize,
    pub(super) surplus_len: usize,
    /// Why the head alone calls for a handoff, if it does.
    pub(super) at_once: Option<Trigger>,
    /// How long connecting took.
    pub(super) connecting: Duration,
    /// The field that the response's head is to get, if the rule keeps its clients by a cookie and this one brought none that holds.
    pub(super) set_cookie: Option<Vec<u8>>,
    pub(super) table: Arc<RoutingTable>,
    pub(super) rule: RuleRef,
    pub(super) id: InstanceId,
}

/// Why a complete head led to no instance.
pub(super) struct Refusal {
    pub(super) reason: RefuseReason,
    pub(super) action: Action,
}

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

    fn answer(reason: RefuseReason, without_body: bool) -> Self {
        let status = refuse::status(reason).unwrap_or(400);
        Self { reason, action: Action::Answer { status, without_body } }
    }
}

/// Parses, decides and connects: to another instance if one cannot be connected to, since no byte has been sent yet.
async fn reach(
    listener: &Listener,
    address: IpAddr,
    client: &Endpoint,
    first: FirstBytes,
    record: &mut Record,
) -> Result<Reached, Refusal> {
    let Listener { context, settings } = listener;
    let head = http::parse(first.head()).map_err(Refusal::bad)?;
    record.request(&head);
    let path = head.path().map_err(Refusal::bad)?;
    check_pipelining(listener, &head, first.surplus()).map_err(Refusal::bad)?;
    let request =
        Request { listener: &settings.name, client: address, tls: false, http: Some(head.request(&path)) };
    let without_body = head.method == "HEAD";

    let mut table = context.table.load_full();
    let mut tried = Vec::new();
    let mut failure = None;
    let mut line: Option<Line> = None;
    let (rule, id, session, connected, connecting, set_cookie) = loop {
        let first_in_line = line.as_ref().is_some_and(Line::is_first);
        let unix_time = unix_time(SystemTime::now());
        let attempt = Attempt { tried: &tried, now: Instant::now(), unix_time, first_in_line };
        let decision = table.decide(&request, &attempt);
        if tried.is_empty() && line.is_none() {
            table.hits(decision.rule).add(1);
        }
        let (id, session) = match decision.outcome {
            Outcome::Instance { id, session } => (id, session),
            Outcome::Deny { status } => {
                let action = Action::Answer { status, without_body };
                return Err(Refusal { reason: RefuseReason::Denied, action });
            }
            Outcome::AmbiguousPath => return Err(Refusal::answer(RefuseReason::AmbiguousPath, without_body)),
            Outcome::Unavailable { action: OnUnavailable::Queue { patience }, pool: Some(pool) } => {
                let refuse = |reason| unavailable(reason, OnUnavailable::Status503, without_body);
                if line.is_none() {
                    let queues = &table.memory().queues;
                    line = Some(Line::enter(queues, table.pool(pool), patience).map_err(refuse)?);
                }
                if let Some(line) = &line {
                    line.turn(client).await.map_err(refuse)?;
                }
                // The world may have changed meanwhile, and what was tried in the old one with it.
                table = context.table.load_full();
                tried.clear();
                continue;
            }
            Outcome::Unavailable { action, .. } => {
                let reason = failure.as_ref().map_or(RefuseReason::Unavailable, ConnectError::reason);
                return Err(unavailable(reason, action, without_body));
            }
        };
        record.routed(table.rule_name(decision.rule), &table.instance(id).name);
        let for_handoff = for_handoff(listener, client);
        let began = Instant::now();
        match connect(context, table.instance(id).address, settings.connect_timeout, for_handoff).await {
            Ok(connected) => {
                let set_cookie = cookies::answer(context, &table, (decision.rule, decision.cookie), id);
                break (decision.rule, id, session, connected, began.elapsed(), set_cookie);
            }
            Err(error) => {
                note_failure(&table, id, &error);
                tried.push(id);
                if tried.len() >= settings.connect_attempts || matches!(error, ConnectError::Local(_)) {
                    return Err(Refusal::answer(error.reason(), without_body));
                }
                context.counters.retries.add(1);
                failure = Some(error);
            }
        }
    };
    if let Some(line) = line {
        line.served();
    }

    let Connected { endpoint: instance, source_port } = connected;
    let mut outgoing = Buffer::take();
    rewrite(first.head(), &head, settings.forwarded_for.then_some(address), outgoing.as_vec());
    outgoing.append(first.surplus());
    let (head_len, surplus_len) = (first.head_len, first.surplus().len());
    let at_once = offload::at_once(settings, &head);
    Ok(Reached {
        instance,
        source_port,
        session,
        first: outgoing,
        head_len,
        surplus_len,
        at_once,
        connecting,
        set_cookie,
        table,
        rule,
        id,
    })
}

/// Counts further requests that are here already, and refuses them if the listener says so.
fn check_pipelining(listener: &Listener, head: &HttpHead<'_>, surplus: &[u8]) -> Result<(), RefuseReason> {
    let body = match head.fields.framing {
        Framing::NoBody => 0,
        Framing::Length(length) => length,
        // Only the instance looks into chunks.
        Framing::Chunked => return Ok(()),
    };
    if surplus.len() as u64 <= body {
        return Ok(());
    }
    listener.context.counters.pipelined.add(1);
    if listener.settings.pipelining { Ok(()) } else { Err(RefuseReason::Pipelined) }
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

fn for_handoff<'a>(listener: &'a Listener, client: &Endpoint) -> Option<ForHandoff<'a>> {
    let flows = listener.context.flows.as_deref().filter(|_| listener.settings.offload != Offload::Relay)?;
    let client = sockopt::tcp_info(client.as_fd()).ok()?;
    Some(ForHandoff { flows, client })
}

/// Logs why an instance was left out, and takes it into account for later requests.
fn note_failure(table: &RoutingTable, id: InstanceId, error: &ConnectError) {
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

async fn refuse_head(listener: &Listener, failure: HeadFailure, record: &Record) {
    let HeadFailure { reason, any_received, client } = failure;
    let refusal = Refusal::bad(reason);
    // Browsers open connections ahead: one that never was used is closed without a word.
    let never_used = reason == RefuseReason::HeaderTimeout && !any_received;
    let answered = !never_used && client.is_some() && refuse::status(reason).is_some();
    count_refusal(listener, &refusal, answered, record);
    if let Some(client) = client.filter(|_| answered) {
        respond(listener, client, &refusal).await;
    }
}

async fn refuse_request(listener: &Listener, client: Endpoint, refusal: Refusal, record: &Record) {
    let answered = matches!(refusal.action, Action::Answer { .. });
    count_refusal(listener, &refusal, answered, record);
    respond(listener, client, &refusal).await;
}

fn count_refusal(listener: &Listener, refusal: &Refusal, answered: bool, record: &Record) {
    listener.context.counters.refused.add(refusal.reason);
    let status = match refusal.action {
        Action::Answer { status, .. } if answered => Some(status),
        _ => None,
    };
    record.end(&listener.settings.name, How::Refused { reason: refusal.reason.name(), status }, (0, 0));
}

pub(super) async fn respond(listener: &Listener, client: Endpoint, refusal: &Refusal) {
    match refusal.action {
        Action::Answer { status, without_body } => {
            let text = refusal.reason.description().trim();
            let answer = refuse::response(status, text, listener.settings.retry_after, without_body);
            refuse::answer(client, answer.as_bytes()).await;
        }
        Action::Reset => client.reset(),
        Action::Silent => refuse::stay_silent(client).await,
    }
}
