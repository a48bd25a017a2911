//! The route of a first request whose connection has no socket: `first packet → parse → decide → bind → session accounting`.
//!
//! Read [`Desk::first`] first. It is the short cut of `connection`: what it cannot do at once (a head that is not complete, or not well-formed, a request that
//! has to wait or to be answered) it leaves to that, on a socket that is made then. The reason is counted.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use router_common::abi::reason::{CookieEvent, RefuseReason, UnboundReason};
use socket2::Socket;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

use super::access::{How, Record};
use super::announced::{Client, must_announce};
use super::choice::{Choice, note_failure};
use super::connect::{ConnectError, take_port};
use super::connection;
use super::cookies;
use super::http;
use super::http::rewrite::rewrite;
use super::http::scan::Scanner;
use super::listener::Listening;
use super::settings::{Listener, Offload};
use super::tls::{client_hello, records};
use crate::core::health::Failure;
use crate::core::pool::InstanceId;
use crate::core::request::{Protocol, Request};
use crate::core::session::{InstanceCounters, Session};
use crate::core::table::{RoutingTable, RuleRef};
use crate::flows::binding::{Binder, Binding, Event, First, Progress};
use crate::flows::ports::PortLease;

/// How long an instance has for its answer to the first SYN; twice as long for each that follows (RFC 6298 §5.5). The way to instances is short.
const FIRST_PATIENCE: Duration = Duration::from_millis(200);

/// For how long first packets are surely taken, unless this is said again.
const ATTENDANCE: Duration = Duration::from_secs(1);
/// How often those that wait are looked at, and how often it is said that somebody is there.
const BUSY: Duration = Duration::from_millis(2);
const IDLE: Duration = Duration::from_millis(200);
/// First packets in a row before others get their turn.
const BATCH: usize = 64;

/// Binds connections until it is told to stop. `alive` is held for every connection that goes on by a socket.
pub(super) async fn attend(
    binder: Arc<Binder>,
    listening: Arc<Listening>,
    mut stopping: watch::Receiver<Option<tokio::time::Instant>>,
    alive: mpsc::Sender<()>,
) -> io::Result<()> {
    // SAFETY: the descriptor is owned, and stays the same one until it is dropped.
    let ready = unsafe { AsyncFd::register_with_interest(binder.readiness()?, Interest::READABLE) }?;
    let mut desk = Desk::new(Arc::clone(&binder));
    let serve = |revived: Revived| {
        let alive = alive.clone();
        tokio::spawn(async move {
            connection::serve(revived.listener, revived.socket, revived.peer).await;
            drop(alive);
        });
    };
    loop {
        binder.attend(ATTENDANCE);
        let pause = if desk.is_busy() { BUSY } else { IDLE };
        tokio::select! {
            biased;
            _ = stopping.wait_for(Option::is_some) => break,
            ready = ready.readable() => ready?.clear_ready(),
            () = tokio::time::sleep(pause) => {}
        }
        while desk.take(BATCH, |vip| listening.of(vip), serve) == BATCH {
            tokio::task::yield_now().await;
        }
        desk.look(serve);
    }
    binder.attend(Duration::ZERO);
    desk.close();
    Ok(())
}

/// Looks after connections until they are flows like any other. Owned by one worker.
struct Desk {
    binder: Arc<Binder>,
    /// Those whose instance has not answered.
    waiting: HashMap<u32, Waiting>,
    /// Those whose instance has not acknowledged all that it was sent.
    bound: VecDeque<u32>,
}

/// A connection whose instance was sent a SYN.
struct Waiting {
    listener: Arc<Listener>,
    first: First,
    table: Arc<RoutingTable>,
    instance: InstanceId,
    tried: Vec<InstanceId>,
    began: Instant,
    /// When the next SYN is due, and how long after the one before.
    due: Instant,
    patience: Duration,
    record: Record,
    counters: Arc<InstanceCounters>,
}

