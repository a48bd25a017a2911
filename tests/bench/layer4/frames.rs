//! The frames that arrive.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::PacketBuilder;
use router_common::abi::balance::Mode;
use support::restoring::Sources;

use crate::tables::{Family, INSTANCE_PORT, port_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    Syn,
    Ack,
    Fin,
}

/// Clients come from here on.
const FIRST_CLIENT: u32 = 0x0b00_0000;
const CLIENT_PORT: u16 = 40_000;

/// From so many clients, who take turns, to the service of this mode.
pub fn from_clients(family: Family, mode: Mode, segment: Segment, clients: u32) -> Sources {
    let (source, destination) = ((unfinished(family), CLIENT_PORT), (family.vip(), port_of(mode)));
    Sources {
        frame: frame(source, destination, segment),
        first: FIRST_CLIENT,
        count: clients,
        // Far enough that no cache line is met again soon; a prime that divides none of the numbers that are used.
        stride: if segment == Segment::Syn { 1 } else { 7_919 },
    }
}

/// The answer to the first client's frame, as it was sent on to the instance.
pub fn answer(family: Family, sent: &[u8]) -> Sources {
    let ip = match family {
        Family::V4 => &sent[26..38],
        Family::V6 => &sent[22..58],
    };
    let length = ip.len() / 2 - 2;
    let (instance, port) =
        (&ip[length..2 * length], u16::from_be_bytes([ip[2 * length], ip[2 * length + 1]]));
    let last = instance[length - 4..].try_into().expect("four bytes");
    let source = match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => {
            let mut octets = <[u8; 16]>::try_from(instance).expect("an IPv6 address");
            octets[12..].fill(0);
            IpAddr::from(Ipv6Addr::from(octets))
        }
    };
    let frame = frame((source, INSTANCE_PORT), (family.router(), port), Segment::Ack);
    Sources { frame, first: u32::from_be_bytes(last), count: 1, stride: 1 }
}

/// The frame of the first source, as it arrives.
pub fn first(sources: &Sources) -> Vec<u8> {
    let mut frame = sources.frame.clone();
    let (address, checksums): (usize, &[usize]) =
        if frame[12..14] == [0x08, 0x00] { (26, &[24, 50]) } else { (34, &[70]) };
    frame[address..address + 4].copy_from_slice(&sources.first.to_be_bytes());
    for &at in checksums {
        let mut sum = u32::from(!u16::from_be_bytes([frame[at], frame[at + 1]]));
        sum += (sources.first >> 16) + (sources.first & 0xffff);
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        frame[at..at + 2].copy_from_slice(&(!sum as u16).to_be_bytes());
    }
    frame
}

/// A client's address without its last four bytes.
fn unfinished(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::new(0xfd77, 0xb, 0, 0, 0, 0, 0, 0).into(),
    }
}

/// 64 bytes over IPv4, 80 over IPv6, whose header is longer.
fn frame(source: (IpAddr, u16), destination: (IpAddr, u16), segment: Segment) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [0; 6]);
    let (builder, payload) = match (source.0, destination.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (builder.ipv4(from.octets(), to.octets(), 61), 10),
        (IpAddr::V6(from), IpAddr::V6(to)) => (builder.ipv6(from.octets(), to.octets(), 61), 6),
        mixed => unreachable!("both ends are of one family: {mixed:?}"),
    };
    let tcp = builder.tcp(source.1, destination.1, 1_000, 65_000);
    let tcp = match segment {
        Segment::Syn => tcp.syn(),
        Segment::Ack => tcp.ack(2_000),
        Segment::Fin => tcp.fin().ack(2_000),
    };
    let mut bytes = Vec::new();
    tcp.write(&mut bytes, &[b'x'; 10][..payload]).expect("a vector takes everything");
    bytes
}
