//! The shape of the configuration file: each table with its values, still one by one.
//!
//! Here each value is judged alone (type, range, spelling). What values mean to each other is `plan`'s matter.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use toml::de::{DeTable, DeValue};

pub(super) use super::check::{Check, CheckKind};
pub(super) use super::cookie::Persistence;
pub(super) use super::identity::{Group, Identity};
use super::load::{self, Agent, Pair, PoolReports, Reports};
use super::preload::Preload;
use super::reader::{Placed, Report, Section, describe};
use super::report::{Problem, Span};
use super::values::{self, Found, Wrong};
use super::{check, cookie, identity, preload, schema, settings::*};
use crate::core::pool::{AllDown, Method};
use crate::core::proxy_protocol::ProxyProtocol;
use crate::core::status::AdminState;

pub(super) struct File {
    pub daemon: Daemon,
    pub datapath: Datapath,
    pub listeners: Vec<Listener>,
    pub pools: Vec<Pool>,
    pub rules: Vec<Rule>,
    pub default_rule: Option<DefaultRule>,
    pub reports: Option<Reports>,
    pub groups: Vec<Group>,
    /// Whether the key is there, even if what it holds is wrong.
    pub has_listener: bool,
    pub has_pool: bool,
}

pub(super) struct Daemon {
    pub control_socket: Placed<PathBuf>,
    pub control_group: Option<Placed<String>>,
    pub state_dir: Placed<PathBuf>,
    pub admin_listen: Option<Placed<SocketAddr>>,
    pub group: Option<Placed<String>>,
    pub workers: Option<Placed<u16>>,
    pub session_limit: Placed<u32>,
}

/// An interface with a setting of its own.
pub(super) struct AttachedInterface {
    pub name: Option<Placed<String>>,
    pub attach: Option<Placed<Attach>>,
}

pub(super) struct Datapath {
    pub interfaces: Placed<Interfaces>,
    pub attach: Placed<Attach>,
    pub interface: Vec<AttachedInterface>,
    pub max_flows: Placed<u32>,
    pub flow_idle_timeout: Placed<Duration>,
    pub pin_dir: Placed<PathBuf>,
    pub source_addresses: Option<Placed<Vec<Placed<IpAddr>>>>,
    pub source_ports: Placed<RangeInclusive<u16>>,
    pub notrack: Placed<bool>,
    pub l4_max_flows: Placed<u32>,
    pub l4_source_ports: Placed<RangeInclusive<u16>>,
    pub l4_new_flows: Placed<u32>,
    pub udp_idle_timeout: Placed<Duration>,
    pub maglev_size: Placed<u32>,
    pub l4_tables: Placed<Layer4Tables>,
}

pub(super) struct Listener {
    pub span: Span,
    pub name: Option<Placed<String>>,
    pub address: Option<Placed<SocketAddr>>,
    pub protocol: Placed<Protocol>,
    pub source: Placed<Source>,
    pub echo: Placed<bool>,
    pub offload: Placed<Offload>,
    pub offload_after_bytes: Placed<u64>,
    pub offload_after: Placed<Duration>,
    pub offload_second_request: Placed<bool>,
    pub once_only: Placed<bool>,
    pub header_timeout: Placed<Duration>,
    pub max_header_bytes: Placed<u32>,
    pub forwarded_for: Placed<bool>,
    pub allow_http09: Placed<bool>,
    pub pipelining: Placed<bool>,
    pub connect_timeout: Placed<Duration>,
    pub connect_retries: Placed<u32>,
    pub idle_timeout: Placed<Duration>,
    pub half_closed_timeout: Placed<Duration>,
    pub retry_after: Placed<Duration>,
    pub backlog: Placed<u32>,
    pub defer_accept: Placed<bool>,
    pub max_segment: Option<Placed<u16>>,
    pub initial_window: Placed<u16>,
    /// The proxies in front that announce clients; empty if there are none.
    pub announced_by: Option<Placed<Vec<IpNet>>>,
    pub identity: Identity,
}

