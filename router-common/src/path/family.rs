//! IPv4 and IPv6, as far as they differ for the packet path: the header, the key, and what a rewritten header does to checksums.
//!
//! Everything else of the path is written once, and compiled for each of the two.

use super::parse::Version;
use super::reporting::Reporting;
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
pub(super) const TTL: u8 = 64;

/// Type of service, or traffic class, of the errors that we send: as routers do (RFC 1812 §4.3.2.5).
pub(super) const NETWORK_CONTROL: u8 = 0xc0;

/// A version of IP, by its header.
pub trait Family: Wire {
    type Key: Reversible;

    const VERSION: Version;

    /// Length of the header; with options or extensions it is not carried.
    const LEN: usize;
    const IS_IPV6: bool = matches!(Self::VERSION, Version::V6);
    /// Those of `FLAG_LIVE | FLAG_IPV6` that a live flow of this family has.
    const LIVE: u32;

    /// Whether the TCP header follows. An error is the reason why the stack gets the packet.
    fn leads_to_tcp(&self) -> Result<(), PacketReason>;

    /// IANA's number of what follows this header; `None` if that is a fragment, or options come first.
    fn carries(&self) -> Option<u8>;

    /// Source and destination as in the packet; IPv4 uses the first word.
    fn addresses(&self) -> ([u32; 4], [u32; 4]);

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

    const VERSION: Version = Version::V4;

    const LEN: usize = Self::LEN;
    const LIVE: u32 = FLAG_LIVE;

    #[inline(always)]
    fn carries(&self) -> Option<u8> {
        (self.version_ihl == Self::VERSION_4_NO_OPTIONS && !self.is_fragment()).then_some(self.protocol)
    }

    #[inline(always)]
    fn addresses(&self) -> ([u32; 4], [u32; 4]) {
        ([self.source.raw(), 0, 0, 0], [self.destination.raw(), 0, 0, 0])
    }

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
        let change = Reporting::refresh(self, addresses);
        self.source.set_raw(translation.source[0].get());
        self.destination.set_raw(translation.destination[0].get());
        change
    }
}

impl Family for Ipv6 {
    type Key = FlowKeyV6;

    const VERSION: Version = Version::V6;

    const LEN: usize = Self::LEN;
    const LIVE: u32 = FLAG_LIVE | FLAG_IPV6;

    #[inline(always)]
    fn carries(&self) -> Option<u8> {
        self.is_version_6().then_some(self.next_header)
    }

    #[inline(always)]
    fn addresses(&self) -> ([u32; 4], [u32; 4]) {
        (raw(&self.source), raw(&self.destination))
    }

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
        let change = Reporting::refresh(self, addresses);
        for word in 0..4 {
            self.source[word].set_raw(translation.source[word].get());
            self.destination[word].set_raw(translation.destination[word].get());
        }
        change
    }
}

/// Source and destination port, bytes as in memory.
#[inline(always)]
pub fn split(ports: Net32) -> (u16, u16) {
    let ports = ports.raw();
    if cfg!(target_endian = "little") {
        (ports as u16, (ports >> 16) as u16)
    } else {
        ((ports >> 16) as u16, ports as u16)
    }
}

#[inline(always)]
pub(super) fn raw(words: &[Net32; 4]) -> [u32; 4] {
    [words[0].raw(), words[1].raw(), words[2].raw(), words[3].raw()]
}
