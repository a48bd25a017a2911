//! Listening on addresses of the configuration that are not traffic's.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens, without blocking when accepting. As for listeners, `[::]` stands for IPv6 alone.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_port_may_be_listened_on_in_each_family() {
        let first = listen("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = first.local_addr().unwrap().port();
        match listen(SocketAddr::new([0u16; 8].into(), port)) {
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                eprintln!("skipped: this host has no IPv6");
            }
            second => assert_eq!(second.unwrap().local_addr().unwrap().port(), port),
        }
    }
}
