//! Who is compared. All face the same client and the same instance; the VIP has a port for each.

use std::net::{IpAddr, SocketAddr};

use clap::ValueEnum;
use serde::Serialize;

use crate::topology::{Host, VIP, address};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The client talks to the instance, and the gateway only forwards packets: the limit for everybody.
    Routing,
    /// The kernel's own address translation, which tracks connections.
    Nftables,
    RouterAuto,
    /// Without a socket at the gateway, where the first packet tells enough.
    RouterBind,
    RouterHandoff,
    RouterRelay,
    HaproxyTcp,
    HaproxyHttp,
    /// With a pool of kept-alive connections to the instance.
    Nginx,
}

impl Contender {
    pub const ALL: [Self; 9] = [
        Self::Routing,
        Self::Nftables,
        Self::RouterAuto,
        Self::RouterBind,
        Self::RouterHandoff,
        Self::RouterRelay,
        Self::HaproxyTcp,
        Self::HaproxyHttp,
        Self::Nginx,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Routing => "plain routing",
            Self::Nftables => "nftables DNAT",
            Self::RouterAuto => "router, auto",
            Self::RouterBind => "router, bind",
            Self::RouterHandoff => "router, handoff",
            Self::RouterRelay => "router, relay",
            Self::HaproxyTcp => "HAProxy, tcp",
            Self::HaproxyHttp => "HAProxy, http",
            Self::Nginx => "nginx",
        }
    }

    pub fn is_router(self) -> bool {
        matches!(self, Self::RouterAuto | Self::RouterBind | Self::RouterHandoff | Self::RouterRelay)
    }

    /// Where the client connects to.
    pub fn address(self) -> SocketAddr {
        match self {
            Self::Routing => instance(),
            other => SocketAddr::new(IpAddr::V4(VIP), other.port()),
        }
    }

    /// Its port on the VIP; below the source ports that the router owns.
    fn port(self) -> u16 {
        match self {
            Self::Routing => 80,
            Self::Nftables => 8001,
            Self::RouterAuto => 8002,
            Self::RouterHandoff => 8003,
            Self::RouterRelay => 8004,
            Self::HaproxyTcp => 8005,
            Self::HaproxyHttp => 8006,
            Self::Nginx => 8007,
            Self::RouterBind => 8008,
        }
    }
}

/// The one server behind all of them.
pub fn instance() -> SocketAddr {
    SocketAddr::new(address(Host::Backend(1)), 80)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_contender_has_an_address_of_its_own() {
        let addresses: HashSet<SocketAddr> = Contender::ALL.iter().map(|one| one.address()).collect();
        assert_eq!(addresses.len(), Contender::ALL.len());
    }
}
