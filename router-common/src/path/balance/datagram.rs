//! From bytes to a datagram: which packets this route carries, and what it must know of them.

use crate::path::family::{Family, split};
use crate::path::ports::Packet;
use crate::wire::Wire;
use crate::wire::ethernet::Ethernet;
use crate::wire::{Net16, Net32, PROTOCOL_TCP, PROTOCOL_UDP, tcp};

/// The headers that every datagram has. IP options are not carried, so all offsets are constant.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Headers<I> {
    pub ethernet: Ethernet,
    pub ip: I,
    /// Source and destination port, TCP or UDP.
    pub ports: Net32,
    /// UDP: length and checksum; TCP: the sequence number.
    pub next: Net32,
}

// SAFETY: a sequence of `Wire` types.
unsafe impl<I: Wire> Wire for Headers<I> {}

impl<I: Family> Headers<I> {
    /// Ethernet, IP and the eight bytes that TCP and UDP have at least.
    pub const LEN: usize = {
        assert!(size_of::<Self>() == Self::TRANSPORT + 8);
        size_of::<Self>()
    };
    pub const TRANSPORT: usize = Ethernet::LEN + I::LEN;
    pub const TCP_CHECKSUM: usize = Self::TRANSPORT + 16;
    pub const UDP_CHECKSUM: usize = Self::TRANSPORT + 6;
    /// Where the TCP data offset lies; the flags are the byte behind it.
    const TCP_OFFSET: usize = Self::TRANSPORT + 12;
}

/// What the later stations need to know. Addresses and ports are as in the packet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    pub source: [u32; 4],
    pub destination: [u32; 4],
    pub source_port: u16,
    pub destination_port: u16,
    /// IANA protocol number: TCP or UDP.
    pub protocol: u8,
    /// TCP flags; 0 for UDP.
    pub flags: u8,
    /// Bytes of the transport header.
    pub header: u8,
    /// Bytes from the IP header on.
    pub length: u32,
    /// TCP: the sequence number behind its payload. SYN and FIN do not count.
    pub next: u32,
}

impl Datagram {
    /// Reads the headers. `None`: not a packet that this route can carry; the stack, or the route behind, sees to it.
    #[inline(always)]
    pub fn read<I: Family, P: Packet>(packet: &P) -> Option<Self> {
        let Headers { ip, ports, next, .. } = packet.view::<Headers<I>>(0)?;
        let protocol = ip.carries()?;
        let available = packet.len() - Ethernet::LEN;
        let length = ip.length(available);
        let (flags, header) = match protocol {
            PROTOCOL_TCP => {
                let word: &[u8; 2] = packet.view::<Net16>(Headers::<I>::TCP_OFFSET).map(|word| &word.0)?;
                let header = (word[0] >> 4) as usize * 4;
                if header < tcp::Tcp::LEN {
                    return None;
                }
                (word[1], header)
            }
            PROTOCOL_UDP => (0, 8),
            _ => return None,
        };
        if length > available || length < I::LEN + header {
            return None;
        }
        let next = next.get().wrapping_add((length - I::LEN - header) as u32);
        let (source, destination) = ip.addresses();
        let (source_port, destination_port) = split(*ports);
        Some(Self {
            source,
            destination,
            source_port,
            destination_port,
            protocol,
            flags,
            header: header as u8,
            length: length as u32,
            next,
        })
    }

    #[inline(always)]
    pub fn is_tcp(&self) -> bool {
        self.protocol == PROTOCOL_TCP
    }

    /// Whether the packet, or each part of those that it was put together from, can leave with `overhead` more bytes. An MTU of 0 is not known.
    #[inline(always)]
    pub fn fits<I: Family, P: Packet>(&self, packet: &P, overhead: u32, mtu: u32) -> bool {
        if mtu == 0 || self.length + overhead <= mtu {
            return true;
        }
        match packet.part_size() {
            0 => false,
            // The kernel makes the parts smaller by what is put around them.
            part => I::LEN as u32 + self.header as u32 + part <= mtu,
        }
    }

    /// One in the other direction.
    #[inline(always)]
    pub const fn back(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..*self
        }
    }

    /// The first packet of a TCP connection. One that ends as it begins is none: no stack takes it for a connection.
    #[inline(always)]
    pub fn opens(&self) -> bool {
        self.flags & (tcp::SYN | tcp::ACK | tcp::RST | tcp::FIN) == tcp::SYN
    }
}

/// Two ports as the four bytes that begin the transport header.
#[inline(always)]
pub const fn join(source: u16, destination: u16) -> u32 {
    if cfg!(target_endian = "little") {
        source as u32 | (destination as u32) << 16
    } else {
        (source as u32) << 16 | destination as u32
    }
}
