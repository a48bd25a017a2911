//! The packet path is written once and compiled twice. Here the loaded kernel programs and the host's build meet the same packets and
//! must agree on every byte, every verdict and every mark.

mod compare;
mod cost;
#[path = "../../../router-common/tests/pictures.rs"]
mod pictures;
mod seeded;
#[allow(dead_code, reason = "the seeds have no body to run here")]
#[path = "../../../fuzz/bodies/seeds.rs"]
mod seeds;
mod wire;

use std::cell::Cell;
use std::rc::Rc;

use compare::{LOOPBACK, addressed_to, compare};
use pictures::bench::case::Case;
use pictures::bench::{self, TcpPacket};
use router_common::abi::flow::{FLAG_DIRECT, FLAG_ERASE_TIMESTAMPS, FLAG_LIVE, FLAG_TIMESTAMPS};
use router_common::abi::reason::PacketReason;
use router_common::path;
use router_common::path::memory::{Frame, StoppedClock};
use router_common::path::parse::parse;
use router_common::path::stray_ending::is_stray;
use router_common::path::syn_options::erase;
use router_common::wire::tcp::{ACK, RST};
use seeded::Seeded;
use support::Datapath;
use support::datapath::{LONGEST_FRAME, Ran, TC_ACT_SHOT, TC_ACT_UNSPEC, runs};

#[test]
#[ignore = "needs root"]
fn every_picture_looks_the_same_in_the_kernel() {
    let datapath = Rc::new(Datapath::load().unwrap());
    let shown = Rc::new(Cell::new(0));
    bench::show_to(Box::new({
        let (datapath, shown) = (Rc::clone(&datapath), Rc::clone(&shown));
        move |table, frame| {
            if runs(frame) {
                compare(&datapath, table, frame);
                shown.set(shown.get() + 1);
            }
        }
    }));
    for (name, picture) in pictures::ALL {
        println!("{name}");
        picture();
    }
    assert!(shown.get() > pictures::ALL.len(), "only {} packets were shown", shown.get());
}

#[test]
#[ignore = "needs root"]
fn thousands_of_random_packets_valid_and_odd_leave_both_alike() {
    let datapath = Datapath::load().unwrap();
    let mut seeded = Seeded(1);
    let mut met = [0u32; PacketReason::COUNT];
    while met.iter().sum::<u32>() < 12_000 {
        for reason in meet(&datapath, &Case::draw(&seeded.bytes())) {
            met[reason.index()] += 1;
        }
    }
    for reason in PacketReason::ALL {
        println!("{:>6}  {}", met[reason.index()], reason.name());
        // Not by frames that are run through: a write to what has been measured does not fail, nothing lies beside the bytes,
        // and endings of our own do not arrive.
        let possible = !matches!(
            reason,
            PacketReason::WriteFailed
                | PacketReason::VlanTagged
                | PacketReason::OtherHost
                | PacketReason::StrayEnding
        );
        assert!(!possible || met[reason.index()] > 0, "no packet was {}", reason.name());
    }
}

/// Shows a case's packets to both builds, one after the other. Returns what became of each.
fn meet(datapath: &Datapath, case: &Case) -> Vec<PacketReason> {
    let table = case.flow.table();
    let frames =
        case.packets.iter().flat_map(|packet| [packet.frame(&case.flow), packet.odd_frame(&case.flow)]);
    let meet = |frame: Vec<u8>| {
        compare(datapath, &table, &frame);
        path::carry(&mut Frame(frame), &table, &StoppedClock(bench::NOW)).reason()
    };
    frames.filter(|frame| runs(frame)).map(meet).collect()
}

#[test]
#[ignore = "needs root"]
fn what_fuzzing_has_found_leaves_both_alike() {
    let datapath = Datapath::load().unwrap();
    let shown = seeds::of("packet_path").into_iter().map(|(name, bytes)| {
        println!("seed {name}");
        meet(&datapath, &Case::draw(&bytes)).len()
    });
    let shown: usize = shown.sum();
    assert!(shown > 100, "only {shown} packets were shown");
}

