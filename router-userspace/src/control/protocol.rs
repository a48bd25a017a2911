//! The JSON that the control socket and `routerctl` exchange, version 1 (paths begin with `/v1`).
//!
//! Within a version, fields are only ever added: programs must ignore fields they do not know. Requests are the
//! other way round: a field that the daemon does not know is an error, since ignoring it would give an answer to
//! a question that nobody asked.

mod capture;
mod configuration;
mod explain;
mod whereabouts;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use capture::*;
pub use configuration::*;
pub use explain::*;
pub use whereabouts::*;

/// The version of this protocol; the first segment of every path but `/metrics` and `/healthz` is `/v` and this.
pub const VERSION: u32 = 1;

/// The `rule` of a decision that a live session made.
pub const ACTIVE_SESSION_NAME: &str = crate::core::table::ACTIVE_SESSION_NAME;

/// Response header that carries [`VERSION`], so that a client can tell a daemon of another version from another
/// program that happens to listen there.
pub const VERSION_HEADER: &str = "router-control-version";

/// Where the daemon listens and `routerctl` connects unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/router/control.sock";

/// Longest request body, in bytes; the longest sensible one is an `explain` with a full set of header fields.
pub const MAX_BODY_BYTES: usize = 128 * 1024;

/// The body of every answer whose status is 400 or above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What was wrong.
    pub error: String,
    /// What to do about it.
    pub help: String,
    /// What is wrong with the configuration, if that is why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// `GET /v1/status`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version, such as `0.1.0`.
    pub version: String,
    pub pid: u32,
    pub uptime_seconds: u64,
    /// The file that the running configuration came from.
    pub config_file: Option<String>,
    /// Load balancing group of this router.
    pub group: Option<String>,
    #[serde(default)]
    pub configuration: Configuration,
    pub datapath: Datapath,
    pub connections: Connections,
    pub listeners: Vec<Listener>,
    pub pools: Vec<PoolSummary>,
    /// Connections relayed in user space, by reason; only reasons that occurred.
    pub relayed: BTreeMap<String, u64>,
    /// Connections that began without a socket and were given one, by reason; only reasons that occurred. Absent from older daemons.
    #[serde(default)]
    pub unbound: BTreeMap<String, u64>,
    /// Connections or requests refused, by reason; only reasons that occurred.
    pub refused: BTreeMap<String, u64>,
}

/// How packets of handed-off connections travel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datapath {
    /// True if the kernel programs are loaded; otherwise every connection is relayed in user space.
    pub loaded: bool,
    /// One line: where it is attached, or why it is not loaded.
    pub detail: String,
    /// Flows that are alive in the kernel.
    pub flows: u64,
    /// Greatest number of flows.
    pub max_flows: u64,
    /// Flows of Layer-4 listeners. Absent from older daemons.
    #[serde(default)]
    pub l4_flows: u64,
    /// How many of them the table is made for; 0 without such listeners.
    #[serde(default)]
    pub l4_max_flows: u64,
    /// Instances that no route leads to, so that no Layer-4 flow is placed there.
    #[serde(default)]
    pub l4_unroutable_instances: u64,
    /// Where each interface's packets are met. Absent from older daemons.
    #[serde(default)]
    pub interfaces: Vec<Attachment>,
}

/// Where one interface's packets are met first. What XDP leaves, TC gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub interface: String,
    /// `tc`, `xdp-native` (in the driver) or `xdp-generic`.
    pub hook: String,
    /// Why there.
    pub reason: String,
    /// What to set so that XDP can do more.
    pub advice: Vec<String>,
}

/// Connections and requests since the daemon started, and those open now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    pub accepted: u64,
    /// Connections that the daemon itself holds now; handed-off ones are flows instead.
    pub open: u64,
    pub requests: u64,
    /// Bound to an instance without ever having had a socket. Absent from older daemons.
    #[serde(default)]
    pub bound: u64,
    pub handed_off: u64,
    pub relayed: u64,
    pub refused: u64,
    /// Second and later attempts to connect to an instance.
    pub retries: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    pub name: String,
    pub address: SocketAddr,
    /// `http`, `tls`, `tcp` or `udp`.
    pub protocol: String,
    /// Whose address instances see: `snat`, `transparent`, `dsr-l2` or `dsr-ipip`. Absent from older daemons.
    #[serde(default)]
    pub source: String,
    /// `auto`, `bind`, `handoff` or `relay`; `kernel` for Layer-4 listeners.
    pub offload: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSummary {
    pub name: String,
    pub instances: usize,
    /// Instances that may be given new sessions now.
    pub serving: usize,
    pub sessions: u64,
}

