//! A configuration that is valid as a whole, ready for the daemon to act on.

mod balance;
mod check;
mod identities;
mod interfaces;
mod listeners;
mod load;
mod network;
mod persistence;
mod pools;
mod preload;
mod protocol;
mod rules;
mod tokens;
mod unavailable;
mod unique;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::file::{self, File};
use super::reader::Report;
use super::report::{Problem, Problems};
use super::settings::{Attach, Interfaces, Layer4Tables, Offload, Protocol, Source};
use crate::core::memory::MemoryLimits;
use crate::core::table::RoutingTable;

pub use tokens::Token;

/// Everything that the daemon needs to know, validated.
#[derive(Debug)]
pub struct Plan {
    pub daemon: DaemonPlan,
    pub datapath: DatapathPlan,
    /// In the order of the file; names and addresses are unique.
    pub listeners: Vec<ListenerPlan>,
    /// Rules, default rule and pools, as the decision core reads them.
    pub table: RoutingTable,
    /// `None` if nobody may report.
    pub reports: Option<ReportsPlan>,
    /// What works and is probably not meant; often empty.
    pub warnings: Problems,
    /// Files that were read with this one, such as keys and tokens, and a hash of what they held.
    pub files: BTreeMap<PathBuf, u64>,
}

/// Where instances report to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportsPlan {
    pub listen: SocketAddr,
    /// At least one for each pool whose instances may report.
    pub tokens: Vec<PoolToken>,
}