pub(super) struct Pool {
    pub span: Span,
    pub name: Option<Placed<String>>,
    pub method: Placed<Method>,
    pub affinity: Placed<bool>,
    pub allow_exhausted: Placed<bool>,
    pub queue_limit: Placed<u32>,
    pub on_unavailable: Option<Placed<OnUnavailable>>,
    pub check: Option<Check>,
    pub all_down: Placed<AllDown>,
    pub slow_start: Option<Placed<Duration>>,
    /// Thresholds and the window that values are averaged over.
    pub thresholds: Option<(Vec<Pair>, Placed<Duration>)>,
    pub agent: Option<Agent>,
    pub reports: Option<PoolReports>,
    pub proxy_protocol: Option<Placed<ProxyProtocol>>,
    pub instances: Vec<Instance>,
}

pub(super) struct Instance {
    pub name: Option<Placed<String>>,
    pub address: Option<Placed<SocketAddr>>,
    pub weight: Placed<u32>,
    pub group: Option<Placed<String>>,
    pub max_sessions: Option<Placed<u32>>,
    pub spare: Placed<bool>,
    pub state: Placed<AdminState>,
    pub node: Option<Placed<String>>,
    pub thresholds: Option<Vec<Pair>>,
}

pub(super) struct Rule {
    pub span: Span,
    pub name: Option<Placed<String>>,
    pub condition: Option<Placed<String>>,
    pub pool: Option<Placed<String>>,
    pub enabled: Placed<bool>,
    pub on_unavailable: Option<Placed<OnUnavailable>>,
    pub method: Option<Placed<Method>>,
    pub affinity: Option<Placed<bool>>,
    pub allow_exhausted: Option<Placed<bool>>,
    pub persistence: Option<Persistence>,
    pub preload: Option<Preload>,
    pub action: Option<Placed<()>>,
    pub status: Option<Placed<u16>>,
    /// The keys that are written, right or wrong: a wrong value is no reason to call its key missing.
    pub has_pool: bool,
    pub has_action: bool,
}

pub(super) struct DefaultRule {
    pub pools: Option<Placed<Vec<Placed<String>>>>,
    pub on_unavailable: Option<Placed<OnUnavailable>>,
    pub method: Option<Placed<Method>>,
    pub affinity: Option<Placed<bool>>,
    pub allow_exhausted: Option<Placed<bool>>,
    pub persistence: Option<Persistence>,
}

/// What happens when nobody can serve; pools are still names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OnUnavailable {
    Status503,
    Reset,
    Silent,
    Pool(String),
    Queue(Duration),
}

const METHODS: &[(&str, Method)] = &[
    ("fewest-sessions", Method::FewestSessions),
    ("round-robin", Method::RoundRobin),
    ("least-cpu", Method::LeastCpu),
    ("most-free-memory", Method::MostFreeMemory),
    ("fastest-response", Method::FastestResponse),
    ("server-agent", Method::ServerAgent),
    ("adaptive", Method::Adaptive),
    ("consistent-hash", Method::ConsistentHash),
];

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Reads every table, collecting problems in `report`.
pub(super) fn read(document: &DeTable<'_>, report: &Report<'_>) -> File {
    let root = Section::new(&schema::ROOT, document, 0..0, report);
    let empty = DeTable::new();
    let table =
        |key, schema| root.table(key, schema).unwrap_or_else(|| Section::new(schema, &empty, 0..0, report));
    let file = File {
        daemon: daemon(table("daemon", &schema::DAEMON)),
        datapath: datapath(table("datapath", &schema::DATAPATH)),
        listeners: root.tables("listener", &schema::LISTENER).into_iter().map(listener).collect(),
        pools: root.tables("pool", &schema::POOL).into_iter().map(pool).collect(),
        rules: root.tables("rule", &schema::RULE).into_iter().map(rule).collect(),
        default_rule: root.table("default_rule", &schema::DEFAULT_RULE).map(default_rule),
        reports: root.table("reports", &schema::REPORTS).map(load::reports),
        groups: root.tables("group", &schema::GROUP).into_iter().map(identity::group).collect(),
        has_listener: root.has("listener"),
        has_pool: root.has("pool"),
    };
    root.finish();
    file
}

