//! Layer-4 packets: the loaded program and the host's build leave the same bytes, verdicts, counts, flows and memory of clients.

use std::collections::BTreeMap;

use bench::{ACK, CLIENT, FIN, MODES, RST, SYN};
use router_common::abi::balance::{
    DENY, Mode, RuleKey, SILENT, TAKES_FLOWS, TAKES_RETURNING_CLIENTS, TICK_SHIFT, UNREACHABLE,
};
use router_common::abi::reason::{PacketReason, XdpReason};
use router_common::path::Verdict;
use router_common::path::balance::memory::MemoryTables;
use router_common::path::memory::Frame;
use router_common::path::parse::Version;
use router_common::path::xdp::{self, Outcome, Ready};
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;
use router_common::wire::{PROTOCOL_TCP, PROTOCOL_UDP};
use support::datapath::{Ran, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC, monotonic_now, runs};
use support::layer4::{Layer4, bytes_of};
use support::xdp_maps::KnownInterfaces;

use crate::compare::fate_in_xdp;
use crate::seeded::Seeded;

#[path = "../../../router-common/tests/balance/bench.rs"]
pub mod bench;

/// A small flow table, so that it is full now and then.
const BUCKETS: usize = 4;

/// What the kernel reads as the time, in ticks.
fn ticks() -> u32 {
    (monotonic_now().1 >> TICK_SHIFT) as u32
}

/// Runs one frame through both builds, in XDP and at TC; `tables` become what the host's build makes of them at TC. `None` if a tick has passed meanwhile:
/// then nothing has happened to them.
fn compare(layer4: &Layer4, tables: &mut MemoryTables, frame: &[u8]) -> Option<PacketReason> {
    compare_in_xdp(layer4, tables.clone(), frame)?;
    let before = begin(layer4, tables);
    let ran = layer4.run(frame, 1).unwrap();
    if ticks() != tables.ticks {
        return None;
    }
    let (outcome, after) = bench::carry(tables, frame);
    if outcome.is_some_and(|outcome| outcome.mtu_to_tell().is_some()) {
        // The errors about such packets are compared with those of handed-off flows.
        assert!([TC_ACT_REDIRECT, TC_ACT_SHOT].contains(&ran.action), "{outcome:?}");
        return outcome.map(|outcome| outcome.reason);
    }
    let action = match outcome.map(|outcome| outcome.verdict()) {
        None | Some(Verdict::Pass(_)) => TC_ACT_UNSPEC,
        Some(Verdict::Drop(_)) => TC_ACT_SHOT,
        Some(_) => TC_ACT_REDIRECT,
    };
    let counted = outcome.map(|outcome| outcome.reason);
    assert_alike(layer4, &ran, &after, action, tables, &before, counted);
    counted
}

/// The same in XDP. `None` if a tick has passed meanwhile.
fn compare_in_xdp(layer4: &Layer4, mut tables: MemoryTables, frame: &[u8]) -> Option<()> {
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
        return None;
    }
    let mut packet = Frame(frame.to_vec());
    let ready = Ready { inner: tables, interfaces };
    let outcome = match xdp::arriving(&packet) {
        Ok(Version::V4) => xdp::balance_as::<Ipv4, _, _, _>(&mut packet, &ready),
        Ok(Version::V6) => xdp::balance_as::<Ipv6, _, _, _>(&mut packet, &ready),
        Err(reason) => Some(Outcome::Pass(reason)),
    };
    // There is no handed-off flow.
    let (action, counted, reason) = fate_in_xdp(outcome.unwrap_or(Outcome::Pass(XdpReason::NotCarried)));
    assert_alike(layer4, &ran, &packet.0, action, &ready.inner, &before, counted);
    let mut expected = noted;
    expected[reason.index()] += 1;
    assert_eq!(layer4.xdp.frames().unwrap(), expected, "{outcome:?}");
    Some(())
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
    assert_eq!(layer4.flows(BUCKETS).unwrap(), bytes_of::<_, 1024>(&tables.flows), "flows: {counted:?}");
    assert_eq!(layer4.replies(BUCKETS).unwrap(), bytes_of::<_, 64>(&tables.replies), "answers: {counted:?}");
    let by_client = |clients: Vec<_>| -> BTreeMap<_, _> {
        let plain = |(key, value): (
            router_common::abi::balance::AffinityKey,
            router_common::abi::balance::Affinity,
        )| { ((key.service, key.client), (value.instance, value.seen)) };
        clients.into_iter().map(plain).collect()
    };
    let host = tables.clients.borrow().iter().map(|(key, value)| (*key, *value)).collect();
    assert_eq!(by_client(layer4.clients().unwrap()), by_client(host), "clients: {counted:?}");
}

