//! Packets as pictures: what comes in, what happens, what goes out. One sentence names each case, and each is shown in both versions of IP.

pub mod bench;

use bench::ip::Ip;
use bench::{Bench, CLIENT_ISN_DELTA, Outcome};
use router_common::abi::flow::{FLAG_DIRECT, FLAG_ERASE_TIMESTAMPS, FLAG_IPV6, FLAG_LIVE};
use router_common::abi::key::Side;
use router_common::abi::reason::PacketReason::*;
use router_common::path::Verdict;
use router_common::path::answer_budget::BURST;
use router_common::path::fragment::PATIENCE;
use router_common::path::memory::Frame;
use router_common::wire::tcp::{ACK, FIN, RST, SYN};

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

fn timestamps_continue_our_sockets_clock_and_echo_the_other_sides(ip: Ip) {
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

fn sack_edges_go_back_to_the_instances_own_numbers(ip: Ip) {
    let bench = Bench::direct(ip);
    let edge = |n: u32| n.wrapping_add(bench::INSTANCE_ISN_DELTA);
    let out = bench.carry(bench.by_client().sack(&[(edge(10), edge(20)), (edge(30), edge(40))]));
    let packet = out.parsed();
    assert_eq!(packet.sack, [(10, 20), (30, 40)]);
    assert!(packet.checksums_hold);
}

fn options_in_an_unusual_order_at_an_odd_offset_are_translated_too(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.flow().translation(Side::Client).clock_offset.set(0);
    // One NOP, then timestamps at an odd offset, then the end.
    let options = [1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 0];
    let packet = bench.carry(bench.by_client().raw_options(&options)).parsed();
    assert_eq!(packet.timestamps, Some((5_001, 0)));
    assert!(packet.checksums_hold);
}

fn timestamps_that_the_instance_did_not_agree_become_nops(ip: Ip) {
    for options in [&[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9][..], &[8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 1, 1]] {
        let bench = Bench::direct(ip);
        bench.set_traits(Side::Client, FLAG_LIVE | FLAG_DIRECT | FLAG_ERASE_TIMESTAMPS, 0, 0);
        let packet = bench.carry(bench.by_client().raw_options(options)).parsed();
        assert_eq!(packet.options, [1; 12]);
        assert!(packet.checksums_hold);
    }
}

fn malformed_options_drop_the_packet_unchanged(ip: Ip) {
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

fn a_window_is_rescaled_rounded_down_and_never_closed_by_rounding(ip: Ip) {
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

fn only_a_reset_that_the_receiver_would_believe_ends_the_flow(ip: Ip) {
    let bench = Bench::direct(ip);
    let progress = bench.flow().progress(Side::Client);
    bench.carry(bench.by_client().seq(5_000).payload(&[0; 100]));
    // In the window, but not exact: the receiver challenges it (RFC 5961).
    let blind = bench.carry(bench.by_client().seq(5_200).flags(RST));
    assert!(matches!(blind.verdict, Verdict::Redirect { .. }));
    assert_eq!(progress.rst_seen.get(), 0);
    bench.carry(bench.by_client().seq(5_100).flags(RST));
    assert_eq!(progress.rst_seen.get(), 1);
}

fn a_fin_far_outside_the_window_does_not_count(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.carry(bench.by_client().seq(5_000 + (1 << 28)).flags(FIN | ACK));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 0);
    bench.carry(bench.by_client().seq(5_000).flags(FIN | ACK));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 1);
    assert_eq!(bench.flow().progress(Side::Client).fin_end.get(), 5_001);
}

fn a_fin_behind_which_data_follows_was_forged(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.carry(bench.by_client().seq(5_000).flags(FIN | ACK));
    bench.carry(bench.by_client().seq(5_000).payload(&[0; 100]));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 0);
}

fn data_behind_a_fin_that_was_acknowledged_is_forged_itself(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.carry(bench.by_client().seq(5_000).flags(FIN | ACK));
    bench.flow().progress(Side::Instance).max_ack.set(5_001u32.wrapping_add(CLIENT_ISN_DELTA));
    bench.carry(bench.by_client().seq(5_001).payload(&[0; 100]));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 1);
    assert_eq!(bench.flow().progress(Side::Client).fin_end.get(), 5_001);
}

fn a_forged_acknowledgement_of_what_was_never_sent_does_not_count(ip: Ip) {
    let bench = Bench::in_custody(ip);
    bench.carry(bench.by_instance().ack(bench::INSTANCE_ACK_CUT.wrapping_add(1 << 30)));
    assert_eq!(bench.flow().progress(Side::Instance).max_ack.get(), bench::INSTANCE_ACK_CUT - 200);
}

