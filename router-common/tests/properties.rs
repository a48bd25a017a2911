//! What holds for every packet and every flow. Whatever fails here or in fuzzing becomes a picture.

mod bench;

use bench::case::{Case, Oddity};
use bench::check::{self, carry, carry_as_the_model_says};
use bench::checksum_errors;
use bench::model::{self, Marks};
use proptest::prelude::*;
use router_common::abi::flow::{FLAG_DIRECT, FLAG_LIVE, FLAG_TIMESTAMPS, Translation};
use router_common::abi::key::Side;
use router_common::abi::reason::PacketReason;
use router_common::path::Verdict;
use router_common::path::memory::Frame;
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_packets_are_carried_with_exact_numbers_and_checksums_that_hold(case in case()) {
        let table = case.flow.table();
        for packet in &case.packets {
            let frame = packet.frame(&case.flow);
            prop_assert_eq!(checksum_errors(&frame), [0, 0]);
            let (verdict, after) = carry_as_the_model_says(&table, &frame);
            if matches!(verdict, Verdict::Redirect { .. } | Verdict::Resolve { .. }) {
                prop_assert_eq!(checksum_errors(&after), [0, 0]);
            }
        }
    }

    #[test]
    fn odd_packets_are_carried_right_or_left_alone(case in case()) {
        let table = case.flow.table();
        for packet in &case.packets {
            carry_as_the_model_says(&table, &packet.odd_frame(&case.flow));
        }
    }

    #[test]
    fn any_bytes_at_all_are_met_calmly(frame in proptest::collection::vec(any::<u8>(), 0..200), case in case()) {
        carry_as_the_model_says(&case.flow.table(), &frame);
    }

    #[test]
    fn the_mirrored_flow_gives_the_original_back(case in case()) {
        let (table, mirrored) = (case.flow.table(), case.flow.mirrored());
        for tables in [&table, &mirrored] {
            for side in [Side::Client, Side::Instance] {
                let flow = &tables.flows[0];
                flow.translation(side).traits.set(Translation::pack_traits(FLAG_LIVE | FLAG_DIRECT | FLAG_TIMESTAMPS, 7, 7));
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
            let original = packet.frame(&case.flow);
            let (there, carried) = carry(&table, &original);
            if there == Verdict::Drop(PacketReason::BadTcpOptions) {
                break;
            }
            let (back, again) = carry(&mirrored, &carried);
            prop_assert!(matches!(back, Verdict::Redirect { .. } | Verdict::Resolve { .. }), "{:?}", back);
            // Ethernet addresses and time to live are those of the last hop, and with the latter goes the IP checksum.
            let mut wanted = original.clone();
            wanted[..12].copy_from_slice(&again[..12]);
            wanted[22] = 64;
            wanted[24..26].copy_from_slice(&again[24..26]);
            prop_assert_eq!(checksum_errors(&again), [0, 0]);
            if let Some(at) = timestamp_echo(&original) {
                // An unknown or an unacknowledging echo is written as 0, and stays so.
                if again[at..at + 4] == [0; 4] {
                    wanted[at..at + 4].fill(0);
                    wanted[50..52].copy_from_slice(&again[50..52]);
                }
            }
            prop_assert_eq!(again, wanted);
        }
    }

    #[test]
    fn marks_only_move_forward_and_never_beyond_what_can_be_true(case in case()) {
        let table = case.flow.table();
        let flow = &table.flows[0];
        for packet in &case.packets {
            let old = Marks::of(flow);
            let frame = packet.odd_frame(&case.flow);
            carry(&table, &frame);
            check::marks_moved_rightly(flow, &frame, &old);
        }
    }

    #[test]
    fn erased_syn_options_are_nops_and_everything_else_stays(case in case(), wanted in 0u32..4, as_syn in any::<bool>()) {
        for packet in &case.packets {
            let mut original = packet.frame(&case.flow);
            if as_syn {
                original[47] = original[47] & !ACK | SYN;
                bench::set_checksums(&mut original);
            }
            let mut packet = Frame(original.clone());
            erase(&mut packet, |_| Some(wanted));
            let is_syn = original[47] & (SYN | ACK) == SYN;
            let end = 14 + 20 + usize::from(original[46] >> 4) * 4;
            let mut expected = original.clone();
            if is_syn {
                let options = found_before_an_error(&original[54..end]);
                for (bit, kind, length) in [(ERASE_TIMESTAMPS, 8, 8), (ERASE_SACK, 4, 0)] {
                    // Of repeated options the last counts.
                    let found = options.iter().rfind(|(found, _, len)| (*found, *len) == (kind, length));
                    if let Some((_, at, _)) = found.filter(|_| wanted & bit != 0) {
                        expected[54 + at - 2..54 + at + length].fill(1);
                    }
                }
                bench::set_checksums(&mut expected);
            }
            prop_assert_eq!(packet.0, expected);
        }
    }

    #[test]
    fn a_syn_that_is_odd_stays_as_it_is_or_loses_options_only(case in case(), wanted in 0u32..4) {
        for packet in &case.packets {
            let original = packet.odd_frame(&case.flow);
            let mut after = Frame(original.clone());
            erase(&mut after, |_| Some(wanted));
            prop_assert_eq!(after.0.len(), original.len());
            for (at, (old, new)) in original.iter().zip(&after.0).enumerate() {
                prop_assert!(old == new || *new == 1 && (54..94).contains(&at) || (50..52).contains(&at));
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
fn timestamp_echo(frame: &[u8]) -> Option<usize> {
    let end = 34 + usize::from(frame[46] >> 4) * 4;
    let options = model::walk(&frame[54..end])?;
    let timestamps = options.iter().rfind(|(kind, _, length)| (*kind, *length) == (8, 8));
    timestamps.map(|(_, at, _)| 54 + at + 4)
}
