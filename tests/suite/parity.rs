//! The packet path is written once and compiled twice. Here the loaded kernel programs and the host's build meet the same packets and
//! must agree on every byte, every verdict and every mark.

#[path = "../../router-common/tests/pictures.rs"]
mod pictures;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use pictures::bench::case::Case;
use pictures::bench::model::Marks;
use pictures::bench::{self, TcpPacket};
use router_common::abi::flow::{FLAG_DIRECT, FLAG_ERASE_TIMESTAMPS, FLAG_LIVE, FLAG_TIMESTAMPS};
use router_common::abi::key::{FlowKey, Side};
use router_common::abi::reason::PacketReason;
use router_common::path::memory::{Frame, MemoryFlows, StoppedClock};
use router_common::path::parse::parse;
use router_common::path::stray_ending::is_stray;
use router_common::path::syn_options::erase;
use router_common::path::{self, Verdict};
use router_common::wire::tcp::{ACK, RST};
use support::datapath::{
    LONGEST_FRAME, Ran, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC, monotonic_now, runs,
};
use support::{Datapath, Link};

/// Runs one frame through both builds; `table` is what it meets and stays as it is.
fn compare(datapath: &Datapath, table: &MemoryFlows, frame: &[u8]) {
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
    let host = table.clone();
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
    let keys = |keys: Vec<FlowKey>| keys.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(keys(datapath.keys().unwrap()), keys(host.keys.borrow().keys().copied().collect()));
}

/// Frames run through a program come in by the loopback interface.
const LOOPBACK: [u8; 6] = [0; 6];

fn addressed_to(host: [u8; 6], frame: &[u8]) -> Vec<u8> {
    [&host, &frame[6..]].concat()
}

fn action(verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Pass(_) => TC_ACT_UNSPEC,
        Verdict::Drop(_) => TC_ACT_SHOT,
        Verdict::Redirect { .. } | Verdict::Resolve { .. } => TC_ACT_REDIRECT,
    }
}

/// The time at which the kernel has fixed a timestamp delta, if it has.
fn shown_milliseconds(
    table: &MemoryFlows,
    after: &router_common::abi::flow::Flow,
    frame: &[u8],
) -> Option<u32> {
    let side = [Side::Client, Side::Instance].into_iter().find(|side| {
        let (old, new) = (table.flows[0].progress(*side), after.progress(*side));
        old.timestamp_delta.get() != new.timestamp_delta.get()
    })?;
    let options =
        bench::model::walk(&frame[54..34 + usize::from(frame[46] >> 4) * 4]).expect("they were translated");
    let (_, at, _) =
        options.iter().rfind(|(kind, _, length)| (*kind, *length) == (8, 8)).expect("there are timestamps");
    let value = u32::from_be_bytes(frame[54 + at..58 + at].try_into().unwrap());
    let ours = after.progress(side).timestamp_delta.get().wrapping_add(value);
    Some(ours.wrapping_sub(after.translation(side).clock_offset.get()).wrapping_sub(1))
}

