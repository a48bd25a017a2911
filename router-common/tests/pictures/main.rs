//! Packets as pictures: what comes in, what happens, what goes out. One sentence names each case, and each is shown in both versions of IP.

#[path = "../bench/mod.rs"]
pub mod bench;
mod endings;
mod errors;
mod fragments;
mod options;

use bench::ip::Ip;
use bench::{Bench, CLIENT_ISN_DELTA, Outcome};
use endings::*;
use errors::*;
pub use fragments::*;
use options::*;
use router_common::abi::flow::FLAG_IPV6;
use router_common::abi::key::Side;
use router_common::abi::reason::PacketReason::*;
use router_common::path::Verdict;
use router_common::wire::tcp::{ACK, FIN};

/// Checks that the packet left byte-identical with this verdict.
fn untouched(outcome: &Outcome, verdict: Verdict) {
    assert_eq!(outcome.verdict, verdict);
    assert_eq!(outcome.before, outcome.after, "a packet that is not carried must not change");
}

fn data_from_the_client_becomes_data_from_our_source_address(ip: Ip) {
    let bench = Bench::direct(ip);
    let out = bench.carry(bench.by_client().seq(5_000).ack(900).window(1_000).payload(b"GET"));
    assert_eq!(out.verdict, Verdict::Redirect { interface: bench::TO_INSTANCE_INTERFACE });
    let packet = out.parsed();
    assert_eq!(packet.source, ip.ends().source);
    assert_eq!(packet.destination, ip.ends().instance);
    assert_eq!(packet.seq, 5_000 + CLIENT_ISN_DELTA);
    assert_eq!(packet.ack, 900u32.wrapping_sub(bench::INSTANCE_ISN_DELTA));
    assert_eq!(packet.payload, b"GET");
    assert_eq!(packet.ethernet_destination, bench::INSTANCE_MAC);
    assert_eq!(packet.ttl, 64);
    assert!(packet.checksums_hold);
}

fn data_from_the_instance_becomes_data_from_the_vip(ip: Ip) {
    let bench = Bench::direct(ip);
    let out = bench.carry(bench.by_instance().seq(1_000).ack(2_000).payload(b"HTTP"));
    assert_eq!(out.verdict, Verdict::Redirect { interface: bench::TO_CLIENT_INTERFACE });
    let packet = out.parsed();
    assert_eq!(packet.source, ip.ends().vip);
    assert_eq!(packet.destination, ip.ends().client);
    assert_eq!(packet.seq, 1_000u32.wrapping_add(bench::INSTANCE_ISN_DELTA));
    assert_eq!(packet.ack, 2_000u32.wrapping_sub(CLIENT_ISN_DELTA));
    assert!(packet.checksums_hold);
}

fn both_forms_of_zero_length_and_odd_payloads_keep_their_checksum(ip: Ip) {
    let bench = Bench::direct(ip);
    for payload in [&b""[..], b"1", b"12", b"123"] {
        assert!(bench.carry(bench.by_client().payload(payload)).parsed().checksums_hold);
    }
}

fn an_unknown_tuple_goes_up_untouched(ip: Ip) {
    let bench = Bench::direct(ip);
    untouched(&bench.carry(bench.by_client().source_port(40_001)), Verdict::Pass(NoFlow));
}

fn an_acknowledgement_of_bytes_in_custody_goes_to_our_socket(ip: Ip) {
    let bench = Bench::in_custody(ip);
    let cut = bench::INSTANCE_ACK_CUT;
    untouched(&bench.carry(bench.by_instance().ack(cut)), Verdict::Pass(CustodyAck));
    assert_eq!(bench.flow().progress(Side::Instance).max_ack.get(), cut, "the keeper reads this");
    let beyond = bench.carry(bench.by_instance().ack(cut + 1));
    assert_eq!(beyond.verdict, Verdict::Redirect { interface: bench::TO_CLIENT_INTERFACE });
}

