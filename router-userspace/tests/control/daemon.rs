//! A control server over a routing table with two pools, as an operator would meet it; and a client.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use router::control::protocol::Listener;
use router::control::state::HeadReader;
use router::control::{Opened, Server, Settings, State, Timeouts};
use router::core::counters::Counters;
use router::core::health::{CheckKind, CheckSpec, Failure, Observation, Reachability};
use router::core::load::Report;
use router::core::pool::{Instance, InstanceId, Method as Balance, OnUnavailable, Pool, PoolId};
use router::core::request::HttpRequest;
use router::core::rules;
use router::core::session::Session;
use router::core::status::AdminState;
use router::core::table::{Action, DefaultRule, Overrides, RoutingTable, Rule};
use router::flows::ports::PortAllocator;
use router::flows::table::{FlowInfo, FlowState, FlowTable, Handoff, TcpOptions};
use router::flows::xdp::{Attachment, Hook};
use router::proxy::http;
use router::proxy::http::scan::HeadLimits;
use router_common::abi::reason::{PacketReason, RefuseReason, RelayReason, XdpReason};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixStream;

use crate::configurator::File;

/// Nothing in a test waits longer than this for the server.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A directory that is removed at the end of the test.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("router-control-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Flows that never change.
pub struct FixedFlows(pub Vec<FlowInfo>);

impl FlowTable for FixedFlows {
    fn hand_off(&self, handoff: Handoff) -> Result<(), (RelayReason, Handoff)> {
        Err((RelayReason::TableFull, handoff))
    }

    fn prepare(&self, _: TcpOptions, _: SocketAddr, _: SocketAddr) {}

    fn flows(&self) -> Vec<FlowInfo> {
        self.0.clone()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn capacity(&self) -> usize {
        1000
    }

    fn attachments(&self) -> Vec<Attachment> {
        let met = |interface: &str, hook, reason: &str| Attachment {
            interface: interface.to_owned(),
            hook,
            reason: reason.to_owned(),
            advice: Vec::new(),
        };
        let advice = vec!["set something".to_owned()];
        vec![
            Attachment { advice, ..met("eth0", Hook::XdpNative, "as configured") },
            met("eth1", Hook::Tc, "its driver has no native XDP"),
        ]
    }

    fn xdp_frames(&self) -> Vec<(&'static str, u64)> {
        vec![(XdpReason::Carried.name(), 4700), (XdpReason::NotCarried.name(), 23)]
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![(PacketReason::Forwarded.name(), 4711), (PacketReason::NoFlow.name(), 12)]
    }
}

/// Reads heads as a listener with the default limits does.
pub struct Heads;

impl HeadReader for Heads {
    fn server_name<'n>(&self, name: &'n str) -> Result<&'n str, RefuseReason> {
        router::proxy::tls::client_hello::host_name(name.as_bytes())
    }

    fn read(&self, _: &str, head: &[u8], then: &mut dyn FnMut(HttpRequest<'_>)) -> Result<(), RefuseReason> {
        let (head, _) = http::read(head, &HeadLimits::default())?.ok_or(RefuseReason::BadRequest)?;
        then(head.request(&head.path()?));
        Ok(())
    }
}

pub fn flow(id: u32, client: &str, instance: &str, age: u64) -> FlowInfo {
    FlowInfo {
        id,
        client: client.parse().unwrap(),
        vip: "10.0.1.1:80".parse().unwrap(),
        source: SocketAddr::new("10.0.2.1".parse().unwrap(), 20_000 + id as u16),
        instance: instance.parse().unwrap(),
        rule: if id == 3 { String::new() } else { "gis".to_owned() },
        age: Duration::from_secs(age),
        idle: Duration::from_millis(500),
        protocol: "tcp",
        packets_to_instance: Some(10),
        bytes_to_instance: 2_048,
        packets_to_client: Some(100),
        bytes_to_client: 5 << 20,
        state: if id == 2 { FlowState::Closing } else { FlowState::Direct },
    }
}

