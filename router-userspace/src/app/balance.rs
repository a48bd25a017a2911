//! Layer-4 listeners in the daemon: what the routing table says becomes what the packet path shall do.
//!
//! Nothing here is asked for a connection. A few times in a second the table is looked at, and what differs (health, drain, weights, rules) is
//! put in force: a change reaches the packets within a tenth of a second.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use arc_swap::ArcSwap;
use ipnet::IpNet;
use router_common::abi::balance::Mode;
use router_common::wire::{PROTOCOL_TCP, PROTOCOL_UDP};
use socket2::{Domain, Socket, Type};

use crate::config::{DatapathPlan, ListenerPlan, Protocol, Source};
use crate::core::placement::{self, Members};
use crate::core::pool::InstanceId;
use crate::core::table::{RoutingTable, RuleRef};
use crate::flows::balance::{
    ApplyError, Balancer, Destination, EndpointKey, Wanted, WantedGroup, WantedInstance, WantedService,
};
use crate::proxy::source::SourceAddresses;

/// How often the table is looked at.
const INTERVAL: Duration = Duration::from_millis(100);
/// An instance's weight grows while it starts slowly; rings follow in steps of so much.
const WEIGHT_STEPS: u32 = 20;

/// Keeps the packet path up to date.
pub struct Balance {
    /// `None` if no kernel data path is loaded.
    balancer: Option<Arc<Balancer>>,
    table: Arc<ArcSwap<RoutingTable>>,
    sources: SourceAddresses,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listeners: Vec<ListenerPlan>,
    /// Addresses on which user space accepts connections: whoever asks for them is answered by the kernel, whatever becomes of Layer-4 listeners on them.
    accepting: BTreeSet<IpAddr>,
    claims: Claims,
    /// By the group's name: what its ring was built of, and the ring.
    rings: HashMap<String, (Vec<Filler>, Arc<[u32]>)>,
    /// What was said of the latest attempt, so that it is said once.
    complaint: Option<ApplyError>,
    /// What was said of routes, for the same reason.
    unroutable: BTreeSet<SocketAddr>,
}

/// Name, weight and place in the list of instances.
type Filler = (String, u32, u32);

/// Sockets that nobody uses: they keep other programs from the listeners' ports. None of them listens, so the stack answers what comes up to it with
/// resets and ICMP errors.
pub type Claims = HashMap<EndpointKey, Socket>;

impl std::fmt::Debug for Balance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Balance").field("balancer", &self.balancer).finish_non_exhaustive()
    }
}

impl Balance {
    pub fn new(
        balancer: Option<Arc<Balancer>>,
        table: Arc<ArcSwap<RoutingTable>>,
        plan: &DatapathPlan,
    ) -> Self {
        let sources = SourceAddresses::new(plan.source_addresses.clone());
        Self { balancer, table, sources, state: Mutex::default() }
    }

    /// Whether any listener is at Layer 4.
    pub fn is_needed(&self, listeners: &[ListenerPlan]) -> bool {
        layer4(listeners).next().is_some()
    }

    /// Takes the ports of the Layer-4 listeners.
    pub fn claim(&self, listeners: &[ListenerPlan]) -> Result<Claims> {
        let state = self.state();
        layer4(listeners)
            .map(endpoint)
            .filter(|endpoint| !state.claims.contains_key(endpoint))
            .map(|endpoint| Ok((endpoint, claim(endpoint)?)))
            .collect()
    }

    /// Whether these listeners can take the place of the old ones, before anything is changed. Returns the ports that could be taken
    /// already; those of listeners that are about to go are taken later.
    pub fn may_replace(&self, old: &[ListenerPlan], new: &[ListenerPlan]) -> Result<Claims, String> {
        let tables = self.balancer.as_ref().is_some_and(|balancer| balancer.has_tables());
        if self.is_needed(new) && !tables {
            return Err(ApplyError::NoTables.to_string());
        }
        let taken = |listener: &ListenerPlan| old.iter().any(|old| old.address == listener.address);
        let fresh: Vec<_> = layer4(new).filter(|listener| !taken(listener)).cloned().collect();
        self.claim(&fresh).map_err(|error| format!("{error:#}"))
    }

    /// These are the listeners from now on.
    pub fn replace(&self, listeners: &[ListenerPlan], claimed: Claims) -> Result<(), ApplyError> {
        let mut state = self.state();
        state.listeners = layer4(listeners).cloned().collect();
        let others = listeners.iter().filter(|listener| !listener.protocol.is_layer4());
        state.accepting = others.map(|listener| listener.address.ip()).collect();
        let wanted: Vec<_> = state.listeners.iter().map(endpoint).collect();
        state.claims.extend(claimed);
        state.claims.retain(|endpoint, _| wanted.contains(endpoint));
        for missing in wanted {
            if let Entry::Vacant(place) = state.claims.entry(missing) {
                match claim(missing) {
                    Ok(socket) => drop(place.insert(socket)),
                    Err(error) => tracing::error!("{error:#}"),
                }
            }
        }
        self.apply(&mut state)
    }

