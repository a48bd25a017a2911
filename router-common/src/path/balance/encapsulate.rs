//! IP in IP (RFC 2003, RFC 2473): the client's packet travels to the instance inside another one, and arrives as it was.

use crate::abi::balance::{Instance, Mode};
use crate::abi::next_hop::NextHop;
use crate::abi::shared::Shared32;
use crate::path::family::Family;
use crate::path::fragment::Fragmented;
use crate::path::ports::Packet;
use crate::path::reporting::Reporting;
use crate::wire::Wire;
use crate::wire::checksum::Diff;
use crate::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet};
use crate::wire::icmp::{Icmp, v4, v6};
use crate::wire::ipv4::{DONT_FRAGMENT, Ipv4, PROTOCOL_IPIP};
use crate::wire::ipv6::{Ipv6, PROTOCOL_IPV6};

const TTL: u8 = 64;
/// Parts of one packet that the kernel has put together: 64 KiB in those of 536 bytes, rounded up.
const MOST_PARTS: u16 = 128;
/// The bits of IPv6's first word, in host byte order.
const FLOW_LABEL: u32 = 0xf_ffff;

/// A header that is put around another one of its family.
pub trait Outer: Reporting + Fragmented {
    const ETHERTYPE: u16;
    /// IANA's number of this family inside another header.
    const IN_IP: u8;
    /// Every link carries packets of so many bytes, or we take it for one that does (RFC 1122 §3.3.3, RFC 8200 §5).
    const LEAST_MTU: u32;
    /// What the outer header takes from the inner one.
    type Taken: Copy;

    /// `mark` is the one that [`bears`](Self::bears) finds again.
    fn take(&self, mark: u32) -> Self::Taken;

    /// Whether nobody may fragment a packet with this header.
    fn is_atomic(&self) -> bool;

    /// Whether this outer header of such a packet bears our mark. `inside` are the first four bytes behind it, as in memory.
    fn bears(&self, mark: u32, inside: u32) -> bool;

    /// The MTU that an error tells of, in bytes.
    fn mtu_told(icmp: &Icmp) -> Option<u32>;

    /// Writes the outer header. `inner` is the length of the packet inside, in bytes.
    fn surround(
        &mut self,
        taken: Self::Taken,
        inner: u32,
        source: &[Shared32; 4],
        destination: &[Shared32; 4],
    );
}

/// The first two headers of a wrapped packet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Front<I> {
    ethernet: Ethernet,
    ip: I,
}

// SAFETY: a sequence of `Wire` types.
unsafe impl<I: Wire> Wire for Front<I> {}

/// Bytes that packets become longer by.
#[inline(always)]
pub const fn overhead<I: Family>(mode: Mode) -> u32 {
    if matches!(mode, Mode::DsrIpip) { I::LEN as u32 } else { 0 }
}

/// Puts the outer header in front of a packet of so many bytes, from its IP header on.
#[inline(always)]
pub fn wrap<I: Outer, P: Packet>(
    packet: &mut P,
    length: u32,
    instance: &Instance,
    next_hop: &NextHop,
    mark: u32,
) -> bool {
    let Some(Front { ip, .. }) = packet.view::<Front<I>>(0) else { return false };
    let taken = ip.take(mark);
    if !packet.encapsulate::<I>() {
        return false;
    }
    let Some(Front { ethernet, ip }) = packet.view_mut::<Front<I>>(0) else { return false };
    for (word, new) in ethernet.addresses.iter_mut().zip(&next_hop.ethernet) {
        word.set_raw(new.get());
    }
    ethernet.ethertype.set_raw(I::ETHERTYPE.to_be());
    ip.surround(taken, length, &instance.source, &instance.address);
    true
}

impl Outer for Ipv4 {
    const ETHERTYPE: u16 = ETHERTYPE_IPV4;
    const IN_IP: u8 = PROTOCOL_IPIP;
    const LEAST_MTU: u32 = 576;
    /// Type of service, identification, and the bit that forbids fragments. What may be fragmented inside may be outside; the numbers of
    /// its fragments are then the sender's. Otherwise the identification means nothing (RFC 6864 §4.1) and bears our mark.
    type Taken = (u8, u16, u16);

