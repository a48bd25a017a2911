//! Carries a connection to its end: by the packet path as soon as that pays, by the relay until then.
//!
//! Whatever carries it, the session and the source port go along and end with it. Every connection that is not handed
//! off is counted once, under the reason why.

use std::os::fd::AsFd;
use std::sync::Arc;

use router_common::abi::reason::{CookieEvent, RefuseReason, RelayReason};

use super::access::{How, Record};
use super::buffer::Buffer;
use super::choice::{Refusal, observe};
use super::connection::{Reached, respond};
use super::endpoint::Endpoint;
use super::http::response::{HeadInsertion, Insertion};
use super::offload::Watch;
use super::refuse;
use super::relay::{Ending, Parts, Patience, Relay, Step};
use super::response_timer::ResponseTimer;
use super::settings::{Listener, Offload};
use crate::core::health::Failure;
use crate::core::request::Protocol;
use crate::core::session::Session;
use crate::flows::ports::PortLease;
use crate::flows::table::Handoff;

/// Hands the connection to the packet path when that pays, and relays it until then.
pub(super) async fn carry(listener: &Listener, client: Endpoint, reached: Reached, record: &Record) {
    let Listener { context, settings } = listener;
    let Reached {
        instance,
        source_port,
        session,
        answered,
        first,
        request_complete,
        head_len,
        surplus_len,
        at_once,
        connecting,
        table,
        rule,
        id,
        set_cookie,
    } = reached;
    let counters = Arc::clone(session.counters());
    let mut insertion = set_cookie.map(HeadInsertion::new);
    let (rule, lengths) = (table.rule_name(rule), (head_len, surplus_len));
    let received = (head_len + surplus_len) as u64;
    // By the listener's: what is announced as the client may be of another family than the connection.
    let one_family = settings.address.is_ipv4() == table.instance(id).address.is_ipv4();
    let mut fate = Fate::new(listener, one_family, source_port.is_some());
    let mut held = Held { client, instance, unsent: first, owned: Owned { session, source_port } };

    if insertion.is_some() {
        // The response's head has to pass through here first.
        if let Some(watch) = &mut fate.watch {
            watch.await_head(at_once);
        }
    } else if let Some(trigger) = at_once.filter(|_| fate.watch.is_some()) {
        match hand_off(listener, held, lengths, rule) {
            Ok(()) => {
                if answered == 0 {
                    // Nobody here sees the response; how long connecting took is the best that is known.
                    counters.response().observe(connecting, std::time::Instant::now());
                }
                return record.end(&settings.name, How::HandedOff(trigger.name()), (received, answered));
            }
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
    let mut timer = (answered == 0).then(|| ResponseTimer::start(counters));

    let patience = Patience { idle: settings.idle_timeout, half_closed: settings.half_closed_timeout };
    let (mut bytes, mut request_complete) = ((received, answered), request_complete);
    let (relay, owned, ending) = loop {
        let Held { client, instance, unsent, owned } = held;
        let unsent = (!unsent.is_empty()).then_some(unsent);
        let parts = Parts { client, instance, unsent, bytes, request_complete };
        let Ok(mut relay) = Relay::new(parts, patience, fate.watch.take(), insertion.take()) else {
            return lost(listener);
        };
        relay.time_response(timer.take());
        let step = relay.run().await;
        if let Some(inserted) = relay.inserted() {
            context.counters.cookies.add(match inserted {
                Insertion::Done => CookieEvent::Inserted,
                Insertion::NoHead => CookieEvent::NoResponseHead,
            });
        }
        let trigger = match step {
            Step::End(ending) => break (relay, owned, ending),
            Step::HandOff(trigger) => trigger,
        };
        timer = relay.take_timer();
        let (left, watch) = relay.into_parts();
        let Parts { client, instance, unsent, .. } = left;
        (bytes, request_complete, fate.watch) = (left.bytes, left.request_complete, watch);
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
    let reason = fate.ended(listener);
    record.end(&settings.name, How::Relayed { reason: reason.name(), ending: ending.name() }, relay.bytes());
    let (leaves_unread, unanswered) = (relay.leaves_unread(), relay.bytes().1 == 0);
    let (Parts { client, instance, .. }, _) = relay.into_parts();
    match ending {
        Ending::ClientReset | Ending::Idle => instance.reset(),
        Ending::Closed | Ending::InstanceReset | Ending::NoResponse => drop(instance),
    }
    // The session has ended, and the port is free again, whatever the client still has to be told.
    drop(owned);
    match ending {
        // Closing with bytes unread would reset the connection and could take the response with it.
        Ending::Closed if leaves_unread => refuse::linger(client).await,
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
    /// Why the packet path refused when it was last asked.
    refusal: Option<RelayReason>,
}

impl Fate {
    /// `one_family`: of client and instance.
    fn new(listener: &Listener, one_family: bool, on_own_port: bool) -> Self {
        let mut fate = Self { watch: None, reason: None, refusal: None };
        if listener.settings.offload == Offload::Relay {
            fate.relayed(listener, RelayReason::Configured);
        } else if listener.context.flows.is_none() {
            fate.relayed(listener, RelayReason::NoDatapath);
        } else if !one_family {
            fate.relayed(listener, RelayReason::Family);
        } else if !on_own_port {
            fate.relayed(listener, RelayReason::NoSourcePort);
        } else {
            let mut watch = Watch::new(listener.settings.auto, tokio::time::Instant::now());
            if listener.settings.protocol == Protocol::Tls {
                watch.expect_handshake();
            }
            fate.watch = Some(watch);
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

    /// It was relayed to its end: because of a refusal if there was one, or because there was never a reason to hand it off.
    fn ended(&mut self, listener: &Listener) -> RelayReason {
        self.relayed(listener, self.refusal.unwrap_or(RelayReason::Short))
    }

    /// The packet path has refused the connection.
    fn refused(&mut self, listener: &Listener, reason: RelayReason, sockets: [&Endpoint; 2]) {
        self.refusal = Some(reason);
        let Some(watch) = &mut self.watch else { return };
        watch.refused(tokio::time::Instant::now());
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
        RelayReason::Custody
            | RelayReason::Window
            | RelayReason::TableFull
            | RelayReason::MapUpdate
            | RelayReason::NoRoute
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
