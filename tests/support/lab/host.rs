//! Names and addresses of the hosts. Fixed, so that scripts can rely on them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use anyhow::{Error, bail};

/// A host of the lab; each is a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// 10.77.1.2, fd77:1::2, on its interface `eth0`.
    Client,
    /// Where the router runs: 10.77.1.1, fd77:1::1 and the VIPs 10.77.1.10, fd77:1::10 on `client`; 10.77.2.1, fd77:2::1 on `backends`.
    Gateway,
    /// The switch between gateway and backends.
    Switch,
    /// Number N from 1: 10.77.2.(10+N), fd77:2::(10+N), on its interface `eth0`.
    Backend(u8),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Client => f.write_str("client"),
            Host::Gateway => f.write_str("gateway"),
            Host::Switch => f.write_str("switch"),
            Host::Backend(number) => write!(f, "backend{number}"),
        }
    }
}

impl FromStr for Host {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "client" => Host::Client,
            "gateway" => Host::Gateway,
            "switch" => Host::Switch,
            _ => match name.strip_prefix("backend").map(str::parse) {
                Some(Ok(number)) if number > 0 => Host::Backend(number),
                _ => bail!(
                    "`{name}` is not a host of the lab: client, gateway, switch, backend1, backend2, ..."
                ),
            },
        })
    }
}

/// A version of IP. Every host of the lab has addresses of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// Where the client finds the router.
    pub fn vip(self) -> IpAddr {
        self.choose([10, 77, 1, 10], [0xfd77, 1, 0, 0, 0, 0, 0, 0x10])
    }

    /// The router's own address on the instances' side.
    pub fn source(self) -> IpAddr {
        self.choose([10, 77, 2, 1], [0xfd77, 2, 0, 0, 0, 0, 0, 1])
    }

    /// The address by which the others reach `host`; of the gateway, the one on the clients' side.
    pub fn address(self, host: Host) -> IpAddr {
        match host {
            Host::Client => self.choose([10, 77, 1, 2], [0xfd77, 1, 0, 0, 0, 0, 0, 2]),
            Host::Gateway => self.choose([10, 77, 1, 1], [0xfd77, 1, 0, 0, 0, 0, 0, 1]),
            Host::Switch => self.choose([0; 4], [0; 8]),
            Host::Backend(number) => {
                // As decimal digits, which is how the number looks in the lab's description.
                let last = u16::from_str_radix(&(10 + u16::from(number)).to_string(), 16).expect("digits");
                self.choose([10, 77, 2, 10 + number], [0xfd77, 2, 0, 0, 0, 0, 0, last])
            }
        }
    }

    fn choose(self, v4: [u8; 4], v6: [u16; 8]) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from(v4).into(),
            Self::V6 => Ipv6Addr::from(v6).into(),
        }
    }
}

/// The IPv4 address by which the others reach `host`; of the gateway, the one on the clients' side.
pub fn address(host: Host) -> IpAddr {
    Family::V4.address(host)
}
