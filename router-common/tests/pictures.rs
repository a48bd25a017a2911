//! Packets as pictures: what comes in, what happens, what goes out. One sentence names each case.

pub mod bench;

use bench::{Bench, CLIENT_ISN_DELTA, Outcome, TcpPacket};
use router_common::abi::flow::{FLAG_DIRECT, FLAG_ERASE_TIMESTAMPS, FLAG_LIVE, Translation};
use router_common::abi::key::Side;
use router_common::abi::reason::PacketReason::*;
use router_common::path::Verdict;
use router_common::wire::tcp::{ACK, FIN, RST, SYN};

/// Checks that the packet left byte-identical with this verdict.
fn untouched(outcome: &Outcome, verdict: Verdict) {
    assert_eq!(outcome.verdict, verdict);
    assert_eq!(outcome.before, outcome.after, "a packet that is not carried must not change");
}

#[test]
fn data_from_the_client_becomes_data_from_our_source_address() {
    let bench = Bench::direct();
    let out = bench.carry(TcpPacket::from_client().seq(5_000).ack(900).window(1_000).payload(b"GET"));
    assert_eq!(out.verdict, Verdict::Redirect { interface: bench::TO_INSTANCE_INTERFACE });
    let packet = out.parsed();
    assert_eq!(packet.source, "10.77.2.1:20000");
    assert_eq!(packet.destination, "10.77.2.11:80");
    assert_eq!(packet.seq, 5_000 + CLIENT_ISN_DELTA);
    assert_eq!(packet.ack, 900u32.wrapping_sub(bench::INSTANCE_ISN_DELTA));
    assert_eq!(packet.payload, b"GET");
    assert_eq!(packet.ethernet_destination, bench::INSTANCE_MAC);
    assert_eq!(packet.ttl, 64);
    assert!(packet.checksums_hold);
}

#[test]
fn data_from_the_instance_becomes_data_from_the_vip() {
    let bench = Bench::direct();
    let out = bench.carry(TcpPacket::from_instance().seq(1_000).ack(2_000).payload(b"HTTP"));
    assert_eq!(out.verdict, Verdict::Redirect { interface: bench::TO_CLIENT_INTERFACE });
    let packet = out.parsed();
    assert_eq!(packet.source, "10.77.1.10:80");
    assert_eq!(packet.destination, "10.77.1.2:40000");
    assert_eq!(packet.seq, 1_000u32.wrapping_add(bench::INSTANCE_ISN_DELTA));
    assert_eq!(packet.ack, 2_000u32.wrapping_sub(CLIENT_ISN_DELTA));
    assert!(packet.checksums_hold);
}

#[test]
fn both_forms_of_zero_length_and_odd_payloads_keep_their_checksum() {
    let bench = Bench::direct();
    for payload in [&b""[..], b"1", b"12", b"123"] {
        assert!(bench.carry(TcpPacket::from_client().payload(payload)).parsed().checksums_hold);
    }
}

#[test]
fn an_unknown_tuple_goes_up_untouched() {
    let bench = Bench::direct();
    untouched(&bench.carry(TcpPacket::from_client().source_port(40_001)), Verdict::Pass(NoFlow));
}

#[test]
fn timestamps_continue_our_sockets_clock_and_echo_the_other_sides() {
    let bench = Bench::direct();
    bench.flow().translation(Side::Client).clock_offset.set(1_000_000);
    // The bench's clock stands at 5,000 ms, so our clock towards the instance shows 1,005,000, rounded up to be safe.
    let first = bench.carry(TcpPacket::from_client().timestamps(77, 42)).parsed();
    assert_eq!(first.timestamps, Some((1_005_001, 0)), "nothing is known yet that could be echoed");
    let second = bench.carry(TcpPacket::from_client().timestamps(80, 42)).parsed();
    assert_eq!(second.timestamps, Some((1_005_004, 0)));
    // The instance echoes what it was sent; the client must see its own value.
    bench.flow().translation(Side::Instance).clock_offset.set(500);
    let answer = bench.carry(TcpPacket::from_instance().timestamps(9, 1_005_004)).parsed();
    assert_eq!(answer.timestamps, Some((5_501, 80)));
    assert!(answer.checksums_hold);
}

#[test]
fn sack_edges_go_back_to_the_instances_own_numbers() {
    let bench = Bench::direct();
    let edge = |n: u32| n.wrapping_add(bench::INSTANCE_ISN_DELTA);
    let out = bench.carry(TcpPacket::from_client().sack(&[(edge(10), edge(20)), (edge(30), edge(40))]));
    let packet = out.parsed();
    assert_eq!(packet.sack, [(10, 20), (30, 40)]);
    assert!(packet.checksums_hold);
}