pub struct Daemon {
    pub state: Arc<State>,
    pub server: Server,
    pub socket: PathBuf,
    _sessions: Vec<Session>,
    directory: Directory,
}

impl Daemon {
    pub fn start() -> Self {
        Self::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let directory = Directory::new();
        let socket = directory.path().join("run/control.sock");
        let (table, sessions) = table();
        let counters = Arc::new(Counters::default());
        // Three connections, of which one is still open.
        drop((counters.accept(), counters.accept()));
        std::mem::forget(counters.accept());
        counters.requests.add(3);
        counters.handoffs.add(1);
        counters.relayed.add(RelayReason::Short);
        counters.refused.add(RefuseReason::Denied);
        counters.retries.add(2);
        table.hits(router::core::table::RuleRef::Rule(1)).add(2);
        let flows = vec![
            flow(1, "10.1.2.3:50001", "10.0.2.21:80", 30),
            flow(2, "10.1.2.4:50002", "10.0.2.22:80", 3_700),
            flow(3, "192.0.2.9:50003", "10.0.2.99:80", 5),
        ];
        let ports = PortAllocator::new(20_000..=20_999);
        // It returns when dropped.
        let _lease = ports.reserve("10.0.2.1:20001".parse().unwrap(), "10.0.2.21:80".parse().unwrap());
        let state = Arc::new(State {
            table: Arc::new(ArcSwap::from_pointee(table)),
            counters,
            flows: Some(Arc::new(FixedFlows(flows))),

            layer4: None,
            tracer: Some(Arc::new(crate::whereabouts::FixedTracer)),
            captures: Some(Arc::new(crate::capture::FixedCaptures::default())),
            ports: Arc::new(ports),
            datapath: "TCX ingress on eth0, eth1".to_owned(),
            heads: Box::new(Heads),
            listeners: Arc::new(ArcSwap::from_pointee(vec![Listener {
                name: "web".to_owned(),
                address: "10.0.1.1:80".parse().unwrap(),
                protocol: "http".to_owned(),
                source: "snat".to_owned(),
                offload: "auto".to_owned(),
            }])),
            configurator: Arc::new(File::new(directory.path())),
            preloads: Arc::default(),
            config_file: Some("/etc/router/router.toml".into()),
            started: Instant::now(),
            started_at: SystemTime::now(),
        });
        let timeouts = Timeouts::default();
        let mut settings = Settings { socket: socket.clone(), group: None, admin_listen: None, timeouts };
        change(&mut settings);
        let server = Opened::new(&settings).unwrap().serve(Arc::clone(&state)).unwrap();
        Self { state, server, socket, _sessions: sessions, directory }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, "")
    }

    pub fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.ask(Method::POST, path, body)
    }

    pub fn ask(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Answer {
        let (path, body) = (path.to_owned(), body.into());
        block_on(async {
            let stream = UnixStream::connect(&self.socket).await.unwrap();
            ask_over(TokioIo::new(stream), method, &path, body).await
        })
    }

    /// The configuration file.
    pub fn file(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("router.toml")).unwrap()
    }

    /// Edits it as an operator would.
    pub fn edit(&self, from: &str, to: &str) {
        assert!(self.file().contains(from));
        std::fs::write(self.directory.path().join("router.toml"), self.file().replacen(from, to, 1)).unwrap();
    }

    pub fn connect(&self) -> StdUnixStream {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        // The kernel waits for a place in the listener's queue as long as writing may take.
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.connect(&SockAddr::unix(&self.socket).unwrap()).unwrap();
        StdUnixStream::from(OwnedFd::from(socket))
    }
}

pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { tokio::time::timeout(PATIENCE, work).await.expect("the server answers in time") })
}

