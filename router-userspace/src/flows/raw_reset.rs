//! Resets in the name of connections that have no socket here any more.

use std::io;
use std::net::SocketAddrV4;

use router_common::wire::checksum;
use router_common::wire::tcp::RST;
use socket2::{Domain, Protocol, Socket, Type};

/// Sends RST with this sequence number, in the name of a connection from `ours` to `peer` whose socket is gone, or is out of reach because its
/// process has died.
pub fn send(ours: SocketAddrV4, peer: SocketAddrV4, seq: u32) -> io::Result<()> {
    const HEADER: usize = 20;
    const PSEUDO: usize = 12;
    // The pseudo-header that the checksum covers (RFC 9293 §3.1), and behind it the segment.
    let mut bytes = Vec::with_capacity(PSEUDO + HEADER);
    bytes.extend(ours.ip().octets());
    bytes.extend(peer.ip().octets());
    bytes.extend([0, libc::IPPROTO_TCP as u8, 0, HEADER as u8]);
    bytes.extend(ours.port().to_be_bytes());
    bytes.extend(peer.port().to_be_bytes());
    bytes.extend(seq.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend([(HEADER as u8 / 4) << 4, RST]);
    bytes.extend([0; 6]);
    let sum = checksum::full(&bytes, 0).to_ne_bytes();
    bytes[PSEUDO + 16..PSEUDO + 18].copy_from_slice(&sum);

    let socket = Socket::new(Domain::IPV4, Type::RAW.cloexec(), Some(Protocol::TCP))?;
    socket.bind(&SocketAddrV4::new(*ours.ip(), 0).into())?;
    socket.send_to(&bytes[PSEUDO..], &SocketAddrV4::new(*peer.ip(), 0).into())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use super::super::sockets::{StateError, close_silently, state};
    use super::*;

    #[test]
    fn a_connection_without_a_socket_is_reset_by_its_numbers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let addresses = |from: &TcpStream| match (from.local_addr().unwrap(), from.peer_addr().unwrap()) {
            (SocketAddr::V4(local), SocketAddr::V4(peer)) => (local, peer),
            _ => unreachable!("both are IPv4"),
        };
        let (ours, peer) = addresses(&server);
        let server: OwnedFd = server.into();
        let next = match state(&server) {
            Err(StateError::Refused(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                return eprintln!("skipped: TCP_REPAIR needs CAP_NET_ADMIN");
            }
            state => state.unwrap().write_seq,
        };
        close_silently(server);
        send(ours, peer, next).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!((&client).read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
