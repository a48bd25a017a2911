//! Options of TCP, and windows.

use router_common::abi::flow::{FLAG_DIRECT, FLAG_ERASE_TIMESTAMPS, FLAG_LIVE};
use router_common::abi::key::Side;
use router_common::abi::reason::PacketReason::*;
use router_common::path::Verdict;

use super::bench::Bench;
use super::bench::{self, ip::Ip};
use super::untouched;

pub fn timestamps_continue_our_sockets_clock_and_echo_the_other_sides(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.flow().translation(Side::Client).clock_offset.set(1_000_000);
    // The bench's clock stands at 5,000 ms, so our clock towards the instance shows 1,005,000, rounded up to be safe.
    let first = bench.carry(bench.by_client().timestamps(77, 42)).parsed();
    assert_eq!(first.timestamps, Some((1_005_001, 0)), "nothing is known yet that could be echoed");
    let second = bench.carry(bench.by_client().timestamps(80, 42)).parsed();
    assert_eq!(second.timestamps, Some((1_005_004, 0)));
    // The instance echoes what it was sent; the client must see its own value.
    bench.flow().translation(Side::Instance).clock_offset.set(500);
    let answer = bench.carry(bench.by_instance().timestamps(9, 1_005_004)).parsed();
    assert_eq!(answer.timestamps, Some((5_501, 80)));
    assert!(answer.checksums_hold);
}

pub fn sack_edges_go_back_to_the_instances_own_numbers(ip: Ip) {
    let bench = Bench::direct(ip);
    let edge = |n: u32| n.wrapping_add(bench::INSTANCE_ISN_DELTA);
    let out = bench.carry(bench.by_client().sack(&[(edge(10), edge(20)), (edge(30), edge(40))]));
    let packet = out.parsed();
    assert_eq!(packet.sack, [(10, 20), (30, 40)]);
    assert!(packet.checksums_hold);
}

pub fn options_in_an_unusual_order_at_an_odd_offset_are_translated_too(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.flow().translation(Side::Client).clock_offset.set(0);
    // One NOP, then timestamps at an odd offset, then the end.
    let options = [1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 0];
    let packet = bench.carry(bench.by_client().raw_options(&options)).parsed();
    assert_eq!(packet.timestamps, Some((5_001, 0)));
    assert!(packet.checksums_hold);
}

pub fn timestamps_that_the_instance_did_not_agree_become_nops(ip: Ip) {
    for options in [&[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9][..], &[8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 1, 1]] {
        let bench = Bench::direct(ip);
        bench.set_traits(Side::Client, FLAG_LIVE | FLAG_DIRECT | FLAG_ERASE_TIMESTAMPS, 0, 0);
        let packet = bench.carry(bench.by_client().raw_options(options)).parsed();
        assert_eq!(packet.options, [1; 12]);
        assert!(packet.checksums_hold);
    }
}

pub fn malformed_options_drop_the_packet_unchanged(ip: Ip) {
    for options in [
        &[8, 0, 0, 0][..],
        &[8, 1, 0, 0],
        &[1, 1, 1, 8],
        &[5, 40, 0, 0],
        &[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 254, 0, 0, 0],
    ] {
        let bench = Bench::direct(ip);
        untouched(&bench.carry(bench.by_client().raw_options(options)), Verdict::Drop(BadTcpOptions));
    }
}

pub fn a_window_is_rescaled_rounded_down_and_never_closed_by_rounding(ip: Ip) {
    let bench = Bench::direct(ip);
    let scales = |sender, ours| bench.set_traits(Side::Client, FLAG_LIVE | FLAG_DIRECT, sender, ours);
    let window = |window| bench.carry(bench.by_client().window(window)).parsed().window;
    scales(7, 10);
    assert_eq!([window(8_000), window(15), window(3), window(0)], [1_000, 1, 1, 0]);
    scales(10, 7);
    assert_eq!([window(1_000), window(60_000)], [8_000, 65_535]);
    scales(0, 0);
    assert_eq!(window(12_345), 12_345);
}
