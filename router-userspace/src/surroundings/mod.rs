//! What this host tells that makes a set-up not work: routes, the MTUs of interfaces, and how it judges packets' sources. Warnings only: routes may come later.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::config::{ListenerPlan, Plan, Source};
use crate::core::placement;
use crate::core::table::RoutingTable;
use crate::flows::netlink::{Event, Netlink, Route};

/// What clients' packets usually have, in bytes.
const USUAL_MTU: u32 = 1_500;
/// No sender of IPv6 takes less (RFC 8201 §4).
const LEAST_IPV6_MTU: u32 = 1_280;

/// Something that will not work, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub message: String,
    pub help: String,
}

/// What is asked of the host.
pub trait Host {
    /// The way to an address; `None` if there is none.
    fn route(&mut self, to: IpAddr) -> Option<Route>;

    /// In bytes from the IP header on; `None` where it is not known.
    fn mtu(&self, interface: u32) -> Option<u32>;

    /// Whether IPv4 packets that come in by this interface are judged by their mark and strictly: those that are marked to be delivered here are then dropped.
    fn refuses_marked(&self, interface: u32) -> bool;
}

/// This host, asked through rtnetlink(7).
pub struct ThisHost {
    netlink: Netlink,
    mtus: BTreeMap<u32, u32>,
}

impl std::fmt::Debug for ThisHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThisHost").field("mtus", &self.mtus).finish_non_exhaustive()
    }
}

impl ThisHost {
    pub fn ask() -> std::io::Result<Self> {
        let mut netlink = Netlink::open()?;
        let mut mtus = BTreeMap::new();
        netlink.dump(|event| {
            if let Event::Link { interface, link: Some(link) } = event {
                mtus.insert(interface, link.mtu);
            }
        })?;
        Ok(Self { netlink, mtus })
    }
}

impl Host for ThisHost {
    fn route(&mut self, to: IpAddr) -> Option<Route> {
        self.netlink.route(to).ok()
    }

    fn mtu(&self, interface: u32) -> Option<u32> {
        self.mtus.get(&interface).copied().filter(|mtu| *mtu != 0)
    }

    fn refuses_marked(&self, interface: u32) -> bool {
        let Ok(name) = nix::net::if_::if_indextoname(interface) else { return false };
        // The greater of both counts (ip-sysctl).
        let setting = |key: &str| {
            let of = |which: &str| {
                let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{which}/{key}")).ok()?;
                text.trim().parse::<u32>().ok()
            };
            of("all").max(of(&name.to_string_lossy())).unwrap_or(0)
        };
        const STRICT: u32 = 1;
        setting("rp_filter") == STRICT && setting("src_valid_mark") != 0
    }
}

/// What of a configuration does not work on this host. Empty if the host cannot be asked.
pub fn warnings(plan: &Plan) -> Vec<Warning> {
    ThisHost::ask().map_or_else(|_| Vec::new(), |mut host| judge(&plan.listeners, &plan.table, &mut host))
}

/// Judges every instance of every listener whose packets do not simply come from this host.
pub fn judge(listeners: &[ListenerPlan], table: &RoutingTable, host: &mut impl Host) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let special =
        |listener: &&ListenerPlan| listener.protocol.is_layer4() || listener.source == Source::Transparent;
    for listener in listeners.iter().filter(special) {
        for (name, address) in instances(listener, table) {
            let found = of_instance(listener, &name, address, host);
            warnings.extend(found.filter(|warning| !warnings.contains(warning)));
        }
    }
    warnings
}

