//! Stories of Layer-4 packets, on the host.

mod bench;
mod echo;
mod errors;
mod fragments;
#[path = "../../../fuzz/bodies/layer4.rs"]
mod layer4;
#[path = "../../../fuzz/bodies/seeds.rs"]
mod seeds;
mod tunnels;

use std::collections::{BTreeMap, HashMap, HashSet};

use bench::case::Case;
use bench::ip::Ip;
use bench::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use router_common::abi::balance::{
    CLIENT_FIN, CLOSED, DENY, ESTABLISHED, Flow, Mode, RESET, RuleKey, SILENT, TAG_LIVE, TAG_STATE,
    TAKES_RETURNING_CLIENTS, UNREACHABLE,
};
use router_common::abi::reason::PacketReason as Reason;
use router_common::path::Verdict;
use router_common::path::balance::memory::MemoryTables;
use router_common::wire::{PROTOCOL_TCP as TCP, PROTOCOL_UDP as UDP};

const PORT: u16 = 40_000;

fn reason(tables: &MemoryTables, frame: &[u8]) -> Reason {
    carry(tables, frame).0.expect("a listener's packet").reason
}

fn stored(tables: &MemoryTables) -> usize {
    tables
        .flows
        .iter()
        .flat_map(|bucket| &bucket.tags)
        .filter(|tag| tag.get() & TAG_STATE == TAG_LIVE)
        .count()
}

/// The state of the only flow.
fn state(tables: &MemoryTables) -> u32 {
    flow(tables).state.get()
}

/// The only flow.
fn flow(tables: &MemoryTables) -> &Flow {
    let mut flows = tables.flows.iter().flat_map(|bucket| bucket.tags.iter().zip(&bucket.flows));
    flows.find(|(tag, _)| tag.get() != 0).expect("a flow is stored").1
}

/// Where the packet goes, as the number of the instance.
fn instance_of(frame: &[u8]) -> u8 {
    ends(frame, 14).1.0.octets()[3] - 10
}

#[test]
fn with_snat_a_connection_goes_to_an_instance_and_its_answers_come_back() {
    let tables = tables(16);
    for protocol in [TCP, UDP] {
        let (outcome, sent) =
            carry(&tables, &from_client((CLIENT, PORT), Mode::Snat, protocol, SYN, b"hello"));
        let outcome = outcome.unwrap();
        assert_eq!(outcome.reason, Reason::L4Placed);
        assert_eq!(outcome.verdict(), Verdict::Redirect { interface: INTERFACE });
        let (source, destination) = ends(&sent, 14);
        assert_eq!(source.0, SOURCE);
        assert!((10_000..20_000).contains(&source.1), "{source:?}");
        assert_eq!(destination, (instance_address(u32::from(instance_of(&sent))), 8080));
        assert_eq!(&sent[..6], &INSTANCE_MAC);
        assert_checksums(&sent, 14);

        let (outcome, back) = carry(&tables, &frame(destination, source, protocol, SYN | ACK, b"welcome"));
        assert_eq!(outcome.unwrap().reason, Reason::L4Answered);
        assert_eq!(outcome.unwrap().verdict(), Verdict::Redirect { interface: 1 });
        assert_eq!(ends(&back, 14), ((VIP, port_of(Mode::Snat)), (CLIENT, PORT)));
        assert_eq!(&back[..6], &CLIENT_MAC, "the neighbour that the client's packets come from");
        assert_checksums(&back, 14);

        let (outcome, again) =
            carry(&tables, &from_client((CLIENT, PORT), Mode::Snat, protocol, ACK, b"more"));
        assert_eq!(outcome.unwrap().reason, Reason::L4Forwarded);
        assert_eq!(ends(&again, 14), (source, destination), "the flow stays");
    }
    assert_eq!(stored(&tables), 2);
}