    #[inline(always)]
    fn take(&self, mark: u32) -> Self::Taken {
        let (identification, fragment) = match self.is_atomic() {
            true => ((mark as u16).to_be(), DONT_FRAGMENT.to_be()),
            false => (self.identification.raw(), 0),
        };
        (self.tos, identification, fragment)
    }

    #[inline(always)]
    fn is_atomic(&self) -> bool {
        self.fragment.raw() & DONT_FRAGMENT.to_be() != 0
    }

    /// The parts of a packet that was put together are numbered from the mark on.
    #[inline(always)]
    fn bears(&self, mark: u32, _: u32) -> bool {
        self.is_atomic() && self.identification.get().wrapping_sub(mark as u16) < MOST_PARTS
    }

    #[inline(always)]
    fn mtu_told(icmp: &Icmp) -> Option<u32> {
        let tells = icmp.kind == v4::UNREACHABLE && icmp.code == v4::FRAGMENTATION_NEEDED;
        if tells { Some(icmp.rest.get() & 0xffff) } else { None }
    }

    #[inline(always)]
    fn surround(
        &mut self,
        (tos, identification, fragment): Self::Taken,
        inner: u32,
        source: &[Shared32; 4],
        destination: &[Shared32; 4],
    ) {
        let (source, destination) = (source[0].get(), destination[0].get());
        // Beyond 64 KiB ("BIG TCP") the field holds 0.
        let length = inner + <Self as Family>::LEN as u32;
        let length = if length > u16::MAX as u32 { 0 } else { (length as u16).to_be() };
        self.version_ihl = Self::VERSION_4_NO_OPTIONS;
        self.tos = tos;
        self.total_length.set_raw(length);
        self.identification.set_raw(identification);
        self.fragment.set_raw(fragment);
        self.ttl = TTL;
        self.protocol = PROTOCOL_IPIP;
        self.source.set_raw(source);
        self.destination.set_raw(destination);
        let mut sum = Diff::default();
        sum.insert16(u16::from_ne_bytes([Self::VERSION_4_NO_OPTIONS, tos]));
        sum.insert16(length);
        sum.insert16(identification);
        sum.insert16(fragment);
        sum.insert16(u16::from_ne_bytes([TTL, PROTOCOL_IPIP]));
        sum.insert(source);
        sum.insert(destination);
        self.checksum.set_raw(sum.apply(!0));
    }
}

impl Outer for Ipv6 {
    const ETHERTYPE: u16 = ETHERTYPE_IPV6;
    const IN_IP: u8 = PROTOCOL_IPV6;
    const LEAST_MTU: u32 = 1_280;
    /// Version, traffic class and flow label. The label bears our mark on top of the sender's: flows still have labels of their own (RFC 6438 §3).
    type Taken = u32;

    #[inline(always)]
    fn take(&self, mark: u32) -> u32 {
        self.version_class_flow.raw() ^ (mark & FLOW_LABEL).to_be()
    }

    #[inline(always)]
    fn is_atomic(&self) -> bool {
        true
    }

    #[inline(always)]
    fn bears(&self, mark: u32, inside: u32) -> bool {
        (self.version_class_flow.raw() ^ inside) & FLOW_LABEL.to_be() == (mark & FLOW_LABEL).to_be()
    }

    #[inline(always)]
    fn mtu_told(icmp: &Icmp) -> Option<u32> {
        if icmp.kind == v6::PACKET_TOO_BIG { Some(icmp.rest.get()) } else { None }
    }

    #[inline(always)]
    fn surround(&mut self, taken: u32, inner: u32, source: &[Shared32; 4], destination: &[Shared32; 4]) {
        self.version_class_flow.set_raw(taken);
        let length = if inner > u16::MAX as u32 { 0 } else { (inner as u16).to_be() };
        self.payload_length.set_raw(length);
        self.next_header = PROTOCOL_IPV6;
        self.hop_limit = TTL;
        for word in 0..4 {
            self.source[word].set_raw(source[word].get());
            self.destination[word].set_raw(destination[word].get());
        }
    }
}