fn daemon(section: Section<'_, '_>) -> Daemon {
    let daemon = Daemon {
        control_socket: section.defaulted("control_socket", values::socket_path),
        control_group: section.optional("control_group", values::name),
        state_dir: section.defaulted("state_dir", values::path),
        admin_listen: section.optional("admin_listen", values::socket_address),
        group: section.optional("group", values::name),
        workers: section.optional("workers", values::integer(1..=64)),
        session_limit: section.defaulted("session_limit", values::integer(64..=16_000_000)),
    };
    section.finish();
    daemon
}

fn datapath(section: Section<'_, '_>) -> Datapath {
    let datapath = Datapath {
        interfaces: interfaces(&section),
        attach: section.defaulted("attach", values::choice(ATTACH)),
        interface: section
            .tables("interface", &schema::INTERFACE)
            .into_iter()
            .map(attached_interface)
            .collect(),
        max_flows: section.defaulted("max_flows", values::integer(1..=16_000_000)),
        flow_idle_timeout: section.defaulted("flow_idle_timeout", values::duration(SECOND..=30 * DAY)),
        pin_dir: section.defaulted("pin_dir", values::path),
        source_addresses: section.list("source_addresses", values::ip_address),
        source_ports: section.defaulted("source_ports", values::port_range),
        notrack: section.defaulted("notrack", values::boolean),
        l4_max_flows: section.defaulted("l4_max_flows", values::integer(20..=10_000_000)),
        l4_source_ports: section.defaulted("l4_source_ports", values::port_range),
        l4_new_flows: section.defaulted("l4_new_flows", values::integer(0..=1_000_000_000)),
        udp_idle_timeout: section.defaulted("udp_idle_timeout", values::duration(SECOND..=DAY)),
        maglev_size: section.defaulted("maglev_size", values::integer(101..=5_000_011)),
        l4_tables: section.defaulted(
            "l4_tables",
            values::choice(&[("auto", Layer4Tables::Auto), ("always", Layer4Tables::Always)]),
        ),
    };
    section.finish();
    datapath
}

const ATTACH: &[(&str, Attach)] = &[("auto", Attach::Auto), ("xdp", Attach::Xdp), ("tc", Attach::Tc)];

fn attached_interface(section: Section<'_, '_>) -> AttachedInterface {
    let interface = AttachedInterface {
        name: section.required("name", values::interface),
        attach: section.required("attach", values::choice(ATTACH)),
    };
    section.finish();
    interface
}

/// A list of names, or the word "auto".
fn interfaces(section: &Section<'_, '_>) -> Placed<Interfaces> {
    if section.is_list("interfaces")
        && let Some(names) = section.list("interfaces", values::interface)
    {
        if names.value.is_empty() {
            let help = "name the interfaces of clients and instances, or write \"auto\"";
            section.report().add(Problem::at(names.span.clone(), "`interfaces` is empty").help(help));
        }
        return names.map(|names| Interfaces::Named(names.into_iter().map(|name| name.value).collect()));
    }
    section.defaulted("interfaces", |found: Found<'_>| match found {
        DeValue::String(text) if text == "auto" => Ok(Interfaces::Auto),
        other => Err(Wrong::new(format!("must be a list or \"auto\", not {}", describe(other)))
            .help("name the interfaces of clients and instances: [\"eth0\", \"eth1\"]")),
    })
}

