//! Pools and their instances, as a snapshot of the routing table sees them.

use std::net::SocketAddr;
use std::sync::Arc;

use super::health::CheckSpec;
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
    pub status: Arc<InstanceStatus>,
}

/// A named group of instances.
#[derive(Clone, Debug)]
pub struct Pool {
    pub name: String,
    pub method: Method,
    /// By the listener's protocol if `None`: 503 for HTTP, otherwise a reset.
    pub on_unavailable: Option<OnUnavailable>,
    pub check: Option<CheckSpec>,
    pub instances: Vec<Instance>,
}