fn data_and_fin_are_translated_whatever_they_acknowledge(ip: Ip) {
    let bench = Bench::in_custody(ip);
    for packet in [bench.by_instance().payload(b"x"), bench.by_instance().flags(FIN | ACK)] {
        let out = bench.carry(packet.ack(bench::INSTANCE_ACK_CUT - 10));
        assert_eq!(out.verdict, Verdict::Redirect { interface: bench::TO_CLIENT_INTERFACE });
    }
}

fn a_repeated_head_goes_to_our_socket_until_the_instance_has_the_new_one(ip: Ip) {
    let bench = Bench::in_custody(ip);
    let head = || bench.by_client().seq(bench::CLIENT_SEQ_CUT - 20).payload(&[b'h'; 20]);
    untouched(&bench.carry(head()), Verdict::Pass(CustodyRetransmit));
    let straddling = bench.by_client().seq(bench::CLIENT_SEQ_CUT - 20).payload(&[b'h'; 30]);
    untouched(&bench.carry(straddling), Verdict::Drop(StraddlesHead));
    bench.carry(bench.by_instance().ack(bench::INSTANCE_ACK_CUT));
    let late = bench.carry(head());
    assert_eq!(late.verdict, Verdict::Redirect { interface: bench::TO_INSTANCE_INTERFACE });
}

fn an_unresolved_next_hop_is_left_to_the_kernel(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.flows.next_hops[bench::TO_INSTANCE].resolved.set(0);
    let out = bench.carry(bench.by_client());
    let next_hop = bench::TO_INSTANCE as u32;
    assert_eq!(out.verdict, Verdict::Resolve { interface: bench::TO_INSTANCE_INTERFACE, next_hop });
}

fn what_cannot_name_its_flow_goes_up_untouched(ip: Ip) {
    let bench = Bench::direct(ip);
    let frame = bench.by_client().payload(b"data").build();
    let with = |at: usize, value: u8| {
        let mut frame = frame.clone();
        frame[at] = value;
        bench.carry_frame(frame)
    };
    untouched(&with(12, 0x99), Verdict::Pass(NotIp));
    // As reports of memberships are: to a group, with a header between IPv6 and ICMPv6, or with IPv4 options.
    let mut to_a_group = frame.clone();
    to_a_group[0] = 0x33;
    untouched(&bench.carry_frame(to_a_group.clone()), Verdict::Pass(Multicast));
    let at = if ip == Ip::V4 { 14 } else { ip.protocol() };
    to_a_group[at] = if ip == Ip::V4 { 0x46 } else { 0 };
    untouched(&bench.carry_frame(to_a_group), Verdict::Pass(Multicast));
    untouched(&with(ip.protocol(), 17), Verdict::Pass(NotTcp));
    untouched(&with(ip.tcp() + 12, 0x40), Verdict::Pass(BadTcpOptions));
    let [high, low] = [ip.length_field().start, ip.length_field().start + 1];
    untouched(&with(high, 0xff), Verdict::Pass(Truncated));
    untouched(&with(low, 0x10), Verdict::Pass(Truncated));
    untouched(&with(low, 0), Verdict::Pass(Truncated));
    match ip {
        Ip::V4 => {
            untouched(&with(14, 0x46), Verdict::Pass(IpOptions));
            untouched(&with(21, 0x01), Verdict::Pass(Fragment));
        }
        Ip::V6 => {
            untouched(&with(14, 0x40), Verdict::Pass(NotIp));
            untouched(&with(ip.protocol(), 44), Verdict::Pass(Fragment));
            for extension in [0, 43, 51, 60, 135] {
                untouched(&with(ip.protocol(), extension), Verdict::Pass(ExtensionHeader));
            }
        }
    }
    for len in 0..ip.options() + 4 {
        let out = bench.carry_frame(frame[..len].to_vec());
        assert_eq!(out.before, out.after, "cut after {len} bytes");
        assert!(matches!(out.verdict, Verdict::Pass(Truncated)), "cut after {len} bytes: {:?}", out.verdict);
    }
}

