//! Listing the connections that travel through the kernel, by instance, client and listener.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::protocol::{Flow, FlowQuery, Flows, Listener};
use super::routes::Refusal;
use super::state::State;
use crate::core::networks;
use crate::core::table::RoutingTable;
use crate::flows::table::{FlowInfo, FlowState};

const DEFAULT_LIMIT: usize = 1_000;
const MAX_LIMIT: usize = 100_000;

/// The flows that match the query, or what is wrong with it.
pub fn list(state: &State, query: &FlowQuery) -> Result<Flows, Refusal> {
    let table = state.table.load();
    let listeners = state.listeners.load();
    let filter = Filter::new(query, &table, &listeners)?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Refusal::bad_request(
            format!("limit is {limit}"),
            format!(
                "give a number from 1 to {MAX_LIMIT}, or narrow the question with instance, client or listener"
            ),
        ));
    }
    let only_count = match query.count {
        None | Some(0) => false,
        Some(1) => true,
        Some(other) => return Err(Refusal::bad_request(format!("count is {other}"), "give 1 or 0")),
    };
    if only_count && filter.accepts_all() {
        let layer4 = state.layer4.as_ref().map_or(0, |flows| flows.count());
        let count = state.flows.as_ref().map_or(0, |flows| flows.len()) + layer4;
        return Ok(Flows { count, flows: None });
    }
    let mut found = state.flows.as_ref().map(|flows| flows.flows()).unwrap_or_default();
    found.extend(state.layer4.iter().flat_map(|flows| flows.flows()));
    found.retain(|flow| filter.accepts(flow));
    let count = found.len();
    if only_count {
        return Ok(Flows { count, flows: None });
    }
    found.sort_unstable_by_key(|flow| (Reverse(flow.age), flow.id));
    found.truncate(limit);
    let names = Names::new(&table, &listeners);
    Ok(Flows { count, flows: Some(found.into_iter().map(|flow| names.describe(flow)).collect()) })
}

/// What a flow must be to be listed; each part is resolved to addresses once.
struct Filter {
    instance: Option<SocketAddr>,
    client: Option<Client>,
    /// Its address, and its protocol if it was named.
    listener: Option<(SocketAddr, Option<String>)>,
}

enum Client {
    Socket(SocketAddr),
    Network(IpNet),
}

impl Filter {
    fn new(query: &FlowQuery, table: &RoutingTable, listeners: &[Listener]) -> Result<Self, Refusal> {
        let instance = |text: &String| {
            let named = table.instances().find(|(_, _, instance)| instance.name == *text);
            named.map(|(_, _, instance)| instance.address).or_else(|| text.parse().ok()).ok_or_else(|| {
                let known: Vec<_> =
                    table.instances().map(|(_, _, instance)| instance.name.as_str()).collect();
                unknown("instance", text, &known)
            })
        };
        let listener = |text: &String| {
            let named = listeners.iter().find(|listener| listener.name == *text);
            let named = named.map(|listener| (listener.address, Some(listener.protocol.clone())));
            named.or_else(|| Some((text.parse().ok()?, None))).ok_or_else(|| {
                let known: Vec<_> = listeners.iter().map(|listener| listener.name.as_str()).collect();
                unknown("listener", text, &known)
            })
        };
        Ok(Self {
            instance: query.instance.as_ref().map(instance).transpose()?,
            client: query.client.as_deref().map(Client::from_str).transpose()?,
            listener: query.listener.as_ref().map(listener).transpose()?,
        })
    }

    fn accepts_all(&self) -> bool {
        self.instance.is_none() && self.client.is_none() && self.listener.is_none()
    }

    fn accepts(&self, flow: &FlowInfo) -> bool {
        self.instance.is_none_or(|instance| flow.instance == instance)
            && self.listener.as_ref().is_none_or(|(listener, protocol)| {
                let like = |protocol: &String| (protocol == "udp") == (flow.protocol == "udp");
                listens_for(*listener, flow.vip) && protocol.as_ref().is_none_or(like)
            })
            && self.client.as_ref().is_none_or(|client| match client {
                Client::Socket(address) => flow.client == *address,
                Client::Network(network) => network.contains(&flow.client.ip()),
            })
    }
}

