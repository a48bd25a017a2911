//! Resets in the name of connections that have no socket here any more.

use std::io;
use std::net::SocketAddr;

use router_common::abi::key::words_of;
use router_common::wire::checksum;
use router_common::wire::tcp::RST;
use socket2::{Domain, Protocol, Socket, Type};

/// Sends RST with this sequence number, in the name of a connection from `ours` to `peer` whose socket is gone, or is out of reach because its
/// process has died.
pub fn send(ours: SocketAddr, peer: SocketAddr, seq: u32) -> io::Result<()> {
    const LEN: usize = 20;
    let mut segment = Vec::with_capacity(LEN);
    segment.extend(ours.port().to_be_bytes());
    segment.extend(peer.port().to_be_bytes());
    segment.extend(seq.to_be_bytes());
    segment.extend([0; 4]);
    segment.extend([(LEN as u8 / 4) << 4, RST]);
    segment.extend([0; 6]);
    // The pseudo-header that the checksum covers too (RFC 9293 §3.1); that of IPv6 differs in zeros only.
    let mut covered: Vec<u8> =
        [ours, peer].iter().flat_map(|end| words_of(end.ip())).flat_map(u32::to_ne_bytes).collect();
    covered.extend([0, libc::IPPROTO_TCP as u8, 0, LEN as u8]);
    covered.extend(&segment);
    segment[16..18].copy_from_slice(&checksum::full(&covered, 0).to_ne_bytes());

    let socket = Socket::new(Domain::for_address(peer), Type::RAW.cloexec(), Some(Protocol::TCP))?;
    // A raw socket has no port.
    socket.bind(&SocketAddr::new(ours.ip(), 0).into())?;
    socket.send_to(&segment, &SocketAddr::new(peer.ip(), 0).into())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use super::super::sockets::{StateError, close_silently, state};
    use super::*;

    #[test]
    fn a_connection_without_a_socket_is_reset_by_its_numbers() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = match TcpListener::bind(address) {
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                    eprintln!("skipped {address}: this host has no such address");
                    continue;
                }
                listener => listener.unwrap(),
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let (ours, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
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
}