#[test]
fn transparently_the_instance_sees_the_client_and_the_client_sees_the_vip() {
    let tables = tables(16);
    let (_, sent) = carry(&tables, &from_client((CLIENT, PORT), Mode::Transparent, TCP, SYN, b""));
    let (source, destination) = ends(&sent, 14);
    assert_eq!(source, (CLIENT, PORT));
    assert_checksums(&sent, 14);
    let (outcome, back) = carry(&tables, &frame(destination, source, TCP, SYN | ACK, b""));
    assert_eq!(outcome.unwrap().reason, Reason::L4Answered);
    assert_eq!(ends(&back, 14), ((VIP, port_of(Mode::Transparent)), (CLIENT, PORT)));
    assert_checksums(&back, 14);
}

#[test]
fn with_dsr_l2_only_the_ethernet_addresses_change() {
    let tables = tables(16);
    let before = from_client((CLIENT, PORT), Mode::DsrL2, UDP, 0, b"question");
    let (outcome, after) = carry(&tables, &before);
    assert_eq!(outcome.unwrap().reason, Reason::L4Placed);
    assert_eq!(&after[..6], &INSTANCE_MAC);
    assert_eq!(after[12..], before[12..]);
}

#[test]
fn with_dsr_ipip_the_packet_travels_inside_another_one_unchanged() {
    let tables = tables(16);
    let mut before = from_client((CLIENT, PORT), Mode::DsrIpip, TCP, SYN, b"");
    before[15] = 0xb8;
    before[20] |= 0x40;
    let (outcome, after) = carry(&tables, &before);
    assert_eq!(outcome.unwrap().reason, Reason::L4Placed);
    assert_eq!(after.len(), before.len() + 20);
    assert_eq!(after[34..], before[14..]);
    assert_eq!(&after[12..16], &[0x08, 0x00, 0x45, 0xb8], "type of service as inside");
    assert_eq!(after[20] & 0x40, 0x40, "not to be fragmented, as inside");
    assert_eq!(after[23], 4, "IP in IP");
    assert_eq!(after[26..30], SOURCE.octets());
    let header = etherparse::Ipv4HeaderSlice::from_slice(&after[14..34]).unwrap().to_header();
    assert_eq!(header.calc_header_checksum(), header.header_checksum);
    assert_eq!(usize::from(header.total_len), after.len() - 14);
}

#[test]
fn the_sender_of_a_packet_that_would_be_too_long_is_told_what_fits() {
    let tables = tables(16);
    for (mode, payload, mtu) in
        [(Mode::DsrIpip, 1_460, 1_480), (Mode::Snat, 1_480, 1_500), (Mode::DsrL2, 1_480, 1_500)]
    {
        let frame = from_client((CLIENT, PORT), mode, UDP, 0, &vec![7; payload]);
        let (outcome, after) = carry(&tables, &frame);
        assert_eq!(outcome.unwrap().mtu_to_tell(), Some(mtu), "{mode:?}");
        assert_eq!(after, frame);
        let fits = from_client((CLIENT, PORT), mode, UDP, 0, &vec![7; payload - 8]);
        assert_eq!(carry(&tables, &fits).0.unwrap().mtu_to_tell(), None, "{mode:?}");
    }
}

#[test]
fn a_udp_packet_without_checksum_stays_without() {
    let tables = tables(16);
    let mut frame = from_client((CLIENT, PORT), Mode::Snat, UDP, 0, b"question");
    frame[40..42].fill(0);
    let (_, after) = carry(&tables, &frame);
    assert_eq!(after[40..42], [0, 0]);
}

#[test]
fn what_is_no_listeners_goes_on_unchanged() {
    let tables = tables(16);
    for packet in [
        frame((CLIENT, PORT), (VIP, 9), TCP, SYN, b""),
        frame((instance_address(1), 8080), (SOURCE, 10_001), TCP, ACK, b""),
        frame((CLIENT, PORT), (SOURCE, 22), UDP, 0, b""),
    ] {
        assert_eq!(carry(&tables, &packet), (None, packet));
    }
}

