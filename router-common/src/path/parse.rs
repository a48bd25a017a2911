//! From bytes to a segment: which packets the path carries, and what it must know of them.

use super::ports::Packet;
use crate::abi::key::FlowKey;
use crate::abi::reason::PacketReason;
use crate::wire::Wire;
use crate::wire::ethernet::{ETHERTYPE_IPV4, Ethernet};
use crate::wire::ipv4::{Ipv4, PROTOCOL_TCP};
use crate::wire::tcp::{ACK, FIN, RST, SYN, Tcp};

/// The three headers of a packet that the path carries. IP options are not carried, so all offsets are constant.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    pub ethernet: Ethernet,
    pub ip: Ipv4,
    pub tcp: Tcp,
}

// SAFETY: a sequence of `Wire` types.
unsafe impl Wire for Headers {}

impl Headers {
    pub const LEN: usize = Ethernet::LEN + Ipv4::LEN + Tcp::LEN;
    pub const TCP_CHECKSUM: usize = Ethernet::LEN + Ipv4::LEN + 16;
    /// Where TCP options begin.
    pub const OPTIONS: usize = Self::LEN;
}

const _: () = assert!(size_of::<Headers>() == Headers::LEN);

/// What the later stations need to know of a packet. Numbers are in host byte order, the key as in the packet.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub key: FlowKey,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    /// As in the header, not scaled.
    pub window: u16,
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

/// The segment, if it has arrived for this host at this interface. Bytes alone do not tell: on a trunk, packets of other VLANs look the same, and a
/// promiscuous interface overhears what is meant for others. The stack discards the latter, and gives the former to the VLAN's own interface.
#[inline(always)]
pub fn arrived<P: Packet>(packet: &P) -> Result<Segment, PacketReason> {
    if packet.has_vlan_tag() {
        return Err(PacketReason::VlanTagged);
    }
    // Broadcasts and multicasts are not for others: what they are is told first.
    let segment = parse(packet)?;
    if packet.is_for_this_host() { Ok(segment) } else { Err(PacketReason::OtherHost) }
}

/// Reads the headers. An error is the reason why the stack gets the packet.
#[inline(always)]
pub fn parse<P: Packet>(packet: &P) -> Result<Segment, PacketReason> {
    let ethernet: &Ethernet = packet.view(0).ok_or(PacketReason::Truncated)?;
    if ethernet.ethertype.raw() != ETHERTYPE_IPV4.to_be() {
        return Err(PacketReason::NotIpv4);
    }
    let ip: &Ipv4 = packet.view(Ethernet::LEN).ok_or(PacketReason::Truncated)?;
    if ip.version_ihl != Ipv4::VERSION_4_NO_OPTIONS {
        return Err(PacketReason::IpOptions);
    }
    if ip.protocol != PROTOCOL_TCP {
        return Err(PacketReason::NotTcp);
    }
    if ip.is_fragment() {
        return Err(PacketReason::Fragment);
    }
    let Headers { ip, tcp, .. } = packet.view::<Headers>(0).ok_or(PacketReason::Truncated)?;
    let available = packet.len() - Ethernet::LEN;
    // A frame may be padded behind the datagram. Length 0 is a super-packet of more than 64 KiB ("BIG TCP").
    let length = match ip.total_length.get() as usize {
        0 if available > u16::MAX as usize => available,
        length => length,
    };
    let header_len = tcp.header_len();
    if header_len < Tcp::LEN {
        return Err(PacketReason::BadTcpOptions);
    }
    if length > available || length < Ipv4::LEN + header_len {
        return Err(PacketReason::Truncated);
    }
    let ports = tcp.ports.raw();
    let (source_port, destination_port) = if cfg!(target_endian = "little") {
        (ports as u16, (ports >> 16) as u16)
    } else {
        ((ports >> 16) as u16, ports as u16)
    };
    Ok(Segment {
        key: FlowKey {
            source: ip.source.raw(),
            destination: ip.destination.raw(),
            source_port,
            destination_port,
            protocol: PROTOCOL_TCP,
            zero: [0; 3],
        },
        seq: tcp.seq.get(),
        ack: tcp.ack.get(),
        flags: tcp.flags,
        window: tcp.window.get(),
        options_len: header_len - Tcp::LEN,
        payload: (length - Ipv4::LEN - header_len) as u32,
        length: length as u32,
    })
}
