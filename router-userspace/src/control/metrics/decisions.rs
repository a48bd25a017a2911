//! How decisions came about, and what is remembered of them.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{count, counts, gauges, one, signed};
use crate::core::memory::Memory;
use crate::core::pool::Method;

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, memory: &Memory) -> fmt::Result {
    let decisions = &memory.counts;
    let help = "Requests of a live session, which went to its instance before any rule";
    count(encoder, "sessions_resumed", help, decisions.sessions_resumed.get())?;
    let help = "Sessions that got another instance because theirs could not serve any more";
    count(encoder, "sessions_moved", help, decisions.sessions_moved.get())?;
    let help = "New sessions that went to the instance that had served their user last";
    count(encoder, "affinity_hits", help, decisions.by_affinity.get())?;
    let help = "Requests with a user or groups from an address that is not trusted";
    count(encoder, "identities_untrusted", help, decisions.untrusted.get())?;
    let too_long = decisions.too_long.iter().map(|(part, count)| ([("part", part.name())], count));
    counts(encoder, "identities_too_long", "Values longer than 1024 bytes, which are ignored", too_long)?;
    let help = "Decisions by fewest-sessions because the method lacked a fresh report of some candidate";
    let fallbacks = Method::ALL
        .into_iter()
        .filter(|&method| method != Method::FewestSessions)
        .map(|method| ([("method", method.name())], decisions.fallbacks(method).get()));
    counts(encoder, "method_fallbacks", help, fallbacks)?;

    let remembered = [
        ([("table", "sessions")], signed(memory.sessions.len() as u64)),
        ([("table", "users")], signed(memory.users.len() as u64)),
        ([("table", "resources")], signed(memory.resources.len() as u64)),
    ];
    gauges(encoder, "remembered", "What is remembered of earlier decisions", remembered)?;
    let forgotten = [
        ([("table", "sessions")], memory.sessions.evicted.get()),
        ([("table", "users")], memory.users.evicted.get()),
        ([("table", "resources")], memory.resources.overflowed.get()),
    ];
    counts(
        encoder,
        "remembered_overflow",
        "What was forgotten because a table was full",
        forgotten.into_iter(),
    )?;

    let queues = &memory.queues;
    let help = "Requests that wait for an instance to free";
    one(encoder, "queue_waiting", help, &ConstGauge::new(signed(queues.waiting() as u64)))?;
    let results = [
        ([("result", "served")], queues.counts.served.get()),
        ([("result", "timeout")], queues.counts.timed_out.get()),
        ([("result", "left")], queues.counts.left.get()),
        ([("result", "full")], queues.counts.full.get()),
    ];
    counts(encoder, "queued", "Requests that had to wait, by how that ended", results.into_iter())
}
