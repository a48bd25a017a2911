//! Looks after connections from their first packet until they are flows like any other, or get a socket.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use router_common::abi::binding::Embryo;
use router_common::abi::key::FlowKey;
use router_common::abi::reason::{CookieEvent, RefuseReason, UnboundReason};

use super::super::access::{How, Record};
use super::super::choice::note_failure;
use super::super::connect::ConnectError;
use super::super::settings::Listener;
use super::Revived;
use super::assemblies::{Assemblies, Unfinished};
use super::choose::{Chosen, choose};
use crate::core::health::Failure;
use crate::core::pool::InstanceId;
use crate::core::session::InstanceCounters;
use crate::core::table::{RoutingTable, RuleRef};
use crate::flows::binding::{Arrivals, Binder, Binding, Event, First, Progress, Segment};

/// How long an instance has for its answer to the first SYN; twice as long for each that follows (RFC 6298 §5.5). The way to instances is short.
const FIRST_PATIENCE: Duration = Duration::from_millis(200);

/// Looks after connections until they are flows like any other. Owned by one worker.
pub(super) struct Desk {
    binder: Arc<Binder>,
    arrivals: Arrivals,
    /// Those whose instance has not answered.
    waiting: HashMap<u32, Waiting>,
    /// Those whose instance has not acknowledged all that it was sent.
    bound: VecDeque<u32>,
    /// Both, by the tuple of the client's packets: the last connection that it has begun.
    slots: HashMap<FlowKey, (u32, Embryo)>,
    /// Those whose head is not complete.
    unfinished: Assemblies,
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
    /// What the client has sent behind what its instance is to get first.
    more: Vec<Segment>,
}

impl Desk {
    pub(super) fn new(binder: Arc<Binder>, arrivals: Arrivals) -> Self {
        Self {
            binder,
            arrivals,
            waiting: HashMap::new(),
            bound: VecDeque::new(),
            slots: HashMap::new(),
            unfinished: Assemblies::default(),
        }
    }

