//! Fragments of IPv4 datagrams, in any order.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use etherparse::{IpFragOffset, Ipv4Header, ip_number};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::lab::{Family, Host, Lab};

/// Sends fragments of UDP from a host of the lab.
#[derive(Debug)]
pub struct Sender {
    socket: Socket,
    source: Ipv4Addr,
    destination: Ipv4Addr,
}

impl Sender {
    /// # Panics
    /// If an address is not IPv4.
    pub fn new(lab: &Lab, host: Host, destination: IpAddr) -> io::Result<Self> {
        let raw = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)));
        let socket = lab.inside(host, raw).expect("the lab is up")?;
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (Family::V4.address(host), destination) else {
            panic!("only IPv4")
        };
        Ok(Self { socket, source, destination })
    }

    /// Sends the bytes of the datagram `identification` that lie at `offset`, a multiple of 8.
    pub fn send(&self, identification: u16, offset: u16, bytes: &[u8], more: bool) -> io::Result<()> {
        let (source, destination) = (self.source.octets(), self.destination.octets());
        let mut header = Ipv4Header::new(bytes.len() as u16, 64, ip_number::UDP, source, destination)
            .map_err(io::Error::other)?;
        header.identification = identification;
        header.dont_fragment = false;
        header.more_fragments = more;
        header.fragment_offset = IpFragOffset::try_new(offset / 8).map_err(io::Error::other)?;
        header.header_checksum = header.calc_header_checksum();
        let packet = [&header.to_bytes()[..], bytes].concat();
        let to = SockAddr::from(SocketAddr::from((self.destination, 0)));
        self.socket.send_to(&packet, &to).map(drop)
    }
}

/// A UDP datagram from its header on, without a checksum.
pub fn udp(source_port: u16, destination_port: u16, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    let header = [source_port, destination_port, length, 0].map(u16::to_be_bytes).concat();
    [&header, payload].concat()
}
