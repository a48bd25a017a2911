//! One frame through both builds of the packet path, and everything that must be the same afterwards.

use std::collections::{BTreeMap, BTreeSet};

use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKey, Side};
use router_common::path::answer_budget::AnswerBudget;
use router_common::path::memory::{Frame, MemoryFlows, StoppedClock};
use router_common::path::{self, Verdict};
use support::Datapath;
use support::datapath::{TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC, bytes_of_key, monotonic_now};

use crate::pictures::bench::ip::Ip;
use crate::pictures::bench::model::{Marks, walk};

/// Runs one frame through both builds; `table` is what it meets and stays as it is.
pub fn compare(datapath: &Datapath, table: &MemoryFlows, frame: &[u8]) {
    let frame = &addressed_to(LOOPBACK, frame);
    datapath.hold(table).unwrap();
    let counted_before = datapath.packets().unwrap();
    let (began, coarse_began) = monotonic_now();
    let ran = datapath.ingress(frame).unwrap();
    let (ended, coarse_ended) = monotonic_now();
    let counted = datapath.packets().unwrap();
    let flow = datapath.flow(0).unwrap();

    // The host's clock stands where the kernel's stood, as far as the kernel has shown it.
    let now = match shown_milliseconds(table, &flow, frame) {
        Some(shown) => {
            let first = began / 1_000_000;
            let passed = shown.wrapping_sub(first as u32);
            assert!(
                u64::from(passed) <= ended / 1_000_000 - first,
                "the timestamps' clock is off by {passed} ms"
            );
            (first + u64::from(passed)) * 1_000_000
        }
        None => began,
    };
    // As full as the kernel's, which was filled just now.
    let host = MemoryFlows { answer_budget: AnswerBudget::default(), ..table.clone() };
    let mut packet = Frame(frame.to_vec());
    let verdict = path::carry(&mut packet, &host, &StoppedClock(now));

    assert_eq!(ran.frame, packet.0, "the bytes differ");
    assert_eq!(ran.action, action(verdict), "{verdict:?}");
    let mut expected = counted_before;
    expected[verdict.reason().index()] += 1;
    assert_eq!(counted, expected, "one packet is counted, as {:?}", verdict.reason());
    let (mut kernel, mut host_marks) = (Marks::of(&flow), Marks::of(&host.flows[0]));
    let old = Marks::of(&table.flows[0]);
    for ((kernel, host), old) in kernel.iter_mut().zip(&mut host_marks).zip(&old) {
        if host.last_seen != old.last_seen {
            assert!((coarse_began..=coarse_ended).contains(&kernel.last_seen));
            kernel.last_seen = host.last_seen;
        }
    }
    assert_eq!(kernel, host_marks, "the marks differ");
    let datagrams = host.datagrams.borrow();
    let datagrams = datagrams.iter().map(|(key, datagram)| (bytes_of_key(key).to_vec(), datagram.flow));
    assert_eq!(datapath.datagrams().unwrap(), datagrams.collect::<BTreeMap<_, _>>(), "the datagrams differ");
    let keys = |keys: Vec<FlowKey>| keys.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(keys(datapath.keys().unwrap()), keys(host.keys.borrow().keys().copied().collect()));
}

/// Frames run through a program come in by the loopback interface.
pub const LOOPBACK: [u8; 6] = [0; 6];

pub fn addressed_to(host: [u8; 6], frame: &[u8]) -> Vec<u8> {
    [&host, &frame[6..]].concat()
}

fn action(verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Pass(_) => TC_ACT_UNSPEC,
        Verdict::Drop(_) => TC_ACT_SHOT,
        Verdict::Redirect { .. } | Verdict::Resolve { .. } | Verdict::Report { .. } => TC_ACT_REDIRECT,
    }
}

/// The time at which the kernel has fixed a timestamp delta, if it has.
fn shown_milliseconds(table: &MemoryFlows, after: &Flow, frame: &[u8]) -> Option<u32> {
    let side = [Side::Client, Side::Instance].into_iter().find(|side| {
        let (old, new) = (table.flows[0].progress(*side), after.progress(*side));
        old.timestamp_delta.get() != new.timestamp_delta.get()
    })?;
    let ip = Ip::of(frame).expect("it was translated");
    let end = ip.tcp() + usize::from(frame[ip.tcp() + 12] >> 4) * 4;
    let options = walk(&frame[ip.options()..end]).expect("they were translated");
    let (_, at, _) =
        options.iter().rfind(|(kind, _, length)| (*kind, *length) == (8, 8)).expect("there are timestamps");
    let value = u32::from_be_bytes(frame[ip.options() + at..][..4].try_into().unwrap());
    let ours = after.progress(side).timestamp_delta.get().wrapping_add(value);
    Some(ours.wrapping_sub(after.translation(side).clock_offset.get()).wrapping_sub(1))
}