fn what_our_closed_socket_once_answered_for_makes_no_acknowledgement_true(ip: Ip) {
    let bench = Bench::direct(ip);
    // After 3 GiB from the instance, the cut lies so far back that it seems to lie ahead.
    let sent = 3 << 30;
    bench.flow().progress(Side::Instance).max_seq.set(800 + sent);
    let client = bench.flow().progress(Side::Client);
    let acknowledged = client.max_ack.get().wrapping_add(sent);
    client.max_ack.set(acknowledged);
    bench.carry(bench.by_client().ack(acknowledged.wrapping_add(1 << 29)));
    assert_eq!(client.max_ack.get(), acknowledged);
}

fn a_window_that_opens_without_a_new_acknowledgement_is_believed(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.set_traits(Side::Client, FLAG_LIVE | FLAG_DIRECT, 10, 10);
    let acknowledged = bench.flow().progress(Side::Client).max_ack.get();
    bench.carry(bench.by_client().ack(acknowledged).window(8_192));
    // 8 MiB that fill it, and the end, before anything of it is acknowledged.
    let end = 800 + (8 << 20) - 1;
    bench.carry(bench.by_instance().seq(end).flags(FIN | ACK));
    assert_eq!(bench.flow().progress(Side::Instance).fin_seen.get(), 1);
}