    /// Looks at the table once.
    fn refresh(&self) {
        let mut state = self.state();
        let complaint = self.apply(&mut state).err();
        if complaint != state.complaint {
            match &complaint {
                Some(error) => tracing::error!("the Layer-4 listeners are not up to date: {error}"),
                None => tracing::info!("the Layer-4 listeners are up to date again"),
            }
            state.complaint = complaint;
        }
    }

    fn apply(&self, state: &mut State) -> Result<(), ApplyError> {
        let Some(balancer) = &self.balancer else { return Ok(()) };
        let table = self.table.load_full();
        let wanted = self.wanted(state, &table, balancer, Instant::now());
        tell_of_routes(&table, &state.unroutable, &wanted.unroutable);
        state.unroutable.clone_from(&wanted.unroutable);
        balancer.apply(&wanted)
    }

    /// What the packet path shall do now.
    fn wanted(&self, state: &mut State, table: &RoutingTable, balancer: &Balancer, now: Instant) -> Wanted {
        let ring_size = balancer.ring_size() as usize;
        let mut builder =
            Builder { balance: self, balancer, table, now, wanted: Wanted::default(), groups: Vec::new() };
        let State { listeners, rings, accepting, .. } = state;
        for listener in listeners.iter() {
            let echo = listener.echo && !accepting.contains(&listener.address.ip());
            builder.service(listener, echo);
        }
        let Builder { mut wanted, groups, .. } = builder;
        let mut kept = HashMap::new();
        for (key, members) in groups {
            let name = key.name(table);
            let filler = |(id, weight): &(InstanceId, u32)| {
                let instance = table.instance(*id);
                let place = wanted.place_of(instance.address, key.protocol)?;
                Some((instance.name.clone(), *weight, place as u32))
            };
            let fillers: Vec<Filler> = members.instances.iter().filter_map(filler).collect();
            for (.., place) in &fillers {
                wanted.instances[*place as usize].takes_flows = true;
            }
            let ring = match rings.remove(&name) {
                _ if fillers.is_empty() => None,
                Some((built_of, ring)) if built_of == fillers => Some(ring),
                _ => {
                    let places = placement::ring(table, &members, ring_size);
                    let place =
                        |member: &u32| fillers.get(*member as usize).map_or(u32::MAX, |filler| filler.2);
                    Some(places.iter().map(place).collect())
                }
            };
            if let Some(ring) = &ring {
                kept.insert(name.clone(), (fillers, Arc::clone(ring)));
            }
            wanted.groups.push(WantedGroup { name, ring, silent: members.silent });
        }
        *rings = kept;
        wanted
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows health, drain and weights, as long as the runtime lives.
pub async fn keep(balance: Arc<Balance>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let balance = Arc::clone(&balance);
        // Building rings takes milliseconds, and checks should not wait for that. It can only fail by a panic, which has been logged.
        let _ = tokio::task::spawn_blocking(move || balance.refresh()).await;
    }
}

/// Whom a ring is for. Instances are other ones for each protocol, and with direct return for each port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupKey {
    rule: RuleRef,
    protocol: u8,
    /// With direct return the port that instances must listen on; 0 otherwise.
    port: u16,
}

impl GroupKey {
    fn name(&self, table: &RoutingTable) -> String {
        format!("{}/{}/{}", table.rule_name(self.rule), self.protocol, self.port)
    }
}

struct Builder<'a> {
    balance: &'a Balance,
    balancer: &'a Balancer,
    table: &'a RoutingTable,
    now: Instant,
    wanted: Wanted,
    groups: Vec<(GroupKey, Members)>,
}

