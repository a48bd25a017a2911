//! Where checks come from: the router's own addresses, outside the ports that its flows use.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use tokio::net::TcpSocket;

/// How many ports outside of the flows' range are tried before a check gives up.
const ATTEMPTS: usize = 256;

/// The local end of checks.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Addresses to bind, at most one of each family is used; a family without one is left to the kernel.
    pub addresses: Vec<IpAddr>,
    /// Ports that belong to flows: packets on them may be taken by the packet path.
    pub flow_ports: Vec<RangeInclusive<u16>>,
}

impl Origin {
    /// A socket bound to our address and to a port that no flow uses.
    ///
    /// The kernel avoids the flow ports by itself once they are listed in `ip_local_reserved_ports`, but that may
    /// not have been possible, so nothing here relies on it.
    pub(super) fn bind(&self, instance: SocketAddr) -> io::Result<TcpSocket> {
        let unspecified = if instance.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0u16; 8]) };
        let own = self.addresses.iter().find(|address| address.is_ipv4() == instance.is_ipv4());
        let address = *own.unwrap_or(&unspecified);
        let bind = |port| {
            let socket = if instance.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            socket.bind(SocketAddr::new(address, port))?;
            Ok::<_, io::Error>(socket)
        };
        let socket = bind(0)?;
        let port = socket.local_addr()?.port();
        if !self.flow_ports.iter().any(|ports| ports.contains(&port)) {
            return Ok(socket);
        }
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for candidate in outside(&self.flow_ports, port) {
            match bind(candidate) {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Ports outside of all `ranges`, beginning at a place that `seed`, any number, decides.
fn outside(ranges: &[RangeInclusive<u16>], seed: u16) -> impl Iterator<Item = u16> {
    let free: Vec<u16> =
        (1_024..=u16::MAX).rev().filter(|port| !ranges.iter().any(|range| range.contains(port))).collect();
    let skip = usize::from(seed).checked_rem(free.len()).unwrap_or(0);
    let count = free.len().min(ATTEMPTS);
    (skip..skip + count).map(move |place| free[place % free.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_stays_out_of_the_flow_ports_even_if_they_are_most_of_all_ports() {
        // All that the kernel gives by itself, by default 32768-60999, lies within.
        let flow_ports = 10_000..=65_000;
        let origin = Origin { addresses: vec![[127, 0, 0, 1].into()], flow_ports: vec![flow_ports.clone()] };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _context = runtime.enter();
        let sockets: Vec<TcpSocket> =
            (0..20).map(|_| origin.bind("127.0.0.1:80".parse().unwrap()).unwrap()).collect();
        for socket in &sockets {
            let local = socket.local_addr().unwrap();
            assert_eq!(local.ip(), IpAddr::from([127, 0, 0, 1]));
            assert!(!flow_ports.contains(&local.port()), "{local}");
        }
    }

    #[test]
    fn ports_outside_lie_outside_and_begin_anywhere() {
        let both = [20_000..=59_999, 10_000..=19_999];
        assert_eq!(outside(&both, 0).take(2).collect::<Vec<_>>(), [65_535, 65_534]);
        for seed in [0, 1, 5_535, 30_000, u16::MAX] {
            assert_eq!(outside(&both, seed).count(), ATTEMPTS);
            assert!(outside(&both, seed).all(|port| !(10_000..=59_999).contains(&port)));
            assert!(outside(&[1_030..=65_530], seed).all(|port| !(1_030..=65_530).contains(&port)));
            assert_eq!(outside(&[1_024..=65_535], seed).count(), 0, "every port belongs to flows");
        }
    }
}