fn a_syn_on_a_live_tuple_is_the_instances_to_challenge_and_on_a_finished_one_a_new_connection(ip: Ip) {
    let bench = Bench::direct(ip);
    let syn = || bench.by_client().seq(77).flags(SYN).ack(0);
    assert!(matches!(bench.carry(syn()).verdict, Verdict::Redirect { .. }));
    for side in [Side::Client, Side::Instance] {
        bench.flow().progress(side).fin_seen.set(1);
    }
    untouched(&bench.carry(syn()), Verdict::Pass(TupleReused));
    untouched(&bench.carry(syn()), Verdict::Pass(NoFlow));
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

fn what_the_way_out_is_too_narrow_for_goes_back_as_an_error_to_its_sender(ip: Ip) {
    let bench = Bench::direct(ip);
    let fits = bench::MTU as usize - ip.header() - 20;
    let carried = bench.carry(bench.by_client().payload(&vec![7; fits]));
    assert!(matches!(carried.verdict, Verdict::Redirect { .. }));
    bench.flows.next_hops[bench::TO_INSTANCE].mtu.set(1_280);
    let out = bench.carry(bench.by_client().seq(7_000).payload(&vec![7; fits]));
    let interface = Frame::INTERFACE;
    assert_eq!(out.verdict, Verdict::Report { interface, reason: TooLong });
    let error = out.error();
    assert_eq!((error.source, error.destination), (ip.ends().vip.ip(), ip.ends().client.ip()));
    assert_eq!(error.mtu, Some(1_280));
    assert_eq!(error.original, out.before[14..ip.options()], "its sender knows it by its headers");
    assert_eq!(out.after[..6], out.before[6..12]);
    let back = bench.carry(bench.by_instance().payload(&vec![7; fits]));
    assert!(matches!(back.verdict, Verdict::Redirect { .. }), "the other way out is as wide as before");
}

fn a_super_packet_is_too_long_if_one_of_its_parts_is(ip: Ip) {
    let bench = Bench::direct(ip);
    let frame = || bench.by_client().timestamps(1, 2).payload(&[7; 20_000]).build();
    let fits = bench::MTU - ip.header() as u32 - 32;
    assert!(matches!(bench.carry_merged(frame(), fits).verdict, Verdict::Redirect { .. }));
    let out = bench.carry_merged(frame(), fits + 1);
    assert!(matches!(out.verdict, Verdict::Report { reason: TooLong, .. }));
    assert_eq!(out.error().mtu, Some(bench::MTU));
}

fn senders_are_told_of_an_mtu_only_so_often(ip: Ip) {
    let bench = Bench::direct(ip);
    let long = || bench.by_client().payload(&[7; 2_000]);
    for _ in 0..BURST {
        assert_eq!(bench.carry(long()).verdict.reason(), TooLong);
    }
    untouched(&bench.carry(long()), Verdict::Drop(TooLongUnanswered));
}

fn an_error_about_our_packet_reaches_who_had_sent_it(ip: Ip) {
    let bench = Bench::direct(ip);
    let router = ip.router();
    // The client's next acknowledgement: bytes of the instance from there on are on their way.
    let seq = bench.flow().progress(Side::Client).max_ack.get();
    let lost = bench.by_client().reversed().seq(seq).ack(5_000).build();
    for beginning in [8, 20] {
        let original = &lost[14..ip.tcp() + beginning];
        let out = bench.carry_frame(ip.too_big(original, router, ip.ends().vip.ip(), 1_400));
        let interface = bench::TO_INSTANCE_INTERFACE;
        assert_eq!(out.verdict, Verdict::Report { interface, reason: ErrorForwarded });
        let error = out.error();
        assert_eq!((error.source, error.destination), (ip.ends().source.ip(), ip.ends().instance.ip()));
        assert_eq!((error.mtu, error.checksums_hold), (Some(1_400), true));
        let mut wanted = bench.by_instance().seq(seq.wrapping_sub(bench::INSTANCE_ISN_DELTA));
        wanted = wanted.ack(5_000 + CLIENT_ISN_DELTA);
        assert_eq!(error.original, wanted.build()[14..ip.tcp() + beginning], "as the instance had sent it");
    }
}

fn an_error_about_bytes_that_are_not_on_their_way_is_forged_or_old(ip: Ip) {
    let bench = Bench::direct(ip);
    let acknowledged = bench.flow().progress(Side::Instance).max_ack.get();
    let sent = bench.flow().progress(Side::Client).max_seq.get().wrapping_add(CLIENT_ISN_DELTA);
    let about = |seq: u32| {
        let lost = bench.by_instance().reversed().seq(seq).build();
        bench.carry_frame(ip.too_big(&lost[14..ip.options()], ip.router(), ip.ends().source.ip(), 1_400))
    };
    for seq in [acknowledged, sent] {
        assert_eq!(about(seq).verdict.reason(), ErrorForwarded);
    }
    for seq in [acknowledged.wrapping_sub(1), sent + 1, sent ^ 0x8000_0000] {
        untouched(&about(seq), Verdict::Drop(ErrorOutOfWindow));
    }
}

fn an_error_about_bytes_in_custody_is_for_our_socket(ip: Ip) {
    let bench = Bench::in_custody(ip);
    let about = |seq: u32| {
        let lost = bench.by_instance().reversed().seq(seq).build();
        bench.carry_frame(ip.too_big(&lost[14..ip.options()], ip.router(), ip.ends().source.ip(), 1_400))
    };
    untouched(&about(bench::INSTANCE_ACK_CUT - 1), Verdict::Pass(CustodyError));
    assert_eq!(about(bench::INSTANCE_ACK_CUT).verdict.reason(), ErrorForwarded);
}

fn errors_about_others_and_other_messages_are_the_stack_s(ip: Ip) {
    let bench = Bench::direct(ip);
    let lost = bench.by_client().reversed().source_port(81).build();
    let error = |original: &[u8]| ip.too_big(original, ip.router(), ip.ends().vip.ip(), 1_400);
    untouched(&bench.carry_frame(error(&lost[14..ip.options()])), Verdict::Pass(NoFlow));
    untouched(&bench.carry_frame(error(&lost[14..ip.tcp() + 7])), Verdict::Pass(Truncated));
    let mut datagram = lost[14..ip.options()].to_vec();
    datagram[ip.protocol() - 14] = 17;
    untouched(&bench.carry_frame(error(&datagram)), Verdict::Pass(NotTcp));
    let mut echo = error(&lost[14..ip.options()]);
    echo[ip.tcp()] = if ip == Ip::V4 { 8 } else { 128 };
    untouched(&bench.carry_frame(echo), Verdict::Pass(NotTcp));
}

/// A segment's two fragments: its TCP header and the first bytes of its payload, and the rest.
pub fn fragments(ip: Ip, frame: &[u8], identification: u16) -> [Vec<u8>; 2] {
    let split = ip.tcp() + 24;
    let part = |field: u16, bytes: &[u8]| {
        let mut part = frame[..ip.tcp()].to_vec();
        let [high, low] = field.to_be_bytes();
        let [id_high, id_low] = identification.to_be_bytes();
        match ip {
            Ip::V4 => {
                part[18..20].copy_from_slice(&[id_high, id_low]);
                // The same field, with flags and offset the other way round.
                let field = field >> 3 | (field & 1) << 13;
                part[20..22].copy_from_slice(&field.to_be_bytes());
            }
            Ip::V6 => {
                part[ip.protocol()] = 44;
                part.extend([6, 0, high, low, 0, 0, id_high, id_low]);
            }
        }
        part.extend(bytes);
        let length = ip.length_to_write(part.len() - 14);
        part[ip.length_field()].copy_from_slice(&length);
        if ip == Ip::V4 {
            part[24..26].fill(0);
            let checksum = ip.header_error(&part).to_ne_bytes();
            part[24..26].copy_from_slice(&checksum);
        }
        part
    };
    [part(1, &frame[ip.tcp()..split]), part(24, &frame[split..])]
}

/// The datagram that a receiver puts together.
fn put_together(ip: Ip, [first, rest]: [&[u8]; 2]) -> Vec<u8> {
    let header = if ip == Ip::V6 { 8 } else { 0 };
    let mut whole = first[..ip.tcp()].to_vec();
    match ip {
        Ip::V4 => whole[20..22].fill(0),
        Ip::V6 => whole[ip.protocol()] = 6,
    }
    whole.extend(&first[ip.tcp() + header..]);
    whole.extend(&rest[ip.tcp() + header..]);
    let length = ip.length_to_write(whole.len() - 14);
    whole[ip.length_field()].copy_from_slice(&length);
    if ip == Ip::V4 {
        whole[24..26].fill(0);
        let checksum = ip.header_error(&whole).to_ne_bytes();
        whole[24..26].copy_from_slice(&checksum);
    }
    whole
}

fn fragments_follow_the_first_and_are_put_together_to_what_a_whole_segment_becomes(ip: Ip) {
    let bench = Bench::direct(ip);
    let segment = || bench.by_client().seq(5_000).payload(b"a payload of thirty bytes, say");
    let [first, rest] = fragments(ip, &segment().build(), 7);
    let first = bench.carry_frame(first);
    let rest = bench.carry_frame(rest);
    let way = Verdict::Redirect { interface: bench::TO_INSTANCE_INTERFACE };
    assert_eq!((first.verdict, rest.verdict), (way, way));
    let whole = put_together(ip, [&first.after, &rest.after]);
    let mut wanted = bench.carry(segment()).after;
    if ip == Ip::V4 {
        wanted[18..20].copy_from_slice(&[0, 7]);
        wanted[20..22].fill(0);
        wanted[24..26].copy_from_slice(&whole[24..26]);
    }
    assert_eq!(whole, wanted);
    assert_eq!(bench::checksum_errors(&whole), [0, 0]);
}

fn a_fragment_that_comes_before_the_first_is_the_stack_s(ip: Ip) {
    let bench = Bench::direct(ip);
    let segment = bench.by_client().payload(b"a payload of thirty bytes, say").build();
    let [first, rest] = fragments(ip, &segment, 7);
    untouched(&bench.carry_frame(rest.clone()), Verdict::Pass(Fragment));
    assert!(matches!(bench.carry_frame(first).verdict, Verdict::Redirect { .. }));
    assert!(matches!(bench.carry_frame(rest).verdict, Verdict::Redirect { .. }));
    let [_, of_another] = fragments(ip, &segment, 8);
    untouched(&bench.carry_frame(of_another), Verdict::Pass(Fragment));
}

fn a_datagram_of_no_flow_is_the_stack_s_though_its_name_was_a_flow_s_before(ip: Ip) {
    let bench = Bench::direct(ip);
    let payload = b"a payload of thirty bytes, say";
    let [first, rest] = fragments(ip, &bench.by_client().payload(payload).build(), 7);
    assert!(matches!(bench.carry_frame(first).verdict, Verdict::Redirect { .. }));
    let [other, _] = fragments(ip, &bench.by_client().source_port(9).payload(payload).build(), 7);
    untouched(&bench.carry_frame(other), Verdict::Pass(NoFlow));
    untouched(&bench.carry_frame(rest), Verdict::Pass(Fragment));
}

fn a_later_fragment_is_not_believed_of_a_flow_that_has_ended_meanwhile_or_long_after(ip: Ip) {
    let [first, rest] =
        fragments(ip, &Bench::direct(ip).by_client().payload(b"a payload of thirty bytes, say").build(), 7);
    let bench = Bench::direct(ip);
    bench.carry_frame(first.clone());
    bench.flow().translation(Side::Client).traits.set(0);
    untouched(&bench.carry_frame(rest.clone()), Verdict::Pass(Fragment));

    let bench = Bench::direct(ip);
    bench.carry_frame(first);
    for datagram in bench.flows.datagrams.borrow_mut().values_mut() {
        datagram.seen = datagram.seen.wrapping_sub(PATIENCE + 1);
    }
    untouched(&bench.carry_frame(rest), Verdict::Pass(Fragment));
}

fn a_first_fragment_without_its_whole_tcp_header_is_the_stack_s(ip: Ip) {
    let bench = Bench::direct(ip);
    let segment = bench.by_client().timestamps(1, 2).payload(b"a payload of thirty bytes, say").build();
    // Four bytes of the options lie in the other.
    let [first, rest] = fragments(ip, &segment, 7);
    untouched(&bench.carry_frame(first), Verdict::Pass(Truncated));
    untouched(&bench.carry_frame(rest), Verdict::Pass(Fragment));
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
