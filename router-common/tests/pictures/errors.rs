//! Packets that are too long, and ICMP errors.

use router_common::abi::key::Side;
use router_common::abi::reason::PacketReason::*;
use router_common::path::Verdict;
use router_common::path::answer_budget::BURST;
use router_common::path::memory::Frame;

use super::bench::{self, ip::Ip};
use super::bench::{Bench, CLIENT_ISN_DELTA};
use super::untouched;

pub fn what_the_way_out_is_too_narrow_for_goes_back_as_an_error_to_its_sender(ip: Ip) {
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

pub fn a_super_packet_is_too_long_if_one_of_its_parts_is(ip: Ip) {
    let bench = Bench::direct(ip);
    let frame = || bench.by_client().timestamps(1, 2).payload(&[7; 20_000]).build();
    let fits = bench::MTU - ip.header() as u32 - 32;
    assert!(matches!(bench.carry_merged(frame(), fits).verdict, Verdict::Redirect { .. }));
    let out = bench.carry_merged(frame(), fits + 1);
    assert!(matches!(out.verdict, Verdict::Report { reason: TooLong, .. }));
    assert_eq!(out.error().mtu, Some(bench::MTU));
}

pub fn senders_are_told_of_an_mtu_only_so_often(ip: Ip) {
    let bench = Bench::direct(ip);
    let long = || bench.by_client().payload(&[7; 2_000]);
    for _ in 0..BURST {
        assert_eq!(bench.carry(long()).verdict.reason(), TooLong);
    }
    untouched(&bench.carry(long()), Verdict::Drop(TooLongUnanswered));
}

pub fn an_error_about_our_packet_reaches_who_had_sent_it(ip: Ip) {
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

pub fn an_error_about_bytes_that_are_not_on_their_way_is_forged_or_old(ip: Ip) {
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

pub fn an_error_about_bytes_in_custody_is_for_our_socket(ip: Ip) {
    let bench = Bench::in_custody(ip);
    let about = |seq: u32| {
        let lost = bench.by_instance().reversed().seq(seq).build();
        bench.carry_frame(ip.too_big(&lost[14..ip.options()], ip.router(), ip.ends().source.ip(), 1_400))
    };
    untouched(&about(bench::INSTANCE_ACK_CUT - 1), Verdict::Pass(CustodyError));
    assert_eq!(about(bench::INSTANCE_ACK_CUT).verdict.reason(), ErrorForwarded);
}

pub fn errors_about_others_and_other_messages_are_the_stack_s(ip: Ip) {
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
