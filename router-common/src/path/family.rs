//! IPv4 and IPv6, as far as they differ for the packet path: the header, the key, and what a rewritten header does to checksums.
//!
//! Everything else of the path is written once, and compiled for each of the two.

use super::parse::Version;
use crate::abi::flow::{FLAG_IPV6, FLAG_LIVE, Translation};
use crate::abi::key::{FlowKeyV4, FlowKeyV6, Reversible};
use crate::abi::reason::PacketReason;
use crate::abi::shared::Shared32;
use crate::wire::checksum::{self, Diff};
use crate::wire::icmp::{Icmp, v4, v6};
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::{
    AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, HOST_IDENTITY, Ipv6, MOBILITY, ROUTING, SHIM6,
};
use crate::wire::{Net16, Net32, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, Wire};

/// Both legs are connections of this host's own, so packets leave with a fresh time to live (IPv6: hop limit), as they did before the
/// handoff.
const TTL: u8 = 64;

/// Type of service, or traffic class, of the errors that we send: as routers do (RFC 1812 §4.3.2.5).
const NETWORK_CONTROL: u8 = 0xc0;

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

    /// The tuple of packets in the other direction.
    fn key_back(&self, ports: Net32) -> Self::Key;

    /// Writes the new addresses, whose difference is known, and a fresh time to live. Returns the change of the header's sum where
    /// the header has no checksum that balances it.
    fn readdress(&mut self, translation: &Translation, addresses: Diff) -> Option<Diff>;

    /// The same where the addresses, whose difference this is, have been written already.
    fn refresh(&mut self, addresses: Diff) -> Option<Diff>;

    /// Whether an ICMP message of this family follows, whole. An error is the reason why the stack gets the packet.
    fn leads_to_icmp(&self) -> Result<(), PacketReason>;

    /// Whether an ICMP message of this family tells of a packet that did not arrive.
    fn is_error(icmp: &Icmp) -> bool;

    /// Whether ICMP's checksum covers the pseudo-header.
    const ICMP_HAS_PSEUDO_HEADER: bool;

    /// The ICMP header that tells the sender of a packet which MTU (bytes) it has exceeded. `sum` is that of everything else that the checksum covers.
    fn too_long(mtu: u32, sum: u64) -> Icmp;

    /// A header that leads back to the sender of a packet with this one. Behind it follow `len` bytes of ICMP.
    fn back(&self, len: usize) -> Self;

    /// Replaces both addresses, given as in [`Translation`], and returns what that changes. The header's checksum is not touched.
    fn replace_addresses(&mut self, source: &[Shared32; 4], destination: &[Shared32; 4]) -> Diff;

    /// The header's checksum, if it has one, takes account of a change. Returns what remains of it in the header's sum.
    fn balance(&mut self, change: Diff) -> Diff;

    /// The sum that the pseudo-header adds to a checksum over `len` bytes of ICMP behind this header.
    fn icmp_pseudo_sum(&self, len: usize) -> u64;
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
    fn key_back(&self, ports: Net32) -> FlowKeyV4 {
        let (destination_port, source_port) = split(ports);
        FlowKeyV4 {
            source: self.destination.raw(),
            destination: self.source.raw(),
            source_port,
            destination_port,
            protocol: PROTOCOL_TCP,
            zero: [0; 3],
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
        let change = self.refresh(addresses);
        self.source.set_raw(translation.source[0].get());
        self.destination.set_raw(translation.destination[0].get());
        change
    }

    #[inline(always)]
    fn refresh(&mut self, addresses: Diff) -> Option<Diff> {
        let mut change = addresses;
        change.replace16(u16::from_ne_bytes([self.ttl, 0]), u16::from_ne_bytes([TTL, 0]));
        self.ttl = TTL;
        self.checksum.set_raw(change.apply(self.checksum.raw()));
        None
    }

    #[inline(always)]
    fn leads_to_icmp(&self) -> Result<(), PacketReason> {
        if self.version_ihl != Self::VERSION_4_NO_OPTIONS {
            Err(PacketReason::IpOptions)
        } else if self.protocol != PROTOCOL_ICMP {
            Err(PacketReason::NotTcp)
        } else if self.is_fragment() {
            Err(PacketReason::Fragment)
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn is_error(icmp: &Icmp) -> bool {
        matches!(icmp.kind, v4::UNREACHABLE | v4::TIME_EXCEEDED | v4::PARAMETER_PROBLEM)
    }

    const ICMP_HAS_PSEUDO_HEADER: bool = false;

    #[inline(always)]
    fn too_long(mtu: u32, sum: u64) -> Icmp {
        Icmp::new([v4::UNREACHABLE, v4::FRAGMENTATION_NEEDED], mtu & 0xffff, sum)
    }

    #[inline(always)]
    fn back(&self, len: usize) -> Self {
        let total_length = (Self::LEN + len) as u16;
        let words = [
            [Self::VERSION_4_NO_OPTIONS, NETWORK_CONTROL],
            total_length.to_be_bytes(),
            Self::DONT_FRAGMENT.to_be_bytes(),
            [TTL, PROTOCOL_ICMP],
        ];
        let mut sum = self.source.raw() as u64 + self.destination.raw() as u64;
        for word in words {
            sum += u16::from_ne_bytes(word) as u64;
        }
        Self {
            version_ihl: Self::VERSION_4_NO_OPTIONS,
            tos: NETWORK_CONTROL,
            total_length: Net16(total_length.to_be_bytes()),
            identification: Net16::default(),
            fragment: Net16(Self::DONT_FRAGMENT.to_be_bytes()),
            ttl: TTL,
            protocol: PROTOCOL_ICMP,
            checksum: Net16(checksum::of_sum(sum).to_ne_bytes()),
            source: self.destination,
            destination: self.source,
        }
    }

    #[inline(always)]
    fn replace_addresses(&mut self, source: &[Shared32; 4], destination: &[Shared32; 4]) -> Diff {
        let mut change = Diff::default();
        for (place, new) in
            [(&mut self.source, source[0].get()), (&mut self.destination, destination[0].get())]
        {
            change.replace(place.raw(), new);
            place.set_raw(new);
        }
        change
    }

    #[inline(always)]
    fn balance(&mut self, change: Diff) -> Diff {
        self.checksum.set_raw(change.apply(self.checksum.raw()));
        Diff::default()
    }

    #[inline(always)]
    fn icmp_pseudo_sum(&self, _: usize) -> u64 {
        0
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
    fn key_back(&self, ports: Net32) -> FlowKeyV6 {
        let (destination_port, source_port) = split(ports);
        FlowKeyV6 {
            source: raw(&self.destination),
            destination: raw(&self.source),
            source_port,
            destination_port,
            protocol: PROTOCOL_TCP,
            zero: [0; 3],
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
        let change = self.refresh(addresses);
        for word in 0..4 {
            self.source[word].set_raw(translation.source[word].get());
            self.destination[word].set_raw(translation.destination[word].get());
        }
        change
    }

    #[inline(always)]
    fn refresh(&mut self, addresses: Diff) -> Option<Diff> {
        let mut change = addresses;
        change.replace16(u16::from_ne_bytes([0, self.hop_limit]), u16::from_ne_bytes([0, TTL]));
        self.hop_limit = TTL;
        Some(change)
    }

    #[inline(always)]
    fn leads_to_icmp(&self) -> Result<(), PacketReason> {
        if self.next_header == PROTOCOL_ICMPV6 { Ok(()) } else { Err(PacketReason::NotTcp) }
    }

    #[inline(always)]
    fn is_error(icmp: &Icmp) -> bool {
        matches!(icmp.kind, v6::UNREACHABLE | v6::PACKET_TOO_BIG | v6::TIME_EXCEEDED | v6::PARAMETER_PROBLEM)
    }

    const ICMP_HAS_PSEUDO_HEADER: bool = true;

    #[inline(always)]
    fn too_long(mtu: u32, sum: u64) -> Icmp {
        Icmp::new([v6::PACKET_TOO_BIG, 0], mtu, sum)
    }

    #[inline(always)]
    fn back(&self, len: usize) -> Self {
        Self {
            version_class_flow: Net32([0x60 | NETWORK_CONTROL >> 4, NETWORK_CONTROL << 4, 0, 0]),
            payload_length: Net16((len as u16).to_be_bytes()),
            next_header: PROTOCOL_ICMPV6,
            hop_limit: TTL,
            source: self.destination,
            destination: self.source,
        }
    }

    #[inline(always)]
    fn replace_addresses(&mut self, source: &[Shared32; 4], destination: &[Shared32; 4]) -> Diff {
        let mut change = Diff::default();
        for word in 0..4 {
            for (place, new) in [
                (&mut self.source[word], source[word].get()),
                (&mut self.destination[word], destination[word].get()),
            ] {
                change.replace(place.raw(), new);
                place.set_raw(new);
            }
        }
        change
    }

    #[inline(always)]
    fn balance(&mut self, change: Diff) -> Diff {
        change
    }

    #[inline(always)]
    fn icmp_pseudo_sum(&self, len: usize) -> u64 {
        let mut sum = (len as u32).to_be() as u64 + (PROTOCOL_ICMPV6 as u32).to_be() as u64;
        for word in 0..4 {
            sum += self.source[word].raw() as u64 + self.destination[word].raw() as u64;
        }
        sum
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
fn raw(words: &[Net32; 4]) -> [u32; 4] {
    [words[0].raw(), words[1].raw(), words[2].raw(), words[3].raw()]
}
