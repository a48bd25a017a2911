//! What a listener is told to do, and what all listeners share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use router_common::abi::binding::MAX_FIRST_WINDOW;

use super::budget::HeadBudget;
use super::decision_log;
use super::http::scan::HeadLimits;
use super::source::SourceAddresses;
use crate::core::counters::Counters;
use crate::core::request::Protocol;
use crate::core::table::RoutingTable;
use crate::flows::binding::Binder;
use crate::flows::ports::PortAllocator;
use crate::flows::table::FlowTable;

/// How a connection travels once its instance is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Relayed first, and handed to the packet path when that pays: see [`AutoHandoff`].
    #[default]
    Auto,
    /// Bound by the packet path without a socket of ours, where the first packet tells enough; else as with [`Offload::Auto`].
    Bind,
    /// Handed to the packet path before the instance has got a byte.
    Handoff,
    /// Always relayed in user space.
    Relay,
}

/// When a relayed connection is worth a handoff. One handoff costs about as much CPU as relaying 50 kB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoHandoff {
    /// Bytes relayed in both directions together, or announced by the request's `Content-Length`.
    pub after_bytes: u64,
    /// Age of the connection, even if it is idle: the packet path carries it on should the daemon die.
    pub after_age: Duration,
    /// Whether a second request on the connection is enough.
    pub second_request: bool,
}

impl Default for AutoHandoff {
    fn default() -> Self {
        Self { after_bytes: 64 * 1024, after_age: Duration::from_secs(10), second_request: true }
    }
}

/// One listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    /// As rules and reports name it.
    pub name: String,
    /// The VIP and port.
    pub address: SocketAddr,
    pub protocol: Protocol,
    /// Proxies in front, whose connections begin with a PROXY protocol header.
    pub announced_by: Vec<IpNet>,
    /// Whether instances see the clients' addresses instead of the router's.
    pub transparent: bool,
    pub offload: Offload,
    pub auto: AutoHandoff,
    /// Whether only the first request of a connection is matched against the rules. If not, every request is, in user space.
    pub once_only: bool,
    /// Bounds on heads. Of a ClientHello, `head.head` bounds the length, with the records around it.
    pub head: HeadLimits,
    /// From accepting the connection to the end of the first request's head, or of the ClientHello.
    pub header_timeout: Duration,
    /// Whether instances learn the client's address in `X-Forwarded-For`.
    pub forwarded_for: bool,
    /// Whether more requests may follow the first before it is answered. They go on without being looked at.
    pub pipelining: bool,
    /// For one attempt to connect to one instance.
    pub connect_timeout: Duration,
    /// How many instances are tried before the client gets an error; at least 1.
    pub connect_attempts: usize,
    /// A relayed connection on which nothing moves for so long is reset.
    pub idle_timeout: Duration,
    /// The same, once one side has closed its direction.
    pub half_closed_timeout: Duration,
    /// What a 503 tells the client to wait; whole seconds.
    pub retry_after: Duration,
    /// Connections that may wait to be accepted; the kernel's `net.core.somaxconn` is the upper bound.
    pub backlog: u32,
    /// Whether a connection is accepted only when its first bytes are there, or after about a second without any.
    pub defer_accept: bool,
    /// Greatest segment that clients may send, in bytes; by the route if `None`.
    pub max_segment: Option<u16>,
    /// What a client may send before an instance has answered, in bytes, where connections have no socket.
    pub initial_window: u16,
}

impl ListenerSettings {
    /// A listener with the usual settings.
    pub fn new(name: impl Into<String>, address: SocketAddr) -> Self {
        Self {
            name: name.into(),
            address,
            protocol: Protocol::Http,
            announced_by: Vec::new(),
            transparent: false,
            offload: Offload::default(),
            auto: AutoHandoff::default(),
            once_only: true,
            head: HeadLimits::default(),
            header_timeout: Duration::from_secs(10),
            forwarded_for: true,
            pipelining: true,
            connect_timeout: Duration::from_secs(3),
            connect_attempts: 4,
            idle_timeout: Duration::from_secs(3600),
            half_closed_timeout: Duration::from_secs(120),
            retry_after: Duration::from_secs(5),
            backlog: 4096,
            defer_accept: true,
            max_segment: None,
            initial_window: MAX_FIRST_WINDOW,
        }
    }
}

/// What all listeners share.
pub struct Context {
    /// Swapped whole when the configuration changes.
    pub table: Arc<ArcSwap<RoutingTable>>,
    /// The packet path; `None` if this host cannot load it, and then everything is relayed.
    pub flows: Option<Arc<dyn FlowTable>>,
    /// Binds connections; `None` if no listener wants that, or this host cannot.
    pub binder: Option<Arc<Binder>>,
    /// The source ports of bound connections. Others than those of sockets, whose clocks are others (PAWS, RFC 7323 §5).
    pub bound_ports: Arc<PortAllocator>,
    pub ports: Arc<PortAllocator>,
    pub sources: SourceAddresses,
    pub counters: Arc<Counters>,
    pub heads: HeadBudget,
    pub decision_log: decision_log::Sampler,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("counters", &self.counters)
            .field("heads", &self.heads)
            .finish_non_exhaustive()
    }
}

/// A listener as its connections see it.
#[derive(Debug)]
pub struct Listener {
    pub context: Arc<Context>,
    pub settings: ListenerSettings,
}

impl Listener {
    /// Whether connections of this listener may be handed to the packet path.
    pub fn may_hand_off(&self) -> bool {
        self.context.flows.is_some() && self.settings.offload != Offload::Relay
    }
}