/// A connection that is to get a socket.
struct Revived {
    listener: Arc<Listener>,
    socket: Socket,
    peer: SocketAddr,
}

impl Desk {
    fn new(binder: Arc<Binder>) -> Self {
        Self { binder, waiting: HashMap::new(), bound: VecDeque::new() }
    }

    /// Whether something is due soon.
    fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.bound.is_empty()
    }

    /// Takes what the kernel programs have told. `listener` finds who serves a VIP.
    fn take(
        &mut self,
        most: usize,
        listener: impl Fn(SocketAddr) -> Option<Arc<Listener>>,
        mut revived: impl FnMut(Revived),
    ) -> usize {
        for taken in 0..most {
            match self.binder.next() {
                None => return taken,
                Some(Event::First(first)) => match listener(first.vip) {
                    Some(listener) => revived_or(self.first(listener, first), &mut revived),
                    None => self.binder.disown(&first),
                },
                Some(Event::Refused(slot)) => {
                    if self.waiting.contains_key(&slot) {
                        revived_or(self.failed(slot, Failure::Refused), &mut revived);
                    }
                }
            }
        }
        most
    }

    /// Looks how those stand that wait.
    fn look(&mut self, mut revived: impl FnMut(Revived)) {
        let now = Instant::now();
        let slots: Vec<u32> = self.waiting.keys().copied().collect();
        for slot in slots {
            match self.binder.progress(slot) {
                Progress::Waiting => revived_or(self.remind(slot, now), &mut revived),
                Progress::ClientGone => self.forget(slot),
                Progress::Bound | Progress::Acknowledged => self.answered(slot),
            }
        }
        for _ in 0..self.bound.len() {
            let Some(slot) = self.bound.pop_front() else { break };
            if self.binder.progress(slot) == Progress::Acknowledged {
                self.binder.release(slot);
            } else {
                self.bound.push_back(slot);
            }
        }
    }

    /// Nobody looks after those any more that wait: their clients send again what they have sent, to whoever comes next.
    fn close(&mut self) {
        for slot in std::mem::take(&mut self.waiting).into_keys() {
            self.binder.retract(slot);
        }
    }

    /// Binds a connection, or makes a socket for it.
    fn first(&mut self, listener: Arc<Listener>, first: First) -> Option<Revived> {
        let record = Record::begin(first.client);
        let counters = Arc::clone(&listener.context.counters);
        let revived = self.try_bind(listener, first, Vec::new(), record);
        if revived.is_none() {
            // Accepted, and not held by the daemon. Sockets are counted where they are served.
            drop(counters.accept());
        }
        revived
    }

    fn try_bind(
        &mut self,
        listener: Arc<Listener>,
        first: First,
        mut tried: Vec<InstanceId>,
        mut record: Record,
    ) -> Option<Revived> {
        let reason = match choose(&listener, &first, &mut tried, &mut record) {
            Ok(chosen) => {
                let Chosen { table, rule, cookie, instance, to_instance, session, source_port } = chosen;
                let counters = Arc::clone(session.counters());
                let binding = Binding {
                    first: &first,
                    instance: table.instance(instance).address,
                    to_instance: &to_instance,
                    source_port,
                    session,
                    rule: table.rule_name(rule).to_owned(),
                };
                match self.binder.bind(binding) {
                    Ok(slot) => {
                        if tried.is_empty() {
                            count(&listener, &table, rule, cookie);
                        }
                        let (began, patience) = (Instant::now(), FIRST_PATIENCE);
                        let due = began + patience;
                        let waiting = Waiting {
                            listener,
                            first,
                            table,
                            instance,
                            tried,
                            began,
                            due,
                            patience,
                            record,
                            counters,
                        };
                        self.waiting.insert(slot, waiting);
                        return None;
                    }
                    Err(reason) => reason,
                }
            }
            Err(reason) => reason,
        };
        self.revive(listener, &first, reason)
    }

    /// Makes a socket, which goes the way of those that were accepted.
    fn revive(&self, listener: Arc<Listener>, first: &First, reason: UnboundReason) -> Option<Revived> {
        let counters = &listener.context.counters;
        counters.unbound.add(reason);
        match self.binder.revive(first) {
            Ok(socket) => Some(Revived { listener, socket: socket.into(), peer: first.client }),
            Err(error) => {
                tracing::warn!(client = %first.client, %error, reason = reason.name(), "a connection cannot be given a socket, and is reset");
                counters.refused.add(RefuseReason::OutOfResources);
                self.binder.disown(first);
                None
            }
        }
    }

    /// The instance has not answered.
    fn remind(&mut self, slot: u32, now: Instant) -> Option<Revived> {
        let waiting = self.waiting.get_mut(&slot)?;
        if now.duration_since(waiting.began) >= waiting.listener.settings.connect_timeout {
            return self.failed(slot, Failure::TimedOut);
        }
        if now >= waiting.due {
            waiting.patience *= 2;
            waiting.due = now + waiting.patience;
            self.binder.send_syn(slot);
        }
        None
    }

    /// The instance cannot be connected to: another one is chosen.
    fn failed(&mut self, slot: u32, failure: Failure) -> Option<Revived> {
        if !self.binder.retract(slot) {
            // It has answered in this moment.
            self.answered(slot);
            return None;
        }
        let Waiting { listener, first, table, instance, mut tried, record, .. } =
            self.waiting.remove(&slot)?;
        note_failure(&table, instance, &ConnectError::Instance(failure));
        tried.push(instance);
        if tried.len() >= listener.settings.connect_attempts {
            return self.revive(listener, &first, UnboundReason::ConnectFailed);
        }
        listener.context.counters.retries.add(1);
        self.try_bind(listener, first, tried, record)
    }

    /// The instance has answered: the connection is a flow.
    fn answered(&mut self, slot: u32) {
        let Some(Waiting { listener, table: _, began, record, counters, first, .. }) =
            self.waiting.remove(&slot)
        else {
            return;
        };
        // Nobody here sees the response; how long connecting took is the best that is known.
        counters.response().observe(began.elapsed(), Instant::now());
        listener.context.counters.bound.add(1);
        record.end(&listener.settings.name, How::Bound, (first.payload.len() as u64, 0));
        self.bound.push_back(slot);
    }

    /// The client has gone before the instance answered.
    fn forget(&mut self, slot: u32) {
        if !self.binder.retract(slot) {
            return self.answered(slot);
        }
        if let Some(Waiting { listener, record, .. }) = self.waiting.remove(&slot) {
            let reason = RefuseReason::ClientGone;
            listener.context.counters.refused.add(reason);
            record.end(&listener.settings.name, How::Refused { reason: reason.name(), status: None }, (0, 0));
        }
    }
}

