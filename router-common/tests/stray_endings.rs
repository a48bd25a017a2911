//! FIN and RST that our own stack sends for sockets that a killed daemon has left behind.

pub mod bench;

use bench::{Bench, TcpPacket};
use router_common::path::memory::Frame;
use router_common::path::stray_ending::is_stray;
use router_common::wire::tcp::{ACK, FIN, RST};

/// The packet as one that leaves in the other direction.
fn answered(packet: TcpPacket) -> Frame {
    let mut frame = packet.build();
    let (addresses, ports) = (frame[26..34].to_vec(), frame[34..38].to_vec());
    frame[26..30].copy_from_slice(&addresses[4..]);
    frame[30..34].copy_from_slice(&addresses[..4]);
    frame[34..36].copy_from_slice(&ports[2..]);
    frame[36..38].copy_from_slice(&ports[..2]);
    Frame(frame)
}

fn both_ways(flags: u8) -> [Frame; 2] {
    [TcpPacket::from_client(), TcpPacket::from_instance()].map(|packet| answered(packet.flags(flags)))
}

#[test]
fn an_ending_towards_either_side_of_a_live_flow_is_stray() {
    for bench in [Bench::in_custody(), Bench::direct()] {
        for frame in [RST, RST | ACK, FIN | ACK].into_iter().flat_map(both_ways) {
            assert!(is_stray(&frame, &bench.flows));
        }
    }
}

#[test]
fn a_fin_that_passes_on_the_other_side_s_may_leave() {
    let bench = Bench::in_custody();
    bench.flow().progress[1].fin_seen.set(1);
    let [to_client, to_instance] = both_ways(FIN | ACK);
    assert!(!is_stray(&to_client, &bench.flows));
    assert!(is_stray(&to_instance, &bench.flows));
}

#[test]
fn whatever_ends_nothing_or_belongs_to_no_flow_may_leave() {
    let bench = Bench::in_custody();
    for frame in both_ways(ACK) {
        assert!(!is_stray(&frame, &bench.flows));
    }
    assert!(!is_stray(&answered(TcpPacket::from_client().source_port(40_001).flags(RST)), &bench.flows));
    // Nor is one a stray that comes in by another interface and is only passed on.
    assert!(!is_stray(&Frame(TcpPacket::from_client().flags(RST).build()), &bench.flows));
    assert!(!is_stray(&Frame(vec![0; 40]), &bench.flows));
}

#[test]
fn a_reset_may_leave_that_is_meant_or_whose_flow_has_gone() {
    let reset = Bench::in_custody();
    reset.flow().progress[1].rst_seen.set(1);
    for flows in [&reset.flows, &Bench::with(0).flows] {
        assert!(both_ways(RST).iter().all(|frame| !is_stray(frame, flows)));
    }
}