pub async fn ask_over<S>(stream: TokioIo<S>, method: Method, path: &str, body: Bytes) -> Answer
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request =
        Request::builder().method(method).uri(path).header("host", "router").body(Full::new(body)).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let fields = response.headers().iter();
    let headers =
        fields.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Answer { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The error's two sentences.
    #[track_caller]
    pub fn error(&self) -> (String, String) {
        let body = self.json();
        (body["error"].as_str().unwrap().to_owned(), body["help"].as_str().unwrap().to_owned())
    }
}

fn instance(name: &str, address: &str, weight: u32, check: Option<&CheckSpec>) -> Instance {
    Instance {
        name: name.to_owned(),
        address: address.parse().unwrap(),
        weight,
        group: None,
        max_sessions: None,
        state: AdminState::Enabled,
        ..Instance::new(name, address.parse().unwrap(), check)
    }
}

fn rule(name: &str, condition: &str, action: Action) -> Rule {
    Rule {
        name: name.to_owned(),
        enabled: true,
        condition: rules::compile(condition).unwrap(),
        action,
        overrides: Overrides::default(),
        persistence: None,
        preload: None,
        hits: Arc::default(),
    }
}

/// Pool `web` with one instance; pool `maps` with one instance up, one busier, one down and one in maintenance; pool
/// `lost`, whose only instance is down.
fn table() -> (RoutingTable, Vec<Session>) {
    let check = CheckSpec {
        kind: CheckKind::Http { path: "/health".to_owned(), host: None, expect: vec![200..=299] },
        interval: Duration::from_secs(2),
        timeout: Duration::from_secs(1),
        rise: 2,
        fall: 3,
        initial: Reachability::Down,
    };
    let pool = |name: &str, check: Option<CheckSpec>, instances| Pool {
        name: name.to_owned(),
        method: Balance::FewestSessions,
        on_unavailable: None,
        check,
        instances,
        ..Pool::default()
    };
    let mut lost =
        pool("lost", Some(check.clone()), vec![instance("gone", "10.0.2.31:80", 100, Some(&check))]);
    lost.on_unavailable = Some(OnUnavailable::Reset);
    let mut fourth = instance("gis4", "10.0.2.24:80", 100, Some(&check));
    fourth.state = AdminState::Maintenance;
    fourth.status.set_admin(AdminState::Maintenance);
    let maps = vec![
        instance("gis1", "10.0.2.21:80", 100, Some(&check)),
        instance("gis2", "10.0.2.22:80", 50, Some(&check)),
        instance("gis3", "10.0.2.23:80", 100, Some(&check)),
        fourth,
    ];
    let pools = vec![
        pool("web", None, vec![instance("web1", "10.0.2.11:80", 100, None)]),
        pool("maps", Some(check), maps),
        lost,
    ];
    let mut old = rule("old", r#"Path("/old")"#, Action::Pool(PoolId(0)));
    old.enabled = false;
    let rules = vec![
        old,
        rule("gis", r#"PathPrefix("/gis") && Host("gis.example")"#, Action::Pool(PoolId(1))),
        rule("admin", r#"PathPrefix("/admin") && !ClientIP("10.0.0.0/8")"#, Action::Deny { status: 403 }),
        rule("lost", r#"PathPrefix("/lost")"#, Action::Pool(PoolId(2))),
    ];
    let default = DefaultRule { pools: vec![PoolId(0)], ..DefaultRule::default() };
    let table = RoutingTable::new(rules, default, pools, None).unwrap();

    let now = Instant::now();
    let id = |index| InstanceId { pool: PoolId(1), index };
    for index in [0, 1] {
        table.observe(id(index), Observation::CheckPassed, now);
    }
    table.observe(id(2), Observation::CheckFailed(Failure::Refused), now);
    let idle = Report { cpu_idle_percent: Some(80.0), ..Report::default() };
    table.take_report(id(1), &idle, None, now);
    let begin = |index| table.instance(id(index)).status.sessions().begin();
    let sessions = vec![begin(0), begin(1), begin(1)];
    (table, sessions)
}