fn listener(section: Section<'_, '_>) -> Listener {
    let listener = Listener {
        span: section.span.clone(),
        name: section.required("name", values::name),
        address: section.required("address", values::socket_address),
        protocol: section.defaulted("protocol", values::choice(PROTOCOLS)),
        source: section.defaulted("source", values::choice(SOURCES)),
        echo: section.defaulted("echo", values::boolean),
        offload: section.defaulted(
            "offload",
            values::choice(&[
                ("auto", Offload::Auto),
                ("bind", Offload::Bind),
                ("handoff", Offload::Handoff),
                ("relay", Offload::Relay),
            ]),
        ),
        offload_after_bytes: section.defaulted("offload_after_bytes", values::integer(0..=1 << 30)),
        offload_after: section.defaulted("offload_after", values::duration(MILLISECOND..=DAY)),
        offload_second_request: section.defaulted("offload_second_request", values::boolean),
        once_only: section.defaulted("once_only", values::boolean),
        header_timeout: section.defaulted("header_timeout", values::duration(100 * MILLISECOND..=DAY)),
        max_header_bytes: section.defaulted("max_header_bytes", values::integer(1_024..=1_048_576)),
        forwarded_for: section.defaulted("forwarded_for", values::boolean),
        allow_http09: section.defaulted("allow_http09", values::boolean),
        pipelining: section.defaulted("pipelining", values::boolean),
        connect_timeout: section.defaulted("connect_timeout", values::duration(10 * MILLISECOND..=DAY)),
        connect_retries: section.defaulted("connect_retries", values::integer(0..=100)),
        idle_timeout: section.defaulted("idle_timeout", values::duration(SECOND..=30 * DAY)),
        half_closed_timeout: section.defaulted("half_closed_timeout", values::duration(SECOND..=30 * DAY)),
        retry_after: section.defaulted("retry_after", values::duration(SECOND..=DAY)),
        backlog: section.defaulted("backlog", values::integer(1..=65_535)),
        defer_accept: section.defaulted("defer_accept", values::boolean),
        max_segment: section.optional("max_segment", values::integer(536..=65_495)),
        initial_window: section.defaulted("initial_window", values::integer(1_460..=14_600)),
        announced_by: section
            .table("accept_proxy_protocol", &schema::ACCEPT_PROXY_PROTOCOL)
            .and_then(announced_by),
        identity: identity::read(&section),
    };
    section.finish();
    listener
}

fn announced_by(section: Section<'_, '_>) -> Option<Placed<Vec<IpNet>>> {
    let from = section.required("from", |found| {
        let networks = identity::network_list(found)?;
        if networks.is_empty() {
            let help = "name the proxies in front, or remove the table";
            return Err(Wrong::new("is empty, so nobody could announce clients").help(help));
        }
        Ok(networks)
    });
    section.finish();
    from
}

const PROTOCOLS: &[(&str, Protocol)] =
    &[("http", Protocol::Http), ("tls", Protocol::Tls), ("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];

const SOURCES: &[(&str, Source)] = &[
    ("snat", Source::Snat),
    ("transparent", Source::Transparent),
    ("dsr-l2", Source::DsrL2),
    ("dsr-ipip", Source::DsrIpip),
];

fn pool(section: Section<'_, '_>) -> Pool {
    let pool = Pool {
        span: section.span.clone(),
        name: section.required("name", values::name),
        method: section.defaulted("method", values::choice(METHODS)),
        affinity: section.defaulted("affinity", affinity),
        allow_exhausted: section.defaulted("allow_exhausted", values::boolean),
        queue_limit: section.defaulted("queue_limit", values::integer(1..=1_000_000)),
        on_unavailable: on_unavailable(&section),
        check: section.table("check", &schema::CHECK).map(check::read),
        all_down: section.defaulted(
            "all_down",
            values::choice(&[("fail-closed", AllDown::FailClosed), ("fail-open", AllDown::FailOpen)]),
        ),
        slow_start: section.optional("slow_start", values::duration(MILLISECOND..=DAY)),
        thresholds: section.table("thresholds", &schema::THRESHOLDS).map(load::thresholds),
        agent: section.table("agent", &schema::AGENT).map(load::agent),
        reports: section.table("reports", &schema::POOL_REPORTS).map(load::pool_reports),
        proxy_protocol: section.optional(
            "proxy_protocol",
            values::choice(&[("v1", ProxyProtocol::V1), ("v2", ProxyProtocol::V2)]),
        ),
        instances: section.tables("instance", &schema::INSTANCE).into_iter().map(instance).collect(),
    };
    section.finish();
    pool
}

fn on_unavailable(section: &Section<'_, '_>) -> Option<Placed<OnUnavailable>> {
    section.optional("on_unavailable", |found| {
        const HELP: &str = "use \"503\", \"reset\", \"silent\", \"pool:NAME\" or \"queue:DURATION\"";
        let text = values::string(found).map_err(|wrong| wrong.help(HELP))?;
        match (text.as_str(), text.split_once(':')) {
            ("503", _) => Ok(OnUnavailable::Status503),
            ("reset", _) => Ok(OnUnavailable::Reset),
            ("silent", _) => Ok(OnUnavailable::Silent),
            (_, Some(("pool", name))) if !name.is_empty() => Ok(OnUnavailable::Pool(name.to_owned())),
            (_, Some(("queue", text))) => {
                let patience = DeValue::String(text.into());
                let read = values::duration(10 * MILLISECOND..=3_600 * SECOND);
                read(&patience).map(OnUnavailable::Queue)
            }
            _ => Err(Wrong::new(format!("cannot be {}", describe(found))).help(HELP)),
        }
    })
}

/// Affinity is all or nothing, and written as the percentages that other products know.
fn affinity(found: Found<'_>) -> Result<bool, Wrong> {
    match values::integer(0..=100)(found) {
        Ok(0) => Ok(false),
        Ok(100) => Ok(true),
        _ => {
            let help = "100: a user comes back to the last instance; 0: the choice is free";
            Err(Wrong::new(format!("must be 0 or 100, not {}", describe(found))).help(help))
        }
    }
}

/// A path that can be sent in a request line (RFC 9112, section 3.2.1).
pub(super) fn request_target(found: Found<'_>) -> Result<String, Wrong> {
    let text = values::string(found)?;
    if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) && text.len() <= 8_192 {
        return Ok(text);
    }
    Err(Wrong::new(format!("is not a path that can be requested: {}", describe(found)))
        .help("begin with '/', write spaces and other special characters percent-encoded"))
}

/// A value for a `Host` field.
pub(super) fn host(found: Found<'_>) -> Result<String, Wrong> {
    let text = values::string(found)?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:[]%".contains(&byte);
    if (1..=255).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text);
    }
    Err(Wrong::new(format!("is not a host name: {}", describe(found))))
}

