//! The kernel data path of this daemon: which interfaces, which sessions an adopted flow belongs to, and how to go on without it.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_indextoname};
use router_common::abi::binding::MAX_RINGS;

use crate::config::{self, DatapathPlan, Interfaces, Layer4Tables, ListenerPlan};
use crate::core::session::Session;
use crate::core::table::RoutingTable;
use crate::flows::balance::{self, BalanceSettings, Balancer};
use crate::flows::binding::{Arrivals, Binder};
use crate::flows::capture::KernelCaptures;
use crate::flows::kernel::{BalanceSizes, KernelSettings};
use crate::flows::kernel_table::{KernelFlowTable, Tables};
use crate::flows::netlink::{Netlink, interface_towards};
use crate::flows::ports::SourcePorts;
use crate::flows::table::FlowTable;
use crate::flows::trace::Tracer;
use crate::flows::xdp::{Attach, Wishes};

/// How the data path stands.
pub struct Loaded {
    /// `None` without a kernel data path; the daemon then goes on by relaying.
    pub flows: Option<Arc<KernelFlowTable>>,
    /// `None` if no listener's connections are to be bound.
    pub binder: Option<Arc<Binder>>,
    /// What its workers are told by.
    pub rings: Vec<Arrivals>,
    pub balancer: Option<Arc<Balancer>>,
    pub tracer: Option<Arc<Tracer>>,
    pub captures: Option<Arc<KernelCaptures>>,
    /// One line for an operator.
    pub state: String,
}

/// Maglev tables at a time, if the configuration needs no more.
const RINGS: u32 = 64;
/// Clients with affinity that are remembered at a time.
const CLIENTS: u32 = 262_144;

/// Loads or adopts the data path.
pub fn load(
    plan: &DatapathPlan,
    listeners: &[ListenerPlan],
    shared: &Arc<ArcSwap<RoutingTable>>,
    ports: &SourcePorts,
    workers: usize,
    replace: bool,
) -> Loaded {
    let table = &*shared.load_full();
    let layer4 = plan.balance.tables == Layer4Tables::Always
        || listeners.iter().any(|listener| listener.protocol.is_layer4());
    let settings = KernelSettings {
        interfaces: match &plan.interfaces {
            Interfaces::Named(names) => names.clone(),
            Interfaces::Auto => match involved(listeners, table) {
                Ok(names) => names,
                Err(error) => {
                    return without(format!(
                        "the interfaces of listeners and instances are unknown: {error}"
                    ));
                }
            },
        },
        pin_dir: plan.pin_dir.clone(),
        attach: wishes(plan),
        max_flows: plan.max_flows,
        replace,
        binding: binds(listeners),
        binders: workers.clamp(1, MAX_RINGS),
        balance: layer4.then(|| BalanceSizes {
            max_flows: plan.balance.max_flows,
            ring_size: plan.balance.maglev_size,
            // Each rule may have one for TCP and one for UDP, and each may be in force twice while it is exchanged.
            rings: RINGS.max(4 * (table.rules().len() as u32 + 1)),
            clients: CLIENTS,
        }),
    };
    match KernelFlowTable::open(&settings, plan.flow_idle_timeout, ports, |instance| session(table, instance))
    {
        Ok((flows, Tables { balance, binding }, adopted)) => {
            let balancer = match balancer(plan, balance, &flows, shared) {
                Ok(balancer) => balancer,
                Err(error) => return without(format!("Layer-4 flows cannot be looked after: {error}")),
            };
            let binder = binding.map(|maps| Binder::new(Arc::clone(&flows), maps)).transpose();
            let binder = binder.unwrap_or_else(|error| {
                tracing::warn!(%error, "connections cannot be bound; sockets accept them");
                None
            });
            let (binder, rings) = binder.map_or((None, Vec::new()), |(binder, rings)| (Some(binder), rings));
            let interfaces = flows.interfaces().join(", ");
            tracing::info!(interfaces, "kernel data path attached (TCX)");
            if adopted.flows > 0 {
                tracing::info!(
                    flows = adopted.flows,
                    sessions = adopted.sessions,
                    "flows of an earlier daemon go on"
                );
            }
            if flows.capacity() != plan.max_flows as usize {
                tracing::warn!(
                    in_force = flows.capacity(),
                    "datapath.max_flows is only applied to a new table; start once with --replace, which ends the connections that were handed off"
                );
            }
            warn_of_super_packets(&flows);
            let state = format!("TCX on {interfaces}");
            let tracer = Arc::new(Tracer::new(Arc::clone(&flows)));
            let captures = Some(Arc::clone(flows.captures()));
            Loaded {
                flows: Some(flows),
                binder: binder.map(Arc::new),
                rings,
                balancer: Some(balancer),
                tracer: Some(tracer),
                captures,
                state,
            }
        }
        Err(error) => without(error.to_string()),
    }
}