#[test]
fn the_middle_of_an_unknown_connection_is_for_the_stack_to_reset_unless_answers_go_directly() {
    let tables = tables(16);
    let packet = |mode| from_client((CLIENT, PORT), mode, TCP, ACK, b"data");
    assert_eq!(reason(&tables, &packet(Mode::Snat)), Reason::L4NoFlow);
    assert_eq!(reason(&tables, &packet(Mode::Transparent)), Reason::L4NoFlow);
    assert_eq!(reason(&tables, &packet(Mode::DsrIpip)), Reason::L4Placed);
    assert_eq!(reason(&tables, &packet(Mode::DsrIpip)), Reason::L4Forwarded);
}

#[test]
fn a_packet_that_begins_and_ends_a_connection_at_once_begins_none() {
    let tables = tables(16);
    let packet = |mode| from_client((CLIENT, PORT), mode, TCP, SYN | FIN, b"");
    assert_eq!(reason(&tables, &packet(Mode::Snat)), Reason::L4NoFlow, "for the stack to reset");
    assert_eq!(reason(&tables, &packet(Mode::DsrL2)), Reason::L4Unstored, "for the instance to refuse");
    assert_eq!(stored(&tables), 0);
}

#[test]
fn rules_select_by_the_longest_network_and_may_refuse() {
    let mut tables = tables(16);
    let service = &tables.services[service_index(TCP, Mode::DsrL2) as usize];
    service.rules.set(9);
    let rule = |network: [u8; 4], length: u32, value| {
        (RuleKey { set: 9, client: words(network) }, 32 + length, value)
    };
    tables.rules = vec![
        rule([10, 0, 0, 0], 8, DENY),
        rule([10, 77, 0, 0], 16, 1),
        rule([10, 77, 1, 3], 32, DENY | SILENT),
    ];
    let from = |client: [u8; 4]| {
        carry(&tables, &from_client((client.into(), PORT), Mode::DsrL2, TCP, SYN, b"")).0.unwrap()
    };
    assert_eq!(from([10, 77, 1, 2]).reason, Reason::L4Placed);
    assert_eq!(from([10, 9, 1, 2]).verdict(), Verdict::Pass(Reason::L4Denied));
    assert_eq!(from([10, 77, 1, 3]).verdict(), Verdict::Drop(Reason::L4Denied));
    assert_eq!(from([192, 0, 2, 1]).reason, Reason::L4Placed, "no rule names it");
}

#[test]
fn a_client_that_comes_back_in_time_finds_its_instance_whatever_its_port() {
    let mut tables = tables(64);
    remember_clients(&tables, TCP, Mode::Snat, 100);
    let connect = |tables: &MemoryTables, port| {
        instance_of(&carry(tables, &from_client((CLIENT, port), Mode::Snat, TCP, SYN, b"")).1)
    };
    let first = connect(&tables, 1_025);
    assert!((1_026..1_060).all(|port| connect(&tables, port) == first));

    // It drains: the ring does not have it any more, and clients that were there still come.
    let drained = &tables.instances[usize::from(first)];
    drained.flags.set(TAKES_RETURNING_CLIENTS);
    let other = if first == 1 { 2 } else { 1 };
    for cell in tables.rings.iter().flat_map(|chunk| &chunk.0) {
        if cell.get() == u16::from(first) {
            cell.set(other);
        }
    }
    assert_eq!(connect(&tables, 2_000), first);
    tables.ticks += 100;
    assert_eq!(connect(&tables, 2_001), first, "just in time");
    tables.ticks += 101;
    assert_ne!(connect(&tables, 2_002), first, "too late");
}

#[test]
fn without_affinity_connections_of_one_client_spread() {
    let tables = tables(256);
    let instances: HashSet<u8> = (1_025..1_125)
        .map(|port| instance_of(&carry(&tables, &from_client((CLIENT, port), Mode::Snat, TCP, SYN, b"")).1))
        .collect();
    assert_eq!(instances.len(), INSTANCES as usize);
}

