//! What the loaded program costs for one packet.

use std::net::Ipv4Addr;

use router_common::abi::balance::Mode;
use router_common::abi::reason::PacketReason;
use router_common::wire::PROTOCOL_TCP;
use support::Datapath;
use support::layer4::Layer4;
use support::restoring::{Hook, Restoring, Sources};
use support::xdp_maps::KnownInterfaces;

use crate::compare::LOOPBACK;
use crate::layer4::bench as bench4;
use crate::pictures::bench::ip::Ip;
use crate::pictures::bench::{self, TcpPacket};

#[test]
#[ignore = "needs root"]
fn a_packet_is_translated_again_and_again_and_its_cost_is_shown() {
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
    }
}

/// What the bench measures is the packet that it shows: each round meets the same, and no other.
#[test]
#[ignore = "needs root"]
fn a_restored_packet_is_the_same_in_every_round() {
    let tables = bench4::tables(8);
    for mode in bench4::MODES {
        let opening = bench4::from_client((bench4::CLIENT, 2_000), mode, PROTOCOL_TCP, bench4::SYN, b"");
        bench4::carry(&tables, &opening);
    }
    let layer4 = Layer4::load(&tables).unwrap();
    layer4.xdp.hold(&KnownInterfaces::sending(|_| true)).unwrap();
    let mut restoring = Restoring::load().unwrap();
    for (hook, mode) in Hook::BOTH.into_iter().flat_map(|hook| bench4::MODES.map(|mode| (hook, mode))) {
        let program = if hook == Hook::Tc { layer4.tc() } else { layer4.xdp_program() };
        restoring.measure(hook, program.unwrap()).unwrap();
        let nobody = Ipv4Addr::UNSPECIFIED;
        let frame = bench4::from_client((nobody, 2_000), mode, PROTOCOL_TCP, bench4::ACK, b"0123456789");
        let sources = Sources { frame, first: bench4::CLIENT.into(), count: 1, stride: 1 };
        restoring.arrive(&sources).unwrap();
        let forwarded = || layer4.packets().unwrap()[PacketReason::L4Forwarded.index()];
        let before = forwarded();
        // At TC the kernel wraps a packet once in its life.
        let rounds = if (hook, mode) == (Hook::Tc, Mode::DsrIpip) { 1 } else { 1_000 };
        restoring.run(hook, &sources, rounds).unwrap();
        assert_eq!(forwarded() - before, u64::from(rounds), "{hook:?}, {mode:?}");
    }
}
