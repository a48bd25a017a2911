//! Pools and their instances, as a snapshot of the routing table sees them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agent::AgentSpec;
use super::health::CheckSpec;
use super::load::{LoadPolicy, Thresholds};
use super::proxy_protocol::ProxyProtocol;
use super::status::{AdminState, InstanceStatus};

/// A pool of one routing table: its place in [`RoutingTable::pools`](super::table::RoutingTable::pools).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u16);

/// An instance of one routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId {
    pub pool: PoolId,
    /// Its place in [`Pool::instances`].
    pub index: u16,
}

/// How one of several candidates is picked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The smallest load, which is sessions × 100 / weight.
    #[default]
    FewestSessions,
    /// Next in turn, each as often as its weight says.
    RoundRobin,
    /// The most spare processing power, which is capacity × idle % × weight / 100.
    LeastCpu,
    /// The most free memory × weight / 100.
    MostFreeMemory,
    /// The smallest average response time × 100 / weight.
    FastestResponse,
    /// The smallest value that the instance's agent reports.
    ServerAgent,
    /// The smallest product of response time, load and agent value.
    Adaptive,
    /// The instance that the session key, user or client address belongs to.
    ConsistentHash,
}

impl Method {
    pub const ALL: [Method; 8] = [
        Self::FewestSessions,
        Self::RoundRobin,
        Self::LeastCpu,
        Self::MostFreeMemory,
        Self::FastestResponse,
        Self::ServerAgent,
        Self::Adaptive,
        Self::ConsistentHash,
    ];

    /// The name used in the configuration and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::FewestSessions => "fewest-sessions",
            Self::RoundRobin => "round-robin",
            Self::LeastCpu => "least-cpu",
            Self::MostFreeMemory => "most-free-memory",
            Self::FastestResponse => "fastest-response",
            Self::ServerAgent => "server-agent",
            Self::Adaptive => "adaptive",
            Self::ConsistentHash => "consistent-hash",
        }
    }
}

/// What happens when no instance can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnavailable {
    /// A complete HTTP 503 with `Retry-After`, then close.
    Status503,
    /// A TCP reset.
    Reset,
    /// No answer at all; the client sees its own time-out.
    Silent,
    /// This pool is tried instead.
    Pool(PoolId),
    /// The request waits until an instance frees, and gets a 503 if none does in time.
    Queue { patience: Duration },
}

impl OnUnavailable {
    /// The name used in the configuration and in reports.
    pub fn describe(self, pools: &[Pool]) -> String {
        match self {
            Self::Status503 => "503".to_owned(),
            Self::Reset => "reset".to_owned(),
            Self::Silent => "silent".to_owned(),
            Self::Pool(id) => {
                format!("pool:{}", pools.get(usize::from(id.0)).map_or("?", |pool| &pool.name))
            }
            Self::Queue { patience } => format!("queue:{patience:?}"),
        }
    }
}

/// Whether active checks are believed when every instance of a pool fails them at the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllDown {
    /// They are: the pool cannot serve.
    #[default]
    FailClosed,
    /// They are not: the fault is more likely in the checks, so the instances serve as if none had failed.
    FailOpen,
}

impl AllDown {
    /// The name used in the configuration and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::FailClosed => "fail-closed",
            Self::FailOpen => "fail-open",
        }
    }
}

/// How instances join a pool by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// How long after its last report an instance that joined by itself is removed.
    pub forget_after: Duration,
    /// Greatest number of such instances.
    pub max_instances: usize,
}

/// One server process behind the router.
#[derive(Clone, Debug)]
pub struct Instance {
    pub name: String,
    pub address: SocketAddr,
    /// Its share compared with the others'; 100 is usual, 0 means never picked.
    pub weight: u32,
    /// Its load balancing group: a router prefers instances of its own group.
    pub group: Option<String>,
    /// Greatest number of live sessions; unlimited if `None`.
    pub max_sessions: Option<u32>,
    /// Serves only while no ordinary instance of the pool can.
    pub spare: bool,
    /// The admin state that the configuration asks for; the live one is in `status`.
    pub state: AdminState,
    /// The host that it shares with other instances: what one of them reports of the host holds for all.
    pub node: Option<String>,
    /// In place of the pool's.
    pub thresholds: Option<Box<Thresholds>>,
    /// Whether it joined by reporting; the configuration does not have it.
    pub registered: bool,
    pub status: Arc<InstanceStatus>,
}

impl Instance {
    /// An instance with the usual settings and a status of its own, checked by `check`.
    pub fn new(name: impl Into<String>, address: SocketAddr, check: Option<&CheckSpec>) -> Self {
        Self {
            name: name.into(),
            address,
            weight: 100,
            group: None,
            max_sessions: None,
            spare: false,
            state: AdminState::Enabled,
            node: None,
            thresholds: None,
            registered: false,
            status: InstanceStatus::new(AdminState::Enabled, check),
        }
    }
}

/// How many requests may wait for an instance of a pool, if the configuration does not say.
pub const QUEUE_LIMIT: usize = 1_000;

/// A named group of instances.
#[derive(Clone, Debug)]
pub struct Pool {
    pub name: String,
    pub method: Method,
    /// Whether a user comes back to the instance that served the user last.
    pub affinity: bool,
    /// Whether exhausted instances may serve.
    pub allow_exhausted: bool,
    /// How many requests may wait for an instance to free.
    pub queue_limit: usize,
    /// By the listener's protocol if `None`: 503 for HTTP, otherwise a reset.
    pub on_unavailable: Option<OnUnavailable>,
    pub check: Option<CheckSpec>,
    /// What happens when every instance fails its checks.
    pub all_down: AllDown,
    /// How long an instance that came back takes to get its whole share; zero for at once.
    pub slow_start: Duration,
    pub load: LoadPolicy,
    pub agent: Option<AgentSpec>,
    /// How instances are told where connections come from; they are not if `None`.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Whether instances may join by reporting; only those of the configuration may if `None`.
    pub registration: Option<Registration>,
    pub instances: Vec<Instance>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            name: String::new(),
            method: Method::default(),
            affinity: true,
            allow_exhausted: false,
            queue_limit: QUEUE_LIMIT,
            on_unavailable: None,
            check: None,
            all_down: AllDown::default(),
            slow_start: Duration::ZERO,
            load: LoadPolicy::default(),
            agent: None,
            proxy_protocol: None,
            registration: None,
            instances: Vec::new(),
        }
    }
}

impl Pool {
    /// Whether checks are not believed now, because every instance fails them and `all_down` says so. Instances are then
    /// judged by [`InstanceStatus::reachability_without_checks`].
    pub fn fails_open(&self) -> bool {
        self.all_down == AllDown::FailOpen
            && self.check.is_some()
            && !self.instances.is_empty()
            && self.instances.iter().all(|instance| instance.status.fails_checks())
    }

    /// The thresholds that hold for an instance of this pool.
    pub fn thresholds<'a>(&'a self, instance: &'a Instance) -> &'a Thresholds {
        instance.thresholds.as_deref().unwrap_or(&self.load.thresholds)
    }

    /// The weight of an instance of this pool that counts at `now`; see [`InstanceStatus::effective_weight`].
    #[inline]
    pub fn weight(&self, instance: &Instance, now: Instant) -> u32 {
        instance.status.effective_weight(instance.weight, self.slow_start, now)
    }
}
