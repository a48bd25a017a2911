//! Layer-4 listeners: the tables by which the kernel programs place flows, and what becomes of these flows.
//!
//! [`Balancer::apply`] puts in force what is [`Wanted`]; it may be called as often as anything may have changed, and writes
//! only differences. Packets never see half of a change: each table is written where nobody looks, and then named by one word. Flows are
//! made by the kernel programs; [`sweep`] counts their sessions and removes them when they are over.

mod endpoints;
mod instances;
mod lifetime;
mod rings;
mod rules;
mod services;
mod slots;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use router_common::abi::balance::{
    self, Endpoint, EndpointBucket, FlowBucket, Group, Instance, Mode, ReplyBucket, RingChunk, Service,
    Settings, TICK_SHIFT, Tunnel,
};
use router_common::abi::key::address_of;
use router_common::abi::shared::Shared32;

use super::kernel::{ClientMemory, ClientRules};
use super::mapped::Mapped;
use super::next_hops::NextHopTable;
use super::sockets::monotonic_ns;
use crate::core::session::Session;

pub use sweep::{FlowView, Totals};

/// Flows that the table is made for, by buckets: what is beyond the mean finds its place in a second bucket.
pub const FLOWS_PER_BUCKET: usize = 10;

/// TCP or UDP, as an IANA protocol number.
pub type ProtocolNumber = u8;

/// What flows of one listener agree in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointKey {
    pub address: SocketAddr,
    pub protocol: ProtocolNumber,
}

/// Everything that packets shall meet.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub services: Vec<WantedService>,
    pub groups: Vec<WantedGroup>,
    pub instances: Vec<WantedInstance>,
    /// Instances that no route leads to, and that take no flows for that.
    pub unroutable: BTreeSet<SocketAddr>,
}

/// A Layer-4 listener.
#[derive(Clone, Debug)]
pub struct WantedService {
    pub endpoint: EndpointKey,
    pub mode: Mode,
    /// Whether echo requests to the VIP are answered while there is an instance.
    pub echo: bool,
    /// How long a client without flows is remembered; `None` if clients are not.
    pub affinity: Option<Duration>,
    /// What happens to clients from a network, but for those in a smaller one of the list. One covers all addresses.
    pub rules: Vec<(IpNet, Destination)>,
}

impl Wanted {
    /// The place of an instance that packets can be sent to.
    pub fn place_of(&self, instance: SocketAddr, protocol: ProtocolNumber) -> Option<usize> {
        let endpoint = EndpointKey { address: instance, protocol };
        let place = self.instances.iter().position(|wanted| wanted.endpoint == endpoint);
        place.filter(|_| !self.unroutable.contains(&instance))
    }

    /// The VIPs whose echo requests are the packet path's business, and whether they are answered now: while a listener has an instance for some client.
    fn vips(&self) -> BTreeMap<IpAddr, bool> {
        let mut vips = BTreeMap::new();
        for service in self.services.iter().filter(|service| service.echo) {
            let serves = service.rules.iter().any(|(_, to)| match to {
                Destination::Group(place) => self.groups[*place].ring.is_some(),
                Destination::Deny { .. } => false,
            });
            *vips.entry(service.endpoint.address.ip()).or_default() |= serves;
        }
        vips
    }
}

/// Where the clients of a network go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A place in [`Wanted::groups`].
    Group(usize),
    Deny {
        silent: bool,
    },
}

/// The instances that a rule leads to.
#[derive(Clone, Debug)]
pub struct WantedGroup {
    /// Tells this group from others, also over reloads.
    pub name: String,
    /// Its Maglev table: places in [`Wanted::instances`], or anything beyond for nobody. `None` if there is no instance.
    pub ring: Option<Arc<[u32]>>,
    /// Whether clients get no answer while there is none.
    pub silent: bool,
}

