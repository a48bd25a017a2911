//! Which persistence cookie a response gets.

use std::time::SystemTime;

use router_common::abi::reason::CookieEvent;

use super::settings::Context;
use crate::core::persistence::{NONCE_LEN, unix_time};
use crate::core::pool::InstanceId;
use crate::core::table::{RoutingTable, RuleRef};

/// Whether a response gets one: the rule keeps its clients by a cookie, and the request brought none that holds.
pub(super) fn is_due(table: &RoutingTable, (rule, cookie): (RuleRef, Option<CookieEvent>)) -> bool {
    table.persistence(rule).is_some() && cookie != Some(CookieEvent::Honoured)
}

/// Counts what the request's cookie was worth, and returns the field that the response's head is to get: none if the rule keeps its
/// clients in another way, or if the cookie holds.
pub(super) fn answer(
    context: &Context,
    table: &RoutingTable,
    (rule, cookie): (RuleRef, Option<CookieEvent>),
    id: InstanceId,
) -> Option<Vec<u8>> {
    if let Some(event) = cookie {
        context.counters.cookies.add(event);
    }
    let persistence = table.persistence(rule).filter(|_| cookie != Some(CookieEvent::Honoured))?;
    let mut nonce = [0; NONCE_LEN];
    if let Err(error) = getrandom::fill(&mut nonce) {
        // A cookie that could be told apart from no other would give its key away.
        tracing::error!(%error, "the kernel gives no random numbers: no persistence cookie is set");
        context.counters.cookies.add(CookieEvent::NoRandomNumbers);
        return None;
    }
    let value = persistence.seal(&table.instance(id).name, &nonce, unix_time(SystemTime::now()));
    Some(persistence.set_cookie(&value).into_bytes())
}
