//! Layer-4 packets: the loaded program and the host's build leave the same bytes, verdicts, counts, flows and memory of clients.

use std::collections::BTreeMap;

use bench::ip::Ip;
use router_common::abi::balance::{Affinity, AffinityKey, TICK_SHIFT};
use router_common::abi::reason::{PacketReason, XdpReason};
use router_common::path::answer_budget::AnswerBudget;
use router_common::path::balance::Outcome;
use router_common::path::balance::memory::MemoryTables;
use router_common::path::memory::Frame;
use router_common::path::parse::Version;
use router_common::path::xdp::{self, Ready};
use router_common::path::{Verdict, too_long};
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;
use support::datapath::{Ran, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC, bytes_of_key, monotonic_now};
use support::layer4::{Layer4, bytes_of};
use support::xdp_maps::KnownInterfaces;

use crate::compare::fate_in_xdp;

#[path = "../../../router-common/tests/balance/bench/mod.rs"]
pub mod bench;

/// What the kernel reads as the time, in ticks.
fn ticks() -> u32 {
    (monotonic_now().1 >> TICK_SHIFT) as u32
}

/// The kernel's clock ticked while a frame was compared, so nothing can be said.
struct Ticked;

/// Runs one frame through both builds, in XDP and at TC; `tables` become what the host's build makes of them at TC. Returns that build's outcome, and the
/// frame as it leaves it.
pub fn compare(layer4: &Layer4, tables: &mut MemoryTables, frame: &[u8]) -> (Option<Outcome>, Vec<u8>) {
    loop {
        let mut after = tables.clone();
        let compared = compare_in_xdp(layer4, tables.clone(), frame);
        if let Ok(result) = compared.and_then(|()| compare_at_tc(layer4, &mut after, frame)) {
            *tables = after;
            return result;
        }
    }
}

fn compare_at_tc(
    layer4: &Layer4,
    tables: &mut MemoryTables,
    frame: &[u8],
) -> Result<(Option<Outcome>, Vec<u8>), Ticked> {
    let before = begin(layer4, tables);
    let ran = layer4.run(frame, 1).unwrap();
    if ticks() != tables.ticks {
        return Err(Ticked);
    }
    let (outcome, after) = bench::carry(tables, frame);
    let mut last = Frame(after.clone());
    let told = outcome.and_then(Outcome::mtu_to_tell).map(|mtu| tell(&mut last, mtu));
    let verdict = told.or(outcome.map(Outcome::verdict));
    let action = match verdict {
        None | Some(Verdict::Pass(_)) => TC_ACT_UNSPEC,
        Some(Verdict::Drop(_)) => TC_ACT_SHOT,
        Some(_) => TC_ACT_REDIRECT,
    };
    let counted = told.map(Verdict::reason).or(outcome.map(|outcome| outcome.reason));
    assert_alike(layer4, &ran, &last.0, action, tables, &before, counted);
    Ok((outcome, after))
}

/// The sender of a packet that is too long is told, by as many answers as may be given at a time.
fn tell(frame: &mut Frame, mtu: u32) -> Verdict {
    let budget = Some(&AnswerBudget::default());
    let now = monotonic_now().1;
    match Ip::of(&frame.0) {
        Some(Ip::V4) => too_long::answer::<Ipv4, _>(frame, mtu, budget, now),
        Some(Ip::V6) => too_long::answer::<Ipv6, _>(frame, mtu, budget, now),
        None => panic!("only IP is too long"),
    }
}

