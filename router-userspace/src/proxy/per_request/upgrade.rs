//! After `101 Switching Protocols` the two connections are plain streams: the packet path takes them, or the relay.

use std::sync::Arc;

use router_common::abi::reason::RefuseReason;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::access::Record;
use super::super::buffer::Buffer;
use super::super::carry::carry;
use super::super::connection::Reached;
use super::super::endpoint::Endpoint;
use super::super::offload::{self, Trigger};
use super::super::settings::{Listener, Offload};
use super::upstream::Upstream;
use crate::core::pool::InstanceId;
use crate::core::session::Session;
use crate::core::table::{RoutingTable, RuleRef};

/// An exchange that has become a stream.
#[derive(Debug)]
pub(super) struct Upgraded {
    pub(super) upstream: Upstream,
    pub(super) session: Session,
    pub(super) table: Arc<RoutingTable>,
    pub(super) rule: RuleRef,
    pub(super) id: InstanceId,
    pub(super) record: Option<Record>,
}

/// Carries the stream to its end. `rest` is what the client has sent behind its request.
pub(super) async fn carry_on(listener: &Listener, mut client: TcpStream, rest: &[u8], upgraded: Upgraded) {
    let Upgraded { upstream, session, table, rule, id, record } = upgraded;
    let record = record.unwrap_or_else(|| Record::begin(listener.settings.address));
    let Some((instance, early, source_port)) = upstream.into_socket().await else {
        listener.context.counters.refused.add(RefuseReason::NoResponse);
        return Endpoint::Registered(client).reset();
    };
    // What the instance has sent right behind its 101.
    match timeout(listener.settings.idle_timeout, client.write_all(&early)).await {
        Ok(Ok(())) => {}
        _ => {
            listener.context.counters.refused.add(RefuseReason::ClientGone);
            return Endpoint::Registered(instance).reset();
        }
    }
    let client = Endpoint::Registered(client);
    let offloads = listener.settings.offload != Offload::Relay && listener.context.flows.is_some();
    if offloads {
        offload::expect_handoff(std::os::fd::AsFd::as_fd(&client));
    }
    let mut first = Buffer::take();
    first.append(rest);
    let reached = Reached {
        request_complete: false,
        instance: Endpoint::Registered(instance),
        source_port,
        session,
        // At least the head of the 101.
        answered: 1 + early.len() as u64,
        first,
        head_len: 0,
        surplus_len: rest.len(),
        at_once: offloads.then_some(Trigger::Upgrade),
        connecting: std::time::Duration::ZERO,
        set_cookie: None,
        table,
        rule,
        id,
    };
    carry(listener, client, reached, &record).await;
}
