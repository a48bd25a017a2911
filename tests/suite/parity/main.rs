//! The packet path is written once and compiled twice. Here the loaded kernel programs and the host's build meet the same packets and
//! must agree on every byte, every verdict and every mark.

mod compare;
mod cost;
mod layer4;
mod layer4_packets;
#[path = "../../../router-common/tests/pictures/main.rs"]
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
use pictures::bench::error::ErrorCase;
use pictures::bench::ip::Ip;
use pictures::bench::{self, TcpPacket};
use router_common::abi::flow::{FLAG_DIRECT, FLAG_ERASE_TIMESTAMPS, FLAG_LIVE, FLAG_TIMESTAMPS};
use router_common::abi::key::FlowKey;
use router_common::abi::reason::PacketReason;
use router_common::path;
use router_common::path::memory::{Frame, StoppedClock, UnwantedEverywhere};
use router_common::path::parse::parse;
use router_common::path::stray_ending::is_stray;
use router_common::path::syn_options::erase;
use router_common::wire::ipv4::Ipv4;
use router_common::wire::ipv6::Ipv6;
use router_common::wire::tcp::{ACK, RST};
use seeded::Seeded;
use support::Datapath;
use support::datapath::{
    LONGEST_FRAME, Ran, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC, monotonic_now, runs,
};

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
        Ip::BOTH.into_iter().for_each(picture);
    }
    assert!(shown.get() > 2 * pictures::ALL.len(), "only {} packets were shown", shown.get());
}

#[test]
#[ignore = "needs root"]
fn thousands_of_random_packets_valid_and_odd_leave_both_alike() {
    let datapath = Datapath::load().unwrap();
    let mut seeded = Seeded(1);
    let mut met = [0u32; PacketReason::COUNT];
    while met.iter().sum::<u32>() < 24_000 {
        let case = Case::draw(&seeded.bytes());
        for reason in Ip::BOTH.into_iter().flat_map(|ip| meet(&datapath, ip, &case)) {
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
                // Of errors there are others below, and the kernel's budget is full each time.
                | PacketReason::ErrorForwarded
                | PacketReason::ErrorOutOfWindow
                | PacketReason::CustodyError
                | PacketReason::TooLongUnanswered
                | PacketReason::XdpWayLost
        );
        // Nothing is lost in between.
        let possible = possible && *reason != PacketReason::XdpWayLost;
        // What Layer 4 does with packets, and how connections begin without a socket, is other programs'.
        let other_programs = ["l4_", "binding", "bound"];
        let possible = possible && !other_programs.iter().any(|begins| reason.name().starts_with(begins));
        assert!(!possible || met[reason.index()] > 0, "no packet was {}", reason.name());
    }
}

#[test]
#[ignore = "needs root"]
fn thousands_of_random_errors_leave_both_alike() {
    let datapath = Datapath::load().unwrap();
    let mut seeded = Seeded(3);
    let mut met = [0u32; PacketReason::COUNT];
    while met.iter().sum::<u32>() < 12_000 {
        let case = ErrorCase::draw(&seeded.bytes());
        for ip in Ip::BOTH {
            let table = case.flow.table(ip);
            for frame in
                case.errors.iter().map(|error| error.frame(ip, &case.flow)).filter(|frame| runs(frame))
            {
                compare(&datapath, &table, &frame);
                let reason = path::carry(&mut Frame(frame), &table, &StoppedClock(bench::NOW)).reason();
                met[reason.index()] += 1;
            }
        }
    }
    for reason in PacketReason::ALL {
        println!("{:>6}  {}", met[reason.index()], reason.name());
    }
    for reason in [
        PacketReason::ErrorForwarded,
        PacketReason::ErrorOutOfWindow,
        PacketReason::CustodyError,
        PacketReason::NextHopUnresolved,
        PacketReason::StaleSlot,
        PacketReason::NoFlow,
        PacketReason::NotTcp,
        PacketReason::Truncated,
    ] {
        assert!(met[reason.index()] > 20, "{} errors were {}", met[reason.index()], reason.name());
    }
}

/// Shows a case's packets to both builds, one after the other. Returns what became of each.
fn meet(datapath: &Datapath, ip: Ip, case: &Case) -> Vec<PacketReason> {
    let table = case.flow.table(ip);
    let frames = case
        .packets
        .iter()
        .flat_map(|packet| [packet.frame(ip, &case.flow), packet.odd_frame(ip, &case.flow)]);
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
        let case = Case::draw(&bytes);
        Ip::BOTH.map(|ip| meet(&datapath, ip, &case).len()).iter().sum::<usize>()
    });
    let shown: usize = shown.sum();
    assert!(shown > 200, "only {shown} packets were shown");
}