/// An instance of a group, as services of one protocol see it.
#[derive(Clone, Debug)]
pub struct WantedInstance {
    pub endpoint: EndpointKey,
    /// The router's address towards it.
    pub source: IpAddr,
    pub takes_flows: bool,
    pub takes_returning_clients: bool,
    /// Its checks say that it is down.
    pub down: bool,
    /// Answers pass through this host in one service at least.
    pub answers: bool,
}

/// What does not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct BalanceSettings {
    /// Places of a Maglev table, a prime.
    pub ring_size: u32,
    /// Source ports of flows with `snat`.
    pub ports: RangeInclusive<u16>,
    /// New flows of one processor in a second that are stored; 0 for no limit.
    pub new_flow_limit: u32,
    /// A TCP flow on which nothing moves for so long is forgotten.
    pub tcp_idle: Duration,
    /// The same for UDP.
    pub udp_idle: Duration,
}

/// Why not everything that is wanted is in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error(
        "the tables of Layer-4 listeners are made when the daemon starts, and it started without any; restart routerd, or have them made at every start (l4_tables = \"always\" in [datapath])"
    )]
    NoTables,
    #[error("there are no more than {most} {what} at a time, those with flows that have not ended included")]
    TooMany { what: &'static str, most: usize },
    #[error("a Layer-4 table cannot be changed: {0}")]
    Map(String),
}

/// The tables, mapped or as handles. Made by [`Kernel::open`](super::kernel::Kernel::open).
#[derive(Debug)]
pub struct Maps {
    pub settings: Mapped<Settings>,
    pub endpoints: Mapped<EndpointBucket>,
    pub services: Mapped<Service>,
    pub instances: Mapped<Instance>,
    pub tunnels: Mapped<Tunnel>,
    pub groups: Mapped<Group>,
    pub rings: Mapped<RingChunk>,
    pub flows: Mapped<FlowBucket>,
    pub replies: Mapped<ReplyBucket>,
    pub rules: ClientRules,
    pub clients: ClientMemory,
}

/// Keeps the tables.
pub struct Balancer {
    maps: Maps,
    next_hops: Arc<NextHopTable>,
    settings: BalanceSettings,
    state: Mutex<State>,
    sweep: Mutex<sweep::Held>,
    session: Box<dyn Fn(SocketAddr) -> Option<Session> + Send + Sync>,
    unroutable: Mutex<BTreeSet<SocketAddr>>,
}

impl std::fmt::Debug for Balancer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Balancer").field("maps", &self.maps).finish_non_exhaustive()
    }
}

/// What the tables hold.
#[derive(Debug)]
struct State {
    services: services::Services,
    instances: instances::Instances,
    rings: rings::Rings,
    rules: rules::Rules,
    endpoints: endpoints::Endpoints,
}

impl Balancer {
    /// Takes over the tables, flows of an earlier daemon included. `session` begins a session on the configured instance with an address.
    pub fn adopt(
        maps: Maps,
        next_hops: Arc<NextHopTable>,
        settings: BalanceSettings,
        session: Box<dyn Fn(SocketAddr) -> Option<Session> + Send + Sync>,
    ) -> Self {
        let shared = &maps.settings[0];
        if shared.flow_seed.get() == 0 {
            // Random, and never 0.
            shared.flow_seed.set(RandomState::new().hash_one(0) as u32 | 1);
        }
        if shared.tunnel_mark.get() == 0 {
            shared.tunnel_mark.set(RandomState::new().hash_one(1) as u32 | 1 << 31);
        }
        let frozen = shared.now.get();
        shared.buckets.set(maps.flows.len() as u32);
        let chunks = settings.ring_size.div_ceil(balance::RING_CHUNK as u32);
        let adopted_chunks = shared.ring_chunks.get();
        let ring_size = match adopted_chunks {
            0 => settings.ring_size,
            _ => shared.ring_size.get(),
        };
        if ring_size != settings.ring_size {
            tracing::warn!(
                in_force = ring_size,
                "datapath.maglev_size is only applied to new tables; start once with --replace, which ends the flows"
            );
        }
        shared.ring_size.set(ring_size);
        shared.ring_chunks.set(if adopted_chunks == 0 { chunks } else { adopted_chunks });
        shared.new_flow_limit.set(settings.new_flow_limit);
        shared.first_port.set(u32::from(*settings.ports.start()));
        shared.ports.set(settings.ports.len() as u32);
        let settings = BalanceSettings { ring_size, ..settings };
        let state = State {
            services: services::Services::adopt(&maps.services),
            instances: instances::Instances::adopt(&maps.instances),
            rings: rings::Rings::adopt(&maps),
            rules: rules::Rules::adopt(&maps.services),
            endpoints: endpoints::Endpoints::default(),
        };
        let held = sweep::Held::default();
        let balancer = Self {
            maps,
            next_hops,
            settings,
            state: Mutex::new(state),
            sweep: Mutex::new(held),
            session,
            unroutable: Mutex::default(),
        };
        balancer.sweep_adopted(frozen);
        balancer
    }