#[test]
#[ignore = "needs root"]
fn a_packet_cut_after_any_byte_leaves_both_alike() {
    let datapath = Datapath::load().unwrap();
    let edge = bench::INSTANCE_ISN_DELTA;
    let packets = [
        TcpPacket::from_client().payload(b"data"),
        TcpPacket::from_client().timestamps(7, 9).sack(&[(edge, edge), (1, 2)]).payload(b"more"),
        TcpPacket::from_instance()
            .raw_options(&[1, 5, 18, 0, 0, 0, 7, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 0]),
    ];
    for packet in packets {
        let frame = packet.build();
        for len in 34..=frame.len() {
            compare(&datapath, &bench::Bench::direct().flows, &frame[..len]);
            // The same length, said by the packet itself.
            let mut shorter = frame[..len].to_vec();
            if len >= 54 {
                shorter[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
                bench::set_checksums(&mut shorter);
                compare(&datapath, &bench::Bench::direct().flows, &shorter);
            }
        }
    }
}

#[test]
#[ignore = "needs root"]
fn odd_lengths_and_jumbo_frames_keep_their_checksums_in_the_kernel() {
    let datapath = Datapath::load().unwrap();
    let longest = LONGEST_FRAME - bench::HEADERS - 12;
    let table = bench::Bench::direct().flows;
    for len in [0, 1, 2, 3, 535, 536, 1447, 1448, 1449, 2999, longest - 1, longest] {
        let frame = TcpPacket::from_client().timestamps(1, 2).payload(&vec![0xa5; len]).build();
        compare(&datapath, &table, &frame);
        let Ran { frame: after, .. } = datapath.ingress(&addressed_to(LOOPBACK, &frame)).unwrap();
        assert_eq!(bench::checksum_errors(&after), [0, 0]);
    }
}

#[test]
#[ignore = "needs root"]
fn every_kind_and_length_of_option_is_met_alike() {
    let datapath = Datapath::load().unwrap();
    for flags in [FLAG_TIMESTAMPS, FLAG_ERASE_TIMESTAMPS, 0] {
        let table = bench::Bench::with(FLAG_LIVE | FLAG_DIRECT | flags).flows;
        for kind in [0, 1, 2, 3, 4, 5, 8, 30, 255] {
            for length in (0..=20).chain([34, 38, 39, 40, 41, 255]) {
                for offset in 0..4 {
                    let mut options = vec![1; offset];
                    options.extend([kind, length]);
                    options.extend((0..18 - offset as u8).map(|byte| byte | 0x40));
                    compare(&datapath, &table, &TcpPacket::from_client().raw_options(&options).build());
                }
            }
        }
    }
}

#[test]
#[ignore = "needs root"]
fn syns_lose_the_same_options_in_the_kernel() {
    let datapath = Datapath::load().unwrap();
    let mut seeded = Seeded(2);
    let mut changed = 0;
    for round in 0..1_500u32 {
        let case = Case::draw(&seeded.bytes());
        for packet in &case.packets {
            let mut frame = packet.odd_frame(&case.flow);
            if !runs(&frame) {
                continue;
            }
            if let Some(flags) = frame.get_mut(47) {
                *flags = *flags & !0x10 | 0x02;
            }
            let wanted = round % 5;
            let key = parse(&Frame(frame.clone())).map(|segment| segment.key);
            if let (Ok(key), 0..4) = (key, wanted) {
                datapath.erase_syn_options(key, wanted).unwrap();
            }
            let mut host = Frame(frame.clone());
            erase(&mut host, |_| (wanted < 4).then_some(wanted));
            let ran = datapath.egress(&frame).unwrap();
            assert_eq!((ran.action, &ran.frame), (TC_ACT_UNSPEC, &host.0));
            changed += u32::from(host.0 != frame);
        }
    }
    assert!(changed > 100, "only {changed} SYNs lost an option");
}

#[test]
#[ignore = "needs root"]
fn resets_of_our_own_stack_are_stopped_by_both_alike() {
    let datapath = Datapath::load().unwrap();
    let bench = bench::Bench::in_custody();
    let frames: Vec<Vec<u8>> = [TcpPacket::from_client(), TcpPacket::from_instance()]
        .into_iter()
        .flat_map(|packet| [RST, RST | ACK, ACK].map(|flags| packet.clone().flags(flags).build()))
        .map(|mut frame| {
            // It leaves towards the flow's sender.
            frame[26..34].rotate_left(4);
            frame[34..38].rotate_left(2);
            frame
        })
        .collect();
    let mut stopped = 0;
    for reset_is_meant in [0, 1] {
        bench.flow().progress[0].rst_seen.set(reset_is_meant);
        datapath.hold(&bench.flows).unwrap();
        for frame in &frames {
            let stray = is_stray(&Frame(frame.clone()), &bench.flows);
            let ran = datapath.egress(frame).unwrap();
            assert_eq!(ran.action, if stray { TC_ACT_SHOT } else { TC_ACT_UNSPEC });
            assert_eq!(&ran.frame, frame);
            stopped += u32::from(stray);
        }
    }
    assert_eq!(stopped, 4);
    assert_eq!(datapath.packets().unwrap()[PacketReason::StrayEnding.index()], 4);
}
