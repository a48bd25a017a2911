//! What the loaded program costs for one packet.

use router_common::abi::reason::PacketReason;
use support::Datapath;

use crate::compare::LOOPBACK;
use crate::pictures::bench::ip::Ip;
use crate::pictures::bench::{self, TcpPacket};

#[test]
#[ignore = "needs root"]
fn translating_a_packet_costs_well_below_a_microsecond() {
    let datapath = Datapath::load().unwrap();
    for ip in Ip::BOTH {
        translating_costs(&datapath, ip);
    }
}

fn translating_costs(datapath: &Datapath, ip: Ip) {
    let table = bench::Bench::mirrored(ip).flows;
    for hop in &table.next_hops {
        // What goes out comes in again.
        hop.ethernet[0].set(0);
        hop.ethernet[1].set(0);
    }
    datapath.hold(&table).unwrap();
    let edge = bench::INSTANCE_ISN_DELTA;
    let rounds = 200_000;
    for (name, packet) in [
        ("no options", TcpPacket::from_client(ip).payload(b"0123456789ab")),
        ("timestamps", TcpPacket::from_client(ip).timestamps(7, 9)),
        ("timestamps and SACK", TcpPacket::from_client(ip).timestamps(7, 9).sack(&[(edge, edge), (1, 2)])),
        (
            "timestamps in an unusual place",
            TcpPacket::from_client(ip).raw_options(&[8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 1, 1]),
        ),
        ("no flow", TcpPacket::from_client(ip).source_port(1)),
    ] {
        // Two flows take turns: each round undoes the one before.
        let mut original = packet.build();
        original[ip.ttl()] = 64;
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
        println!("{:>5} ns  {name}, {ip:?}", cost.as_nanos());
        let forwarded = PacketReason::Forwarded.index();
        let carried = datapath.packets().unwrap()[forwarded] - counted_before[forwarded];
        assert_eq!(carried, if name == "no flow" { 0 } else { 5 * u64::from(rounds) });
        // A machine under load may be slow, but not by this much.
        assert!(cost.as_nanos() < 1_000, "{name}, {ip:?}: {} ns", cost.as_nanos());
    }
}
