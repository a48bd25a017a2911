//! FIN and RST that our own stack sends for sockets that a killed daemon has left behind.

pub mod bench;

use bench::ip::Ip;
use bench::{Bench, TcpPacket};
use router_common::path::memory::Frame;
use router_common::path::stray_ending::is_stray;
use router_common::wire::tcp::{ACK, FIN, RST};

/// A packet towards the client and one towards the instance.
fn both_ways(ip: Ip, flags: u8) -> [Frame; 2] {
    [TcpPacket::from_client(ip), TcpPacket::from_instance(ip)]
        .map(|packet| Frame(packet.reversed().flags(flags).build()))
}

#[test]
fn an_ending_towards_either_side_of_a_live_flow_is_stray() {
    for ip in Ip::BOTH {
        for bench in [Bench::in_custody(ip), Bench::direct(ip)] {
            for frame in [RST, RST | ACK, FIN | ACK].into_iter().flat_map(|flags| both_ways(ip, flags)) {
                assert!(is_stray(&frame, &bench.flows));
            }
        }
    }
}

#[test]
fn a_fin_that_passes_on_the_other_side_s_may_leave() {
    for ip in Ip::BOTH {
        let bench = Bench::in_custody(ip);
        bench.flow().progress[1].fin_seen.set(1);
        let [to_client, to_instance] = both_ways(ip, FIN | ACK);
        assert!(!is_stray(&to_client, &bench.flows));
        assert!(is_stray(&to_instance, &bench.flows));
    }
}

#[test]
fn whatever_ends_nothing_or_belongs_to_no_flow_may_leave() {
    for ip in Ip::BOTH {
        let bench = Bench::in_custody(ip);
        for frame in both_ways(ip, ACK) {
            assert!(!is_stray(&frame, &bench.flows));
        }
        let other = bench.by_client().source_port(40_001).reversed().flags(RST);
        assert!(!is_stray(&Frame(other.build()), &bench.flows));
        // Nor is one a stray that comes in by another interface and is only passed on.
        assert!(!is_stray(&Frame(bench.by_client().flags(RST).build()), &bench.flows));
        assert!(!is_stray(&Frame(vec![0; 40]), &bench.flows));
    }
}

#[test]
fn a_reset_may_leave_that_is_meant_or_whose_flow_has_gone() {
    for ip in Ip::BOTH {
        let reset = Bench::in_custody(ip);
        reset.flow().progress[1].rst_seen.set(1);
        for flows in [&reset.flows, &Bench::with(ip, 0).flows] {
            assert!(both_ways(ip, RST).iter().all(|frame| !is_stray(frame, flows)));
        }
    }
}