#[test]
#[ignore = "needs root"]
fn layer_4_packets_leave_both_alike() {
    let mut tables = bench::tables(BUCKETS);
    for protocol in [PROTOCOL_TCP, PROTOCOL_UDP] {
        bench::remember_clients(&tables, protocol, Mode::DsrL2, 100);
    }
    let rule = |client: [u8; 4], value| (RuleKey { set: 9, client: bench::words(client.into()) }, 64, value);
    tables.rules =
        vec![rule([10, 77, 1, 250], DENY), rule([10, 77, 1, 251], DENY | SILENT), rule([10, 77, 1, 252], 1)];
    tables.services[bench::service_index(PROTOCOL_TCP, Mode::Snat) as usize].rules.set(9);
    let layer4 = Layer4::load(&tables).unwrap();
    let empty = tables.clone();
    let mut seeded = Seeded(3);
    let mut met: BTreeMap<&str, u32> = BTreeMap::new();
    let mut answers: Vec<Vec<u8>> = Vec::new();
    let mut errors: Vec<Vec<u8>> = Vec::new();
    for round in 0..2_000u32 {
        if round % 250 == 0 {
            tables = empty.clone();
            answers.clear();
            errors.clear();
        }
        let bytes = seeded.bytes();
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(round as u8);
        let mode = MODES[usize::from(byte(0)) % 4];
        let protocol = if byte(1) % 2 == 0 { PROTOCOL_TCP } else { PROTOCOL_UDP };
        let flags = [SYN, ACK, FIN | ACK, RST, SYN | ACK][usize::from(byte(2)) % 5];
        let port = 1_025 + u16::from(byte(3)) % 20;
        let client = if byte(4) % 4 == 0 { [10, 77, 1, 249 + byte(5) % 4].into() } else { CLIENT };
        let payload = vec![byte(6); usize::from(byte(7)) * 8];
        let mut frame = match answers.len() {
            0 => bench::from_client((client, port), mode, protocol, flags, &payload),
            count if byte(8) % 3 == 0 => answers[usize::from(byte(9)) % count].clone(),
            _ => bench::from_client((client, port), mode, protocol, flags, &payload),
        };
        if byte(18) % 4 == 0
            && let Some(error) = errors.get(usize::from(byte(19)) % errors.len().max(1))
        {
            frame.clone_from(error);
        }
        if byte(10) % 8 == 0 {
            // Whether a frame is for this host is not for its bytes to say in memory.
            let at = 6 + usize::from(byte(11)) % (frame.len() - 6);
            frame[at] = byte(12);
        }
        if byte(13) % 16 == 0 {
            frame.truncate(usize::from(byte(14)).max(34));
        }
        if byte(15) % 12 == 0 {
            let which = &tables.instances[1 + usize::from(byte(16)) % 8];
            which.flags.set(
                [0, UNREACHABLE, TAKES_RETURNING_CLIENTS, TAKES_FLOWS | TAKES_RETURNING_CLIENTS]
                    [usize::from(byte(17)) % 4],
            );
        }
        if !runs(&frame) {
            continue;
        }
        let reason = compare(&layer4, &mut tables, &frame);
        *met.entry(reason.map_or("none", PacketReason::name)).or_default() += 1;
        let (outcome, sent) = bench::carry(&tables.clone(), &frame);
        if outcome.is_some_and(|outcome| matches!(outcome.verdict(), Verdict::Redirect { .. }))
            && sent.len() > 62
        {
            let router = std::net::Ipv4Addr::new(10, 99, 0, 1);
            errors.push(bench::too_long(&sent, 14, router, 1_280, 28 + usize::from(byte(20))));
        }
        // What an instance would answer.
        if mode.sees_answers() && outcome.is_some_and(|outcome| outcome.reason == PacketReason::L4Forwarded) {
            let (source, destination) = bench::ends(&sent, 14);
            answers.push(bench::frame(destination, source, protocol, ACK, &payload));
        }
    }
    println!("{met:?}");
    for reason in [
        "l4_placed",
        "l4_forwarded",
        "l4_answered",
        "l4_no_flow",
        "l4_denied",
        "l4_instance_down",
        "l4_unstored",
        "l4_table_full",
        "l4_table_full_dropped",
        "l4_error_forwarded",
        "too_long",
        "none",
    ] {
        assert!(met.contains_key(reason), "no packet was {reason}: {met:?}");
    }
}

#[test]
#[ignore = "needs root"]
fn fragments_of_layer_4_flows_leave_both_alike() {
    let mut tables = bench::tables(BUCKETS);
    let layer4 = Layer4::load(&tables).unwrap();
    let mut identification = 0;
    for (protocol, mode) in
        [PROTOCOL_TCP, PROTOCOL_UDP].into_iter().flat_map(|one| MODES.map(|mode| (one, mode)))
    {
        let question = bench::from_client((CLIENT, 2_000), mode, protocol, SYN, &[7; 900]);
        // The first datagram begins the flow, the second finds it.
        for round in 0..2 {
            let (_, sent) = bench::carry(&tables.clone(), &question);
            fragments_agree(&layer4, &mut tables, &question, &mut identification);
            if mode.sees_answers() && round == 1 {
                let (source, destination) = bench::ends(&sent, 14);
                let answer = bench::frame(destination, source, protocol, ACK, &[8; 900]);
                fragments_agree(&layer4, &mut tables, &answer, &mut identification);
            }
        }
    }
}

/// Shows both pieces of a packet to both builds, under names that have not been used: in their order, and for the later one also the name of another packet.
fn fragments_agree(layer4: &Layer4, tables: &mut MemoryTables, packet: &[u8], identification: &mut u16) {
    loop {
        let before = tables.clone();
        let [first, rest] = bench::cut(packet, *identification, 400);
        let [_, early] = bench::cut(packet, *identification + 1, 400);
        *identification += 2;
        // It may be nobody's, or a tick may pass: both are `None`.
        let reason = compare(layer4, tables, &early);
        assert!(reason.is_none_or(|reason| reason == PacketReason::L4FragmentUnknown), "{reason:?}");
        if let [Some(first), Some(rest)] = [first, rest].map(|piece| compare(layer4, tables, &piece)) {
            let is_carried = matches!(rest, PacketReason::L4Forwarded | PacketReason::L4Answered);
            assert!(is_carried, "{first:?} {rest:?}");
            return;
        }
        // A tick has passed meanwhile.
        *tables = before;
    }
}
