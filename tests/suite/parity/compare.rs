//! One frame through both builds of the packet path, and everything that must be the same afterwards.

use std::collections::{BTreeMap, BTreeSet};

use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKey, Side};
use router_common::abi::reason::{PacketReason, XdpReason};
use router_common::path::answer_budget::AnswerBudget;
use router_common::path::memory::{Frame, MemoryFlows, StoppedClock};
use router_common::path::parse::Version;
use router_common::path::xdp::{self, Outcome, Ready};
use router_common::path::{self, Verdict};
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;
use support::Datapath;
use support::datapath::{
    Ran, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC, XDP_DROP, XDP_PASS, XDP_REDIRECT, bytes_of_key,
    monotonic_now,
};
use support::xdp_maps::KnownInterfaces;

use crate::pictures::bench::ip::Ip;
use crate::pictures::bench::model::{Marks, walk};

/// Runs one frame through both builds, at TC and in XDP; `table` is what it meets and stays as it is.
pub fn compare(datapath: &Datapath, table: &MemoryFlows, frame: &[u8]) {
    let frame = &addressed_to(LOOPBACK, frame);
    let at_tc = |frame: &mut Frame, table: MemoryFlows, clock: &StoppedClock| {
        let verdict = path::carry(frame, &table, clock);
        Fate {
            action: action(verdict),
            counted: Some(verdict.reason()),
            words: format!("{verdict:?}"),
            table,
        }
    };
    meet(datapath, table, frame, |frame| datapath.ingress(frame).unwrap(), at_tc);
    // Of the next hops' MTUs XDP must know something.
    let known = table.clone();
    for hop in known.next_hops.iter().filter(|hop| hop.mtu.get() == 0) {
        hop.mtu.set(1_500);
    }
    compare_in_xdp(datapath, &known, frame);
}

fn compare_in_xdp(datapath: &Datapath, table: &MemoryFlows, frame: &[u8]) {
    // Now and then the way out is closed.
    let open = frame.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)) % 8 != 0;
    let interfaces = KnownInterfaces::sending(|_| open);
    datapath.xdp.hold(&interfaces).unwrap();
    let before = datapath.xdp.frames().unwrap();
    let mut done = None;
    let in_xdp = |frame: &mut Frame, table: MemoryFlows, clock: &StoppedClock| {
        let ready = Ready { inner: table, interfaces };
        let outcome = match xdp::arriving(frame) {
            Ok(Version::V4) => xdp::carry_as::<Ipv4, _, _, _, _>(frame, &ready, clock),
            Ok(Version::V6) => xdp::carry_as::<Ipv6, _, _, _, _>(frame, &ready, clock),
            Err(reason) => Outcome::Pass(reason),
        };
        let (action, counted, reason) = fate_in_xdp(outcome);
        done = Some(reason);
        Fate { action, counted, words: format!("{outcome:?}"), table: ready.inner }
    };
    meet(datapath, table, frame, |frame| datapath.xdp(frame).unwrap(), in_xdp);
    let mut expected = before;
    expected[done.expect("the host's build has run").index()] += 1;
    assert_eq!(datapath.xdp.frames().unwrap(), expected);
}

/// What the kernel is told, under which reason the packet is counted, and what is noted of the frame.
pub fn fate_in_xdp(outcome: Outcome) -> (i32, Option<PacketReason>, XdpReason) {
    match outcome {
        Outcome::Pass(reason) => (XDP_PASS, None, reason),
        Outcome::Drop(reason) => (XDP_DROP, Some(reason), XdpReason::Dropped),
        Outcome::Redirect { reason, .. } => (XDP_REDIRECT, Some(reason), XdpReason::Carried),
    }
}

/// What the host's build makes of a frame.
struct Fate {
    action: i32,
    counted: Option<PacketReason>,
    words: String,
    table: MemoryFlows,
}

fn meet(
    datapath: &Datapath,
    table: &MemoryFlows,
    frame: &[u8],
    run: impl FnOnce(&[u8]) -> Ran,
    carry: impl FnOnce(&mut Frame, MemoryFlows, &StoppedClock) -> Fate,
) {
    datapath.hold(table).unwrap();
    let counted_before = datapath.packets().unwrap();
    let (began, coarse_began) = monotonic_now();
    let ran = run(frame);
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
    let Fate { action, counted: reason, words, table: host } = carry(&mut packet, host, &StoppedClock(now));

    assert_eq!(ran.frame, packet.0, "the bytes differ: {words}");
    assert_eq!(ran.action, action, "{words}");
    let mut expected = counted_before;
    if let Some(reason) = reason {
        expected[reason.index()] += 1;
    }
    assert_eq!(counted, expected, "{words} is counted, as {reason:?}");
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
        Verdict::Drop(_) | Verdict::Take(_) => TC_ACT_SHOT,
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
