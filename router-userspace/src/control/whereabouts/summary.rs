//! What a frame's headers say, for people to read.

use etherparse::{EtherType, IpNumber, LaxNetSlice, LaxSlicedPacket, TcpHeader, TransportSlice};
use std::net::IpAddr;

use crate::control::protocol::PacketSummary;

/// Names of TCP flags, and how to read and to set them.
type Flag = (&'static str, fn(&TcpHeader) -> bool, fn(&mut TcpHeader));

const FLAGS: [Flag; 6] = [
    ("syn", |tcp| tcp.syn, |tcp| tcp.syn = true),
    ("fin", |tcp| tcp.fin, |tcp| tcp.fin = true),
    ("rst", |tcp| tcp.rst, |tcp| tcp.rst = true),
    ("psh", |tcp| tcp.psh, |tcp| tcp.psh = true),
    ("ack", |tcp| tcp.ack, |tcp| tcp.ack = true),
    ("urg", |tcp| tcp.urg, |tcp| tcp.urg = true),
];

/// Sets flags such as `syn|ack`; or returns the name that is none.
pub fn set_flags<'t>(tcp: &mut TcpHeader, text: &'t str) -> Result<(), &'t str> {
    for name in text.split(['|', ',', '+']) {
        let known = FLAGS.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name.trim()));
        let (_, _, set) = known.ok_or(name)?;
        set(tcp);
    }
    Ok(())
}

fn flags(tcp: &TcpHeader) -> String {
    let set: Vec<_> = FLAGS.iter().filter(|(_, is_set, _)| is_set(tcp)).map(|(name, ..)| *name).collect();
    if set.is_empty() { "none".to_owned() } else { set.join("|") }
}

/// Reads a frame, as far as its headers can be read.
pub fn summary(frame: &[u8], length: u32) -> PacketSummary {
    let Ok(packet) = LaxSlicedPacket::from_ethernet(frame) else {
        return PacketSummary { protocol: "too short".to_owned(), length, ..PacketSummary::default() };
    };
    let wrapped = packet.net.as_ref().and_then(|net| {
        let payload = net.ip_payload_ref()?;
        let is_ip = matches!(payload.ip_number, IpNumber::IPV4 | IpNumber::IPV6);
        Some((addresses(net)?, LaxSlicedPacket::from_ip(payload.payload).ok()?)).filter(|_| is_ip)
    });
    let mut summary = match &wrapped {
        Some((outer, inner)) => PacketSummary { wrapped: Some(*outer), ..of(inner) },
        None => of(&packet),
    };
    if summary.protocol.is_empty() {
        let ether_type = frame.get(12..14).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        summary.protocol = match EtherType(ether_type) {
            EtherType::ARP => "arp".to_owned(),
            EtherType::VLAN_TAGGED_FRAME | EtherType::PROVIDER_BRIDGING => "vlan".to_owned(),
            EtherType(other) => format!("ethertype {other:#06x}"),
        };
    }
    PacketSummary { vlan: vlan(frame), length, ..summary }
}

/// The number in a frame's outermost VLAN tag (IEEE 802.1Q).
fn vlan(frame: &[u8]) -> Option<u16> {
    let is_tagged = |kind: [u8; 2]| {
        [EtherType::VLAN_TAGGED_FRAME, EtherType::PROVIDER_BRIDGING]
            .contains(&EtherType(u16::from_be_bytes(kind)))
    };
    match *frame.get(12..16)? {
        [high, low, class, number] if is_tagged([high, low]) => {
            Some(u16::from_be_bytes([class & 0x0f, number]))
        }
        _ => None,
    }
}

