//! What holds for every packet and every flow. Whatever fails here or in fuzzing becomes a picture.

mod bench;

use bench::case::{Case, Oddity};
use bench::check::{self, carry, carry_as_the_model_says};
use bench::checksum_errors;
use bench::error::ErrorCase;
use bench::ip::Ip;
use bench::model::{self, Marks};
use proptest::prelude::*;
use router_common::abi::flow::{FLAG_DIRECT, FLAG_IPV6, FLAG_LIVE, FLAG_TIMESTAMPS, Translation};
use router_common::abi::key::Side;
use router_common::abi::reason::PacketReason;
use router_common::path::Verdict;
use router_common::path::memory::{Frame, UnwantedEverywhere};
use router_common::path::syn_options::{ERASE_SACK, ERASE_TIMESTAMPS, erase};
use router_common::wire::tcp::{ACK, SYN};

fn case() -> impl Strategy<Value = Case> {
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..800),
        // Longer cases have more packets, and options that fill their space.
        proptest::collection::vec(any::<u8>(), 800..2400),
    ];
    bytes.prop_map(|bytes| Case::draw(&bytes))
}

fn ip() -> impl Strategy<Value = Ip> {
    prop_oneof![Just(Ip::V4), Just(Ip::V6)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_packets_are_carried_with_exact_numbers_and_checksums_that_hold(ip in ip(), case in case()) {
        let table = case.flow.table(ip);
        for packet in &case.packets {
            let frame = packet.frame(ip, &case.flow);
            prop_assert_eq!(checksum_errors(&frame), [0, 0]);
            let (verdict, after) = carry_as_the_model_says(&table, &frame);
            if matches!(verdict, Verdict::Redirect { .. } | Verdict::Resolve { .. }) {
                prop_assert_eq!(checksum_errors(&after), [0, 0]);
            }
        }
    }

    #[test]
    fn odd_packets_are_carried_right_or_left_alone(ip in ip(), case in case()) {
        let table = case.flow.table(ip);
        for packet in &case.packets {
            carry_as_the_model_says(&table, &packet.odd_frame(ip, &case.flow));
        }
    }

    #[test]
    fn errors_are_carried_right_or_left_alone(ip in ip(), bytes in proptest::collection::vec(any::<u8>(), 0..1600)) {
        let case = ErrorCase::draw(&bytes);
        let table = case.flow.table(ip);
        for error in &case.errors {
            carry_as_the_model_says(&table, &error.frame(ip, &case.flow));
        }
    }

    #[test]
    fn any_bytes_at_all_are_met_calmly(frame in proptest::collection::vec(any::<u8>(), 0..200), ip in ip(), case in case()) {
        carry_as_the_model_says(&case.flow.table(ip), &frame);
    }

    #[test]
    fn the_mirrored_flow_gives_the_original_back(ip in ip(), case in case()) {
        let (table, mirrored) = (case.flow.table(ip), case.flow.mirrored(ip));
        for tables in [&table, &mirrored] {
            for hop in &tables.next_hops {
                hop.mtu.set(0);
            }
            for side in [Side::Client, Side::Instance] {
                let flow = &tables.flows[0];
                let family = if ip == Ip::V6 { FLAG_IPV6 } else { 0 };
                let flags = FLAG_LIVE | FLAG_DIRECT | FLAG_TIMESTAMPS | family;
                flow.translation(side).traits.set(Translation::pack_traits(flags, 7, 7));
                if flow.progress(side).timestamp_delta.get() == 0 {
                    flow.progress(side).timestamp_delta.set(0x8000_0000);
                }
            }
        }
        for packet in &case.packets {
            // A SYN on an ended tuple would be a new connection, and the two flows' marks differ.
            for progress in table.flows[0].progress.iter().chain(&mirrored.flows[0].progress) {
                progress.fin_seen.set(0);
                progress.rst_seen.set(0);
            }
            let original = packet.frame(ip, &case.flow);
            let (there, carried) = carry(&table, &original);
            if there == Verdict::Drop(PacketReason::BadTcpOptions) {
                break;
            }
            let (back, again) = carry(&mirrored, &carried);
            prop_assert!(matches!(back, Verdict::Redirect { .. } | Verdict::Resolve { .. }), "{:?}", back);
            // Ethernet addresses and time to live are those of the last hop, and with the latter goes the IP checksum.
            let mut wanted = original.clone();
            wanted[..12].copy_from_slice(&again[..12]);
            wanted[ip.ttl()] = 64;
            if ip == Ip::V4 {
                wanted[24..26].copy_from_slice(&again[24..26]);
            }
            prop_assert_eq!(checksum_errors(&again), [0, 0]);
            if let Some(at) = timestamp_echo(ip, &original) {
                // An unknown or an unacknowledging echo is written as 0, and stays so.
                if again[at..at + 4] == [0; 4] {
                    let checksum = ip.tcp() + 16..ip.tcp() + 18;
                    wanted[at..at + 4].fill(0);
                    wanted[checksum.clone()].copy_from_slice(&again[checksum]);
                }
            }
            prop_assert_eq!(again, wanted);
        }
    }

    #[test]
    fn marks_only_move_forward_and_never_beyond_what_can_be_true(ip in ip(), case in case()) {
        let table = case.flow.table(ip);
        let flow = &table.flows[0];
        for packet in &case.packets {
            let old = Marks::of(flow);
            let frame = packet.odd_frame(ip, &case.flow);
            carry(&table, &frame);
            check::marks_moved_rightly(flow, &frame, &old);
        }
    }

    #[test]
    fn erased_syn_options_are_nops_and_everything_else_stays(ip in ip(), case in case(), wanted in 0u32..4, as_syn in any::<bool>()) {
        for packet in &case.packets {
            let mut original = packet.frame(ip, &case.flow);
            let (data_offset, flags) = (ip.tcp() + 12, ip.tcp() + 13);
            if as_syn {
                original[flags] = original[flags] & !ACK | SYN;
                bench::set_checksums(&mut original);
            }
            let mut packet = Frame(original.clone());
            erase(&mut packet, &UnwantedEverywhere(Some(wanted)));
            let is_syn = original[flags] & (SYN | ACK) == SYN;
            let start = ip.options();
            let end = ip.tcp() + usize::from(original[data_offset] >> 4) * 4;
            let mut expected = original.clone();
            if is_syn {
                let options = found_before_an_error(&original[start..end]);
                for (bit, kind, length) in [(ERASE_TIMESTAMPS, 8, 8), (ERASE_SACK, 4, 0)] {
                    // Of repeated options the last counts.
                    let found = options.iter().rfind(|(found, _, len)| (*found, *len) == (kind, length));
                    if let Some((_, at, _)) = found.filter(|_| wanted & bit != 0) {
                        expected[start + at - 2..start + at + length].fill(1);
                    }
                }
                bench::set_checksums(&mut expected);
            }
            prop_assert_eq!(packet.0, expected);
        }
    }

    #[test]
    fn a_syn_that_is_odd_stays_as_it_is_or_loses_options_only(ip in ip(), case in case(), wanted in 0u32..4) {
        for packet in &case.packets {
            let original = packet.odd_frame(ip, &case.flow);
            let mut after = Frame(original.clone());
            erase(&mut after, &UnwantedEverywhere(Some(wanted)));
            prop_assert_eq!(after.0.len(), original.len());
            for (at, (old, new)) in original.iter().zip(&after.0).enumerate() {
                let (options, checksum) = (ip.options()..ip.options() + 40, ip.tcp() + 16..ip.tcp() + 18);
                prop_assert!(old == new || *new == 1 && options.contains(&at) || checksum.contains(&at));
            }
            if after.0 != original {
                prop_assert!(matches!(packet.oddity, Oddity::TcpChecksum(_))
                    || checksum_errors(&after.0) == checksum_errors(&original));
            }
        }
    }
}

/// The options up to where their lengths become impossible.
fn found_before_an_error(options: &[u8]) -> Vec<(u8, usize, usize)> {
    (0..=options.len()).rev().find_map(|len| model::walk(&options[..len])).unwrap_or_default()
}

/// Where the echo of the last timestamps option lies in a frame.
fn timestamp_echo(ip: Ip, frame: &[u8]) -> Option<usize> {
    let end = ip.tcp() + usize::from(frame[ip.tcp() + 12] >> 4) * 4;
    let options = model::walk(&frame[ip.options()..end])?;
    let timestamps = options.iter().rfind(|(kind, _, length)| (*kind, *length) == (8, 8));
    timestamps.map(|(_, at, _)| ip.options() + at + 4)
}