/// One element of `GET /v1/pools`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    pub name: String,
    pub method: String,
    /// `503`, `reset` or `silent`; `None` leaves it to the listener: 503 for HTTP, a reset otherwise.
    pub on_unavailable: Option<String>,
    /// The active check in one line; `None` if the pool has none.
    pub check: Option<String>,
    /// Instances that may be given new sessions now.
    pub serving: usize,
    /// Live sessions of all instances together.
    pub sessions: u64,
    pub instances: Vec<Instance>,
}

/// One element of `GET /v1/instances`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    pub pool: String,
    pub name: String,
    pub address: SocketAddr,
    pub group: Option<String>,
    /// `enabled`, `drain` or `maintenance`.
    pub admin: String,
    /// `up`, `out-of-contact` or `down`.
    pub health: String,
    /// How long it has been so; `None` if it never changed since the daemon started.
    pub health_since_seconds: Option<f64>,
    /// The latest failure of a check or of a connection, if there ever was one; or that no check has ended yet.
    pub health_detail: Option<String>,
    pub weight: u32,
    /// Live sessions.
    pub sessions: u32,
    pub max_sessions: Option<u32>,
    /// Sessions since the daemon started.
    pub sessions_total: u64,
    /// True if it may be given new sessions now.
    pub serving: bool,
    /// Why Layer-4 flows are not placed there although it could serve: `no route leads to it`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// What it reports of itself. Absent from older daemons.
    #[serde(default)]
    pub reported: Load,
}

/// How busy an instance is, as it reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// `available`, `strained` or `exhausted`.
    pub status: String,
    /// Averages of what is known: `cpu`, `memory` and `temp_disk` in percent, `sessions`, `paging` per second,
    /// `calls_per_core`.
    pub averages: BTreeMap<String, f64>,
    /// How long ago it last reported; `None` if never.
    pub reported_seconds_ago: Option<f64>,
    /// Whether it joined its pool by reporting, and leaves it when it is silent for long.
    #[serde(default)]
    pub registered: bool,
    /// The weight that counts now: changed by its agent, or during a slow start.
    pub effective_weight: u32,
    /// What its agent says, 0 (idle) to 100 (full), while that is fresh.
    pub agent_value: Option<u8>,
    /// What its agent remarks.
    pub agent_text: String,
    /// Resources that it reports as loaded.
    pub loaded_resources: Vec<String>,
}

/// One element of `GET /v1/rules`, in the order in which rules are tried; the default rule is last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    pub name: String,
    pub enabled: bool,
    /// The match expression as it was written.
    #[serde(rename = "match")]
    pub condition: String,
    /// Pools from which an instance is picked; empty if the rule denies.
    pub pools: Vec<String>,
    /// HTTP status with which the rule refuses.
    pub deny_status: Option<u16>,
    /// The rule's own method, if it overrides its pool's.
    pub method: Option<String>,
    /// The rule's own reaction, if it overrides its pool's.
    pub on_unavailable: Option<String>,
    /// Requests that this rule has decided.
    pub requests: u64,
}

/// One element of `GET /v1/preloads`: a resource on one instance, or one for which no instance is found yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preload {
    pub rule: String,
    pub resource: String,
    pub pool: String,
    pub instance: Option<String>,
    /// `waiting` (for its turn or its window), `loading`, `loaded`, `refreshing`, `retrying`, `stopped` (after repeated failures) or
    /// `no-instance`.
    pub state: String,
    /// Whether requests for the resource go there because of it.
    pub loaded: bool,
    pub last: Option<PreloadRun>,
    /// When the next request is due, in seconds since the epoch; `None` while one is under way.
    pub next: Option<i64>,
    pub next_in_seconds: Option<f64>,
    /// Tries that failed in a row.
    pub failed_attempts: u32,
}

/// How the latest request of a preload went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreloadRun {
    /// When it ended, in seconds since the epoch.
    pub at: i64,
    pub seconds_ago: f64,
    pub took_seconds: f64,
    /// The status of the answer, if it was an expected one.
    pub status: Option<u16>,
    /// Otherwise what went wrong, in words.
    pub failure: Option<String>,
}