fn of(packet: &LaxSlicedPacket<'_>) -> PacketSummary {
    let mut summary = PacketSummary::default();
    let Some(net) = &packet.net else { return summary };
    if let Some((source, destination)) = addresses(net) {
        (summary.source, summary.destination) = (Some(source), Some(destination));
    }
    if let Some(payload) = net.ip_payload_ref() {
        summary.fragment = payload.fragmented;
        summary.protocol = match payload.ip_number {
            IpNumber::TCP => "tcp".to_owned(),
            IpNumber::UDP => "udp".to_owned(),
            IpNumber::ICMP => "icmp".to_owned(),
            IpNumber::IPV6_ICMP => "icmpv6".to_owned(),
            other => format!("protocol {}", other.0),
        };
    }
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let tcp = tcp.to_header();
            (summary.source_port, summary.destination_port) =
                (Some(tcp.source_port), Some(tcp.destination_port));
            (summary.sequence, summary.acknowledgement) =
                (Some(tcp.sequence_number), Some(tcp.acknowledgment_number));
            summary.flags = Some(flags(&tcp));
        }
        Some(TransportSlice::Udp(udp)) => {
            (summary.source_port, summary.destination_port) =
                (Some(udp.source_port()), Some(udp.destination_port()));
        }
        Some(TransportSlice::Icmpv4(_) | TransportSlice::Icmpv6(_) | TransportSlice::Igmp(_)) | None => {}
    }
    summary
}

fn addresses(net: &LaxNetSlice<'_>) -> Option<(IpAddr, IpAddr)> {
    match net {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            Some((header.source_addr().into(), header.destination_addr().into()))
        }
        LaxNetSlice::Ipv6(ip) => {
            let header = ip.header();
            Some((header.source_addr().into(), header.destination_addr().into()))
        }
        LaxNetSlice::Arp(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn tcp(flags: &str) -> Vec<u8> {
        let mut header = TcpHeader::new(40_000, 80, 7, 1_024);
        header.acknowledgment_number = 9;
        set_flags(&mut header, flags).expect("flags");
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 77, 1, 2], [10, 77, 1, 10], 64)
            .tcp_header(header);
        let mut frame = Vec::new();
        builder.write(&mut frame, &[]).expect("memory");
        frame
    }

    #[test]
    fn a_segment_reads_back_with_its_flags() {
        let frame = tcp("syn|ACK");
        let summary = summary(&frame, frame.len() as u32);
        assert_eq!(summary.source_end(), "10.77.1.2:40000".parse().ok());
        assert_eq!(summary.destination_end(), "10.77.1.10:80".parse().ok());
        assert_eq!(summary.flags.as_deref(), Some("syn|ack"));
        assert_eq!((summary.sequence, summary.acknowledgement), (Some(7), Some(9)));
    }

    #[test]
    fn a_wrapped_packet_shows_both_headers() {
        let inner = &tcp("syn")[14..];
        let mut frame = Vec::new();
        let outer = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 77, 2, 1], [10, 77, 2, 11], 64);
        outer.write(&mut frame, IpNumber::IPV4, inner).expect("memory");
        let summary = summary(&frame, frame.len() as u32);
        assert_eq!(summary.wrapped, Some(([10, 77, 2, 1].into(), [10, 77, 2, 11].into())));
        assert_eq!(summary.destination_end(), "10.77.1.10:80".parse().ok());
    }

    #[test]
    fn a_tagged_frame_shows_its_vlan_and_what_it_carries() {
        let mut frame = tcp("syn");
        frame.splice(12..12, [0x88, 0xa8, 0x20, 0x07, 0x81, 0x00, 0x00, 0x08]);
        let summary = summary(&frame, frame.len() as u32);
        assert_eq!((summary.vlan, summary.protocol.as_str()), (Some(7), "tcp"));
        assert_eq!(summary.source_end(), "10.77.1.2:40000".parse().ok());
    }

    #[test]
    fn odd_frames_are_named_and_unknown_flags_are_told() {
        assert_eq!(summary(&[0; 3], 3).protocol, "too short");
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&0x88cc_u16.to_be_bytes());
        assert_eq!(summary(&frame, 60).protocol, "ethertype 0x88cc");
        frame[12..14].copy_from_slice(&0x0806_u16.to_be_bytes());
        assert_eq!(summary(&frame, 60).protocol, "arp");
        assert_eq!(set_flags(&mut TcpHeader::default(), "syn|what"), Err("what"));
    }
}