#[test]
#[ignore = "needs root"]
fn what_fuzzing_errors_has_found_leaves_both_alike() {
    let datapath = Datapath::load().unwrap();
    let mut shown = 0;
    for (name, bytes) in seeds::of("icmp_error") {
        println!("seed {name}");
        let case = ErrorCase::draw(&bytes);
        for ip in Ip::BOTH {
            let table = case.flow.table(ip);
            let frames = case.errors.iter().map(|error| error.frame(ip, &case.flow));
            for frame in frames.filter(|frame| runs(frame)) {
                compare(&datapath, &table, &frame);
                shown += 1;
            }
        }
    }
    assert!(shown > 50, "only {shown} errors were shown");
}

#[test]
#[ignore = "needs root"]
fn a_packet_cut_after_any_byte_leaves_both_alike() {
    let datapath = Datapath::load().unwrap();
    for ip in Ip::BOTH {
        cut_after_any_byte(&datapath, ip);
    }
}

fn cut_after_any_byte(datapath: &Datapath, ip: Ip) {
    let edge = bench::INSTANCE_ISN_DELTA;
    let packets = [
        TcpPacket::from_client(ip).payload(b"data"),
        TcpPacket::from_client(ip).timestamps(7, 9).sack(&[(edge, edge), (1, 2)]).payload(b"more"),
        TcpPacket::from_instance(ip)
            .raw_options(&[1, 5, 18, 0, 0, 0, 7, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 0]),
    ];
    for packet in packets {
        let frame = packet.build();
        for len in ip.tcp()..=frame.len() {
            compare(datapath, &bench::Bench::direct(ip).flows, &frame[..len]);
            // The same length, said by the packet itself.
            let mut shorter = frame[..len].to_vec();
            if len >= ip.options() {
                shorter[ip.length_field()].copy_from_slice(&ip.length_to_write(len - 14));
                bench::set_checksums(&mut shorter);
                compare(datapath, &bench::Bench::direct(ip).flows, &shorter);
            }
        }
    }
}

