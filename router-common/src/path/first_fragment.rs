//! First fragments of TCP segments, as versions of IP of their own: the TCP header is at a constant place in them too, so the ordinary stations carry them.

use super::family::Family;
use super::parse::Version;
use crate::abi::flow::Translation;
use crate::abi::key::{FlowKeyV4, FlowKeyV6};
use crate::abi::reason::PacketReason;
use crate::wire::checksum::Diff;
use crate::wire::ipv4::Ipv4;
use crate::wire::ipv6::{FRAGMENT, FragmentHeader, Ipv6};
use crate::wire::{Net32, PROTOCOL_TCP, Wire};

/// The header of an IPv4 fragment.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct FragmentV4(pub Ipv4);

// SAFETY: transparent over a `Wire` type.
unsafe impl Wire for FragmentV4 {}

/// The headers of an IPv6 fragment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FragmentV6 {
    pub ip: Ipv6,
    pub fragment: FragmentHeader,
}

// SAFETY: a sequence of `Wire` types.
unsafe impl Wire for FragmentV6 {}

impl Family for FragmentV4 {
    type Key = FlowKeyV4;

    const VERSION: Version = Version::V4;
    const LEN: usize = Ipv4::LEN;
    const LIVE: u32 = Ipv4::LIVE;

    #[inline(always)]
    fn leads_to_tcp(&self) -> Result<(), PacketReason> {
        if self.0.version_ihl == Ipv4::VERSION_4_NO_OPTIONS
            && self.0.protocol == PROTOCOL_TCP
            && self.0.is_first_fragment()
        {
            Ok(())
        } else {
            Err(PacketReason::Fragment)
        }
    }

    #[inline(always)]
    fn carries(&self) -> Option<u8> {
        None
    }

    #[inline(always)]
    fn addresses(&self) -> ([u32; 4], [u32; 4]) {
        self.0.addresses()
    }

    #[inline(always)]
    fn length(&self, available: usize) -> usize {
        self.0.length(available)
    }

    #[inline(always)]
    fn key(&self, ports: Net32) -> FlowKeyV4 {
        self.0.key(ports)
    }

    #[inline(always)]
    fn readdress(&mut self, translation: &Translation, addresses: Diff) -> Option<Diff> {
        self.0.readdress(translation, addresses)
    }
}

impl Family for FragmentV6 {
    type Key = FlowKeyV6;

    const VERSION: Version = Version::V6;
    const LEN: usize = Ipv6::LEN + FragmentHeader::LEN;
    const LIVE: u32 = Ipv6::LIVE;

    #[inline(always)]
    fn leads_to_tcp(&self) -> Result<(), PacketReason> {
        if self.ip.is_version_6()
            && self.ip.next_header == FRAGMENT
            && self.fragment.next_header == PROTOCOL_TCP
            && self.fragment.is_first()
        {
            Ok(())
        } else {
            Err(PacketReason::Fragment)
        }
    }

    #[inline(always)]
    fn carries(&self) -> Option<u8> {
        None
    }

    #[inline(always)]
    fn addresses(&self) -> ([u32; 4], [u32; 4]) {
        self.ip.addresses()
    }

    #[inline(always)]
    fn length(&self, available: usize) -> usize {
        self.ip.length(available)
    }

    #[inline(always)]
    fn key(&self, ports: Net32) -> FlowKeyV6 {
        self.ip.key(ports)
    }

    #[inline(always)]
    fn readdress(&mut self, translation: &Translation, addresses: Diff) -> Option<Diff> {
        self.ip.readdress(translation, addresses)
    }
}