/// Query of `GET /v1/flows`. Every filter that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowQuery {
    /// An instance's name or its address and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// An address, an address and port, or a network such as `10.0.0.0/8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// A listener's name or its address and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// `1` leaves out the flows themselves and only counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u8>,
    /// Greatest number of flows in the answer, 1 to 100000; 1000 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Query of `GET /v1/sessions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionQuery {
    /// Greatest number of sessions in the answer; 1000 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// `GET /v1/sessions`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sessions {
    /// All of them, whatever the limit is.
    pub count: usize,
    /// Users whose last instance is remembered.
    pub users: usize,
    /// Resources that some instance has loaded for a session or ahead of users.
    pub resources: usize,
    /// Requests that wait for an instance to free.
    pub waiting: usize,
    pub sessions: Vec<SessionEntry>,
}

/// One user's work with one application.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionEntry {
    /// Tells sessions apart. The key itself may be a secret, and is not shown.
    pub id: String,
    pub listener: String,
    pub pool: Option<String>,
    /// `None` if it is no longer configured.
    pub instance: Option<String>,
    /// Connections that are open now.
    pub connections: u32,
    pub idle_seconds: f64,
    pub idle_timeout_seconds: f64,
    pub resources: Vec<String>,
}

/// `GET /v1/flows`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    /// How many flows match, including those left out by the limit.
    pub count: usize,
    /// Longest-lived first. Absent if only the count was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<Vec<Flow>>,
}

/// One connection that travels through the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Unique while the flow lives.
    pub id: u32,
    pub client: SocketAddr,
    pub vip: SocketAddr,
    /// Our own address and port towards the instance.
    pub source: SocketAddr,
    pub instance_address: SocketAddr,
    /// Name of the listener with this VIP, if the configuration still has one.
    pub listener: Option<String>,
    pub pool: Option<String>,
    pub instance: Option<String>,
    /// Rule that chose the pool; `None` for a flow that an earlier daemon handed off.
    pub rule: Option<String>,
    /// `custody` (our sockets still hold unacknowledged bytes), `direct` or `closing`.
    pub state: String,
    pub age_seconds: f64,
    pub idle_seconds: f64,
    /// `tcp` or `udp`.
    #[serde(default = "tcp")]
    pub protocol: String,
    /// Packets translated since the handoff. Not known of Layer-4 flows.
    pub packets_to_instance: Option<u64>,
    /// Bytes of those packets, from the IP header on.
    pub bytes_to_instance: u64,
    pub packets_to_client: Option<u64>,
    /// Of Layer-4 flows with direct server return 0: these bytes do not pass here.
    pub bytes_to_client: u64,
}

fn tcp() -> String {
    "tcp".to_owned()
}

/// Answer to `GET /v1/reasons`: every name that can appear as a reason, with what it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasons {
    /// What became of packets in the kernel.
    pub packet: Vec<Reason>,
    /// What became of persistence cookies.
    pub cookie: Vec<Reason>,
    /// What became of interim responses (1xx) where each request is routed by itself. Absent from older daemons.
    #[serde(default)]
    pub interim: Vec<Reason>,
    /// Why connections were relayed in user space instead of being handed off.
    pub relay: Vec<Reason>,
    /// Why connections that began without a socket were given one. Absent from older daemons.
    #[serde(default)]
    pub unbound: Vec<Reason>,
    /// Why connections or requests were refused.
    pub refuse: Vec<Reason>,
    /// Why reports of instances were refused. Absent from older daemons.
    #[serde(default)]
    pub report: Vec<Reason>,
    /// Why connections to the control socket and the admin address did not end by themselves. Absent from older daemons.
    #[serde(default)]
    pub control: Vec<Reason>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub name: String,
    pub description: String,
    pub count: u64,
}

/// Answer of `routerctl check --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub file: String,
    pub valid: bool,
    pub errors: Vec<Problem>,
    /// What works and is probably not meant.
    pub warnings: Vec<Problem>,
}

/// One mistake in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    #[serde(default)]
    pub file: String,
    pub message: String,
    pub help: Option<String>,
    /// 1-based; `None` if the error has no one place.
    pub line: Option<usize>,
    pub column: Option<usize>,
}
