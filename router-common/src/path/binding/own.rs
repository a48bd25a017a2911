//! Segments that we make ourselves, whole: nothing of the packet that they replace is left.

use super::super::family::{Family, TTL};
use crate::wire::checksum;
use crate::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet};
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::Ipv6;
use crate::wire::tcp::Tcp;
use crate::wire::{Net16, Net32, PROTOCOL_TCP, Wire};

/// A version of IP in which we send.
pub trait Sending: Family {
    /// The greatest segments (bytes) that a SYN cookie can tell apart, by its index (Linux, `msstab`).
    const SEGMENTS: [u16; 4];

    /// A header for `len` bytes of TCP; addresses as in the packet.
    fn leading(source: [u32; 4], destination: [u32; 4], len: usize) -> Self;
}

impl Sending for Ipv4 {
    const SEGMENTS: [u16; 4] = [536, 1300, 1440, 1460];

    #[inline(always)]
    fn leading(source: [u32; 4], destination: [u32; 4], len: usize) -> Self {
        let total_length = (Self::LEN + len) as u16;
        let words = [
            [Self::VERSION_4_NO_OPTIONS, 0],
            total_length.to_be_bytes(),
            Self::DONT_FRAGMENT.to_be_bytes(),
            [TTL, PROTOCOL_TCP],
        ];
        let mut sum = source[0] as u64 + destination[0] as u64;
        for word in words {
            sum += u16::from_ne_bytes(word) as u64;
        }
        Self {
            version_ihl: Self::VERSION_4_NO_OPTIONS,
            tos: 0,
            total_length: Net16(total_length.to_be_bytes()),
            identification: Net16::default(),
            fragment: Net16(Self::DONT_FRAGMENT.to_be_bytes()),
            ttl: TTL,
            protocol: PROTOCOL_TCP,
            checksum: Net16(checksum::of_sum(sum).to_ne_bytes()),
            source: Net32(source[0].to_ne_bytes()),
            destination: Net32(destination[0].to_ne_bytes()),
        }
    }
}

impl Sending for Ipv6 {
    const SEGMENTS: [u16; 4] = [1220, 1420, 1440, 8940];

    #[inline(always)]
    fn leading(source: [u32; 4], destination: [u32; 4], len: usize) -> Self {
        Self {
            version_class_flow: Net32([0x60, 0, 0, 0]),
            payload_length: Net16((len as u16).to_be_bytes()),
            next_header: PROTOCOL_TCP,
            hop_limit: TTL,
            source: source.map(|word| Net32(word.to_ne_bytes())),
            destination: destination.map(|word| Net32(word.to_ne_bytes())),
        }
    }
}

/// Headers with `WORDS` words of options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Own<I, const WORDS: usize> {
    ethernet: Ethernet,
    ip: I,
    tcp: Tcp,
    options: [Net32; WORDS],
}

// SAFETY: a sequence of `Wire` types.
unsafe impl<I: Wire, const WORDS: usize> Wire for Own<I, WORDS> {}

/// What a segment says. Numbers are in host byte order, addresses and ports as in the packet.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    /// Destination and source.
    pub ethernet: [u32; 3],
    pub source: [u32; 4],
    pub destination: [u32; 4],
    pub ports: u32,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    /// Bytes behind the headers.
    pub payload: usize,
    /// Their sum.
    pub payload_sum: u32,
}

impl<I: Sending, const WORDS: usize> Own<I, WORDS> {
    pub const LEN: usize = size_of::<Self>();

    /// With these options, words as they lie in the packet.
    #[inline(always)]
    pub fn new(content: &Content, options: [u32; WORDS]) -> Self {
        let len = Tcp::LEN + 4 * WORDS + content.payload;
        let data_offset = ((Tcp::LEN / 4 + WORDS) << 4) as u8;
        // The pseudo-header (RFC 9293 §3.1; RFC 8200 §8.1).
        let mut sum = (len as u32).to_be() as u64 + (PROTOCOL_TCP as u32).to_be() as u64;
        let words = if I::IS_IPV6 { 4 } else { 1 };
        for word in 0..words {
            sum += content.source[word] as u64 + content.destination[word] as u64;
        }
        sum += content.ports as u64 + content.seq.to_be() as u64 + content.ack.to_be() as u64;
        sum += u16::from_ne_bytes([data_offset, content.flags]) as u64 + content.window.to_be() as u64;
        for option in options {
            sum += option as u64;
        }
        sum += content.payload_sum as u64;
        let [a, b, c] = content.ethernet;
        Self {
            ethernet: Ethernet {
                addresses: [Net32(a.to_ne_bytes()), Net32(b.to_ne_bytes()), Net32(c.to_ne_bytes())],
                ethertype: Net16(if I::IS_IPV6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 }.to_be_bytes()),
            },
            ip: I::leading(content.source, content.destination, len),
            tcp: Tcp {
                ports: Net32(content.ports.to_ne_bytes()),
                seq: Net32(content.seq.to_be_bytes()),
                ack: Net32(content.ack.to_be_bytes()),
                data_offset,
                flags: content.flags,
                window: Net16(content.window.to_be_bytes()),
                checksum: Net16(checksum::of_sum(sum).to_ne_bytes()),
                urgent: Net16::default(),
            },
            options: options.map(|word| Net32(word.to_ne_bytes())),
        }
    }
}

/// Both ports the other way round.
#[inline(always)]
pub fn ports_back(ports: u32) -> u32 {
    ports.rotate_left(16)
}
