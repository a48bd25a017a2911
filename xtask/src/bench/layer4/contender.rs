//! Who carries packets of Layer 4. All face the same client and the same instance.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::topology::{Family, Host};

/// Where the router's programs meet packets first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hook {
    Tc,
    Xdp,
}

/// How packets get to instances and back: `source` of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    Snat,
    Transparent,
    DsrL2,
    DsrIpip,
}

impl Mode {
    pub const ALL: [Self; 4] = [Self::Snat, Self::Transparent, Self::DsrL2, Self::DsrIpip];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Snat => "snat",
            Self::Transparent => "transparent",
            Self::DsrL2 => "dsr-l2",
            Self::DsrIpip => "dsr-ipip",
        }
    }

    /// The instance answers from the VIP, and gets packets to the VIP's own port.
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::DsrL2 | Self::DsrIpip)
    }

    /// Of the listeners with this mode.
    pub const fn port(self) -> u16 {
        match self {
            Self::Snat => 5203,
            Self::Transparent => 5204,
            Self::DsrL2 => 5205,
            Self::DsrIpip => 5206,
        }
    }

    /// The instance, which has another port for each mode: it belongs to one pool.
    pub fn instance(self, family: Family) -> SocketAddr {
        SocketAddr::new(family.address(Host::Backend(1)), self.port())
    }

    /// Where its server listens.
    fn served(self, family: Family) -> SocketAddr {
        let instance = self.instance(family);
        if self.is_direct() { SocketAddr::new(family.vip(), instance.port()) } else { instance }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// The gateway only forwards packets to the instance: the limit for everybody.
    Routing,
    /// The kernel's own address translation, which tracks connections.
    Nftables,
    Router(Hook, Mode),
}

/// Of the instance's own address.
pub const INSTANCE_PORT: u16 = 5201;
const NFTABLES_PORT: u16 = 5202;

impl Contender {
    pub fn all() -> Vec<Self> {
        let of = |hook| Mode::ALL.map(|mode| Self::Router(hook, mode));
        [vec![Self::Routing, Self::Nftables], of(Hook::Tc).into(), of(Hook::Xdp).into()].concat()
    }

    pub fn name(self) -> String {
        match self {
            Self::Routing => "plain routing".into(),
            Self::Nftables => "nftables DNAT".into(),
            Self::Router(Hook::Tc, mode) => format!("router, {}", mode.name()),
            Self::Router(Hook::Xdp, mode) => format!("router in XDP, {}", mode.name()),
        }
    }

    /// Where the client sends to.
    pub fn address(self, family: Family) -> SocketAddr {
        match self {
            Self::Routing => SocketAddr::new(family.address(Host::Backend(1)), INSTANCE_PORT),
            Self::Nftables => SocketAddr::new(family.vip(), NFTABLES_PORT),
            Self::Router(_, mode) => SocketAddr::new(family.vip(), mode.port()),
        }
    }
}

/// Where the servers on the instance's host listen.
pub fn served() -> Vec<SocketAddr> {
    let of = |family| {
        let routed = Contender::Routing.address(family);
        std::iter::once(routed).chain(Mode::ALL.into_iter().map(move |mode| mode.served(family)))
    };
    Family::BOTH.into_iter().flat_map(of).collect()
}

/// Connections of the whole host are tracked as long as this is loaded.
pub fn nftables() -> String {
    let rule = |family: Family| {
        let (word, vip) = match family.vip() {
            IpAddr::V4(vip) => ("ip", vip.to_string()),
            IpAddr::V6(vip) => ("ip6", vip.to_string()),
        };
        let instance = Contender::Routing.address(family);
        format!(
            "{word} daddr {vip} meta l4proto {{ tcp, udp }} th dport {NFTABLES_PORT} dnat {word} to {instance}\n"
        )
    };
    let rules = Family::BOTH.map(rule).concat();
    format!(
        "table inet bench {{\nchain arriving {{\ntype nat hook prerouting priority dstnat;\n{rules}}}\n}}\n"
    )
}

/// One routerd with a listener of each mode, protocol and family.
pub fn router(hook: Hook, control_socket: &std::path::Path, pin_dir: &std::path::Path) -> String {
    let attach = if hook == Hook::Tc { "tc" } else { "xdp" };
    let (socket, pins) = (control_socket.display(), pin_dir.display());
    let mut listeners = String::new();
    let mut pools = String::new();
    let mut rules = String::new();
    for (family, word) in Family::BOTH.into_iter().zip(["ipv4", "ipv6"]) {
        for mode in Mode::ALL {
            let pool = format!("{}-{word}", mode.name());
            pools += &format!(
                "[[pool]]\nname = \"{pool}\"\n[[pool.instance]]\nname = \"{pool}\"\naddress = \"{}\"\n\n",
                mode.instance(family)
            );
            for protocol in ["tcp", "udp"] {
                let (name, address) =
                    (format!("{pool}-{protocol}"), SocketAddr::new(family.vip(), mode.port()));
                listeners += &format!(
                    "[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\nprotocol = \"{protocol}\"\nsource = \"{}\"\n\n",
                    mode.name()
                );
                rules += &format!(
                    "[[rule]]\nname = \"{name}\"\nmatch = 'Listener(\"{name}\")'\npool = \"{pool}\"\n\n"
                );
            }
        }
    }
    format!(
        "[daemon]\ncontrol_socket = \"{socket}\"\nworkers = 1\n\n[datapath]\ninterfaces = [\"client\", \"backends\"]\n\
         source_addresses = [\"10.77.2.1\", \"fd77:2::1\"]\npin_dir = \"{pins}\"\nattach = \"{attach}\"\n\n{listeners}{pools}{rules}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_of_one_hook_have_addresses_of_their_own() {
        let addresses: std::collections::HashSet<SocketAddr> = Contender::all()
            .into_iter()
            .filter(|one| !matches!(one, Contender::Router(Hook::Xdp, _)))
            .map(|one| one.address(Family::V6))
            .collect();
        assert_eq!(addresses.len(), 6);
    }
}