/// Those that clients of a listener may come to.
fn instances(listener: &ListenerPlan, table: &RoutingTable) -> Vec<(String, SocketAddr)> {
    let pools = if listener.protocol.is_layer4() {
        let rules = placement::by_client(table, &listener.name, listener.address.ip()).into_iter();
        let serving = rules.filter(|rule| !placement::denies(table, rule.rule));
        serving.flat_map(|rule| placement::reachable_pools(table, rule.rule)).collect()
    } else {
        placement::pools_of_listener(table, &listener.name, listener.protocol)
    };
    let mut found = Vec::new();
    for instance in pools.into_iter().flat_map(|pool| &table.pool(pool).instances) {
        let one = (instance.name.clone(), instance.address);
        if instance.address.is_ipv4() == listener.address.is_ipv4() && !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

fn of_instance(
    listener: &ListenerPlan,
    name: &str,
    address: SocketAddr,
    host: &mut impl Host,
) -> Option<Warning> {
    let ip = address.ip();
    let Some(route) = host.route(ip) else {
        if !listener.protocol.is_layer4() {
            // Connecting says so.
            return None;
        }
        return Some(Warning {
            message: format!(
                "no route leads to instance {name} ({address}): Layer-4 flows are not placed there"
            ),
            help: format!("add a route; `ip route get {ip}` must find one"),
        });
    };
    let behind = (route.gateway != ip).then_some(route.gateway);
    match (listener.source, behind) {
        (Source::DsrL2, Some(gateway)) => Some(Warning {
            message: format!(
                "listener {} has source = \"dsr-l2\", and instance {name} ({address}) is behind the router {gateway}: a packet whose Ethernet addresses alone change does not get there",
                listener.name
            ),
            help: "connect the instance to a network of this host, or set source = \"dsr-ipip\" or \"snat\""
                .to_owned(),
        }),
        (Source::Transparent, Some(gateway)) => Some(Warning {
            message: format!(
                "listener {} has source = \"transparent\", and instance {name} ({address}) is behind the router {gateway}: its answers to clients must come back through this host",
                listener.name
            ),
            help: format!(
                "let {gateway} send what goes to clients through this host, or set source = \"snat\""
            ),
        }),
        (Source::Transparent, None)
            if !listener.protocol.is_layer4() && ip.is_ipv4() && host.refuses_marked(route.interface) =>
        {
            Some(Warning {
                message: format!(
                    "listener {} has source = \"transparent\", and this host drops what instance {name} ({address}) answers: it judges packets' sources strictly (rp_filter) and by their mark (src_valid_mark)",
                    listener.name
                ),
                help: "set net.ipv4.conf.*.rp_filter to 2 or 0 for that interface and `all`, or src_valid_mark to 0"
                    .to_owned(),
            })
        }
        (Source::DsrIpip, _) => too_narrow(listener, name, address, host.mtu(route.interface)?),
        _ => None,
    }
}

fn too_narrow(listener: &ListenerPlan, name: &str, address: SocketAddr, mtu: u32) -> Option<Warning> {
    let overhead = if address.is_ipv4() { 20 } else { 40 };
    let wanted = USUAL_MTU + overhead;
    if address.is_ipv6() && mtu < LEAST_IPV6_MTU + overhead {
        return Some(Warning {
            message: format!(
                "listener {} has source = \"dsr-ipip\", and the way to instance {name} ({address}) has an MTU of {mtu}: IPv6 clients send packets of {LEAST_IPV6_MTU} bytes whatever they are told, and with the outer header those do not get there",
                listener.name
            ),
            help: format!(
                "set the MTU of that network to {wanted} or more (`ip link set DEV mtu {wanted}`, also on the instances), or set source = \"snat\""
            ),
        });
    }
    (mtu < wanted).then(|| Warning {
        message: format!(
            "listener {} has source = \"dsr-ipip\", and the way to instance {name} ({address}) has an MTU of {mtu}: clients' packets of more than {} bytes are refused, and clients that ignore that hang",
            listener.name,
            mtu.saturating_sub(overhead)
        ),
        help: format!(
            "set the MTU of that network to {wanted} or more (`ip link set DEV mtu {wanted}`, also on the instances), or let the instances announce a smaller MSS (`ip route … advmss {}`)",
            mtu.saturating_sub(overhead + if address.is_ipv4() { 40 } else { 60 })
        ),
    })
}

#[cfg(test)]
mod tests;
