//! Pools and their instances, as a snapshot of the routing table sees them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agent::AgentSpec;
use super::health::CheckSpec;
use super::load::{LoadPolicy, Thresholds};
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
}

impl Method {
    pub const ALL: [Method; 1] = [Self::FewestSessions];

    /// The name used in the configuration and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::FewestSessions => "fewest-sessions",
        }
    }
}

/// What a client sees when no instance can serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnavailable {
    /// A complete HTTP 503 with `Retry-After`, then close.
    Status503,
    /// A TCP reset.
    Reset,
    /// No answer at all; the client sees its own time-out.
    Silent,
}

impl OnUnavailable {
    pub const ALL: [OnUnavailable; 3] = [Self::Status503, Self::Reset, Self::Silent];

    /// The name used in the configuration and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status503 => "503",
            Self::Reset => "reset",
            Self::Silent => "silent",
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
    /// The admin state that the configuration asks for; the live one is in `status`.
    pub state: AdminState,
    /// The host that it shares with other instances: what one of them reports of the host holds for all.
    pub node: Option<String>,
    /// In place of the pool's.
    pub thresholds: Option<Box<Thresholds>>,
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
            state: AdminState::Enabled,
            node: None,
            thresholds: None,
            status: InstanceStatus::new(AdminState::Enabled, check),
        }
    }
}

/// A named group of instances.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    pub name: String,
    pub method: Method,
    /// By the listener's protocol if `None`: 503 for HTTP, otherwise a reset.
    pub on_unavailable: Option<OnUnavailable>,
    pub check: Option<CheckSpec>,
    /// What happens when every instance fails its checks.
    pub all_down: AllDown,
    /// How long an instance that came back takes to get its whole share; zero for at once.
    pub slow_start: Duration,
    pub load: LoadPolicy,
    pub agent: Option<AgentSpec>,
    /// Whether instances may join by reporting; only those of the configuration may if `None`.
    pub registration: Option<Registration>,
    pub instances: Vec<Instance>,
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
    pub fn weight(&self, instance: &Instance, now: Instant) -> u32 {
        instance.status.effective_weight(instance.weight, self.slow_start, now)
    }
}
