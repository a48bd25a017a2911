//! Layer-4 packets of every kind: written down, random, and those that fuzzing has found.

use std::collections::BTreeMap;
use std::thread;

use router_common::abi::balance::{
    DENY, Mode, RuleKey, SILENT, TAKES_FLOWS, TAKES_RETURNING_CLIENTS, UNREACHABLE,
};
use router_common::abi::reason::PacketReason;
use router_common::path::Verdict;
use router_common::path::balance::memory::MemoryTables;
use router_common::wire::{PROTOCOL_TCP, PROTOCOL_UDP};
use support::datapath::runs;
use support::layer4::{Layer4, stay_on_this_cpu};

use crate::layer4::bench::case::{Case, MOST_BUCKETS};
use crate::layer4::bench::ip::Ip;
use crate::layer4::bench::{self, ACK, CLIENT, FIN, MODES, RST, SYN};
use crate::layer4::compare;
use crate::seeded::Seeded;
use crate::seeds;

/// A small flow table, so that it is full now and then.
const BUCKETS: usize = 4;

#[test]
#[ignore = "needs root"]
fn layer_4_packets_leave_both_alike() {
    let mut tables = bench::tables(BUCKETS);
    for protocol in [PROTOCOL_TCP, PROTOCOL_UDP] {
        bench::remember_clients(&tables, protocol, Mode::DsrL2, 100);
    }
    let rule = |client: [u8; 4], value| (RuleKey { set: 9, client: bench::words(client) }, 64, value);
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
        if byte(27) % 4 == 0 && protocol == PROTOCOL_TCP {
            frame = bench::numbered(frame, u32::from(byte(28)) << 16);
        }
        if byte(18) % 4 == 0
            && let Some(error) = errors.get(usize::from(byte(19)) % errors.len().max(1))
        {
            frame.clone_from(error);
        }
        if byte(21) % 8 == 0 {
            let vip = if byte(22) % 4 == 0 { bench::IDLE_VIP } else { bench::VIP };
            let source = if byte(23) % 8 == 0 { vip } else { client };
            frame = bench::echo_request(source, vip, 8 + usize::from(byte(24)) * usize::from(byte(25) % 8));
            if byte(26) % 4 == 0 {
                [_, frame] = bench::cut(&frame, 77, 8);
            }
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
        let (outcome, sent) = compare(&layer4, &mut tables, &frame);
        let reason = outcome.map(|outcome| outcome.reason);
        *met.entry(reason.map_or("none", PacketReason::name)).or_default() += 1;
        if outcome.is_some_and(|outcome| matches!(outcome.verdict(), Verdict::Redirect { .. }))
            && sent.len() > 62
        {
            let router = std::net::Ipv4Addr::new(10, 99, 0, 1);
            let mut shown = sent.clone();
            if byte(29) % 4 == 0 {
                // Who has not seen the packet guesses its identification.
                shown[18] ^= 0x80;
            }
            errors.push(bench::too_long(&shown, 14, router, 1_280, 28 + usize::from(byte(20))));
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
        "l4_echo_answered",
        "l4_echo_unavailable",
        "l4_echo_malformed",
        "l4_echo_too_long",
        "l4_ending_out_of_window",
        "l4_tunnel_mtu",
        "l4_tunnel_error_forged",
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
    let [first, rest] = bench::cut(packet, *identification, 400);
    let [_, early] = bench::cut(packet, *identification + 1, 400);
    *identification += 2;
    // It may be nobody's.
    let (outcome, _) = compare(layer4, tables, &early);
    let reason = outcome.map(|outcome| outcome.reason);
    assert!(reason.is_none_or(|reason| reason == PacketReason::L4FragmentUnknown), "{reason:?}");
    for piece in [first, rest] {
        let (outcome, _) = compare(layer4, tables, &piece);
        let reason = outcome.expect("it is a listener's").reason;
        let carried = [PacketReason::L4Placed, PacketReason::L4Forwarded, PacketReason::L4Answered];
        assert!(carried.contains(&reason), "{reason:?}");
    }
}

/// Stories as fuzzing tells them.
#[test]
#[ignore = "needs root"]
fn random_stories_of_layer_4_leave_both_alike() {
    thread::spawn(|| {
        let layer4 = story_teller();
        let mut seeded = Seeded(5);
        let mut met: BTreeMap<&str, u32> = BTreeMap::new();
        while met.values().sum::<u32>() < 8_000 {
            for (reason, count) in tell_story(&layer4, &Case::draw(&seeded.bytes())) {
                *met.entry(reason).or_default() += count;
            }
        }
        println!("{met:?}");
        // Instances are seldom down in these, endings and errors seldom strange, and nobody asks for an echo; above all that happens.
        let is_met = |reason: &&PacketReason| {
            let name = reason.name();
            name.starts_with("l4_")
                && !name.starts_with("l4_echo_")
                && !name.starts_with("l4_tunnel_")
                && !matches!(**reason, PacketReason::L4InstanceDown | PacketReason::L4EndingOutOfWindow)
        };
        for reason in PacketReason::ALL.iter().filter(is_met) {
            assert!(met.contains_key(reason.name()), "nothing was {}: {met:?}", reason.name());
        }
    })
    .join()
    .unwrap();
}

#[test]
#[ignore = "needs root"]
fn what_fuzzing_layer_4_has_found_leaves_both_alike() {
    thread::spawn(|| {
        let layer4 = story_teller();
        let mut shown = 0;
        for (name, bytes) in seeds::of("layer4") {
            println!("seed {name}");
            shown += tell_story(&layer4, &Case::draw(&bytes)).values().sum::<u32>();
        }
        assert!(shown > 500, "only {shown} packets were shown");
    })
    .join()
    .unwrap();
}

/// The program with room for any story. From now on this thread stays on its processor, which counts new flows by itself.
fn story_teller() -> Layer4 {
    stay_on_this_cpu();
    Layer4::load(&bench::tables(MOST_BUCKETS)).unwrap()
}

/// Shows a story's packets to both builds, over both versions of IP. Returns what became of them.
fn tell_story(layer4: &Layer4, case: &Case) -> BTreeMap<&'static str, u32> {
    let mut met = BTreeMap::new();
    for ip in Ip::BOTH {
        case.play(ip, &mut case.tables(ip), |tables, frame| {
            if !runs(frame) {
                return bench::carry(tables, frame);
            }
            let (outcome, after) = compare(layer4, tables, frame);
            let name = outcome.map_or("none", |outcome| outcome.reason.name());
            *met.entry(name).or_default() += 1;
            (outcome, after)
        });
    }
    met
}
