//! What ICMP needs of IPv4 and IPv6, beyond what the ordinary route does: reading errors, and building one.

use super::family::{Family, NETWORK_CONTROL, TTL, raw, split};
use crate::abi::key::{FlowKeyV4, FlowKeyV6};
use crate::abi::reason::PacketReason;
use crate::abi::shared::Shared32;
use crate::wire::checksum::{self, Diff};
use crate::wire::icmp::{Icmp, v4, v6};
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::Ipv6;
use crate::wire::{Net16, Net32, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP};

/// A version of IP whose packets may be reported on.
pub trait Reporting: Family {
    /// The tuple of packets in the other direction.
    fn key_back(&self, ports: Net32) -> Self::Key;

    /// Writes a fresh time to live into a header whose addresses have been changed by this already; returns as [`Family::readdress`] does.
    fn refresh(&mut self, addresses: Diff) -> Option<Diff>;

    /// Whether an ICMP message of this family follows, whole. An error is the reason why the stack gets the packet.
    fn leads_to_icmp(&self) -> Result<(), PacketReason>;

    /// Whether an ICMP message of this family tells of a packet that did not arrive.
    fn is_error(icmp: &Icmp) -> bool;

    /// IANA's number of its ICMP.
    const ICMP: u8;

    /// The type of an echo request, and that of its reply.
    const ECHO: [u8; 2];

    /// Exchanges both addresses, which changes no checksum.
    fn turn_back(&mut self);

    /// Whether an address, as in the packet, can be one host's on a network: no group's, not this host's own to itself, not 0.
    fn is_unicast(address: &[u32; 4]) -> bool;

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

impl Reporting for Ipv4 {
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

    const ICMP: u8 = PROTOCOL_ICMP;
    const ECHO: [u8; 2] = [v4::ECHO_REQUEST, v4::ECHO_REPLY];

    #[inline(always)]
    fn turn_back(&mut self) {
        let (source, destination) = (self.source.raw(), self.destination.raw());
        self.source.set_raw(destination);
        self.destination.set_raw(source);
    }

    /// RFC 1122 §3.2.1.3.
    #[inline(always)]
    fn is_unicast(address: &[u32; 4]) -> bool {
        let [first, ..] = address[0].to_ne_bytes();
        first != 0 && first != 127 && first < 224
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

impl Reporting for Ipv6 {
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

    const ICMP: u8 = PROTOCOL_ICMPV6;
    const ECHO: [u8; 2] = [v6::ECHO_REQUEST, v6::ECHO_REPLY];

    #[inline(always)]
    fn turn_back(&mut self) {
        for word in 0..4 {
            let (source, destination) = (self.source[word].raw(), self.destination[word].raw());
            self.source[word].set_raw(destination);
            self.destination[word].set_raw(source);
        }
    }

    /// RFC 4291 §2.5 and §2.7: neither `::`, `::1` and the others whose first twelve bytes are 0, nor a group.
    #[inline(always)]
    fn is_unicast(address: &[u32; 4]) -> bool {
        let [first, ..] = address[0].to_ne_bytes();
        first != 0xff && (address[0] | address[1] | address[2]) != 0
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