    /// Sweeps on a thread of its own for as long as the balancer is in use.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        let balancer = Arc::downgrade(self);
        std::thread::Builder::new().name("l4-sweep".into()).spawn(move || {
            while let Some(balancer) = balancer.upgrade() {
                balancer.sweep();
                drop(balancer);
                std::thread::sleep(sweep::INTERVAL);
            }
        })?;
        Ok(())
    }

    /// Places of a Maglev table.
    pub fn ring_size(&self) -> u32 {
        self.settings.ring_size
    }

    /// Whether a route leads to an instance.
    pub fn has_route(&self, instance: IpAddr) -> bool {
        self.next_hops.towards_any(instance).is_ok()
    }

    /// See [`Wanted::unroutable`].
    fn unroutable(&self) -> MutexGuard<'_, BTreeSet<SocketAddr>> {
        self.unroutable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the tables have room for listeners at all.
    pub fn has_tables(&self) -> bool {
        self.maps.endpoints.len() > 1
    }

    /// Puts in force what is wanted. What is in force already is not touched.
    pub fn apply(&self, wanted: &Wanted) -> Result<(), ApplyError> {
        if !self.has_tables() {
            return if wanted.services.is_empty() { Ok(()) } else { Err(ApplyError::NoTables) };
        }
        let mut state = self.state();
        let State { services, instances, rings, rules, endpoints } = &mut *state;
        let maps = &self.maps;
        let now = Instant::now();
        let slots = instances.apply(maps, &self.next_hops, &wanted.instances)?;
        let groups = rings.apply(maps, &self.settings, &wanted.groups, &slots, now)?;
        services.apply(maps, rules, &wanted.services, &groups)?;
        endpoints.apply(maps, services, instances, &wanted.vips(), now)?;
        rings.release(maps, &groups, now);
        self.unroutable().clone_from(&wanted.unroutable);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Monotonic time in ticks.
fn ticks() -> u32 {
    (monotonic_ns() >> TICK_SHIFT) as u32
}

/// A span of time in ticks, rounded up.
fn in_ticks(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1 << TICK_SHIFT)).unwrap_or(u32::MAX / 2).min(u32::MAX / 2)
}

/// Ticks as a span of time.
fn from_ticks(ticks: u32) -> Duration {
    Duration::from_nanos(u64::from(ticks) << TICK_SHIFT)
}

/// An endpoint's port, protocol and family, as the tables hold them.
fn pack_port(key: EndpointKey) -> u32 {
    Endpoint::pack_port(key.address.port().to_be(), key.protocol, key.address.is_ipv6())
}

/// The endpoint that an entry of a table names; `None` if the entry is not in use.
fn endpoint_of(address: &[Shared32; 4], packed: u32) -> Option<EndpointKey> {
    let (port, protocol) = (u16::from_be(packed as u16), (packed >> 16) as u8);
    let ip = address_of(address.each_ref().map(Shared32::get), packed & Endpoint::IPV6 != 0);
    (protocol != 0).then(|| EndpointKey { address: SocketAddr::new(ip, port), protocol })
}