#[test]
fn a_stored_flow_never_moves_and_a_new_one_follows_the_ring() {
    let tables = tables(64);
    let packet = |port, flags| from_client((CLIENT, port), Mode::DsrIpip, TCP, flags, b"");
    let target = |frame: &[u8]| frame[30..34].to_vec();
    let before: Vec<_> = (1_025..1_125).map(|port| target(&carry(&tables, &packet(port, SYN)).1)).collect();
    for cell in tables.rings.iter().flat_map(|chunk| &chunk.0) {
        cell.set(3);
    }
    let after: Vec<_> = (1_025..1_125).map(|port| target(&carry(&tables, &packet(port, ACK)).1)).collect();
    assert_eq!(before, after);
    let new = target(&carry(&tables, &packet(2_000, SYN)).1);
    assert_eq!(new, instance_address(3).octets());
}

#[test]
fn a_flood_is_served_without_being_stored_where_that_is_possible() {
    let tables = tables(64);
    tables.settings.new_flow_limit.set(10);
    for port in 1_025..1_035 {
        assert_eq!(
            reason(&tables, &from_client((CLIENT, port), Mode::DsrL2, TCP, SYN, b"")),
            Reason::L4Placed
        );
    }
    assert_eq!(reason(&tables, &from_client((CLIENT, 2_000), Mode::DsrL2, TCP, SYN, b"")), Reason::L4Flood);
    assert_eq!(
        reason(&tables, &from_client((CLIENT, 2_000), Mode::Snat, TCP, SYN, b"")),
        Reason::L4FloodDropped
    );
    assert_eq!(stored(&tables), 10);
    assert_eq!(
        reason(&tables, &from_client((CLIENT, 1_025), Mode::DsrL2, TCP, ACK, b"")),
        Reason::L4Forwarded
    );
    let mut later = tables.clone();
    later.ticks += 15;
    assert_eq!(reason(&later, &from_client((CLIENT, 2_000), Mode::DsrL2, TCP, SYN, b"")), Reason::L4Placed);
}

#[test]
fn with_a_full_table_stored_flows_go_on() {
    let tables = tables(2);
    let syn = |port, mode| from_client((CLIENT, port), mode, UDP, 0, b"x");
    let full = (1_025..2_000).find(|port| reason(&tables, &syn(*port, Mode::DsrL2)) == Reason::L4TableFull);
    assert!(full.is_some());
    // The last free places, wherever they are.
    (2_000..3_000).for_each(|port| drop(carry(&tables, &syn(port, Mode::DsrL2))));
    assert_eq!(stored(&tables), 30);
    assert_eq!(reason(&tables, &syn(3_001, Mode::DsrL2)), Reason::L4TableFull);
    assert_eq!(reason(&tables, &syn(3_001, Mode::Snat)), Reason::L4TableFullDropped);
    assert_eq!(reason(&tables, &syn(1_025, Mode::DsrL2)), Reason::L4Forwarded);
}

#[test]
fn no_two_flows_share_a_source_port_and_when_none_is_free_that_is_said() {
    let tables = tables(64);
    tables.settings.ports.set(40);
    tables.instances.iter().for_each(|instance| instance.flags.set(0));
    for cell in tables.rings.iter().flat_map(|chunk| &chunk.0) {
        cell.set(1);
    }
    let mut sources = HashSet::new();
    let mut refused = 0;
    for port in 1_025..1_225 {
        match carry(&tables, &from_client((CLIENT, port), Mode::Snat, TCP, SYN, b"")) {
            (Some(outcome), sent) if outcome.reason == Reason::L4Placed => {
                assert!(sources.insert(ends(&sent, 14).0), "{port}: another flow has this port");
            }
            (outcome, _) => {
                assert_eq!(outcome.unwrap().reason, Reason::L4NoSourcePort);
                refused += 1;
            }
        }
    }
    assert_eq!(stored(&tables), sources.len());
    assert!(sources.len() > 30 && refused == 200 - sources.len(), "{} ports found", sources.len());
}

