//! Frames over a cable to the attached program, where they arrive as they do from a network card.

use std::time::Duration;

use router_common::abi::reason::PacketReason;
use support::{Datapath, Link};

use crate::compare::addressed_to;
use crate::pictures::bench::ip::Ip;
use crate::pictures::bench::{self, TcpPacket};

#[test]
#[ignore = "needs root"]
fn frames_from_a_wire_are_met_as_frames_in_memory() {
    for ip in Ip::BOTH {
        std::thread::spawn(move || story(ip)).join().unwrap();
    }
}

fn story(ip: Ip) {
    let mut datapath = Datapath::load().unwrap();
    let link = Link::new().unwrap();
    datapath.attach_ingress(Link::FAR).unwrap();
    let table = bench::Bench::mirrored(ip).flows;
    for hop in &table.next_hops {
        // Back to where they came from.
        hop.interface.set(Link::index(Link::FAR).unwrap());
        hop.mtu.set(9_000);
    }
    datapath.hold(&table).unwrap();
    let far = Link::address(Link::FAR).unwrap();
    let reason = |frame: &[u8]| {
        let before = datapath.packets().unwrap();
        link.send(frame).unwrap();
        let after = datapath.packets().unwrap();
        let counted: Vec<_> = PacketReason::ALL
            .iter()
            .filter(|reason| after[reason.index()] != before[reason.index()])
            .collect();
        assert_eq!(counted.len(), 1, "one packet, one reason: {counted:?}");
        *counted[0]
    };

    // Of frames above a page only the Ethernet header is directly accessible when they arrive.
    let longest = 8_974 - ip.header() - 20;
    for len in [0, 1, 100, 1_434, 4_100, longest - 1, longest] {
        for packet in [
            TcpPacket::from_client(ip),
            TcpPacket::from_client(ip).timestamps(7, 9),
            TcpPacket::from_client(ip).timestamps(7, 9).sack(&[(1, 2)]),
        ] {
            let frame = addressed_to(far, &packet.payload(&vec![7; len]).build());
            assert_eq!(reason(&frame), PacketReason::Forwarded, "{len} bytes of payload");
            let (_, expected) = bench::check::carry(&table, &frame);
            assert_eq!(link.receive(Duration::from_secs(2)).unwrap(), expected, "{len} bytes of payload");
        }
    }

    let frame = addressed_to(far, &TcpPacket::from_client(ip).payload(b"data").build());
    for len in 14..frame.len() {
        assert_eq!(reason(&frame[..len]), PacketReason::Truncated, "cut after {len} bytes");
    }

    // The kernel takes the outer tag off, and what is left looks like a packet of the flow.
    for tags in [&[[0x81, 0x00, 0x00, 0x05]][..], &[[0x88, 0xa8, 0x00, 0x07], [0x81, 0x00, 0x00, 0x05]]] {
        let mut tagged = frame.clone();
        tagged.splice(12..12, tags.concat());
        assert_eq!(reason(&tagged), PacketReason::VlanTagged, "{tags:?}");
    }

    let overheard = addressed_to([2, 0, 0, 0, 0, 0x77], &frame);
    assert_eq!(reason(&overheard), PacketReason::OtherHost);
    for group in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 0x16]] {
        assert_eq!(reason(&addressed_to(group, &frame)), PacketReason::Multicast);
    }
    let mut asked_of_all = addressed_to([0xff; 6], &frame);
    asked_of_all[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(reason(&asked_of_all), PacketReason::NotIp, "an ARP request is nobody else's");
    assert!(link.receive(Duration::from_millis(50)).is_err(), "only what was forwarded comes back");
}