    /// Whether something is due soon.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.bound.is_empty() || !self.unfinished.is_empty()
    }

    /// Takes what the kernel programs have told. `listener` finds who serves a VIP.
    pub(super) fn take(
        &mut self,
        most: usize,
        listener: impl Fn(SocketAddr) -> Option<Arc<Listener>>,
        mut revived: impl FnMut(Revived),
    ) -> usize {
        for taken in 0..most {
            match self.binder.next(&mut self.arrivals) {
                None => return taken,
                Some(Event::Segment(segment)) => match listener(segment.vip) {
                    Some(listener) => revived_or(self.arrived(listener, segment), &mut revived),
                    None => self.binder.disown(&First::begin(segment)),
                },
                Some(Event::Refused(slot)) => {
                    if self.waiting.contains_key(&slot) {
                        revived_or(self.failed(slot, Failure::Refused), &mut revived);
                    }
                }
                Some(Event::Unfit(slot)) => {
                    if self.waiting.contains_key(&slot) {
                        revived_or(self.unfit(slot), &mut revived);
                    }
                }
                Some(Event::Bound(slot)) => self.answered(slot),
            }
        }
        most
    }

    /// Looks how those stand that wait.
    pub(super) fn look(&mut self, mut revived: impl FnMut(Revived)) {
        let now = Instant::now();
        for head in self.unfinished.take_overdue(now) {
            revived_or(self.give_up(head), &mut revived);
        }
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
                self.forget_client(self.binder.client_key(slot), slot);
                self.binder.release(slot);
            } else {
                self.bound.push_back(slot);
            }
        }
    }

    /// Nobody looks after those any more that wait: their clients send again what they have sent, to whoever comes next.
    pub(super) fn close(&mut self) {
        for slot in std::mem::take(&mut self.waiting).into_keys() {
            self.binder.retract(slot);
        }
    }

    /// Puts a segment to what its client has sent before. What is complete is bound; what will not be gets a socket.
    fn arrived(&mut self, listener: Arc<Listener>, segment: Segment) -> Option<Revived> {
        let client = segment.client_key();
        if let Some((slot, embryo)) = self.slots.get(&client)
            && embryo.is_same(&segment.embryo)
        {
            self.more(*slot, segment);
            return None;
        }
        let head = match self.unfinished.take(&client) {
            Some(head) if !head.first.embryo.is_same(&segment.embryo) => {
                head.listener.context.counters.refused.add(RefuseReason::ClientGone);
                Unfinished::new(listener, First::begin(segment), Instant::now())
            }
            Some(mut head) => {
                if !head.first.add(segment) {
                    return self.wait_for_more(head);
                }
                head
            }
            // What was told before somebody else took the connection over.
            None if segment.seq != segment.embryo.seq && self.binder.is_over(client, &segment.embryo) => {
                return None;
            }
            None => Unfinished::new(listener, First::begin(segment), Instant::now()),
        };
        if head.first.payload.is_empty() {
            return self.wait_for_more(head);
        }
        let Unfinished { listener, first, due } = head;
        let record = Record::begin(first.client);
        self.try_bind(listener, first, due, Vec::new(), record)
    }

    /// Waits for the rest of a head, unless too many are waited for.
    fn wait_for_more(&mut self, head: Unfinished) -> Option<Revived> {
        let head = self.unfinished.keep(head)?;
        self.revive(head.listener, &head.first, UnboundReason::TooManyHeads)
    }

    /// The rest of a head has not come.
    fn give_up(&mut self, head: Unfinished) -> Option<Revived> {
        let Unfinished { listener, first, .. } = head;
        if self.binder.is_over(first.client_key(), &first.embryo) {
            // It has reset the connection.
            listener.context.counters.refused.add(RefuseReason::ClientGone);
            return None;
        }
        self.revive(listener, &first, UnboundReason::HeadIncomplete)
    }

    /// A client has sent more than what its instance is to get first. It goes on to the instance as soon as that has answered: the client would repeat it, but not before its
    /// timer tells it to.
    fn more(&mut self, slot: u32, segment: Segment) {
        let Some(waiting) = self.waiting.get_mut(&slot) else {
            return self.binder.send_on(slot, &segment);
        };
        waiting.more.push(segment);
        self.binder.expect_more(slot);
        if matches!(self.binder.progress(slot), Progress::Bound | Progress::Acknowledged) {
            self.answered(slot);
        }
    }

    /// The instance does not take what was laid out for it.
    fn unfit(&mut self, slot: u32) -> Option<Revived> {
        if !self.retract(slot) {
            self.answered(slot);
            return None;
        }
        let Waiting { listener, first, .. } = self.waiting.remove(&slot)?;
        self.revive(listener, &first, UnboundReason::InstanceUnfit)
    }

    /// Gives up a flow whose instance has not answered. False if it has in this moment.
    fn retract(&mut self, slot: u32) -> bool {
        let client = self.binder.client_key(slot);
        let retracted = self.binder.retract(slot);
        if retracted {
            self.forget_client(client, slot);
        }
        retracted
    }

    /// The client's next segment has nothing to do with this flow.
    fn forget_client(&mut self, client: FlowKey, slot: u32) {
        if self.slots.get(&client).is_some_and(|(known, _)| *known == slot) {
            self.slots.remove(&client);
        }
    }

    /// Binds a connection, waits for the rest of its head, or makes a socket for it.
    fn try_bind(
        &mut self,
        listener: Arc<Listener>,
        first: First,
        due: Instant,
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
                            // Accepted, and not held by the daemon. Sockets are counted where they are served.
                            drop(listener.context.counters.accept());
                        }
                        self.slots.insert(first.client_key(), (slot, first.embryo));
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
                            more: Vec::new(),
                        };
                        self.waiting.insert(slot, waiting);
                        return None;
                    }
                    Err(reason) => reason,
                }
            }
            Err(reason) => reason,
        };
        if reason == UnboundReason::HeadIncomplete && first.may_grow() {
            return self.wait_for_more(Unfinished { listener, first, due });
        }
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
        if !self.retract(slot) {
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
        self.try_bind(listener, first, Instant::now(), tried, record)
    }

    /// The instance has answered: the connection is a flow.
    fn answered(&mut self, slot: u32) {
        let Some(Waiting { listener, table: _, began, record, counters, first, more, .. }) =
            self.waiting.remove(&slot)
        else {
            return;
        };
        // Nobody here sees the response; how long connecting took is the best that is known.
        counters.response().observe(began.elapsed(), Instant::now());
        listener.context.counters.bound.add(1);
        record.end(&listener.settings.name, How::Bound, (first.payload.len() as u64, 0));
        for segment in more {
            self.binder.send_on(slot, &segment);
        }
        self.bound.push_back(slot);
    }

    /// The client has gone before the instance answered.
    fn forget(&mut self, slot: u32) {
        if !self.retract(slot) {
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