fn a_key_leads_only_to_a_flow_of_its_own_family(ip: Ip) {
    let bench = Bench::direct(ip);
    let traits = &bench.flow().translation(Side::Client).traits;
    traits.set(traits.get() ^ FLAG_IPV6);
    untouched(&bench.carry(bench.by_client()), Verdict::Pass(StaleSlot));
}

fn what_a_sender_says_of_its_traffic_stays_as_it_is(ip: Ip) {
    let bench = Bench::direct(ip);
    let mut frame = bench.by_client().build();
    // Type of service; or traffic class and flow label.
    let of_traffic = match ip {
        Ip::V4 => 15..16,
        Ip::V6 => 15..18,
    };
    frame[of_traffic.clone()].fill(0xb8);
    bench::set_checksums(&mut frame);
    let out = bench.carry_frame(frame);
    assert!(out.after[of_traffic].iter().all(|byte| *byte == 0xb8));
    assert!(out.parsed().checksums_hold);
}

fn padding_behind_a_short_datagram_is_not_payload(ip: Ip) {
    let bench = Bench::direct(ip);
    let mut frame = bench.by_client().seq(5_000).build();
    frame.resize(frame.len() + 6, 0);
    bench.carry_frame(frame);
    assert_eq!(bench.flow().progress(Side::Client).max_seq.get(), 5_000);
}

fn a_freed_slot_carries_nothing(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.flow().translation(Side::Client).traits.set(0);
    untouched(&bench.carry(bench.by_client()), Verdict::Pass(StaleSlot));
}

fn a_super_packet_of_more_than_64_kib_is_measured_by_its_own_length(ip: Ip) {
    let bench = Bench::direct(ip);
    let mut frame = bench.by_client().seq(5_000).build();
    // "BIG TCP": the length field is 0.
    frame[ip.length_field()].copy_from_slice(&[0, 0]);
    frame.resize(ip.options() + 70_000, 7);
    let out = bench.carry_merged(frame, 1_400);
    assert!(matches!(out.verdict, Verdict::Redirect { .. }));
    let bytes = bench.flow().progress(Side::Client).bytes.get();
    assert_eq!(bytes, 70_020 + ip.header() as u64);
}

macro_rules! pictures {
    ($($name:ident,)*) => {
        /// Every picture, to be told once more where the kernel programs carry the packets.
        pub const ALL: &[(&str, fn(Ip))] = &[$((stringify!($name), $name),)*];

        mod over_ipv4 {
            $(#[test] fn $name() { super::$name(super::Ip::V4) })*
        }

        mod over_ipv6 {
            $(#[test] fn $name() { super::$name(super::Ip::V6) })*
        }
    };
}

pictures![
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
    a_key_leads_only_to_a_flow_of_its_own_family,
    what_a_sender_says_of_its_traffic_stays_as_it_is,
    padding_behind_a_short_datagram_is_not_payload,
    a_freed_slot_carries_nothing,
    a_super_packet_of_more_than_64_kib_is_measured_by_its_own_length,
    what_the_way_out_is_too_narrow_for_goes_back_as_an_error_to_its_sender,
    a_super_packet_is_too_long_if_one_of_its_parts_is,
    senders_are_told_of_an_mtu_only_so_often,
    an_error_about_our_packet_reaches_who_had_sent_it,
    an_error_about_bytes_that_are_not_on_their_way_is_forged_or_old,
    an_error_about_bytes_in_custody_is_for_our_socket,
    errors_about_others_and_other_messages_are_the_stack_s,
    fragments_follow_the_first_and_are_put_together_to_what_a_whole_segment_becomes,
    a_fragment_that_comes_before_the_first_is_the_stack_s,
    a_datagram_of_no_flow_is_the_stack_s_though_its_name_was_a_flow_s_before,
    a_later_fragment_is_not_believed_of_a_flow_that_has_ended_meanwhile_or_long_after,
    a_first_fragment_without_its_whole_tcp_header_is_the_stack_s,
];