#[test]
fn an_instance_that_is_down_gives_its_connections_up_and_datagrams_go_elsewhere() {
    let tables = tables(64);
    let syn = from_client((CLIENT, PORT), Mode::Snat, TCP, SYN, b"");
    let first = instance_of(&carry(&tables, &syn).1);
    let question = from_client((CLIENT, PORT), Mode::Snat, UDP, 0, b"?");
    let asked = instance_of(&carry(&tables, &question).1);
    for number in [u32::from(first), instance_index(UDP, u32::from(asked))] {
        tables.instances[number as usize].flags.set(UNREACHABLE);
        for cell in tables.rings.iter().flat_map(|chunk| &chunk.0) {
            if u32::from(cell.get()) == number {
                cell.set(if number > INSTANCES { (number - 4) % 4 + 5 } else { number % 4 + 1 } as u16);
            }
        }
    }
    assert_eq!(
        reason(&tables, &from_client((CLIENT, PORT), Mode::Snat, TCP, ACK, b"")),
        Reason::L4InstanceDown
    );
    assert_ne!(instance_of(&carry(&tables, &question).1), asked);
    assert_ne!(instance_of(&carry(&tables, &syn).1), first, "a new connection on the same tuple");
}

#[test]
fn nobody_to_serve_is_for_the_stack_to_say() {
    let tables = tables(16);
    without_instances(&tables, TCP);
    let syn = from_client((CLIENT, PORT), Mode::Snat, TCP, SYN, b"");
    assert_eq!(carry(&tables, &syn).0.unwrap().verdict(), Verdict::Pass(Reason::L4Unavailable));
    tables.groups[1].otherwise.set(SILENT);
    assert_eq!(carry(&tables, &syn).0.unwrap().verdict(), Verdict::Drop(Reason::L4Unavailable));
}

#[test]
fn a_connection_is_over_when_both_have_finished_and_its_tuple_may_begin_anew() {
    let tables = tables(16);
    let (_, sent) = carry(&tables, &from_client((CLIENT, PORT), Mode::Snat, TCP, SYN, b""));
    let (source, instance) = ends(&sent, 14);
    carry(&tables, &from_client((CLIENT, PORT), Mode::Snat, TCP, ACK, b""));
    assert_eq!(state(&tables), ESTABLISHED);
    carry(&tables, &frame(instance, source, TCP, FIN | ACK, b""));
    carry(&tables, &from_client((CLIENT, PORT), Mode::Snat, TCP, FIN | ACK, b""));
    assert_eq!(state(&tables) & CLOSED, CLOSED);
    let (_, again) = carry(&tables, &from_client((CLIENT, PORT), Mode::Snat, TCP, SYN, b""));
    assert_eq!(ends(&again, 14), (source, instance));
    assert_eq!(state(&tables), 0);
}

#[test]
fn a_reset_that_does_not_end_the_connection_is_taken_back_by_the_next_packet() {
    let tables = tables(16);
    carry(&tables, &from_client((CLIENT, PORT), Mode::Snat, TCP, SYN, b""));
    carry(&tables, &from_client((CLIENT, PORT), Mode::Snat, TCP, RST, b""));
    assert_eq!(state(&tables) & RESET, RESET);
    assert_eq!(
        reason(&tables, &from_client((CLIENT, PORT), Mode::Snat, TCP, ACK, b"x")),
        Reason::L4Forwarded
    );
    assert_eq!(state(&tables) & RESET, 0);
}

/// One side's segments, with these flags and this sequence number.
type Sender = Box<dyn Fn(u8, u32) -> Vec<u8>>;