/// Counts a request that goes to an instance.
fn count(listener: &Listener, table: &RoutingTable, rule: RuleRef, cookie: Option<CookieEvent>) {
    let counters = &listener.context.counters;
    counters.requests.add(1);
    table.hits(rule).add(1);
    if let Some(event) = cookie {
        counters.cookies.add(event);
    }
}

fn revived_or(revived: Option<Revived>, take: &mut impl FnMut(Revived)) {
    if let Some(revived) = revived {
        take(revived);
    }
}

/// An instance, and what it is to get first.
struct Chosen {
    table: Arc<RoutingTable>,
    rule: RuleRef,
    /// What the request's persistence cookie was worth.
    cookie: Option<CookieEvent>,
    instance: InstanceId,
    to_instance: Vec<u8>,
    session: Session,
    source_port: PortLease,
}

/// Parses what came first, and decides. `tried` are the instances that were tried in vain.
fn choose(
    listener: &Listener,
    first: &First,
    tried: &mut Vec<InstanceId>,
    record: &mut Record,
) -> Result<Chosen, UnboundReason> {
    let settings = &listener.settings;
    let may_bind = settings.offload == Offload::Bind
        && settings.once_only
        && !settings.transparent
        && !must_announce(&settings.announced_by, first.client.ip());
    if !may_bind {
        return Err(UnboundReason::Configured);
    }
    if first.finished {
        return Err(UnboundReason::Finished);
    }
    match settings.protocol {
        Protocol::Tls => by_hello(listener, first, tried, record),
        _ => by_head(listener, first, tried, record),
    }
}

