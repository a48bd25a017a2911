//! What ends a flow, what moves its marks, and what only pretends to.

use router_common::abi::flow::{FLAG_DIRECT, FLAG_LIVE};
use router_common::abi::key::Side;
use router_common::abi::reason::PacketReason::*;
use router_common::path::Verdict;
use router_common::wire::tcp::{ACK, FIN, RST, SYN};

use super::bench::{self, ip::Ip};
use super::bench::{Bench, CLIENT_ISN_DELTA};
use super::untouched;

pub fn only_a_reset_that_the_receiver_would_believe_ends_the_flow(ip: Ip) {
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

pub fn a_fin_far_outside_the_window_does_not_count(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.carry(bench.by_client().seq(5_000 + (1 << 28)).flags(FIN | ACK));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 0);
    bench.carry(bench.by_client().seq(5_000).flags(FIN | ACK));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 1);
    assert_eq!(bench.flow().progress(Side::Client).fin_end.get(), 5_001);
}

pub fn a_fin_behind_which_data_follows_was_forged(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.carry(bench.by_client().seq(5_000).flags(FIN | ACK));
    bench.carry(bench.by_client().seq(5_000).payload(&[0; 100]));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 0);
}

pub fn data_behind_a_fin_that_was_acknowledged_is_forged_itself(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.carry(bench.by_client().seq(5_000).flags(FIN | ACK));
    bench.flow().progress(Side::Instance).max_ack.set(5_001u32.wrapping_add(CLIENT_ISN_DELTA));
    bench.carry(bench.by_client().seq(5_001).payload(&[0; 100]));
    assert_eq!(bench.flow().progress(Side::Client).fin_seen.get(), 1);
    assert_eq!(bench.flow().progress(Side::Client).fin_end.get(), 5_001);
}

pub fn a_forged_acknowledgement_of_what_was_never_sent_does_not_count(ip: Ip) {
    let bench = Bench::in_custody(ip);
    bench.carry(bench.by_instance().ack(bench::INSTANCE_ACK_CUT.wrapping_add(1 << 30)));
    assert_eq!(bench.flow().progress(Side::Instance).max_ack.get(), bench::INSTANCE_ACK_CUT - 200);
}

pub fn what_our_closed_socket_once_answered_for_makes_no_acknowledgement_true(ip: Ip) {
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

pub fn a_window_that_opens_without_a_new_acknowledgement_is_believed(ip: Ip) {
    let bench = Bench::direct(ip);
    bench.set_traits(Side::Client, FLAG_LIVE | FLAG_DIRECT, 10, 10);
    let acknowledged = bench.flow().progress(Side::Client).max_ack.get();
    bench.carry(bench.by_client().ack(acknowledged).window(8_192));
    // 8 MiB that fill it, and the end, before anything of it is acknowledged.
    let end = 800 + (8 << 20) - 1;
    bench.carry(bench.by_instance().seq(end).flags(FIN | ACK));
    assert_eq!(bench.flow().progress(Side::Instance).fin_seen.get(), 1);
}

pub fn a_syn_on_a_live_tuple_is_the_instances_to_challenge_and_on_a_finished_one_a_new_connection(ip: Ip) {
    let bench = Bench::direct(ip);
    let syn = || bench.by_client().seq(77).flags(SYN).ack(0);
    assert!(matches!(bench.carry(syn()).verdict, Verdict::Redirect { .. }));
    for side in [Side::Client, Side::Instance] {
        bench.flow().progress(side).fin_seen.set(1);
    }
    untouched(&bench.carry(syn()), Verdict::Pass(TupleReused));
    untouched(&bench.carry(syn()), Verdict::Pass(NoFlow));
}