#[test]
fn an_ending_with_a_number_that_does_not_fit_is_sent_on_and_changes_nothing() {
    for mode in MODES {
        let tables = tables(16);
        let from_client =
            move |flags, number| numbered(from_client((CLIENT, PORT), mode, TCP, flags, b""), number);
        let (_, sent) = carry(&tables, &from_client(SYN, 5 << 16));
        carry(&tables, &from_client(ACK, 5 << 16));
        let mut senders: Vec<Sender> = vec![Box::new(from_client)];
        if mode.sees_answers() {
            let (source, instance) = ends(&sent, 14);
            senders.push(Box::new(move |flags, number| {
                numbered(frame(instance, source, TCP, flags, b""), number)
            }));
            carry(&tables, &senders[1](SYN | ACK, 9 << 16));
        }
        tables.settings.now.set(NOW + 50);
        let before = (state(&tables), flow(&tables).last_seen.get());
        for (side, next) in senders.iter().zip([5, 9]) {
            for flags in [RST, RST | ACK, FIN | ACK] {
                for piece in [next + 30, next - 5, next + (1 << 15)] {
                    assert_eq!(reason(&tables, &side(flags, piece << 16)), Reason::L4EndingOutOfWindow);
                    assert_eq!((state(&tables), flow(&tables).last_seen.get()), before, "{mode:?}");
                }
            }
        }
        // What fits is believed of either side.
        for (side, next) in senders.iter().zip([5, 9]) {
            assert_ne!(reason(&tables, &side(FIN | ACK, next << 16)), Reason::L4EndingOutOfWindow);
        }
        let finished = if mode.sees_answers() { CLOSED } else { CLIENT_FIN };
        assert_eq!(state(&tables) & CLOSED, finished, "{mode:?}");
        carry(&tables, &senders[0](RST, 5 << 16));
        assert_eq!(state(&tables) & RESET, RESET, "{mode:?}");
    }
}

#[test]
fn the_ending_of_a_long_transfer_is_believed_and_one_from_its_beginning_is_not() {
    let tables = tables(16);
    let client = |flags, number, payload: &[u8]| {
        numbered(from_client((CLIENT, PORT), Mode::DsrL2, TCP, flags, payload), number)
    };
    carry(&tables, &client(SYN, u32::MAX, b""));
    // Past the end of the numbers, and now and then something is lost on its way here.
    let mut next = 0_u32;
    for round in 0..2_000 {
        next = next.wrapping_add(if round % 100 == 0 { 900_000 } else { 0 });
        assert_eq!(reason(&tables, &client(ACK, next, &[7; 1_400])), Reason::L4Forwarded);
        next = next.wrapping_add(1_400);
    }
    assert_eq!(reason(&tables, &client(RST, 0, b"")), Reason::L4EndingOutOfWindow);
    assert_eq!(reason(&tables, &client(RST, next, b"")), Reason::L4Forwarded);
    assert_eq!(state(&tables) & RESET, RESET);
}

#[test]
fn a_fragmented_ending_is_judged_by_its_first_fragment() {
    let tables = tables(16);
    let client = |flags, number, payload: &[u8]| {
        numbered(from_client((CLIENT, PORT), Mode::DsrL2, TCP, flags, payload), number)
    };
    carry(&tables, &client(SYN, 5 << 16, b""));
    let played = |number, identification| {
        cut(&client(FIN | ACK, number, &[7; 64]), identification, 32).map(|piece| reason(&tables, &piece))
    };
    assert_eq!(played(99 << 16, 1), [Reason::L4EndingOutOfWindow, Reason::L4Forwarded]);
    assert_eq!(state(&tables) & CLOSED, 0);
    assert_eq!(played(5 << 16, 2), [Reason::L4Forwarded; 2]);
    assert_eq!(state(&tables) & CLOSED, CLIENT_FIN);
}