/// Whether a listener on `listener`, which may be its family's wildcard address, accepts connections to `vip`.
pub(super) fn listens_for(listener: SocketAddr, vip: SocketAddr) -> bool {
    let covers =
        listener.ip() == vip.ip() || listener.ip().is_unspecified() && listener.is_ipv6() == vip.is_ipv6();
    covers && listener.port() == vip.port()
}

impl FromStr for Client {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Socket(address));
        }
        networks::parse(text).map(Self::Network).ok_or_else(|| {
            Refusal::bad_request(
                format!("client \"{text}\" is not an address"),
                "give an address (10.1.2.3), an address and port (10.1.2.3:4567, [fd77::2]:4567) or a network (10.0.0.0/8)",
            )
        })
    }
}

/// A name that the configuration does not have, with the most similar one that it has.
pub fn unknown(what: &str, name: &str, known: &[&str]) -> Refusal {
    // Comparing costs the product of both lengths, and nobody mistypes a name of hundreds of characters.
    let name: String = name.chars().take(64).collect();
    let similar = known
        .iter()
        .map(|candidate| (strsim::osa_distance(candidate, &name), candidate))
        .filter(|(distance, candidate)| *distance <= 1.max(candidate.chars().count() / 3))
        .min_by_key(|(distance, _)| *distance);
    let help = match (similar, known) {
        (Some((_, candidate)), _) => format!("did you mean \"{candidate}\"?"),
        (None, []) => format!("the configuration has no {what}"),
        (None, known) if known.len() <= 10 => format!("there are: {}", known.join(", ")),
        (None, known) => format!("there are {} others", known.len()),
    };
    Refusal::bad_request(format!("there is no {what} \"{name}\""), help)
}

/// Names by address.
struct Names<'a> {
    instances: HashMap<SocketAddr, (&'a str, &'a str)>,
    listeners: &'a [Listener],
}

impl<'a> Names<'a> {
    fn new(table: &'a RoutingTable, listeners: &'a [Listener]) -> Self {
        let instances = table.instances();
        Self {
            instances: instances
                .map(|(_, pool, instance)| (instance.address, (pool.name.as_str(), instance.name.as_str())))
                .collect(),
            listeners,
        }
    }

    fn listener(&self, vip: SocketAddr, protocol: &str) -> Option<&Listener> {
        // The ports of UDP and TCP are different ports.
        let like = |listener: &&Listener| (listener.protocol == "udp") == (protocol == "udp");
        let exact = self.listeners.iter().filter(like).find(|listener| listener.address == vip);
        exact.or_else(|| {
            self.listeners.iter().filter(like).find(|listener| listens_for(listener.address, vip))
        })
    }

    fn describe(&self, flow: FlowInfo) -> Flow {
        let instance = self.instances.get(&flow.instance);
        Flow {
            id: flow.id,
            client: flow.client,
            vip: flow.vip,
            source: flow.source,
            instance_address: flow.instance,
            listener: self.listener(flow.vip, flow.protocol).map(|listener| listener.name.clone()),
            pool: instance.map(|&(pool, _)| pool.to_owned()),
            instance: instance.map(|&(_, name)| name.to_owned()),
            rule: Some(flow.rule).filter(|rule| !rule.is_empty()),
            state: match flow.state {
                FlowState::Custody => "custody",
                FlowState::Direct => "direct",
                FlowState::Closing => "closing",
            }
            .to_owned(),
            age_seconds: flow.age.as_secs_f64(),
            idle_seconds: flow.idle.as_secs_f64(),
            protocol: flow.protocol.to_owned(),
            packets_to_instance: flow.packets_to_instance,
            bytes_to_instance: flow.bytes_to_instance,
            packets_to_client: flow.packets_to_client,
            bytes_to_client: flow.bytes_to_client,
        }
    }
}