fn instance(section: Section<'_, '_>) -> Instance {
    let states: &[_] = &[
        ("enable", AdminState::Enabled),
        ("drain", AdminState::Drain),
        ("maintenance", AdminState::Maintenance),
    ];
    let instance = Instance {
        name: section.required("name", values::name),
        address: section.required("address", values::socket_address),
        weight: section.defaulted("weight", values::integer(0..=1_000)),
        group: section.optional("group", values::name),
        max_sessions: section.optional("max_sessions", values::integer(1..=u32::MAX)),
        spare: section.defaulted("spare", values::boolean),
        state: section.defaulted("state", values::choice(states)),
        node: section.optional("node", values::name),
        thresholds: section.table("thresholds", &schema::INSTANCE_THRESHOLDS).map(load::own_thresholds),
    };
    section.finish();
    instance
}

fn rule(section: Section<'_, '_>) -> Rule {
    let rule = Rule {
        span: section.span.clone(),
        name: section.required("name", values::name),
        condition: section.required("match", values::string),
        pool: section.optional("pool", values::name),
        enabled: section.defaulted("enabled", values::boolean),
        on_unavailable: on_unavailable(&section),
        method: section.optional("method", values::choice(METHODS)),
        affinity: section.optional("affinity", affinity),
        allow_exhausted: section.optional("allow_exhausted", values::boolean),
        persistence: section.table("persistence", &schema::PERSISTENCE).map(cookie::read),
        preload: section.table("preload", &schema::PRELOAD).map(preload::read),
        action: section.optional("action", values::choice(&[("deny", ())])),
        status: section.optional("status", values::integer(400..=599)),
        has_pool: section.has("pool"),
        has_action: section.has("action"),
    };
    section.finish();
    rule
}

fn default_rule(section: Section<'_, '_>) -> DefaultRule {
    let rule = DefaultRule {
        pools: section.list("pools", values::name),
        on_unavailable: on_unavailable(&section),
        method: section.optional("method", values::choice(METHODS)),
        affinity: section.optional("affinity", affinity),
        allow_exhausted: section.optional("allow_exhausted", values::boolean),
        persistence: section.table("persistence", &schema::PERSISTENCE).map(cookie::read),
    };
    section.finish();
    rule
}