proptest! {
    /// Whatever flows there are, and however full the table: what was stored is found where it was, and every answer comes to its client.
    #[test]
    fn every_stored_flow_is_found_again(
        ports in prop::collection::hash_set(1_024u16..60_000, 1..120),
        buckets in 1usize..12,
        mode in prop::sample::select(vec![Mode::Snat, Mode::Transparent, Mode::DsrIpip]),
        protocol in prop::sample::select(vec![TCP, UDP]),
    ) {
        let tables = tables(buckets);
        let mut placed = HashMap::new();
        for port in ports {
            let (outcome, sent) = carry(&tables, &from_client((CLIENT, port), mode, protocol, SYN, b"x"));
            if outcome.unwrap().reason == Reason::L4Placed {
                placed.insert(port, ends(&sent, 14));
            }
        }
        prop_assert_eq!(stored(&tables), placed.len());
        for (port, (source, destination)) in &placed {
            let (outcome, sent) = carry(&tables, &from_client((CLIENT, *port), mode, protocol, ACK, b"y"));
            prop_assert_eq!(outcome.unwrap().reason, Reason::L4Forwarded);
            prop_assert_eq!(ends(&sent, 14), (*source, *destination));
            if mode.sees_answers() {
                let (_, back) = carry(&tables, &frame(*destination, *source, protocol, ACK, b"z"));
                prop_assert_eq!(ends(&back, 14), ((VIP, port_of(mode)), (CLIENT, *port)));
                assert_checksums(&back, 14);
            }
        }
    }

    /// A listener's packet, cut or with any byte changed, is carried or refused, never half rewritten where it goes to the stack.
    #[test]
    fn odd_packets_that_are_passed_on_are_unchanged(
        mode in prop::sample::select(MODES.to_vec()),
        protocol in prop::sample::select(vec![TCP, UDP]),
        cut in 0usize..80,
        changes in prop::collection::vec((0usize..62, any::<u8>()), 0..4),
    ) {
        let tables = tables(4);
        let mut packet = from_client((CLIENT, PORT), mode, protocol, SYN, b"some bytes");
        for (at, byte) in changes {
            if let Some(place) = packet.get_mut(at) {
                *place = byte;
            }
        }
        packet.truncate(cut.max(14));
        let (outcome, after) = carry(&tables, &packet);
        if !matches!(outcome, Some(outcome) if matches!(outcome.verdict(), Verdict::Redirect { .. })) {
            prop_assert_eq!(after, packet);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes in whatever order.
    #[test]
    fn any_story_is_told_rightly(bytes in prop::collection::vec(any::<u8>(), 0..1_500)) {
        layer4::check(&bytes);
    }
}

#[test]
fn what_fuzzing_has_found_stays_found() {
    seeds::replay("layer4", layer4::check);
}

/// Stories that are never told prove nothing.
#[test]
fn random_stories_meet_nearly_everything() {
    let mut met: BTreeMap<&str, u32> = BTreeMap::new();
    let mut random = TestRunner::deterministic();
    let stories = prop::collection::vec(any::<u8>(), 0..3_000);
    for _ in 0..1_500 {
        let case = Case::draw(&stories.new_tree(&mut random).unwrap().current());
        for ip in Ip::BOTH {
            case.play(ip, &mut case.tables(ip), |tables, frame| {
                let (outcome, after) = carry(tables, frame);
                let name = outcome.map_or("none", |outcome| outcome.reason.name());
                *met.entry(name).or_default() += 1;
                (outcome, after)
            });
        }
    }
    println!("{met:?}");
    // Nobody asks for an echo in them.
    let is_met = |name: &&str| name.starts_with("l4_") && !name.starts_with("l4_echo_");
    for reason in Reason::ALL.iter().map(|reason| reason.name()).filter(is_met) {
        assert!(met.contains_key(reason), "nothing was {reason}: {met:?}");
    }
    assert!(!met.contains_key("write_failed"), "nothing has refused a change: {met:?}");
    assert!(
        met.contains_key("too_long") && met.contains_key("too_long_unanswered") && met.contains_key("none")
    );
}
