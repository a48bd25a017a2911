//! IPv4 and IPv6, as far as they differ for the packet path: the header, the key, and what a rewritten header does to checksums.
//!
//! Everything else of the path is written once, and compiled for each of the two.

use crate::abi::flow::{FLAG_IPV6, FLAG_LIVE, Translation};
use crate::abi::key::{FlowKeyV4, FlowKeyV6, Reversible};
use crate::abi::reason::PacketReason;
use crate::wire::checksum::Diff;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::{
    AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, HOST_IDENTITY, Ipv6, MOBILITY, ROUTING, SHIM6,
};
use crate::wire::{Net32, PROTOCOL_TCP, Wire};

/// Both legs are connections of this host's own, so packets leave with a fresh time to live (IPv6: hop limit), as they did before the
/// handoff.
const TTL: u8 = 64;

/// A version of IP, by its header.
pub trait Family: Wire {
    type Key: Reversible;

    /// Length of the header; with options or extensions it is not carried.
    const LEN: usize;
    /// Those of `FLAG_LIVE | FLAG_IPV6` that a live flow of this family has.
    const LIVE: u32;

    /// Whether the TCP header follows. An error is the reason why the stack gets the packet.
    fn leads_to_tcp(&self) -> Result<(), PacketReason>;

    /// Bytes from this header on, as it says; of a super-packet longer than its field can say ("BIG TCP"), those `available`.
    fn length(&self, available: usize) -> usize;

    /// The tuple with these ports, as they lie in the TCP header.
    fn key(&self, ports: Net32) -> Self::Key;

    /// Writes the new addresses, whose difference is known, and a fresh time to live. Returns the change of the header's sum where
    /// the header has no checksum that balances it.
    fn readdress(&mut self, translation: &Translation, addresses: Diff) -> Option<Diff>;
}

impl Family for Ipv4 {
    type Key = FlowKeyV4;

    const LEN: usize = Self::LEN;
    const LIVE: u32 = FLAG_LIVE;

    #[inline(always)]
    fn leads_to_tcp(&self) -> Result<(), PacketReason> {
        if self.version_ihl != Self::VERSION_4_NO_OPTIONS {
            Err(PacketReason::IpOptions)
        } else if self.protocol != PROTOCOL_TCP {
            Err(PacketReason::NotTcp)
        } else if self.is_fragment() {
            Err(PacketReason::Fragment)
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn length(&self, available: usize) -> usize {
        match self.total_length.get() as usize {
            0 if available > u16::MAX as usize => available,
            length => length,
        }
    }

    #[inline(always)]
    fn key(&self, ports: Net32) -> FlowKeyV4 {
        let (source_port, destination_port) = split(ports);
        FlowKeyV4 {
            source: self.source.raw(),
            destination: self.destination.raw(),
            source_port,
            destination_port,
            protocol: PROTOCOL_TCP,
            zero: [0; 3],
        }
    }

    #[inline(always)]
    fn readdress(&mut self, translation: &Translation, addresses: Diff) -> Option<Diff> {
        let mut change = addresses;
        change.replace16(u16::from_ne_bytes([self.ttl, 0]), u16::from_ne_bytes([TTL, 0]));
        self.ttl = TTL;
        self.checksum.set_raw(change.apply(self.checksum.raw()));
        self.source.set_raw(translation.source[0].get());
        self.destination.set_raw(translation.destination[0].get());
        None
    }
}

impl Family for Ipv6 {
    type Key = FlowKeyV6;

    const LEN: usize = Self::LEN;
    const LIVE: u32 = FLAG_LIVE | FLAG_IPV6;

    #[inline(always)]
    fn leads_to_tcp(&self) -> Result<(), PacketReason> {
        if !self.is_version_6() {
            return Err(PacketReason::NotIp);
        }
        match self.next_header {
            PROTOCOL_TCP => Ok(()),
            FRAGMENT => Err(PacketReason::Fragment),
            HOP_BY_HOP | ROUTING | AUTHENTICATION | DESTINATION_OPTIONS | MOBILITY | HOST_IDENTITY
            | SHIM6 => Err(PacketReason::ExtensionHeader),
            _ => Err(PacketReason::NotTcp),
        }
    }

    #[inline(always)]
    fn length(&self, available: usize) -> usize {
        match self.payload_length.get() as usize {
            0 if available > Self::LEN + u16::MAX as usize => available,
            length => Self::LEN + length,
        }
    }

    #[inline(always)]
    fn key(&self, ports: Net32) -> FlowKeyV6 {
        let (source_port, destination_port) = split(ports);
        FlowKeyV6 {
            source: raw(&self.source),
            destination: raw(&self.destination),
            source_port,
            destination_port,
            protocol: PROTOCOL_TCP,
            zero: [0; 3],
        }
    }

    /// Traffic class and flow label stay those of the sender (RFC 6437 §3: a label is not changed on the way).
    #[inline(always)]
    fn readdress(&mut self, translation: &Translation, addresses: Diff) -> Option<Diff> {
        let mut change = addresses;
        change.replace16(u16::from_ne_bytes([0, self.hop_limit]), u16::from_ne_bytes([0, TTL]));
        self.hop_limit = TTL;
        for word in 0..4 {
            self.source[word].set_raw(translation.source[word].get());
            self.destination[word].set_raw(translation.destination[word].get());
        }
        Some(change)
    }
}

/// Source and destination port, bytes as in memory.
#[inline(always)]
fn split(ports: Net32) -> (u16, u16) {
    let ports = ports.raw();
    if cfg!(target_endian = "little") {
        (ports as u16, (ports >> 16) as u16)
    } else {
        ((ports >> 16) as u16, ports as u16)
    }
}

#[inline(always)]
fn raw(words: &[Net32; 4]) -> [u32; 4] {
    [words[0].raw(), words[1].raw(), words[2].raw(), words[3].raw()]
}
