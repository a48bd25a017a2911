//! From bytes to a segment: which packets the path carries, and what it must know of them.

use super::family::Family;
use super::ports::Packet;
use crate::abi::reason::PacketReason;
use crate::wire::Wire;
use crate::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet};
use crate::wire::tcp::{ACK, FIN, RST, SYN, Tcp};

/// The three headers of a packet that the path carries. IP options and extension headers are not carried, so all offsets are constant.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Headers<I> {
    pub ethernet: Ethernet,
    pub ip: I,
    pub tcp: Tcp,
}

// SAFETY: a sequence of `Wire` types.
unsafe impl<I: Wire> Wire for Headers<I> {}

impl<I: Family> Headers<I> {
    pub const LEN: usize = {
        assert!(size_of::<Self>() == Ethernet::LEN + I::LEN + Tcp::LEN);
        size_of::<Self>()
    };
    pub const TCP_CHECKSUM: usize = Ethernet::LEN + I::LEN + 16;
    /// Where TCP options begin.
    pub const OPTIONS: usize = Self::LEN;
}

/// Which version of IP a frame carries, as its Ethernet header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V4,
    V6,
}

/// What the later stations need to know of a packet. Numbers are in host byte order.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    /// As in the header, not scaled.
    pub window: u16,
    /// Where TCP options begin in the frame; the same for all packets of a family.
    pub options_at: usize,
    /// Bytes of TCP options: 0–40.
    pub options_len: usize,
    /// Bytes behind the TCP header.
    pub payload: u32,
    /// Bytes from the IP header on.
    pub length: u32,
}

impl Segment {
    /// The sequence number behind the segment; SYN and FIN count as one each (RFC 9293 §3.4).
    #[inline(always)]
    pub fn end(&self) -> u32 {
        let syn = (self.flags & SYN != 0) as u32;
        let fin = (self.flags & FIN != 0) as u32;
        self.seq.wrapping_add(self.payload).wrapping_add(syn + fin)
    }

    #[inline(always)]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Nothing but an acknowledgement.
    #[inline(always)]
    pub fn is_pure_ack(&self) -> bool {
        self.payload == 0 && self.flags & (SYN | FIN | RST | ACK) == ACK
    }
}

/// Which version of IP a received frame carries. Bytes alone do not tell that it has arrived at this interface: on a trunk, packets of other VLANs look
/// the same, and the stack gives them to the VLAN's own interface.
#[inline(always)]
pub fn arriving<P: Packet>(packet: &P) -> Result<Version, PacketReason> {
    if packet.has_vlan_tag() { Err(PacketReason::VlanTagged) } else { version(packet) }
}

/// The segment in a received packet, if it has arrived for this host: a promiscuous interface overhears what is meant for others, which the stack
/// discards.
#[inline(always)]
pub fn arrived<I: Family, P: Packet>(packet: &P) -> Result<(I::Key, Segment), PacketReason> {
    match parse::<I, P>(packet) {
        Ok(parsed) if packet.is_for_this_host() => Ok(parsed),
        // Not told by what it carries: a report of memberships has extension headers or options, and hosts send them all the time.
        _ if is_to_a_group(packet) => Err(PacketReason::Multicast),
        Ok(_) => Err(PacketReason::OtherHost),
        Err(reason) => Err(reason),
    }
}

#[inline(always)]
fn is_to_a_group<P: Packet>(packet: &P) -> bool {
    packet.view(0).is_some_and(Ethernet::is_to_a_group)
}

/// Reads the Ethernet header. An error is the reason why the stack gets the packet.
#[inline(always)]
pub fn version<P: Packet>(packet: &P) -> Result<Version, PacketReason> {
    const IPV4: u16 = ETHERTYPE_IPV4.to_be();
    const IPV6: u16 = ETHERTYPE_IPV6.to_be();
    let ethernet: &Ethernet = packet.view(0).ok_or(PacketReason::Truncated)?;
    match ethernet.ethertype.raw() {
        IPV4 => Ok(Version::V4),
        IPV6 => Ok(Version::V6),
        _ => Err(PacketReason::NotIp),
    }
}

/// Reads the headers of a packet of this family. An error is the reason why the stack gets the packet.
#[inline(always)]
pub fn parse<I: Family, P: Packet>(packet: &P) -> Result<(I::Key, Segment), PacketReason> {
    let ip: &I = packet.view(Ethernet::LEN).ok_or(PacketReason::Truncated)?;
    ip.leads_to_tcp()?;
    let Headers { ip, tcp, .. } = packet.view::<Headers<I>>(0).ok_or(PacketReason::Truncated)?;
    let available = packet.len() - Ethernet::LEN;
    // A frame may be padded behind the datagram.
    let length = ip.length(available);
    let header_len = tcp.header_len();
    if header_len < Tcp::LEN {
        return Err(PacketReason::BadTcpOptions);
    }
    if length > available || length < I::LEN + header_len {
        return Err(PacketReason::Truncated);
    }
    let segment = Segment {
        seq: tcp.seq.get(),
        ack: tcp.ack.get(),
        flags: tcp.flags,
        window: tcp.window.get(),
        options_at: Headers::<I>::OPTIONS,
        options_len: header_len - Tcp::LEN,
        payload: (length - I::LEN - header_len) as u32,
        length: length as u32,
    };
    Ok((ip.key(tcp.ports), segment))
}
