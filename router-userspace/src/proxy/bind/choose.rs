//! From a first packet to the instance that is to get it, and to what that gets.

use std::sync::Arc;

use router_common::abi::reason::{CookieEvent, UnboundReason};

use super::super::access::Record;
use super::super::announced::{Client, must_announce};
use super::super::choice::Choice;
use super::super::connect::{ConnectError, take_port};
use super::super::cookies;
use super::super::first_request::{FirstRequest, Scanner, message};
use super::super::settings::{Listener, Offload};
use crate::core::pool::InstanceId;
use crate::core::session::Session;
use crate::core::table::{RoutingTable, RuleRef};
use crate::flows::binding::First;
use crate::flows::ports::PortLease;

/// An instance, and what it is to get first.
pub(super) struct Chosen {
    pub(super) table: Arc<RoutingTable>,
    pub(super) rule: RuleRef,
    /// What the request's persistence cookie was worth.
    pub(super) cookie: Option<CookieEvent>,
    pub(super) instance: InstanceId,
    pub(super) to_instance: Vec<u8>,
    pub(super) session: Session,
    pub(super) source_port: PortLease,
}

/// Parses what came first, and decides. `tried` are the instances that were tried in vain.
pub(super) fn choose(
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
    let bad = |_| UnboundReason::BadHead;
    let end = Scanner::new(settings.protocol).scan(&first.payload, &settings.head).map_err(bad)?;
    let (head, surplus) = first.payload.split_at(end.ok_or(UnboundReason::HeadIncomplete)?);
    let message = message(settings.protocol, head);
    let parsed = FirstRequest::parse(listener, &message, (head, surplus), record).map_err(bad)?;
    place(listener, first, &parsed, tried, record)
}

/// Decides, and takes what a connection to the instance needs.
fn place(
    listener: &Listener,
    first: &First,
    parsed: &FirstRequest<'_>,
    tried: &mut Vec<InstanceId>,
    record: &mut Record,
) -> Result<Chosen, UnboundReason> {
    let context = &listener.context;
    let client = Client::peer(first.client);
    let request = parsed.request(&client);
    let mut choice = Choice::again(listener, &request, std::mem::take(tried));
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
    parsed.write(&client, table.pool(id.pool).proxy_protocol, || Some(first.vip), &mut to_instance);
    let (rule, cookie, session) = (candidate.rule, candidate.cookie, candidate.session);
    Ok(Chosen { table, rule, cookie, instance: id, to_instance, session, source_port })
}