/// The same in XDP.
fn compare_in_xdp(layer4: &Layer4, mut tables: MemoryTables, frame: &[u8]) -> Result<(), Ticked> {
    // Now and then a way out is closed.
    let sum = frame.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
    let interfaces = KnownInterfaces::sending(|index| match sum % 8 {
        0 => false,
        1 => index == bench::INTERFACE,
        _ => true,
    });
    layer4.xdp.hold(&interfaces).unwrap();
    let noted = layer4.xdp.frames().unwrap();
    let before = begin(layer4, &mut tables);
    let ran = layer4.run_xdp(frame, 1).unwrap();
    if ticks() != tables.ticks {
        return Err(Ticked);
    }
    let mut packet = Frame(frame.to_vec());
    let ready = Ready { inner: tables, interfaces };
    let outcome = match xdp::arriving(&packet) {
        Ok(Version::V4) => xdp::balance_as::<Ipv4, _, _, _>(&mut packet, &ready),
        Ok(Version::V6) => xdp::balance_as::<Ipv6, _, _, _>(&mut packet, &ready),
        Err(reason) => Some(xdp::Outcome::Pass(reason)),
    };
    // There is no handed-off flow.
    let (action, counted, reason) = fate_in_xdp(outcome.unwrap_or(xdp::Outcome::Pass(XdpReason::NotCarried)));
    assert_alike(layer4, &ran, &packet.0, action, &ready.inner, &before, counted);
    let mut expected = noted;
    expected[reason.index()] += 1;
    assert_eq!(layer4.xdp.frames().unwrap(), expected, "{outcome:?}");
    Ok(())
}

/// Makes the kernel hold these tables, at this moment. Returns what it has counted so far.
fn begin(layer4: &Layer4, tables: &mut MemoryTables) -> Vec<u64> {
    let now = ticks();
    tables.settings.now.set(now);
    tables.ticks = now;
    layer4.hold(tables).unwrap();
    layer4.packets().unwrap()
}

/// # Panics
/// If the kernel has not left what the host's build has left: the frame, what is to become of it, tables and counts.
fn assert_alike(
    layer4: &Layer4,
    ran: &Ran,
    frame: &[u8],
    action: i32,
    tables: &MemoryTables,
    before: &[u64],
    counted: Option<PacketReason>,
) {
    assert_eq!(ran.frame, frame, "the bytes differ: {counted:?}");
    assert_eq!(ran.action, action, "{counted:?}");
    let mut expected = before.to_vec();
    if let Some(reason) = counted {
        expected[reason.index()] += 1;
    }
    assert_eq!(layer4.packets().unwrap(), expected, "{counted:?}");
    assert_eq!(
        layer4.flows(tables.flows.len()).unwrap(),
        bytes_of::<_, 1024>(&tables.flows),
        "flows: {counted:?}"
    );
    assert_eq!(
        layer4.replies(tables.replies.len()).unwrap(),
        bytes_of::<_, 64>(&tables.replies),
        "answers: {counted:?}"
    );
    let by_client = |clients: Vec<(AffinityKey, Affinity)>| -> BTreeMap<_, _> {
        let plain = clients.into_iter().map(|(key, value)| ((key.service, key.client), value));
        plain.map(|(key, value)| (key, (value.instance, value.seen))).collect()
    };
    let host = tables.clients.borrow().iter().map(|(key, value)| (*key, *value)).collect();
    assert_eq!(by_client(layer4.clients().unwrap()), by_client(host), "clients: {counted:?}");
    let courses = tables.datagrams.borrow();
    let courses = courses.iter().map(|(key, course)| (bytes_of_key(key).to_vec(), *course)).collect();
    assert_eq!(layer4.courses().unwrap(), courses, "courses: {counted:?}");
    assert_eq!(layer4.links().unwrap(), bytes_of::<_, 16>(&tables.links[..2]), "links: {counted:?}");
    let tunnels = layer4.tunnels(tables.tunnels.len()).unwrap();
    assert_eq!(tunnels, bytes_of::<_, 8>(&tables.tunnels), "tunnels: {counted:?}");
    let counter = [tables.new_flows.began.get(), tables.new_flows.count.get()];
    assert!(layer4.new_flows().unwrap().contains(&counter), "new flows: {counted:?}");
}