#[test]
fn options_in_an_unusual_order_at_an_odd_offset_are_translated_too() {
    let bench = Bench::direct();
    bench.flow().translation(Side::Client).clock_offset.set(0);
    // One NOP, then timestamps at an odd offset, then the end.
    let options = [1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 0];
    let packet = bench.carry(TcpPacket::from_client().raw_options(&options)).parsed();
    assert_eq!(packet.timestamps, Some((5_001, 0)));
    assert!(packet.checksums_hold);
}

#[test]
fn timestamps_that_the_instance_did_not_agree_become_nops() {
    for options in [&[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9][..], &[8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 1, 1]] {
        let bench = Bench::direct();
        let traits = Translation::pack_traits(FLAG_LIVE | FLAG_DIRECT | FLAG_ERASE_TIMESTAMPS, 0, 0);
        bench.flow().translation(Side::Client).traits.set(traits);
        let packet = bench.carry(TcpPacket::from_client().raw_options(options)).parsed();
        assert_eq!(packet.options, [1; 12]);
        assert!(packet.checksums_hold);
    }
}

#[test]
fn malformed_options_drop_the_packet_unchanged() {
    for options in [
        &[8, 0, 0, 0][..],
        &[8, 1, 0, 0],
        &[1, 1, 1, 8],
        &[5, 40, 0, 0],
        &[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 254, 0, 0, 0],
    ] {
        untouched(
            &Bench::direct().carry(TcpPacket::from_client().raw_options(options)),
            Verdict::Drop(BadTcpOptions),
        );
    }
}

#[test]
fn a_window_is_rescaled_rounded_down_and_never_closed_by_rounding() {
    let bench = Bench::direct();
    let scales = |sender, ours| {
        let traits = Translation::pack_traits(FLAG_LIVE | FLAG_DIRECT, sender, ours);
        bench.flow().translation(Side::Client).traits.set(traits);
    };
    let window = |window| bench.carry(TcpPacket::from_client().window(window)).parsed().window;
    scales(7, 10);
    assert_eq!([window(8_000), window(15), window(3), window(0)], [1_000, 1, 1, 0]);
    scales(10, 7);
    assert_eq!([window(1_000), window(60_000)], [8_000, 65_535]);
    scales(0, 0);
    assert_eq!(window(12_345), 12_345);
}

#[test]
fn an_acknowledgement_of_bytes_in_custody_goes_to_our_socket() {
    let bench = Bench::in_custody();
    let cut = bench::INSTANCE_ACK_CUT;
    untouched(&bench.carry(TcpPacket::from_instance().ack(cut)), Verdict::Pass(CustodyAck));
    assert_eq!(bench.flow().progress(Side::Instance).max_ack.get(), cut, "the keeper reads this");
    let beyond = bench.carry(TcpPacket::from_instance().ack(cut + 1));
    assert_eq!(beyond.verdict, Verdict::Redirect { interface: bench::TO_CLIENT_INTERFACE });
}

#[test]
fn data_and_fin_are_translated_whatever_they_acknowledge() {
    let bench = Bench::in_custody();
    for packet in [TcpPacket::from_instance().payload(b"x"), TcpPacket::from_instance().flags(FIN | ACK)] {
        let out = bench.carry(packet.ack(bench::INSTANCE_ACK_CUT - 10));
        assert_eq!(out.verdict, Verdict::Redirect { interface: bench::TO_CLIENT_INTERFACE });
    }
}

#[test]
fn a_repeated_head_goes_to_our_socket_until_the_instance_has_the_new_one() {
    let bench = Bench::in_custody();
    let head = || TcpPacket::from_client().seq(bench::CLIENT_SEQ_CUT - 20).payload(&[b'h'; 20]);
    untouched(&bench.carry(head()), Verdict::Pass(CustodyRetransmit));
    let straddling = TcpPacket::from_client().seq(bench::CLIENT_SEQ_CUT - 20).payload(&[b'h'; 30]);
    untouched(&bench.carry(straddling), Verdict::Drop(StraddlesHead));
    bench.carry(TcpPacket::from_instance().ack(bench::INSTANCE_ACK_CUT));
    let late = bench.carry(head());
    assert_eq!(late.verdict, Verdict::Redirect { interface: bench::TO_INSTANCE_INTERFACE });
}

#[test]
fn an_unresolved_next_hop_is_left_to_the_kernel() {
    let bench = Bench::direct();
    bench.flows.next_hops[bench::TO_INSTANCE].resolved.set(0);
    let out = bench.carry(TcpPacket::from_client());
    let address = u32::from_ne_bytes([10, 77, 2, 11]);
    assert_eq!(out.verdict, Verdict::Resolve { interface: bench::TO_INSTANCE_INTERFACE, address });
}

