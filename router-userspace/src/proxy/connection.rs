//! The route of a first request: `accept → read head → parse → decide → connect → hand off → session accounting`.
//!
//! Read [`serve`] first. One task carries a connection from its first byte to the handoff or, relayed, to its end.
//! The session that began with the decision moves along with the connection, so it ends when the connection does.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use router_common::abi::reason::{RefuseReason, RelayReason};
use socket2::Socket;

use super::access::{How, Record};
use super::buffer::Buffer;
use super::connect::{ConnectError, Connected, ForHandoff, connect};
use super::endpoint::Endpoint;
use super::head::{FirstBytes, HeadFailure, read_head};
use super::http::fields::Framing;
use super::http::rewrite::rewrite;
use super::http::{self, HttpHead};
use super::offload::{self, Trigger, Watch};
use super::relay::{Ending, Parts, Patience, Relay, Step};
use super::settings::{Listener, Offload};
use super::{refuse, sockopt};
use crate::core::decide::Outcome;
use crate::core::health::{Failure, Observation};
use crate::core::pool::{InstanceId, OnUnavailable};
use crate::core::request::Request;
use crate::core::session::Session;
use crate::core::table::{RoutingTable, RuleRef};
use crate::flows::ports::PortLease;
use crate::flows::table::Handoff;

