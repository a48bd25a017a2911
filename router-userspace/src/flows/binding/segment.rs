//! A segment of what a client sends first, as the kernel programs have told it.

use std::net::SocketAddr;

use router_common::abi::binding::{Arrival, Embryo};
use router_common::abi::key::{FlowKey, address_of};
use router_common::wire::checksum;
use router_common::wire::tcp::{FIN, OPTION_END, OPTION_NOP, OPTION_TIMESTAMPS, TIMESTAMPS_LEN, Tcp};

/// A segment of what a client sends first. Nobody has acknowledged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub client: SocketAddr,
    pub vip: SocketAddr,
    pub embryo: Embryo,
    /// The sequence number of its first byte.
    pub seq: u32,
    /// As in the header, not scaled.
    pub window: u16,
    /// The client's clock.
    pub timestamp: Option<u32>,
    /// Whether the client has closed its direction with it.
    pub finished: bool,
    pub payload: Vec<u8>,
}

impl Segment {
    /// `None` if it is damaged: nobody else has looked at its checksum.
    pub(super) fn read(arrival: &Arrival, bytes: &[u8]) -> Option<Self> {
        let key = Self::key(arrival, bytes)?;
        let header_len = usize::from(bytes.get(12)? >> 4) * 4;
        if header_len < Tcp::LEN || header_len >= bytes.len() || !is_sound(arrival, bytes) {
            return None;
        }
        let (header, payload) = bytes.split_at(header_len);
        Some(Self {
            client: key.source(),
            vip: key.destination(),
            embryo: arrival.embryo,
            seq: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            window: u16::from_be_bytes([header[14], header[15]]),
            timestamp: timestamp(&header[Tcp::LEN..]),
            finished: header[13] & FIN != 0,
            payload: payload.to_vec(),
        })
    }

    /// The tuple of the client's packets.
    pub(super) fn key(arrival: &Arrival, bytes: &[u8]) -> Option<FlowKey> {
        let is_ipv6 = arrival.is_ipv6 != 0;
        let port = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let source = SocketAddr::new(address_of(arrival.source, is_ipv6), port(0)?);
        FlowKey::tcp(source, SocketAddr::new(address_of(arrival.destination, is_ipv6), port(2)?))
    }

    /// The tuple of its packets.
    pub fn client_key(&self) -> FlowKey {
        FlowKey::tcp(self.client, self.vip).expect("both come from one packet")
    }
}

/// Whether the checksum holds, or was left to a network card: then it is the pseudo-header's sum alone.
fn is_sound(arrival: &Arrival, bytes: &[u8]) -> bool {
    let words = |address: [u32; 4]| address.into_iter().map(u64::from).sum::<u64>();
    let length = u64::from((bytes.len() as u32).to_be());
    let pseudo = words(arrival.source) + words(arrival.destination) + length + u64::from(6u32.to_be());
    let of_pseudo = !checksum::of_sum(pseudo);
    let field = u16::from_ne_bytes([bytes[16], bytes[17]]);
    checksum::full(bytes, pseudo) == 0 || field == of_pseudo
}

fn timestamp(mut options: &[u8]) -> Option<u32> {
    loop {
        match options {
            [] | [OPTION_END, ..] => return None,
            [OPTION_NOP, rest @ ..] => options = rest,
            [OPTION_TIMESTAMPS, TIMESTAMPS_LEN, a, b, c, d, ..] => {
                return Some(u32::from_be_bytes([*a, *b, *c, *d]));
            }
            [_, len, ..] => options = options.get(usize::from(*len).max(2)..)?,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use router_common::abi::binding::ARRIVAL_SEGMENT;
    use router_common::abi::key::words_of;

    fn arrival(partial: bool) -> (Arrival, Vec<u8>) {
        let (client, vip): (SocketAddr, SocketAddr) =
            ("10.77.1.2:40000".parse().unwrap(), "10.77.1.10:80".parse().unwrap());
        let mut segment = Vec::new();
        segment.extend(client.port().to_be_bytes());
        segment.extend(vip.port().to_be_bytes());
        segment.extend(7u32.to_be_bytes());
        segment.extend(9u32.to_be_bytes());
        segment.extend([8 << 4, 0x18, 0x01, 0xf6, 0, 0, 0, 0]);
        segment.extend([1, 1, 8, 10, 0, 0, 0x30, 0x39, 0, 0, 0, 1]);
        segment.extend(b"GET / HTTP/1.1\r\n\r\n!");
        let (source, destination) = (words_of(client.ip()), words_of(vip.ip()));
        let pseudo = u64::from(source[0])
            + u64::from(destination[0])
            + u64::from((segment.len() as u32).to_be())
            + u64::from(6u32.to_be());
        let sum = if partial { !checksum::of_sum(pseudo) } else { checksum::full(&segment, pseudo) };
        segment[16..18].copy_from_slice(&sum.to_ne_bytes());
        let (length, embryo) = (segment.len() as u32, Embryo { seq: 7, ack: 9, ..Embryo::default() });
        let arrival =
            Arrival { event: ARRIVAL_SEGMENT, slot: 0, source, destination, is_ipv6: 0, length, embryo };
        (arrival, segment)
    }

    #[test]
    fn a_packet_is_read_whoever_is_to_complete_its_checksum() {
        for partial in [false, true] {
            let (arrival, bytes) = arrival(partial);
            let segment = Segment::read(&arrival, &bytes).unwrap();
            assert_eq!((segment.client.port(), segment.vip.port()), (40_000, 80));
            assert_eq!((segment.timestamp, segment.window, segment.finished), (Some(12_345), 502, false));
            assert_eq!((segment.seq, &segment.payload[..]), (7, &b"GET / HTTP/1.1\r\n\r\n!"[..]));
        }
    }

    #[test]
    fn a_damaged_packet_is_not_taken() {
        let (arrival, bytes) = arrival(false);
        let mut damaged = bytes.clone();
        damaged[40] ^= 1;
        assert_eq!(Segment::read(&arrival, &damaged), None);
        for length in 0..bytes.len() {
            assert_eq!(Segment::read(&arrival, &bytes[..length]), None);
        }
    }
}
