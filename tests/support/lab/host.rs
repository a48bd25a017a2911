//! Names and addresses of the hosts. Fixed, so that scripts can rely on them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use anyhow::{Error, bail};

/// A host of the lab; each is a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// 10.77.1.2, fd77:1::2, on its interface `eth0`.
    Client,
    /// Where the router runs: 10.77.1.1 and the VIP 10.77.1.10 on `client`, 10.77.2.1 on `backends`.
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

/// The address by which the others reach `host`; of the gateway, the one on the clients' side.
pub fn address(host: Host) -> IpAddr {
    IpAddr::V4(match host {
        Host::Client => Ipv4Addr::new(10, 77, 1, 2),
        Host::Gateway => Ipv4Addr::new(10, 77, 1, 1),
        Host::Switch => Ipv4Addr::UNSPECIFIED,
        Host::Backend(number) => Ipv4Addr::new(10, 77, 2, 10 + number),
    })
}