/// Linux gives an IPv6 packet that it has put together from more than 64 KiB an extension header, and with that the packet path leaves it to the
/// stack, which resets the connection.
fn warn_of_super_packets(flows: &KernelFlowTable) {
    for name in flows.interfaces() {
        let index = nix::net::if_::if_nametoindex(name.as_str()).map_err(io::Error::from);
        let size = index.and_then(|index| Netlink::open()?.gro_max_size(index));
        if let Ok(Some(size)) = size
            && size > 65_536
        {
            tracing::warn!(
                interface = name,
                gro_max_size = size,
                "handed-off IPv6 connections break on packets of more than 64 KiB: set `ip link set {name} gro_max_size 65536`"
            );
        }
    }
}

/// Whether connections of some listener are to be bound.
pub fn binds(listeners: &[ListenerPlan]) -> bool {
    listeners.iter().any(|listener| listener.offload == config::Offload::Bind)
}

/// Where the configuration wants interfaces' packets to be met.
pub fn wishes(plan: &DatapathPlan) -> Wishes {
    let of = plan.attach_of.iter().map(|(name, attach)| (name.clone(), wish(*attach)));
    Wishes { everywhere: wish(plan.attach), of: of.collect() }
}

fn wish(attach: config::Attach) -> Attach {
    match attach {
        config::Attach::Auto => Attach::Auto,
        config::Attach::Xdp => Attach::Xdp,
        config::Attach::Tc => Attach::Tc,
    }
}

fn balancer(
    plan: &DatapathPlan,
    maps: balance::Maps,
    flows: &KernelFlowTable,
    table: &Arc<ArcSwap<RoutingTable>>,
) -> io::Result<Arc<Balancer>> {
    let settings = BalanceSettings {
        ring_size: plan.balance.maglev_size,
        ports: plan.balance.source_ports.clone(),
        new_flow_limit: plan.balance.new_flows,
        tcp_idle: plan.flow_idle_timeout,
        udp_idle: plan.balance.udp_idle_timeout,
    };
    let table = Arc::clone(table);
    let session = Box::new(move |instance| session(&table.load(), instance));
    let balancer = Arc::new(Balancer::adopt(maps, Arc::clone(flows.next_hops()), settings, session));
    balancer.start()?;
    let adopted = balancer.totals().flows;
    if adopted > 0 {
        tracing::info!(flows = adopted, "Layer-4 flows of an earlier daemon go on");
    }
    Ok(balancer)
}

fn without(reason: String) -> Loaded {
    tracing::warn!("every connection is relayed in user space: {reason}");
    Loaded {
        flows: None,
        binder: None,
        rings: Vec::new(),
        balancer: None,
        tracer: None,
        captures: None,
        state: format!("not loaded: {reason}"),
    }
}

/// Begins a session on the instance with this address.
fn session(table: &RoutingTable, address: SocketAddr) -> Option<Session> {
    table
        .instances()
        .find(|(_, _, instance)| instance.address == address)
        .map(|(_, _, instance)| instance.status.sessions().begin())
}

/// Interfaces that carry a listener's address or lead to an instance. A listener's address that lies on no real interface (announced by a routing daemon, or
/// not there yet) may be reached through any.
fn involved(listeners: &[ListenerPlan], table: &RoutingTable) -> io::Result<Vec<String>> {
    let interfaces: Vec<_> = getifaddrs()?.collect();
    let real = |flags: InterfaceFlags| !flags.contains(InterfaceFlags::IFF_LOOPBACK);
    let mut names = BTreeSet::new();
    for listener in listeners {
        let carries =
            |ip: Option<IpAddr>| listener.address.ip().is_unspecified() || ip == Some(listener.address.ip());
        let carrying: Vec<_> = interfaces
            .iter()
            .filter(|entry| real(entry.flags) && carries(entry.address.as_ref().and_then(ip_of)))
            .map(|entry| entry.interface_name.clone())
            .collect();
        if carrying.is_empty() {
            let up = |entry: &&nix::ifaddrs::InterfaceAddress| {
                real(entry.flags)
                    && entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_BROADCAST)
            };
            names.extend(interfaces.iter().filter(up).map(|entry| entry.interface_name.clone()));
        }
        names.extend(carrying);
    }
    for (_, _, instance) in table.instances() {
        // An instance without a route now may get one later; the listeners' interfaces remain.
        let Ok(index) = interface_towards(instance.address.ip()) else { continue };
        if let Ok(name) = if_indextoname(index)
            && interfaces
                .iter()
                .any(|entry| entry.interface_name.as_bytes() == name.to_bytes() && real(entry.flags))
        {
            names.insert(name.to_string_lossy().into_owned());
        }
    }
    Ok(names.into_iter().collect())
}

fn ip_of(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    address
        .as_sockaddr_in()
        .map(|v4| IpAddr::V4(v4.ip()))
        .or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}