#[test]
fn only_a_reset_that_the_receiver_would_believe_ends_the_flow() {
    let bench = Bench::direct();
    let progress = bench.flow().progress(Side::Client);
    bench.carry(TcpPacket::from_client().seq(5_000).payload(&[0; 100]));
    // In the window, but not exact: the receiver challenges it (RFC 5961).
    let blind = bench.carry(TcpPacket::from_client().seq(5_200).flags(RST));
    assert!(matches!(blind.verdict, Verdict::Redirect { .. }));
    assert_eq!(progress.rst_seen.get(), 0);
    bench.carry(TcpPacket::from_client().seq(5_100).flags(RST));
    assert_eq!(progress.rst_seen.get(), 1);
}

#[test]
fn a_fin_far_outside_the_window_does_not_count() {
    let bench = Bench::direct();
    bench.carry(TcpPacket::from_client().seq(5_000 + (1 << 28)).flags(FIN | ACK));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 0);
    bench.carry(TcpPacket::from_client().seq(5_000).flags(FIN | ACK));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 1);
    assert_eq!(bench.flow().progress(Side::Client).fin_end.get(), 5_001);
}

#[test]
fn a_fin_behind_which_data_follows_was_forged() {
    let bench = Bench::direct();
    bench.carry(TcpPacket::from_client().seq(5_000).flags(FIN | ACK));
    bench.carry(TcpPacket::from_client().seq(5_000).payload(&[0; 100]));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 0);
}

#[test]
fn data_behind_a_fin_that_was_acknowledged_is_forged_itself() {
    let bench = Bench::direct();
    bench.carry(TcpPacket::from_client().seq(5_000).flags(FIN | ACK));
    bench.flow().progress(Side::Instance).max_ack.set(5_001u32.wrapping_add(CLIENT_ISN_DELTA));
    bench.carry(TcpPacket::from_client().seq(5_001).payload(&[0; 100]));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 1);
    assert_eq!(bench.flow().progress(Side::Client).fin_end.get(), 5_001);
}

#[test]
fn a_forged_acknowledgement_of_what_was_never_sent_does_not_count() {
    let bench = Bench::in_custody();
    bench.carry(TcpPacket::from_instance().ack(bench::INSTANCE_ACK_CUT.wrapping_add(1 << 30)));
    assert_eq!(bench.flow().progress(Side::Instance).max_ack.get(), bench::INSTANCE_ACK_CUT - 200);
}

#[test]
fn what_our_closed_socket_once_answered_for_makes_no_acknowledgement_true() {
    let bench = Bench::direct();
    // After 3 GiB from the instance, the cut lies so far back that it seems to lie ahead.
    let sent = 3 << 30;
    bench.flow().progress(Side::Instance).max_seq.set(800 + sent);
    let client = bench.flow().progress(Side::Client);
    let acknowledged = client.max_ack.get().wrapping_add(sent);
    client.max_ack.set(acknowledged);
    bench.carry(TcpPacket::from_client().ack(acknowledged.wrapping_add(1 << 29)));
    assert_eq!(client.max_ack.get(), acknowledged);
}

#[test]
fn a_window_that_opens_without_a_new_acknowledgement_is_believed() {
    let bench = Bench::direct();
    let traits = Translation::pack_traits(FLAG_LIVE | FLAG_DIRECT, 10, 10);
    bench.flow().translation(Side::Client).traits.set(traits);
    let acknowledged = bench.flow().progress(Side::Client).max_ack.get();
    bench.carry(TcpPacket::from_client().ack(acknowledged).window(8_192));
    // 8 MiB that fill it, and the end, before anything of it is acknowledged.
    let end = 800 + (8 << 20) - 1;
    bench.carry(TcpPacket::from_instance().seq(end).flags(FIN | ACK));
    assert_eq!(bench.flow().progress(Side::Instance).fin_seen.get(), 1);
}

#[test]
fn a_syn_on_a_live_tuple_is_the_instances_to_challenge_and_on_a_finished_one_a_new_connection() {
    let bench = Bench::direct();
    let syn = || TcpPacket::from_client().seq(77).flags(SYN).ack(0);
    assert!(matches!(bench.carry(syn()).verdict, Verdict::Redirect { .. }));
    for side in [Side::Client, Side::Instance] {
        bench.flow().progress(side).fin_seen.set(1);
    }
    untouched(&bench.carry(syn()), Verdict::Pass(TupleReused));
    untouched(&bench.carry(syn()), Verdict::Pass(NoFlow));
}

