//! Segments that no kernel has sent: with any numbers and flags, in the name of a live connection.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::icmpv6::DestUnreachableCode;
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::lab::{Host, Lab};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// Where a connection stands: the number of the next byte that its end will send, and of the next that it expects.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub next: u32,
    pub expected: u32,
}

/// Reads them from the kernel (`TCP_REPAIR`); the connection does not notice.
pub fn numbers(stream: &TcpStream) -> io::Result<Numbers> {
    const TCP_REPAIR: i32 = 19;
    const TCP_REPAIR_QUEUE: i32 = 20;
    const TCP_QUEUE_SEQ: i32 = 21;
    const OFF_WITHOUT_PROBE: i32 = -1;
    let set = |option: i32, value: i32| {
        // SAFETY: the option's value is one int.
        let result = unsafe {
            let value = (&raw const value).cast();
            libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, option, value, 4)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    let of_queue = |queue: i32| {
        set(TCP_REPAIR_QUEUE, queue)?;
        let (mut value, mut length) = (0_u32, 4);
        // SAFETY: the option's value is one int.
        let result = unsafe {
            let place = (&raw mut value).cast();
            libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, TCP_QUEUE_SEQ, place, &mut length)
        };
        if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
    };
    set(TCP_REPAIR, 1)?;
    let numbers = of_queue(2).and_then(|next| Ok(Numbers { next, expected: of_queue(1)? }));
    set(TCP_REPAIR, OFF_WITHOUT_PROBE)?;
    numbers
}

/// Sends from a host, under any tuple.
#[derive(Debug)]
pub struct Forger {
    socket: Socket,
    source: SocketAddr,
    destination: SocketAddr,
}

/// A segment to forge. The window is 500, and there are no options.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub payload: &'a [u8],
}

impl Forger {
    /// Segments will leave `host` as if a socket with the address `source` had sent them.
    pub fn new(lab: &Lab, host: Host, source: SocketAddr, destination: SocketAddr) -> Self {
        // The kernel adds the IPv4 header's checksum and nothing else.
        let raw = || {
            Socket::new(Domain::for_address(destination), Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))
        };
        let socket = lab.inside(host, raw).expect("the lab is up").expect("root may forge");
        Self { socket, source, destination }
    }

    /// Sends an error of a router, about a packet that the other end has sent with this sequence number to the one in whose name this forges: it was
    /// longer than `mtu`, or could not be delivered.
    pub fn complain(&self, seq: u32, mtu: Option<u16>) {
        let mut about = Vec::new();
        let (ours, theirs) = (self.source, self.destination);
        let mut packet = Vec::new();
        match (ours.ip(), theirs.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let lost = PacketBuilder::ipv4(to.octets(), from.octets(), 60);
                lost.tcp(theirs.port(), ours.port(), seq, 500)
                    .write(&mut about, &[])
                    .expect("memory takes it");
                let kind = match mtu {
                    Some(next_hop_mtu) => DestUnreachableHeader::FragmentationNeeded { next_hop_mtu },
                    None => DestUnreachableHeader::Port,
                };
                let error = PacketBuilder::ipv4(from.octets(), to.octets(), 64)
                    .icmpv4(Icmpv4Type::DestinationUnreachable(kind));
                error.write(&mut packet, &about).expect("memory takes it");
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let lost = PacketBuilder::ipv6(to.octets(), from.octets(), 60);
                lost.tcp(theirs.port(), ours.port(), seq, 500)
                    .write(&mut about, &[])
                    .expect("memory takes it");
                let kind = match mtu {
                    Some(mtu) => Icmpv6Type::PacketTooBig { mtu: mtu.into() },
                    None => Icmpv6Type::DestinationUnreachable(DestUnreachableCode::Port),
                };
                let error = PacketBuilder::ipv6(from.octets(), to.octets(), 64).icmpv6(kind);
                error.write(&mut packet, &about).expect("memory takes it");
            }
            _ => panic!("a packet has one family"),
        }
        self.emit(&packet);
    }

    pub fn send(&self, segment: Segment<'_>) {
        self.emit(&self.packet(segment));
    }

    fn packet(&self, segment: Segment<'_>) -> Vec<u8> {
        let ip = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), 64),
            (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 64),
            _ => panic!("a packet has one family"),
        };
        let mut builder = ip.tcp(self.source.port(), self.destination.port(), segment.seq, 500);
        let has = |flag| segment.flags & flag != 0;
        if has(FIN) {
            builder = builder.fin();
        }
        if has(SYN) {
            builder = builder.syn();
        }
        if has(RST) {
            builder = builder.rst();
        }
        if has(ACK) {
            builder = builder.ack(segment.ack);
        }
        let mut packet = Vec::new();
        builder.write(&mut packet, segment.payload).expect("memory takes it");
        packet
    }

    /// Sends a segment in two fragments, the first with its TCP header and 8 bytes of payload, in this order or the other.
    pub fn send_in_fragments(&self, segment: Segment<'_>, identification: u16, first_first: bool) {
        let whole = self.packet(segment);
        let header = if self.source.is_ipv4() { 20 } else { 40 };
        let part = |offset: usize, bytes: &[u8], more: bool| {
            let mut part = whole[..header].to_vec();
            let eighths = offset as u16 / 8;
            if self.source.is_ipv4() {
                part[4..6].copy_from_slice(&identification.to_be_bytes());
                part[6..8].copy_from_slice(&(eighths | u16::from(more) << 13).to_be_bytes());
                part[2..4].copy_from_slice(&((header + bytes.len()) as u16).to_be_bytes());
                // The kernel adds the checksum.
                part[10..12].fill(0);
            } else {
                part[6] = 44;
                part[4..6].copy_from_slice(&((8 + bytes.len()) as u16).to_be_bytes());
                part.extend([6, 0]);
                part.extend((eighths << 3 | u16::from(more)).to_be_bytes());
                part.extend([0, 0]);
                part.extend(identification.to_be_bytes());
            }
            part.extend(bytes);
            part
        };
        let cut = 32;
        let parts = [part(0, &whole[header..header + cut], true), part(cut, &whole[header + cut..], false)];
        for number in if first_first { [0, 1] } else { [1, 0] } {
            self.emit(&parts[number]);
        }
    }

    fn emit(&self, packet: &[u8]) {
        let to = SockAddr::from(SocketAddr::new(self.destination.ip(), 0));
        self.socket.send_to(packet, &to).expect("a raw socket sends");
    }
}