/// Bytes that are the same in every run (splitmix64).
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let words = self.next() % 160;
        (0..words).flat_map(|_| self.next().to_ne_bytes()).collect()
    }
}

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
        let case = Case::draw(&seeded.bytes());
        let table = case.flow.table();
        for packet in &case.packets {
            for frame in [packet.frame(&case.flow), packet.odd_frame(&case.flow)] {
                if runs(&frame) {
                    compare(&datapath, &table, &frame);
                    let verdict = path::carry(&mut Frame(frame), &table, &StoppedClock(bench::NOW));
                    met[verdict.reason().index()] += 1;
                }
            }
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

#[test]
#[ignore = "needs root"]
fn translating_a_packet_costs_well_below_a_microsecond() {
    let datapath = Datapath::load().unwrap();
    let table = bench::Bench::mirrored().flows;
    for hop in &table.next_hops {
        // What goes out comes in again.
        hop.ethernet[0].set(0);
        hop.ethernet[1].set(0);
    }
    datapath.hold(&table).unwrap();
    let edge = bench::INSTANCE_ISN_DELTA;
    let rounds = 200_000;
    for (name, packet) in [
        ("no options", TcpPacket::from_client().payload(b"0123456789ab")),
        ("timestamps", TcpPacket::from_client().timestamps(7, 9)),
        ("timestamps and SACK", TcpPacket::from_client().timestamps(7, 9).sack(&[(edge, edge), (1, 2)])),
        (
            "timestamps in an unusual place",
            TcpPacket::from_client().raw_options(&[8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 1, 1]),
        ),
        ("no flow", TcpPacket::from_client().source_port(1)),
    ] {
        // Two flows take turns: each round undoes the one before.
        let mut original = packet.build();
        original[22] = 64;
        original[..6].copy_from_slice(&LOOPBACK);
        bench::set_checksums(&mut original);
        let counted_before = datapath.packets().unwrap();
        let cost = (0..5)
            .map(|_| {
                let ran = datapath.ingress_again_and_again(&original, rounds).unwrap();
                assert_eq!(ran.frame[12..], original[12..], "an even number of rounds gives the packet back");
                ran.duration
            })
            .min()
            .unwrap();
        println!("{:>5} ns  {name}", cost.as_nanos());
        let forwarded = PacketReason::Forwarded.index();
        let carried = datapath.packets().unwrap()[forwarded] - counted_before[forwarded];
        assert_eq!(carried, if name == "no flow" { 0 } else { 5 * u64::from(rounds) });
        // A machine under load may be slow, but not by this much.
        assert!(cost.as_nanos() < 1_000, "{name}: {} ns", cost.as_nanos());
    }
}

/// Sends frames over a cable to the attached program, where they arrive as they do from a network card.
#[test]
#[ignore = "needs root"]
fn frames_from_a_wire_are_met_as_frames_in_memory() {
    let story = || {
        let mut datapath = Datapath::load().unwrap();
        let link = Link::new().unwrap();
        datapath.attach_ingress(Link::FAR).unwrap();
        let table = bench::Bench::direct().flows;
        for hop in &table.next_hops {
            // Back to where they came from.
            hop.interface.set(Link::index(Link::FAR).unwrap());
        }
        datapath.hold(&table).unwrap();
        let far = Link::address(Link::FAR).unwrap();
        let reason = |frame: &[u8]| {
            let before = datapath.packets().unwrap();
            link.send(frame).unwrap();
            let after = datapath.packets().unwrap();
            let counted: Vec<_> = PacketReason::ALL
                .iter()
                .filter(|reason| after[reason.index()] != before[reason.index()])
                .collect();
            assert_eq!(counted.len(), 1, "one packet, one reason: {counted:?}");
            *counted[0]
        };

        // Long ones arrive in pieces of memory, of which the first alone is directly accessible.
        for len in [0, 1, 100, 1_446] {
            let frame = addressed_to(far, &TcpPacket::from_client().payload(&vec![7; len]).build());
            assert_eq!(reason(&frame), PacketReason::Forwarded);
            let (_, expected) = bench::check::carry(&table, &frame);
            assert_eq!(link.receive(Duration::from_secs(2)).unwrap(), expected);
        }

        let frame = addressed_to(far, &TcpPacket::from_client().payload(b"data").build());
        for len in 14..frame.len() {
            assert_eq!(reason(&frame[..len]), PacketReason::Truncated, "cut after {len} bytes");
        }

        // The kernel takes the outer tag off, and what is left looks like a packet of the flow.
        for tags in [&[[0x81, 0x00, 0x00, 0x05]][..], &[[0x88, 0xa8, 0x00, 0x07], [0x81, 0x00, 0x00, 0x05]]] {
            let mut tagged = frame.clone();
            tagged.splice(12..12, tags.concat());
            assert_eq!(reason(&tagged), PacketReason::VlanTagged, "{tags:?}");
        }

        let overheard = addressed_to([2, 0, 0, 0, 0, 0x77], &frame);
        assert_eq!(reason(&overheard), PacketReason::OtherHost);
        assert_eq!(reason(&addressed_to([0xff; 6], &frame)), PacketReason::OtherHost);
        assert!(link.receive(Duration::from_millis(50)).is_err(), "only what was forwarded comes back");
    };
    std::thread::spawn(story).join().unwrap();
}