#[test]
fn what_cannot_name_its_flow_goes_up_untouched() {
    let bench = Bench::direct();
    let frame = TcpPacket::from_client().payload(b"data").build();
    let with = |at: usize, value: u8| {
        let mut frame = frame.clone();
        frame[at] = value;
        frame
    };
    untouched(&bench.carry_frame(with(12, 0x86)), Verdict::Pass(NotIpv4));
    untouched(&bench.carry_frame(with(14, 0x46)), Verdict::Pass(IpOptions));
    untouched(&bench.carry_frame(with(23, 17)), Verdict::Pass(NotTcp));
    untouched(&bench.carry_frame(with(20, 0x20)), Verdict::Pass(Fragment));
    untouched(&bench.carry_frame(with(21, 0x01)), Verdict::Pass(Fragment));
    untouched(&bench.carry_frame(with(46, 0x40)), Verdict::Pass(BadTcpOptions));
    untouched(&bench.carry_frame(with(16, 0xff)), Verdict::Pass(Truncated));
    untouched(&bench.carry_frame(with(17, 0x20)), Verdict::Pass(Truncated));
    for len in 0..bench::HEADERS + 4 {
        let out = bench.carry_frame(frame[..len].to_vec());
        assert_eq!(out.before, out.after, "cut after {len} bytes");
        assert!(matches!(out.verdict, Verdict::Pass(Truncated)), "cut after {len} bytes: {:?}", out.verdict);
    }
}

#[test]
fn padding_behind_a_short_datagram_is_not_payload() {
    let bench = Bench::direct();
    let mut frame = TcpPacket::from_client().seq(5_000).build();
    frame.resize(60, 0);
    bench.carry_frame(frame);
    assert_eq!(bench.flow().progress(Side::Client).max_seq.get(), 5_000);
}

#[test]
fn a_freed_slot_carries_nothing() {
    let bench = Bench::direct();
    bench.flow().translation(Side::Client).traits.set(0);
    untouched(&bench.carry(TcpPacket::from_client()), Verdict::Pass(StaleSlot));
}

#[test]
fn a_super_packet_of_more_than_64_kib_is_measured_by_its_own_length() {
    let bench = Bench::direct();
    let mut frame = TcpPacket::from_client().seq(5_000).build();
    // "BIG TCP": the length field is 0.
    frame[16..18].copy_from_slice(&[0, 0]);
    frame.resize(bench::HEADERS + 70_000, 7);
    let out = bench.carry_frame(frame);
    assert!(matches!(out.verdict, Verdict::Redirect { .. }));
    assert_eq!(bench.flow().progress(Side::Client).bytes.get(), 70_040);
}

macro_rules! pictures {
    ($($name:ident,)*) => { &[$((stringify!($name), $name),)*] };
}

/// Every picture, to be told once more where the kernel programs carry the packets.
pub const ALL: &[(&str, fn())] = pictures![
    data_from_the_client_becomes_data_from_our_source_address,
    data_from_the_instance_becomes_data_from_the_vip,
    both_forms_of_zero_length_and_odd_payloads_keep_their_checksum,
    an_unknown_tuple_goes_up_untouched,
    timestamps_continue_our_sockets_clock_and_echo_the_other_sides,
    sack_edges_go_back_to_the_instances_own_numbers,
    options_in_an_unusual_order_at_an_odd_offset_are_translated_too,
    timestamps_that_the_instance_did_not_agree_become_nops,
    malformed_options_drop_the_packet_unchanged,
    a_window_is_rescaled_rounded_down_and_never_closed_by_rounding,
    an_acknowledgement_of_bytes_in_custody_goes_to_our_socket,
    data_and_fin_are_translated_whatever_they_acknowledge,
    a_repeated_head_goes_to_our_socket_until_the_instance_has_the_new_one,
    an_unresolved_next_hop_is_left_to_the_kernel,
    only_a_reset_that_the_receiver_would_believe_ends_the_flow,
    a_fin_far_outside_the_window_does_not_count,
    a_fin_behind_which_data_follows_was_forged,
    data_behind_a_fin_that_was_acknowledged_is_forged_itself,
    a_forged_acknowledgement_of_what_was_never_sent_does_not_count,
    what_our_closed_socket_once_answered_for_makes_no_acknowledgement_true,
    a_window_that_opens_without_a_new_acknowledgement_is_believed,
    a_syn_on_a_live_tuple_is_the_instances_to_challenge_and_on_a_finished_one_a_new_connection,
    what_cannot_name_its_flow_goes_up_untouched,
    padding_behind_a_short_datagram_is_not_payload,
    a_freed_slot_carries_nothing,
    a_super_packet_of_more_than_64_kib_is_measured_by_its_own_length,
];

#[test]
fn no_picture_is_missing_from_the_list() {
    let tests = include_str!("pictures.rs").lines().filter(|line| *line == "#[test]").count();
    assert_eq!(ALL.len() + 1, tests);
}
