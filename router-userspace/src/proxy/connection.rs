//! The route of a first request: `accept → PROXY header, if one is due → read head → parse → decide → connect → hand off → session accounting`. On a TLS listener the
//! ClientHello is what a head is elsewhere.
//!
//! Read [`serve`] first; from the instance on it goes on in `carry`. One task carries a connection from its first byte to the handoff or, relayed, to its end.
//! The session that began with the decision moves along with the connection, so it ends when the connection does.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use router_common::abi::reason::RefuseReason;
use socket2::Socket;

use super::access::{How, Record};
use super::announced::{Client, must_announce, read_header, refusal_of};
use super::buffer::Buffer;
use super::carry::carry;
use super::choice::{Action, Candidate, Choice, Refusal};
use super::connect::{Connected, ForHandoff, connect};
use super::cookies;
use super::endpoint::Endpoint;
use super::first_request::{FirstRequest, Scanner, message};
use super::head::{FirstBytes, HeadFailure, read_head};
use super::offload::{self, Trigger};
use super::per_request;
use super::settings::{Listener, Offload};
use super::tls::alert;
use super::{refuse, sockopt};
use crate::core::pool::InstanceId;
use crate::core::request::{Protocol, Request};
use crate::core::session::Session;
use crate::core::table::{RoutingTable, RuleRef};
use crate::flows::ports::PortLease;

/// Serves one accepted connection.
pub async fn serve(listener: Arc<Listener>, socket: Socket, peer: SocketAddr) {
    let Listener { context, settings } = &*listener;
    let _open = context.counters.accept();
    let deadline = tokio::time::Instant::now() + settings.header_timeout;
    let mut endpoint = Endpoint::Detached(socket);
    let mut client = Client::peer(peer);
    if must_announce(&settings.announced_by, peer.ip()) {
        match read_header(endpoint, peer, deadline, &context.heads).await {
            Ok(announced) => (endpoint, client) = announced,
            Err(failure) => return refuse_head(&listener, failure, &Record::begin(client.address)).await,
        }
    }
    let mut record = Record::begin(client.address);
    if !settings.once_only {
        return per_request::serve(&listener, endpoint, client, record).await;
    }
    if settings.offload != Offload::Relay && context.flows.is_some() {
        offload::expect_handoff(endpoint.as_fd());
    }

    let mut scanner = Scanner::new(settings.protocol);
    let find_end =
        |bytes: &[u8]| scanner.scan(bytes, &settings.head).map_err(|reason| refusal_of(bytes, reason));
    let read = read_head(endpoint, client.ip(), find_end, deadline, &context.heads).await;
    let (endpoint, first) = match read {
        Ok(complete) => complete,
        Err(failure) => return refuse_head(&listener, failure, &record).await,
    };
    context.counters.requests.add(1);
    match reach(&listener, &client, &endpoint, first, &mut record).await {
        Ok(reached) => carry(&listener, endpoint, reached, &record).await,
        Err(refusal) => refuse_request(&listener, endpoint, refusal, &record).await,
    }
}

