//! Echo requests of a host of the lab, and what comes back.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use router_common::wire::checksum;
use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::{Host, Lab};

const IDENTIFIER: u16 = 0x7077;
/// IPv4 headers come with what a raw socket receives (raw(7)).
const IPV4_HEADER: usize = 20;

/// Asks one address.
#[derive(Debug)]
pub struct Pinger {
    socket: Socket,
    is_ipv4: bool,
}

impl Pinger {
    /// # Panics
    /// If the lab is down, or this is not root.
    pub fn new(lab: &Lab, host: Host, to: IpAddr) -> Self {
        let (domain, protocol) = match to {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let open = || Socket::new(domain, Type::RAW, Some(protocol));
        let socket = lab.inside(host, open).expect("the lab is up").expect("root may ask");
        socket.connect(&SocketAddr::new(to, 0).into()).expect("a route leads there");
        Self { socket, is_ipv4: to.is_ipv4() }
    }

    /// Sends a request. The kernel corrects the checksum of ICMPv6, and nobody that of ICMP.
    pub fn send(&self, number: u16, payload: &[u8]) -> io::Result<()> {
        self.socket.send(&self.request(number, payload)).map(drop)
    }

    /// Sends a request (of ICMP) whose checksum is wrong.
    pub fn send_broken(&self, number: u16, payload: &[u8]) -> io::Result<()> {
        let mut request = self.request(number, payload);
        request[2] ^= 1;
        self.socket.send(&request).map(drop)
    }

    /// What the reply to a request carries. An error is of the kind `TimedOut` if there is none in this time.
    pub fn reply(&self, number: u16, within: Duration) -> io::Result<Vec<u8>> {
        let until = Instant::now() + within;
        let kind = if self.is_ipv4 { 0 } else { 129 };
        let wanted = [IDENTIFIER.to_be_bytes(), number.to_be_bytes()].concat();
        let mut buffer = vec![0; 65_536];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
            let length = match (&self.socket).read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                other => other?,
            };
            let skipped = if self.is_ipv4 { IPV4_HEADER } else { 0 };
            let message = &buffer[skipped.min(length)..length];
            if message.len() >= 8 && message[0] == kind && message[4..8] == wanted[..] {
                return Ok(message[8..].to_vec());
            }
        }
    }

    /// Sends a request, and waits for its reply.
    pub fn ask(&self, number: u16, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.send(number, payload)?;
        self.reply(number, Duration::from_secs(5))
    }

    fn request(&self, number: u16, payload: &[u8]) -> Vec<u8> {
        let kind = if self.is_ipv4 { 8 } else { 128 };
        let mut request = vec![kind, 0, 0, 0];
        request.extend(IDENTIFIER.to_be_bytes());
        request.extend(number.to_be_bytes());
        request.extend(payload);
        let sum = checksum::full(&request, 0).to_ne_bytes();
        request[2..4].copy_from_slice(&sum);
        request
    }
}
