//! Frames of both versions of IP, and where things lie in them.

use std::net::IpAddr;

use etherparse::{IpHeaders, PacketBuilder, PacketHeaders, ip_number};
use router_common::wire::checksum;
use router_common::wire::{PROTOCOL_TCP, PROTOCOL_UDP};

use super::ip::Ip;
use super::{CLIENT_MAC, OWN_MAC};

const ETHERNET: usize = 14;
/// Length of the header that IPv6 puts before a fragment.
const FRAGMENT: usize = 8;

/// Addresses and ports of a frame.
pub type End = (IpAddr, u16);

/// Source and destination of a TCP segment or a UDP datagram; of the outer header if it is wrapped. `None` if it is something else.
pub fn ends_of(frame: &[u8]) -> Option<(End, End, u8)> {
    let ip = Ip::of(frame)?;
    let protocol = *frame.get(ip.protocol())?;
    if ![PROTOCOL_TCP, PROTOCOL_UDP].contains(&protocol) || frame.len() < ip.tcp() + 4 {
        return None;
    }
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (source, destination) = addresses_of(ip, frame);
    Some(((source, port(ip.tcp())), (destination, port(ip.tcp() + 2)), protocol))
}

/// Source and destination of an IP packet.
pub fn addresses_of(ip: Ip, frame: &[u8]) -> (IpAddr, IpAddr) {
    let (source, destination) = frame[ip.addresses()].split_at(ip.address());
    let address = |bytes: &[u8]| match ip {
        Ip::V4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
        Ip::V6 => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    };
    (address(source), address(destination))
}

/// Makes the checksum of an IPv4 header right.
pub fn set_header_checksum(ip: Ip, frame: &mut [u8]) {
    if ip == Ip::V4 {
        frame[24..26].fill(0);
        let sum = ip.header_error(frame).to_ne_bytes();
        frame[24..26].copy_from_slice(&sum);
    }
}

/// An ICMP message of this type and code from `router` to the sender of what `shown` begins with.
pub fn error(ip: Ip, router: IpAddr, icmp: [u8; 8], shown: &[u8]) -> Vec<u8> {
    let receiver = addresses_of(ip, &[&[0; ETHERNET], shown].concat()).0;
    let ethernet = PacketBuilder::ethernet2(CLIENT_MAC, OWN_MAC);
    let (builder, number) = match (router, receiver) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            (ethernet.ipv4(from.octets(), to.octets(), 60), ip_number::ICMP)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            (ethernet.ipv6(from.octets(), to.octets(), 60), ip_number::IPV6_ICMP)
        }
        ends => panic!("two versions of IP: {ends:?}"),
    };
    let mut frame = Vec::new();
    builder.write(&mut frame, number, &[&icmp, shown].concat()).unwrap();
    let at = ip.tcp() + 2;
    frame[at..at + 2].fill(0);
    let sum = icmp_error(ip, &frame).to_ne_bytes();
    frame[at..at + 2].copy_from_slice(&sum);
    frame
}

/// The complement of ICMP's sum: 0 where its checksum holds.
pub fn icmp_error(ip: Ip, frame: &[u8]) -> u16 {
    let end = ip.length_of(frame).map_or(frame.len(), |length| ETHERNET + length);
    let mut pseudo = Vec::new();
    if ip == Ip::V6 {
        pseudo.extend(&frame[ip.addresses()]);
        pseudo.extend([0, 0, 0, 58]);
        pseudo.extend(((end - ip.tcp()) as u32).to_be_bytes());
    }
    checksum::full(&frame[ip.tcp()..end], !checksum::full(&pseudo, 0) as u64)
}

/// The fragments of a packet, the first of which has `first` bytes behind the headers that both have. That is a multiple of 8.
///
/// # Panics
/// If it is no IP packet, or shorter than that.
pub fn cut(frame: &[u8], identification: u16, first: usize) -> [Vec<u8>; 2] {
    let ip = Ip::of(frame).unwrap();
    let payload = &frame[ip.tcp()..];
    let piece = |offset: usize, bytes: &[u8], more: bool| {
        let mut piece = frame[..ip.tcp()].to_vec();
        if ip == Ip::V4 {
            piece[18..20].copy_from_slice(&identification.to_be_bytes());
            let field = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
            piece[20..22].copy_from_slice(&field.to_be_bytes());
        } else {
            let field = offset as u16 | u16::from(more);
            piece.extend([piece[ip.protocol()], 0]);
            piece.extend(field.to_be_bytes());
            piece.extend(u32::from(identification).to_be_bytes());
            piece[ip.protocol()] = 44;
        }
        piece.extend(bytes);
        let length = ip.length_to_write(piece.len() - ETHERNET);
        piece[ip.length_field()].copy_from_slice(&length);
        set_header_checksum(ip, &mut piece);
        piece
    };
    [piece(0, &payload[..first], true), piece(first, &payload[first..], false)]
}

/// Where the transport header of a fragment lies.
pub fn transport_of_fragment(ip: Ip) -> usize {
    ip.tcp() + if ip == Ip::V6 { FRAGMENT } else { 0 }
}

/// # Panics
/// If a checksum of the packet, which is whole, is wrong.
pub fn assert_checksums(frame: &[u8], at: usize) {
    let parsed = PacketHeaders::from_ip_slice(&frame[at..]).unwrap();
    let payload = parsed.payload.slice();
    let header = match parsed.net {
        Some(etherparse::NetHeaders::Ipv4(header, extensions)) => IpHeaders::Ipv4(header, extensions),
        Some(etherparse::NetHeaders::Ipv6(header, extensions)) => IpHeaders::Ipv6(header, extensions),
        other => panic!("not IP: {other:?}"),
    };
    if let IpHeaders::Ipv4(header, _) = &header {
        assert_eq!(header.calc_header_checksum(), header.header_checksum, "the IPv4 header's");
    }
    match (parsed.transport, header) {
        (Some(etherparse::TransportHeader::Tcp(tcp)), IpHeaders::Ipv4(ip, _)) => {
            assert_eq!(tcp.calc_checksum_ipv4(&ip, payload).unwrap(), tcp.checksum, "TCP's");
        }
        (Some(etherparse::TransportHeader::Tcp(tcp)), IpHeaders::Ipv6(ip, _)) => {
            assert_eq!(tcp.calc_checksum_ipv6(&ip, payload).unwrap(), tcp.checksum, "TCP's");
        }
        (Some(etherparse::TransportHeader::Udp(udp)), IpHeaders::Ipv4(ip, _)) if udp.checksum != 0 => {
            assert_eq!(udp.calc_checksum_ipv4(&ip, payload).unwrap(), udp.checksum, "UDP's");
        }
        (Some(etherparse::TransportHeader::Udp(udp)), IpHeaders::Ipv6(ip, _)) if udp.checksum != 0 => {
            assert_eq!(udp.calc_checksum_ipv6(&ip, payload).unwrap(), udp.checksum, "UDP's");
        }
        _ => {}
    }
}