/// An instance that waits for the first request.
pub(super) struct Reached {
    pub(super) instance: Endpoint,
    pub(super) source_port: Option<PortLease>,
    pub(super) session: Session,
    /// What the instance is to get: a PROXY protocol header if its pool wants one, the head, rewritten, and the surplus behind it.
    pub(super) first: Buffer,
    /// Length of the head as the client sent it.
    pub(super) head_len: usize,
    pub(super) surplus_len: usize,
    /// Whether the client has announced that nothing follows this (RFC 9112 §9.6).
    pub(super) request_complete: bool,
    /// Bytes that the client has been sent already.
    pub(super) answered: u64,
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

/// Parses what came first, decides and connects.
async fn reach(
    listener: &Listener,
    client: &Client,
    endpoint: &Endpoint,
    first: FirstBytes,
    record: &mut Record,
) -> Result<Reached, Refusal> {
    let context = &listener.context;
    let message = message(listener.settings.protocol, first.head());
    let whole = (first.head(), first.surplus());
    let parsed = FirstRequest::parse(listener, &message, whole, record).map_err(Refusal::bad)?;
    let placed = place(listener, endpoint, &parsed.request(client), record).await?;

    let Candidate { table, rule, id, cookie, .. } = &placed.candidate;
    let set_cookie = match parsed.is_http() {
        true => cookies::answer(context, table, (*rule, *cookie), *id),
        false => None,
    };
    let mut outgoing = Buffer::take();
    let announced_by = table.pool(id.pool).proxy_protocol;
    parsed.write(client, announced_by, || endpoint.local_address(), outgoing.as_vec());
    Ok(Reached {
        set_cookie,
        at_once: parsed.calls_for_handoff(),
        request_complete: parsed.is_last(),
        ..placed.reached(&first, outgoing)
    })
}

/// A connection to the instance that was chosen.
struct Placed {
    candidate: Candidate,
    connected: Connected,
    connecting: Duration,
}

impl Placed {
    /// What there is to carry on; `first` is what the client sent, `outgoing` what the instance is to get.
    fn reached(self, first: &FirstBytes, outgoing: Buffer) -> Reached {
        let Candidate { table, rule, id, session, .. } = self.candidate;
        let Connected { endpoint: instance, source_port } = self.connected;
        Reached {
            instance,
            source_port,
            session,
            answered: 0,
            first: outgoing,
            head_len: first.head_len,
            surplus_len: first.surplus().len(),
            request_complete: false,
            at_once: None,
            connecting: self.connecting,
            set_cookie: None,
            table,
            rule,
            id,
        }
    }
}

/// Decides and connects: to another instance if one cannot be connected to, since no byte has been sent yet.
async fn place(
    listener: &Listener,
    endpoint: &Endpoint,
    request: &Request<'_>,
    record: &mut Record,
) -> Result<Placed, Refusal> {
    let Listener { context, settings } = listener;
    let mut choice = Choice::new(listener, request);
    let in_name_of = settings.transparent.then_some(request.client);
    loop {
        let candidate = choice.next(endpoint.as_fd(), record).await?;
        let instance = candidate.table.instance(candidate.id).address;
        let began = Instant::now();
        let for_handoff = for_handoff(listener, endpoint.as_fd(), instance.ip());
        match connect(context, instance, settings.connect_timeout, in_name_of, for_handoff).await {
            Ok(connected) => {
                choice.served();
                return Ok(Placed { candidate, connected, connecting: began.elapsed() });
            }
            Err(error) => choice.failed(&candidate, &error)?,
        }
    }
}

/// What a connection to an instance needs so that it may be handed off; `None` if this listener's are not, or if the client and the instance are
/// of two families.
pub(super) fn for_handoff<'a>(
    listener: &'a Listener,
    client: BorrowedFd<'_>,
    instance: IpAddr,
) -> Option<ForHandoff<'a>> {
    let flows = listener.context.flows.as_deref().filter(|_| listener.settings.offload != Offload::Relay)?;
    // Clients are of their listener's family: also wildcards listen for one.
    if listener.settings.address.is_ipv4() != instance.is_ipv4() {
        return None;
    }
    let client = sockopt::tcp_info(client).ok()?;
    Some(ForHandoff { flows, client })
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

pub(super) fn count_refusal(listener: &Listener, refusal: &Refusal, answered: bool, record: &Record) {
    listener.context.counters.refused.add(refusal.reason);
    let status = match refusal.action {
        Action::Answer { status, .. } if answered && answers_http(listener, refusal) => Some(status),
        _ => None,
    };
    record.end(&listener.settings.name, How::Refused { reason: refusal.reason.name(), status }, (0, 0));
}

/// Whether the client reads HTTP, whatever the listener would rather speak.
fn answers_http(listener: &Listener, refusal: &Refusal) -> bool {
    listener.settings.protocol == Protocol::Http || refusal.reason == RefuseReason::HttpOnTls
}

pub(super) async fn respond(listener: &Listener, client: Endpoint, refusal: &Refusal) {
    match refusal.action {
        Action::Answer { status, without_body } if answers_http(listener, refusal) => {
            let text = refusal.reason.description().trim();
            let answer = refuse::response(status, text, listener.settings.retry_after, without_body);
            refuse::answer(client, answer.as_bytes()).await;
        }
        Action::Answer { .. } => {
            refuse::answer(client, alert::record(refusal.reason).as_ref().map_or(&[], |alert| &alert[..]))
                .await;
        }
        Action::Reset => client.reset(),
        Action::Silent => refuse::stay_silent(client).await,
    }
}
