//! Our own address on the way to an instance.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

/// The addresses that connections to instances come from.
#[derive(Debug, Default)]
pub struct SourceAddresses {
    configured: Vec<IpAddr>,
    turn: AtomicUsize,
    by_route: RwLock<HashMap<IpAddr, IpAddr>>,
}

impl SourceAddresses {
    /// Used in turn, each for instances of its own family. For a family without one the route decides.
    pub fn new(configured: Vec<IpAddr>) -> Self {
        Self { configured, ..Self::default() }
    }

    /// The configured addresses of the instance's family; with several, starting with the next in turn.
    pub fn configured(&self, instance: IpAddr) -> impl Iterator<Item = IpAddr> {
        let count = self.configured.len();
        let start = if count > 1 { self.turn.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let in_turn = (0..count).map(move |offset| self.configured[start.wrapping_add(offset) % count]);
        in_turn.filter(move |source| source.is_ipv4() == instance.is_ipv4())
    }

    /// The address that the kernel would use to reach `instance`. Looked up once.
    pub fn by_route(&self, instance: IpAddr) -> io::Result<IpAddr> {
        if let Some(source) = self.by_route.read().unwrap_or_else(PoisonError::into_inner).get(&instance) {
            return Ok(*source);
        }
        let unspecified: IpAddr =
            if instance.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // Connecting a datagram socket looks the route up and sends nothing.
        let socket = UdpSocket::bind((unspecified, 0))?;
        socket.connect(SocketAddr::new(instance, 9))?;
        let source = socket.local_addr()?.ip();
        self.by_route.write().unwrap_or_else(PoisonError::into_inner).insert(instance, source);
        Ok(source)
    }

    /// The route's address is no longer ours: look it up anew next time.
    pub fn forget(&self, instance: IpAddr) {
        self.by_route.write().unwrap_or_else(PoisonError::into_inner).remove(&instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_addresses_are_used_in_turn_within_the_family() {
        let addresses: Vec<IpAddr> =
            ["10.0.2.1", "fd77:2::1", "10.0.2.2"].map(|text| text.parse().unwrap()).into();
        let sources = SourceAddresses::new(addresses.clone());
        let instance: IpAddr = "10.0.2.11".parse().unwrap();
        let firsts: Vec<IpAddr> = (0..3).map(|_| sources.configured(instance).next().unwrap()).collect();
        assert!(firsts.contains(&addresses[0]) && firsts.contains(&addresses[2]));
        assert_eq!(sources.configured(instance).count(), 2);
        assert_eq!(sources.configured("fd77:2::11".parse().unwrap()).collect::<Vec<_>>(), [addresses[1]]);
    }

    #[test]
    fn without_configured_addresses_the_route_decides() {
        let sources = SourceAddresses::default();
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(sources.configured(loopback).next(), None);
        assert_eq!(sources.by_route(loopback).unwrap(), loopback);
    }
}
