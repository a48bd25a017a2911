//! The route of a first request: `accept → read head → parse → decide → connect → hand off → session accounting`.
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
use super::buffer::Buffer;
use super::carry::carry;
use super::choice::{Action, Candidate, Choice, Refusal};
use super::connect::{Connected, ForHandoff, connect};
use super::cookies;
use super::endpoint::Endpoint;
use super::head::{FirstBytes, HeadFailure, read_head};
use super::http::fields::Framing;
use super::http::rewrite::rewrite;
use super::http::{self, HttpHead};
use super::offload::{self, Trigger};
use super::per_request;
use super::settings::{Listener, Offload};
use super::{refuse, sockopt};
use crate::core::pool::InstanceId;
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
    if !settings.once_only {
        return per_request::serve(&listener, client, record).await;
    }
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
    let mut choice = Choice::new(listener, &request);
    let (candidate, connected, connecting) = loop {
        let candidate = choice.next(client.as_fd(), record).await?;
        let instance = candidate.table.instance(candidate.id).address;
        let began = Instant::now();
        let for_handoff = for_handoff(listener, client.as_fd(), [address, instance.ip()]);
        match connect(context, instance, settings.connect_timeout, for_handoff).await {
            Ok(connected) => break (candidate, connected, began.elapsed()),
            Err(error) => choice.failed(&candidate, &error)?,
        }
    };
    choice.served();
    let Candidate { table, rule, id, session, cookie } = candidate;
    let set_cookie = cookies::answer(context, &table, (rule, cookie), id);

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
        answered: 0,
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

/// What a connection to an instance needs so that it may be handed off; `None` if this listener's are not, or if the client and the instance are
/// of two families.
pub(super) fn for_handoff<'a>(
    listener: &'a Listener,
    client: BorrowedFd<'_>,
    ends: [IpAddr; 2],
) -> Option<ForHandoff<'a>> {
    let flows = listener.context.flows.as_deref().filter(|_| listener.settings.offload != Offload::Relay)?;
    if ends[0].is_ipv4() != ends[1].is_ipv4() {
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