/// A secret of a pool's instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolToken {
    pub pool: String,
    pub token: Token,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonPlan {
    pub control_socket: PathBuf,
    /// The group that may use the control socket; without one, only the daemon's own user may.
    pub control_group: Option<String>,
    pub state_dir: PathBuf,
    pub admin_listen: Option<SocketAddr>,
    /// Worker threads, from 1 to 64.
    pub workers: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathPlan {
    pub interfaces: Interfaces,
    pub attach: Attach,
    /// Interfaces where it is another.
    pub attach_of: BTreeMap<String, Attach>,
    pub max_flows: u32,
    /// How long a handed-off connection may carry nothing in either direction.
    pub flow_idle_timeout: Duration,
    pub pin_dir: PathBuf,
    /// The router's addresses towards instances. Empty: the one that the kernel's route to the instance prefers.
    pub source_addresses: Vec<IpAddr>,
    pub source_ports: RangeInclusive<u16>,
    /// Whether packets of connections that may be handed off are exempted from the host's connection tracking.
    pub notrack: bool,
    pub balance: BalancePlan,
}

/// How Layer-4 listeners work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancePlan {
    /// Flows at a time that are stored.
    pub max_flows: u32,
    /// The router's ports towards instances for flows with `snat`; apart from `source_ports`.
    pub source_ports: RangeInclusive<u16>,
    /// New flows of one processor in a second that are stored; 0 for no limit.
    pub new_flows: u32,
    /// How long a UDP flow may carry nothing in either direction.
    pub udp_idle_timeout: Duration,
    /// Places of a Maglev table, a prime.
    pub maglev_size: u32,
    pub tables: Layer4Tables,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerPlan {
    pub name: String,
    pub address: SocketAddr,
    pub protocol: Protocol,
    pub source: Source,
    /// At Layer 4, whether the packet path answers echo requests to the VIP.
    pub echo: bool,
    pub offload: Offload,
    /// With [`Offload::Auto`], handed off when so many bytes have been relayed, or are announced by `Content-Length`.
    pub offload_after_bytes: u64,
    /// With [`Offload::Auto`], handed off at this age, even if idle.
    pub offload_after: Duration,
    /// With [`Offload::Auto`], whether a second request on the connection is enough.
    pub offload_second_request: bool,
    /// Whether only the first request of a connection is matched against the rules.
    pub once_only: bool,
    /// From accepting the connection to the end of its first head.
    pub header_timeout: Duration,
    /// Bytes of the head up to and including its empty line, or of the ClientHello with the records around it.
    pub max_header_bytes: u32,
    /// Whether the client's address is added to `X-Forwarded-For` of the first request.
    pub forwarded_for: bool,
    pub allow_http09: bool,
    /// Whether more requests may follow the first before it is answered.
    pub pipelining: bool,
    /// For each attempt at an instance.
    pub connect_timeout: Duration,
    /// How many further instances are tried when connecting fails.
    pub connect_retries: u32,
    /// How long a relayed connection may carry nothing in either direction.
    pub idle_timeout: Duration,
    /// The same, once one side has closed its direction.
    pub half_closed_timeout: Duration,
    /// What a 503 tells the client to wait; sent in whole seconds.
    pub retry_after: Duration,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// Whether a connection is accepted only when its first bytes are there.
    pub defer_accept: bool,
    /// Greatest segment that clients may send, in bytes; by the route if `None`.
    pub max_segment: Option<u16>,
    /// What a client may send before an instance has answered, in bytes, where connections have no socket.
    pub initial_window: u16,
    /// Proxies in front, whose connections begin with a PROXY protocol header; empty if there are none.
    pub accept_proxy_protocol: Vec<IpNet>,
    /// On a Layer-4 listener: how long a client without flows comes back to its instance; `None` if clients are not remembered.
    pub client_affinity: Option<Duration>,
}

/// Checks what values mean to each other. `None` if a part is missing; then `report` says which.
pub(super) fn build(file: File, report: &Report<'_>) -> Option<Plan> {
    let daemon = daemon(&file.daemon);
    let group = file.daemon.group.clone().map(|group| group.value);
    listeners::check(&file, report);
    protocol::check(&file, report);
    balance::check(&file, report);
    network::check(&file, report);
    interfaces::check(&file.datapath, report);
    let listeners = file.listeners.iter().map(listeners::plan).collect::<Option<Vec<_>>>();
    let pools = pools::plan(&file, report);
    let identities = identities::plan(&file, report);
    let limits = MemoryLimits::of(file.daemon.session_limit.value as usize);
    let rules = rules::plan(&file, report);
    let reports = load::reports(&file, report);
    if !file.has_listener {
        report.add(Problem::of_file("there is no [[listener]]").help("add one with a name and an address"));
    }
    let (rules, default_rule) = rules?;
    let table = match RoutingTable::new(rules, default_rule, pools?, group) {
        Ok(table) => table.with_identities(identities).with_memory(limits),
        Err(error) => {
            report.add(Problem::of_file(error.to_string()));
            return None;
        }
    };
    balance::check_pools(&file, &table, report);
    balance::check_transparent_pools(&file, &table, report);
    Some(Plan {
        daemon,
        datapath: datapath(file.datapath),
        listeners: listeners?,
        table,
        reports,
        warnings: Problems::warnings("", Arc::from(""), Vec::new()),
        files: BTreeMap::new(),
    })
}

fn daemon(daemon: &file::Daemon) -> DaemonPlan {
    let processors = || std::thread::available_parallelism().map_or(1, |count| count.get().min(64) as u16);
    DaemonPlan {
        control_socket: daemon.control_socket.value.clone(),
        control_group: daemon.control_group.as_ref().map(|group| group.value.clone()),
        state_dir: daemon.state_dir.value.clone(),
        admin_listen: daemon.admin_listen.as_ref().map(|address| address.value),
        workers: daemon.workers.as_ref().map_or_else(processors, |workers| workers.value),
    }
}

fn datapath(datapath: file::Datapath) -> DatapathPlan {
    let addresses = datapath.source_addresses.map_or_else(Vec::new, |list| list.value);
    DatapathPlan {
        interfaces: datapath.interfaces.value,
        attach: datapath.attach.value,
        attach_of: datapath
            .interface
            .into_iter()
            .filter_map(|interface| Some((interface.name?.value, interface.attach?.value)))
            .collect(),
        max_flows: datapath.max_flows.value,
        flow_idle_timeout: datapath.flow_idle_timeout.value,
        pin_dir: datapath.pin_dir.value,
        source_addresses: addresses.into_iter().map(|address| address.value).collect(),
        source_ports: datapath.source_ports.value,
        notrack: datapath.notrack.value,
        balance: BalancePlan {
            max_flows: datapath.l4_max_flows.value,
            source_ports: datapath.l4_source_ports.value,
            new_flows: datapath.l4_new_flows.value,
            udp_idle_timeout: datapath.udp_idle_timeout.value,
            maglev_size: datapath.maglev_size.value,
            tables: datapath.l4_tables.value,
        },
    }
}