/// Serves one accepted connection.
pub async fn serve(listener: Arc<Listener>, socket: Socket, peer: SocketAddr) {
    let Listener { context, settings } = &*listener;
    let _open = context.counters.accept();
    let address = peer.ip().to_canonical();
    let mut record = Record::begin(SocketAddr::new(address, peer.port()));
    let client = Endpoint::Detached(socket);

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
struct Reached {
    instance: Endpoint,
    source_port: Option<PortLease>,
    session: Session,
    /// What the instance is to get: the head, rewritten, and the surplus behind it.
    first: Buffer,
    /// Length of the head as the client sent it.
    head_len: usize,
    surplus_len: usize,
    /// Why the head alone calls for a handoff, if it does.
    at_once: Option<Trigger>,
    table: Arc<RoutingTable>,
    rule: RuleRef,
    id: InstanceId,
}

/// Why a complete head led to no instance.
struct Refusal {
    reason: RefuseReason,
    action: Action,
}

enum Action {
    /// `without_body`: the request was HEAD.
    Answer {
        status: u16,
        without_body: bool,
    },
    Reset,
    Silent,
}

impl Refusal {
    fn bad(reason: RefuseReason) -> Self {
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

    let table = context.table.load_full();
    let mut tried = Vec::new();
    let mut failure = None;
    let (rule, id, session, connected) = loop {
        let decision = table.decide(&request, &tried);
        if tried.is_empty() {
            table.hits(decision.rule).add(1);
        }
        let (id, session) = match decision.outcome {
            Outcome::Instance { id, session } => (id, session),
            Outcome::Deny { status } => {
                let action = Action::Answer { status, without_body };
                return Err(Refusal { reason: RefuseReason::Denied, action });
            }
            Outcome::AmbiguousPath => return Err(Refusal::answer(RefuseReason::AmbiguousPath, without_body)),
            Outcome::Unavailable { action } => {
                let reason = failure.as_ref().map_or(RefuseReason::Unavailable, ConnectError::reason);
                return Err(unavailable(reason, action, without_body));
            }
        };
        record.routed(table.rule_name(decision.rule), &table.instance(id).name);
        let for_handoff = for_handoff(listener, client);
        match connect(context, table.instance(id).address, settings.connect_timeout, for_handoff).await {
            Ok(connected) => break (decision.rule, id, session, connected),
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
        OnUnavailable::Status503 => return Refusal::answer(reason, without_body),
        OnUnavailable::Reset => Action::Reset,
        OnUnavailable::Silent => Action::Silent,
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

fn observe(table: &RoutingTable, id: InstanceId, failure: Failure) {
    if table.observe(id, Observation::TrafficFailed(failure), Instant::now()).is_some() {
        let (pool, instance) = (&table.pool(id.pool).name, &table.instance(id).name);
        tracing::warn!(pool, instance, %failure, "instance is down");
    }
}

/// Hands the connection to the packet path when that pays, and relays it until then.
async fn carry(listener: &Listener, client: Endpoint, reached: Reached, record: &Record) {
    let Listener { context, settings } = listener;
    let Reached { instance, source_port, session, first, head_len, surplus_len, at_once, table, rule, id } =
        reached;
    let (rule, lengths) = (table.rule_name(rule), (head_len, surplus_len));
    let received = (head_len + surplus_len) as u64;
    let mut fate = Fate::new(listener, source_port.is_some());
    let mut held = Held { client, instance, unsent: first, owned: Owned { session, source_port } };

    if let Some(trigger) = at_once.filter(|_| fate.watch.is_some()) {
        match hand_off(listener, held, lengths, rule) {
            Ok(()) => return record.end(&settings.name, How::HandedOff(trigger.name()), (received, 0)),
            Err(Some((reason, back))) => {
                fate.refused(listener, reason, [&back.client, &back.instance]);
                held = back;
            }
            Err(None) => return lost(listener),
        }
    }
    // What cannot be sent now the relay sends; if the instance has gone meanwhile, it says so.
    let sent = held.instance.send(held.unsent.pending()).unwrap_or(0);
    held.unsent.consume(sent);

    let patience = Patience { idle: settings.idle_timeout, half_closed: settings.half_closed_timeout };
    let mut bytes = (received, 0);
    let (relay, owned, ending) = loop {
        let Held { client, instance, unsent, owned } = held;
        let parts = Parts { client, instance, unsent: (!unsent.is_empty()).then_some(unsent), bytes };
        let Ok(mut relay) = Relay::new(parts, patience, fate.watch.take()) else { return lost(listener) };
        let trigger = match relay.run().await {
            Step::End(ending) => break (relay, owned, ending),
            Step::HandOff(trigger) => trigger,
        };
        let (left, watch) = relay.into_parts();
        let Parts { client, instance, unsent, .. } = left;
        (bytes, fate.watch) = (left.bytes, watch);
        let unsent = unsent.unwrap_or_else(Buffer::take);
        let surplus = (0, unsent.pending().len());
        match hand_off(listener, Held { client, instance, unsent, owned }, surplus, rule) {
            Ok(()) => return record.end(&settings.name, How::HandedOff(trigger.name()), bytes),
            Err(Some((reason, back))) => {
                fate.refused(listener, reason, [&back.client, &back.instance]);
                held = back;
            }
            Err(None) => return lost(listener),
        }
    };
    if relay.gave_up() {
        fate.relayed(listener, RelayReason::Custody);
    }
    let reason = fate.relayed(listener, RelayReason::Short);
    record.end(&settings.name, How::Relayed { reason: reason.name(), ending: ending.name() }, relay.bytes());
    let (discards_request, unanswered) = (relay.discards_request(), relay.bytes().1 == 0);
    let (Parts { client, instance, .. }, _) = relay.into_parts();
    match ending {
        Ending::ClientReset | Ending::Idle => instance.reset(),
        Ending::Closed | Ending::InstanceReset | Ending::NoResponse => drop(instance),
    }
    // The session has ended, and the port is free again, whatever the client still has to be told.
    drop(owned);
    match ending {
        // Closing with bytes unread would reset the connection and could take the response with it.
        Ending::Closed if discards_request => refuse::linger(client).await,
        Ending::Closed => {}
        Ending::ClientReset | Ending::Idle => client.reset(),
        Ending::InstanceReset if !unanswered => refuse::deliver_then_reset(client).await,
        Ending::InstanceReset | Ending::NoResponse => {
            // Closing in order says nothing about the instance's health: the request may have asked for it.
            if ending == Ending::InstanceReset {
                observe(&table, id, Failure::Reset);
            }
            context.counters.refused.add(RefuseReason::NoResponse);
            respond(listener, client, &Refusal::bad(RefuseReason::NoResponse)).await;
        }
    }
}

/// The host has run out of something, and a socket could neither join nor leave the runtime. Both are closed.
fn lost(listener: &Listener) {
    listener.context.counters.refused.add(RefuseReason::OutOfResources);
}

/// Whether a handoff is still to be hoped for, and the reason that the connection is relayed if it is not.
struct Fate {
    watch: Option<Watch>,
    /// Counted once, as soon as it is certain.
    reason: Option<RelayReason>,
}

impl Fate {
    fn new(listener: &Listener, on_own_port: bool) -> Self {
        let mut fate = Self { watch: None, reason: None };
        if listener.settings.offload == Offload::Relay {
            fate.relayed(listener, RelayReason::Configured);
        } else if listener.context.flows.is_none() {
            fate.relayed(listener, RelayReason::NoDatapath);
        } else if !on_own_port {
            fate.relayed(listener, RelayReason::NoSourcePort);
        } else {
            fate.watch = Some(Watch::new(listener.settings.auto, tokio::time::Instant::now()));
        }
        fate
    }

    /// It will be relayed to its end, for `reason` unless there was one before.
    fn relayed(&mut self, listener: &Listener, reason: RelayReason) -> RelayReason {
        *self.reason.get_or_insert_with(|| {
            listener.context.counters.relayed.add(reason);
            reason
        })
    }

    /// The packet path has refused the connection.
    fn refused(&mut self, listener: &Listener, reason: RelayReason, sockets: [&Endpoint; 2]) {
        let Some(watch) = &mut self.watch else { return };
        watch.refused();
        if watch.is_hopeless() || !may_succeed_later(reason) {
            watch.lift_limits(sockets.map(AsFd::as_fd));
            self.watch = None;
            self.relayed(listener, reason);
        }
    }
}

/// Whether a handoff refused for `reason` may be accepted for the same connection some time later.
fn may_succeed_later(reason: RelayReason) -> bool {
    matches!(
        reason,
        RelayReason::Custody | RelayReason::TableFull | RelayReason::MapUpdate | RelayReason::NoRoute
    )
}

/// What belongs to the connection as long as it lives, wherever it is carried.
struct Owned {
    session: Session,
    source_port: Option<PortLease>,
}

/// A connection between two ways of carrying it.
struct Held {
    client: Endpoint,
    instance: Endpoint,
    /// What the instance has yet to get.
    unsent: Buffer,
    owned: Owned,
}

/// Offers the connection to the packet path. `lengths` are those of the head as the client sent it, and of the surplus at
/// the end of what is unsent. `Err(None)` if a socket was lost on the way.
#[expect(clippy::result_large_err, reason = "a refusal gives everything back, and there is nothing to box")]
fn hand_off(
    listener: &Listener,
    held: Held,
    lengths: (usize, usize),
    rule: &str,
) -> Result<(), Option<(RelayReason, Held)>> {
    let Some(flows) = &listener.context.flows else { return Err(Some((RelayReason::NoDatapath, held))) };
    let Held { client, instance, unsent, owned: Owned { session, source_port } } = held;
    let (Ok(client), Ok(instance)) = (client.detach(), instance.detach()) else { return Err(None) };
    let handoff = Handoff {
        client,
        instance,
        consumed_head_len: lengths.0,
        to_instance: unsent.pending().to_vec(),
        surplus_len: lengths.1,
        source_port,
        session,
        rule: rule.to_owned(),
    };
    match flows.hand_off(handoff) {
        Ok(()) => {
            listener.context.counters.handoffs.add(1);
            Ok(())
        }
        Err((reason, handoff)) => {
            let Handoff { client, instance, source_port, session, .. } = handoff;
            let owned = Owned { session, source_port };
            Err(Some((reason, Held { client: client.into(), instance: instance.into(), unsent, owned })))
        }
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

async fn respond(listener: &Listener, client: Endpoint, refusal: &Refusal) {
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