/// Each fragment as the kernel's clock stands, since datagrams are remembered for a short time.
#[test]
#[ignore = "needs root"]
fn fragments_follow_their_first_in_the_kernel() {
    let datapath = Datapath::load().unwrap();
    for ip in Ip::BOTH {
        for packet in [TcpPacket::from_client(ip), TcpPacket::from_instance(ip)] {
            let frame = packet.payload(b"a payload of thirty bytes, say").build();
            let [first, rest] = pictures::fragments(ip, &frame, 9);
            let bench = bench::Bench::direct(ip);
            compare(&datapath, &bench.flows, &first);
            let (_, now) = monotonic_now();
            path::carry(&mut Frame(first), &bench.flows, &StoppedClock(now));
            assert_eq!(bench.flows.datagrams.borrow().len(), 1);
            for len in ip.tcp()..=rest.len() {
                compare(&datapath, &bench.flows, &rest[..len]);
            }
            compare(&datapath, &bench.flows, &rest);
            assert_eq!(datapath.ingress(&addressed_to(LOOPBACK, &rest)).unwrap().action, TC_ACT_REDIRECT);
            let (_, now) = monotonic_now();
            let outcome = path::carry(&mut Frame(rest), &bench.flows, &StoppedClock(now));
            assert_eq!(outcome.reason(), PacketReason::Forwarded);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn odd_lengths_and_jumbo_frames_keep_their_checksums_in_the_kernel() {
    let datapath = Datapath::load().unwrap();
    for ip in Ip::BOTH {
        let longest = LONGEST_FRAME - ip.options() - 12;
        let table = bench::Bench::direct(ip).flows;
        table.next_hops[bench::TO_INSTANCE].mtu.set(9_000);
        for len in [0, 1, 2, 3, 535, 536, 1447, 1448, 1449, 2999, longest - 1, longest] {
            let frame = TcpPacket::from_client(ip).timestamps(1, 2).payload(&vec![0xa5; len]).build();
            compare(&datapath, &table, &frame);
            let Ran { frame: after, .. } = datapath.ingress(&addressed_to(LOOPBACK, &frame)).unwrap();
            assert_eq!(bench::checksum_errors(&after), [0, 0]);
        }
    }
}

/// A card may sum up the whole packet as it arrives. Who reads it next trusts that sum, and complains of the card where it is wrong.
#[test]
#[ignore = "needs root"]
fn the_sum_that_a_card_has_made_stays_right() {
    let datapath = Datapath::load().unwrap();
    for ip in Ip::BOTH {
        let edge = bench::INSTANCE_ISN_DELTA;
        datapath.hold(&bench::Bench::direct(ip).flows).unwrap();
        for packet in [
            TcpPacket::from_client(ip).payload(b"odd"),
            TcpPacket::from_client(ip).timestamps(7, 9).sack(&[(edge, edge), (1, 2)]).payload(&[7; 1000]),
            TcpPacket::from_client(ip).raw_options(&[8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 1, 1]),
            TcpPacket::from_instance(ip).timestamps(1, 2).payload(b"HTTP"),
        ] {
            let frame = addressed_to(LOOPBACK, &packet.build());
            match datapath.ingress_keeps_the_card_s_sum(&frame).unwrap() {
                Some(right) => assert!(right, "{ip:?}: {packet:?}"),
                None => return eprintln!("skipped: this kernel cannot tell"),
            }
        }
    }
}

#[test]
#[ignore = "needs root"]
fn every_kind_and_length_of_option_is_met_alike() {
    let datapath = Datapath::load().unwrap();
    for (ip, flags) in Ip::BOTH
        .into_iter()
        .flat_map(|ip| [FLAG_TIMESTAMPS, FLAG_ERASE_TIMESTAMPS, 0].map(|flags| (ip, flags)))
    {
        let table = bench::Bench::with(ip, FLAG_LIVE | FLAG_DIRECT | flags).flows;
        for kind in [0, 1, 2, 3, 4, 5, 8, 30, 255] {
            for length in (0..=20).chain([34, 38, 39, 40, 41, 255]) {
                for offset in 0..4 {
                    let mut options = vec![1; offset];
                    options.extend([kind, length]);
                    options.extend((0..18 - offset as u8).map(|byte| byte | 0x40));
                    compare(&datapath, &table, &TcpPacket::from_client(ip).raw_options(&options).build());
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
    for round in 0..3_000u32 {
        let case = Case::draw(&seeded.bytes());
        let ip = Ip::BOTH[round as usize % 2];
        for packet in &case.packets {
            let mut frame = packet.odd_frame(ip, &case.flow);
            if !runs(&frame) {
                continue;
            }
            if let Some(flags) = frame.get_mut(ip.tcp() + 13) {
                *flags = *flags & !0x10 | 0x02;
            }
            let wanted = round % 5;
            if let (Some(key), 0..4) = (key_of(&frame), wanted) {
                datapath.erase_syn_options(key, wanted).unwrap();
            }
            let mut host = Frame(frame.clone());
            erase(&mut host, &UnwantedEverywhere((wanted < 4).then_some(wanted)));
            let ran = datapath.egress(&frame).unwrap();
            assert_eq!((ran.action, &ran.frame), (TC_ACT_UNSPEC, &host.0));
            changed += u32::from(host.0 != frame);
        }
    }
    assert!(changed > 150, "only {changed} SYNs lost an option");
}

/// Under which key the packet path looks up a frame.
fn key_of(frame: &[u8]) -> Option<FlowKey> {
    let packet = Frame(frame.to_vec());
    match Ip::of(frame)? {
        Ip::V4 => parse::<Ipv4, _>(&packet).ok().map(|(key, _)| key.into()),
        Ip::V6 => parse::<Ipv6, _>(&packet).ok().map(|(key, _)| key.into()),
    }
}

#[test]
#[ignore = "needs root"]
fn resets_of_our_own_stack_are_stopped_by_both_alike() {
    let datapath = Datapath::load().unwrap();
    for ip in Ip::BOTH {
        resets_are_stopped(&datapath, ip);
    }
    assert_eq!(datapath.packets().unwrap()[PacketReason::StrayEnding.index()], 8);
}

fn resets_are_stopped(datapath: &Datapath, ip: Ip) {
    let bench = bench::Bench::in_custody(ip);
    let frames: Vec<Vec<u8>> = [TcpPacket::from_client(ip), TcpPacket::from_instance(ip)]
        .into_iter()
        // It leaves towards the flow's sender.
        .flat_map(|packet| [RST, RST | ACK, ACK].map(|flags| packet.clone().reversed().flags(flags).build()))
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
}