fn by_head(
    listener: &Listener,
    first: &First,
    tried: &mut Vec<InstanceId>,
    record: &mut Record,
) -> Result<Chosen, UnboundReason> {
    let settings = &listener.settings;
    let bad = |_| UnboundReason::BadHead;
    let end = Scanner::default().scan(&first.payload, &settings.head).map_err(bad)?;
    let (bytes, surplus) = first.payload.split_at(end.ok_or(UnboundReason::HeadIncomplete)?);
    let head = http::parse(bytes).map_err(bad)?;
    let path = head.path().map_err(bad)?;
    connection::check_pipelining(listener, &head, surplus).map_err(bad)?;
    record.request(&head);
    let client = Client::peer(first.client);
    let request =
        Request { listener: &settings.name, client: client.ip(), tls: None, http: Some(head.request(&path)) };
    place(listener, first, &request, tried, record, |outgoing| {
        rewrite(bytes, &head, settings.forwarded_for.then_some(client.ip()), outgoing);
        outgoing.extend_from_slice(surplus);
    })
}

fn by_hello(
    listener: &Listener,
    first: &First,
    tried: &mut Vec<InstanceId>,
    record: &mut Record,
) -> Result<Chosen, UnboundReason> {
    let settings = &listener.settings;
    let bad = |_| UnboundReason::BadHead;
    let end = records::Scanner::default().scan(&first.payload, settings.head.head).map_err(bad)?;
    let message = records::message(&first.payload[..end.ok_or(UnboundReason::HeadIncomplete)?]);
    let hello = client_hello::parse(&message).map_err(bad)?;
    record.hello(&hello);
    let client = Client::peer(first.client);
    let request =
        Request { listener: &settings.name, client: client.ip(), tls: Some(hello.seen()), http: None };
    place(listener, first, &request, tried, record, |outgoing| outgoing.extend_from_slice(&first.payload))
}

/// Decides, and takes what a connection to the instance needs.
fn place(
    listener: &Listener,
    first: &First,
    request: &Request<'_>,
    tried: &mut Vec<InstanceId>,
    record: &mut Record,
    write: impl FnOnce(&mut Vec<u8>),
) -> Result<Chosen, UnboundReason> {
    let context = &listener.context;
    let mut choice = Choice::again(listener, request, std::mem::take(tried));
    let candidate = choice.now(record);
    *tried = choice.into_tried();
    let candidate = candidate.ok_or(UnboundReason::NoInstance)?;
    let (table, id) = (candidate.table, candidate.id);
    if cookies::is_due(&table, (candidate.rule, candidate.cookie)) {
        return Err(UnboundReason::Cookie);
    }
    let address = table.instance(id).address;
    let source_port = take_port(context, &context.bound_ports, address).map_err(|error| match error {
        ConnectError::NoSourcePort => UnboundReason::NoSourcePort,
        _ => UnboundReason::NoRoute,
    })?;
    let mut to_instance = Vec::with_capacity(first.payload.len() + 128);
    if let Some(protocol) = table.pool(id.pool).proxy_protocol {
        to_instance.extend(protocol.header(first.client, first.vip));
    }
    write(&mut to_instance);
    let (rule, cookie, session) = (candidate.rule, candidate.cookie, candidate.session);
    Ok(Chosen { table, rule, cookie, instance: id, to_instance, session, source_port })
}