impl Builder<'_> {
    fn service(&mut self, listener: &ListenerPlan, echo: bool) {
        let endpoint = endpoint(listener);
        let rules = placement::by_client(self.table, &listener.name, endpoint.address.ip());
        let rules: Vec<(IpNet, Destination)> = rules
            .into_iter()
            .map(|client| (client.network, self.destination(listener, endpoint, client.rule)))
            .collect();
        let (mode, affinity) = (mode(listener.source), listener.client_affinity);
        self.wanted.services.push(WantedService { endpoint, mode, echo, affinity, rules });
    }

    fn destination(&mut self, listener: &ListenerPlan, endpoint: EndpointKey, rule: RuleRef) -> Destination {
        if placement::denies(self.table, rule) {
            return Destination::Deny { silent: false };
        }
        let port = if listener.source.is_direct_return() { endpoint.address.port() } else { 0 };
        let key = GroupKey { rule, protocol: endpoint.protocol, port };
        if let Some(place) = self.groups.iter().position(|(known, _)| *known == key) {
            self.instances(listener, key);
            return Destination::Group(place);
        }
        self.instances(listener, key);
        let is_within_reach =
            |id| self.wanted.place_of(self.table.instance(id).address, key.protocol).is_some();
        let mut members = placement::members(self.table, rule, self.now, &is_within_reach);
        for (id, weight) in &mut members.instances {
            *weight = in_steps(*weight, self.table.instance(*id).weight);
        }
        self.groups.push((key, members));
        Destination::Group(self.groups.len() - 1)
    }

    /// Every instance that the group's clients may come to, so that what becomes of one is known to flows that it has.
    fn instances(&mut self, listener: &ListenerPlan, key: GroupKey) {
        let vip = listener.address;
        for pool in placement::reachable_pools(self.table, key.rule) {
            for (instance, index) in self.table.pool(pool).instances.iter().zip(0..) {
                // One that joined by itself may be of another family, or listen on another port.
                let fits = instance.address.is_ipv4() == vip.is_ipv4()
                    && (key.port == 0 || instance.address.port() == key.port);
                if fits {
                    let endpoint = EndpointKey { address: instance.address, protocol: key.protocol };
                    self.instance(endpoint, InstanceId { pool, index }, !listener.source.is_direct_return());
                }
            }
        }
    }

    fn instance(&mut self, endpoint: EndpointKey, id: InstanceId, answers: bool) {
        let instances = &mut self.wanted.instances;
        if let Some(known) = instances.iter_mut().find(|known| known.endpoint == endpoint) {
            known.answers |= answers;
            return;
        }
        let has_route = self.balancer.has_route(endpoint.address.ip());
        let source = self.balance.source(endpoint.address.ip());
        if !has_route || source.is_none() {
            self.wanted.unroutable.insert(endpoint.address);
        }
        // Without an address of ours it cannot be reached by anybody, flows that it has included.
        let Some(source) = source else { return };
        let standing = placement::standing(self.table, id, self.now);
        instances.push(WantedInstance {
            endpoint,
            source,
            takes_flows: false,
            takes_returning_clients: standing.takes_returning_clients && has_route,
            down: standing.down,
            answers,
        });
    }
}

impl Balance {
    /// Our address towards an instance. `None` if there is no way to it now.
    fn source(&self, instance: IpAddr) -> Option<IpAddr> {
        // Not in turn: a flow's source is its instance's as long as both live.
        let configured = self.sources.configured(instance).min();
        configured.or_else(|| self.sources.by_route(instance).ok())
    }
}

/// Says which instances no route leads to any more, and which again.
fn tell_of_routes(table: &RoutingTable, before: &BTreeSet<SocketAddr>, now: &BTreeSet<SocketAddr>) {
    let name = |address: &SocketAddr| {
        let known = table.instances().find(|(_, _, instance)| instance.address == *address);
        known.map_or_else(|| address.to_string(), |(_, _, instance)| instance.name.clone())
    };
    for address in now.difference(before) {
        tracing::warn!(
            instance = name(address),
            %address,
            "no route leads to an instance: Layer-4 flows go to others; add a route (`ip route get {}` must find one)",
            address.ip()
        );
    }
    for address in before.difference(now) {
        tracing::info!(instance = name(address), %address, "a route leads to the instance again, or it is not wanted any more");
    }
}

fn in_steps(weight: u32, configured: u32) -> u32 {
    let step = configured.max(weight).div_ceil(WEIGHT_STEPS).max(1);
    if weight >= configured { weight } else { weight.div_ceil(step) * step }
}

fn layer4(listeners: &[ListenerPlan]) -> impl Iterator<Item = &ListenerPlan> {
    listeners.iter().filter(|listener| listener.protocol.is_layer4())
}

fn endpoint(listener: &ListenerPlan) -> EndpointKey {
    let protocol = if listener.protocol == Protocol::Udp { PROTOCOL_UDP } else { PROTOCOL_TCP };
    EndpointKey { address: listener.address, protocol }
}

fn mode(source: Source) -> Mode {
    match source {
        Source::Snat => Mode::Snat,
        Source::Transparent => Mode::Transparent,
        Source::DsrL2 => Mode::DsrL2,
        Source::DsrIpip => Mode::DsrIpip,
    }
}

fn claim(endpoint: EndpointKey) -> Result<Socket> {
    let EndpointKey { address, protocol } = endpoint;
    let udp = protocol == PROTOCOL_UDP;
    let open = || {
        let kind = if udp { Type::DGRAM } else { Type::STREAM };
        let socket = Socket::new(Domain::for_address(address), kind, None)?;
        // The VIP may be announced, or come, later.
        match address {
            SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
            SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
        }
        socket.bind(&address.into())?;
        if udp {
            // Connected, it takes nothing that is passed up to the stack, which then says that the port is unreachable.
            socket.connect(&SocketAddr::new(address.ip(), 9).into())?;
        }
        Ok::<_, std::io::Error>(socket)
    };
    let what = if udp { "UDP" } else { "TCP" };
    open()
        .with_context(|| format!("the {what} port of {address} cannot be claimed; is it another program's?"))
}
