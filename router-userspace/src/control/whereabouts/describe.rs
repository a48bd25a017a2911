//! From the description of a packet to a frame, as a neighbour would send it.

use std::net::SocketAddr;

use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep, TcpHeader};

use super::summary::set_flags;
use crate::control::protocol::DescribedPacket;
use crate::control::routes::Refusal;
use crate::flows::trace::{Entrance, Expected};

/// The neighbour that described packets come from: nobody's Ethernet address.
const NEIGHBOUR: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const HOP_LIMIT: u8 = 64;
const WINDOW: u16 = 64_240;

/// The frame that arrives by `entrance`. `expected` is what is next in its flow.
pub fn frame(
    described: &DescribedPacket,
    entrance: &Entrance,
    expected: Option<Expected>,
) -> Result<Vec<u8>, Refusal> {
    let DescribedPacket { source, destination, .. } = described;
    // An interface without an Ethernet address has none that a packet could miss.
    let builder = PacketBuilder::ethernet2(NEIGHBOUR, entrance.mac.unwrap_or_default());
    let builder = match (source, destination) {
        (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
            builder.ipv4(source.ip().octets(), destination.ip().octets(), HOP_LIMIT)
        }
        (SocketAddr::V6(source), SocketAddr::V6(destination)) => {
            builder.ipv6(source.ip().octets(), destination.ip().octets(), HOP_LIMIT)
        }
        _ => {
            return Err(Refusal::bad_request(
                format!("{source} and {destination} are not of one version of IP"),
                "give two IPv4 addresses or two IPv6 addresses",
            ));
        }
    };
    let payload = vec![0; usize::from(described.payload_bytes)];
    let mut frame = Vec::new();
    let written = match described.protocol.as_str() {
        "tcp" => with_tcp(described, builder, expected)?.write(&mut frame, &payload),
        "udp" => {
            if described.flags.is_some()
                || described.sequence.is_some()
                || described.acknowledgement.is_some()
            {
                return Err(Refusal::bad_request(
                    "UDP has no flags and no sequence numbers",
                    "leave them out",
                ));
            }
            builder.udp(source.port(), destination.port()).write(&mut frame, &payload)
        }
        other => {
            return Err(Refusal::bad_request(
                format!("protocol {other:?} cannot be described"),
                "give tcp or udp; any other packet can be asked about from a capture (--pcap)",
            ));
        }
    };
    if let Some(vlan) = described.vlan {
        if !(1..=4094).contains(&vlan) {
            let text = format!("there is no VLAN {vlan}");
            return Err(Refusal::bad_request(text, "VLANs have the numbers 1 to 4094"));
        }
        let [high, low] = vlan.to_be_bytes();
        frame.splice(12..12, [0x81, 0x00, high, low]);
    }
    match written {
        Ok(()) => Ok(frame),
        Err(error) => {
            Err(Refusal::bad_request(format!("there is no such packet: {error}"), "send fewer bytes"))
        }
    }
}

fn with_tcp(
    described: &DescribedPacket,
    builder: PacketBuilderStep<IpHeaders>,
    expected: Option<Expected>,
) -> Result<PacketBuilderStep<TcpHeader>, Refusal> {
    let next = expected.unwrap_or(Expected { sequence: 1, acknowledgement: 0 });
    let sequence = described.sequence.unwrap_or(next.sequence);
    let mut tcp = TcpHeader::new(described.source.port(), described.destination.port(), sequence, WINDOW);
    let flags = described.flags.as_deref().unwrap_or(if expected.is_some() { "ack" } else { "syn" });
    set_flags(&mut tcp, flags).map_err(|unknown| {
        Refusal::bad_request(
            format!("{unknown:?} is no TCP flag"),
            "the flags are syn, fin, rst, psh, ack and urg, joined by |",
        )
    })?;
    if tcp.ack {
        tcp.acknowledgment_number = described.acknowledgement.unwrap_or(next.acknowledgement);
    }
    Ok(builder.tcp_header(tcp))
}
