//! The proxy under test, the instances behind it and the clients in front.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use router::core::counters::Counters;
use router::core::health::{CheckKind, CheckSpec, Reachability};
use router::core::pool::{Instance, Method, OnUnavailable, Pool, PoolId};
use router::core::proxy_protocol::ProxyProtocol;
use router::core::status::AdminState;
use router::core::table::{DefaultRule, RoutingTable, Rule};
use router::flows::ports::PortAllocator;
use router::flows::table::FlowTable;
use router::proxy::budget::{BudgetLimits, HeadBudget};
use router::proxy::decision_log::Sampler;
use router::proxy::listener::{self, Workers};
use router::proxy::settings::{Context, Listener, ListenerSettings};
use router::proxy::source::SourceAddresses;
use socket2::SockRef;

/// Longer than anything here may take.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Where the router's own ports lie in these tests.
pub const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 23_000..=27_999;

/// How to start a proxy.
pub struct Setup {
    pub instances: Vec<SocketAddr>,
    pub settings: ListenerSettings,
    pub flows: Option<Arc<dyn FlowTable>>,
    pub on_unavailable: Option<OnUnavailable>,
    pub check: Option<CheckSpec>,
    pub budget: BudgetLimits,
    pub workers: usize,
    pub rules: Vec<Rule>,
    /// How the instances are told where connections come from.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Further pools; the instances are those of the first.
    pub pools: Vec<Pool>,
}

/// A running proxy. Dropping it ends it.
pub struct Proxy {
    pub address: SocketAddr,
    pub context: Arc<Context>,
    workers: Option<Workers>,
}

pub fn proxy(instances: impl IntoIterator<Item = SocketAddr>) -> Setup {
    Setup {
        instances: instances.into_iter().collect(),
        settings: ListenerSettings::new("web", "127.0.0.1:0".parse().unwrap()),
        flows: None,
        on_unavailable: None,
        check: None,
        budget: BudgetLimits::default(),
        workers: 2,
        rules: Vec::new(),
        proxy_protocol: None,
        pools: Vec::new(),
    }
}

impl Setup {
    pub fn with(mut self, change: impl FnOnce(&mut ListenerSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    pub fn flows(mut self, flows: Arc<dyn FlowTable>) -> Self {
        self.flows = Some(flows);
        self
    }

    pub fn start(self) -> Proxy {
        let sockets = listener::open(&self.settings, self.workers).unwrap();
        let address = listener::address_of(&sockets[0]).unwrap();
        let instance = |(number, address): (usize, SocketAddr)| Instance {
            name: format!("i{number}"),
            address,
            weight: 100,
            group: None,
            max_sessions: None,
            state: AdminState::Enabled,
            ..Instance::new("", address, self.check.as_ref())
        };
        let pool = Pool {
            name: "p".into(),
            method: Method::FewestSessions,
            on_unavailable: self.on_unavailable,
            instances: self.instances.iter().copied().enumerate().map(instance).collect(),
            check: self.check,
            proxy_protocol: self.proxy_protocol,
            ..Pool::default()
        };
        let default = DefaultRule { pools: vec![PoolId(0)], ..DefaultRule::default() };
        let mut pools = vec![pool];
        pools.extend(self.pools);
        let table = RoutingTable::new(self.rules, default, pools, None).unwrap();
        let context = Arc::new(Context {
            binder: None,
            bound_ports: Arc::new(PortAllocator::new(50_000..=50_001)),
            table: Arc::new(ArcSwap::from_pointee(table)),
            flows: self.flows,
            ports: Arc::new(PortAllocator::new(SOURCE_PORTS)),
            sources: SourceAddresses::default(),
            counters: Arc::new(Counters::default()),
            heads: HeadBudget::new(self.budget),
            decision_log: Sampler::default(),
        });
        let listener = Arc::new(Listener { context: Arc::clone(&context), settings: self.settings });
        let workers = Workers::start(self.workers, vec![(listener, sockets)], (None, Vec::new())).unwrap();
        Proxy { address, context, workers: Some(workers) }
    }
}

impl Proxy {
    pub fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_write_timeout(Some(PATIENCE)).unwrap();
        client.set_nodelay(true).unwrap();
        client
    }

    /// Sends `request`, and receives until the other side closes.
    pub fn ask(&self, request: impl AsRef<[u8]>) -> String {
        let mut client = self.connect();
        client.write_all(request.as_ref()).unwrap();
        read_to_end(&mut client)
    }

    pub fn counters(&self) -> &Counters {
        &self.context.counters
    }

    /// Live sessions of each instance.
    pub fn sessions(&self) -> Vec<u32> {
        let table = self.context.table.load();
        table.instances().map(|(_, _, instance)| instance.status.sessions().live()).collect()
    }

    /// Accepts no more, and gives connections so long to end.
    pub fn stop(&mut self, grace: Duration) {
        self.workers.take().unwrap().stop(grace);
    }

    /// Waits until nothing is open any more.
    pub fn wait_until_idle(&self) {
        eventually("every session has ended", || {
            self.sessions().iter().all(|live| *live == 0) && self.counters().open() == 0
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(workers) = self.workers.take() {
            workers.stop(Duration::ZERO);
        }
    }
}

/// A check that is never due during a test, so that only traffic is judged.
pub fn tcp_check() -> CheckSpec {
    CheckSpec {
        kind: CheckKind::Tcp,
        interval: Duration::from_secs(60),
        timeout: Duration::from_secs(1),
        rise: 1,
        fall: 3,
        initial: Reachability::Up,
    }
}

/// A GET that asks for the connection to be closed.
pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
}

/// An instance that gives every connection to `serve`, on a thread of its own.
pub fn instance(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        while let Ok((connection, _)) = listener.accept() {
            connection.set_read_timeout(Some(PATIENCE)).unwrap();
            connection.set_write_timeout(Some(PATIENCE)).unwrap();
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(connection));
        }
    });
    address
}

/// An instance that answers each connection's first request with the head that it got, and closes.
pub fn echo_head() -> SocketAddr {
    instance(|mut connection| {
        let head = read_head(&mut connection);
        respond(&mut connection, &head);
    })
}

/// An instance that answers every request of a connection with the head that it got, until one says that it is the last.
pub fn keep_alive() -> SocketAddr {
    instance(|mut connection| {
        loop {
            let head = read_head(&mut connection);
            if head.is_empty() {
                return;
            }
            respond(&mut connection, &head);
            if head.contains("Connection: close") {
                return;
            }
        }
    })
}

/// An address on which nobody listens.
pub fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Receives up to and including an empty line; less if the peer ends before.
pub fn read_head(connection: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match connection.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Sends a response with this body.
pub fn respond(connection: &mut TcpStream, body: &str) {
    let length = body.len();
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
    // A client that has gone is no failure of the instance.
    let _ = connection.write_all(response.as_bytes());
}

/// Receives one response that has a `Content-Length`; returns its body.
pub fn read_response(connection: &mut TcpStream) -> String {
    let head = read_head(connection);
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .unwrap_or_else(|| panic!("{head:?}"));
    let mut body = vec![0; length.parse().unwrap()];
    connection.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

/// Receives until the peer closes in order.
pub fn read_to_end(connection: &mut TcpStream) -> String {
    let mut all = Vec::new();
    connection.read_to_end(&mut all).unwrap();
    String::from_utf8_lossy(&all).into_owned()
}

/// Receives until the connection ends, and says what came and how it ended: `None` if in order.
pub fn read_until_broken(connection: &mut TcpStream) -> (Vec<u8>, Option<ErrorKind>) {
    let mut all = Vec::new();
    let ended = connection.read_to_end(&mut all).err().map(|error| error.kind());
    (all, ended)
}

/// Closes with RST.
pub fn abort(connection: TcpStream) {
    SockRef::from(&connection).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Says that no more will be sent.
pub fn finish(connection: &TcpStream) {
    connection.shutdown(Shutdown::Write).unwrap();
}

/// Bytes that repeat only after a prime number of them, so that a lost or doubled piece shows.
pub fn pattern(length: usize) -> Vec<u8> {
    let block: Vec<u8> =
        (0..65_521u32).map(|place| place.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let mut all = block.repeat(length / block.len() + 1);
    all.truncate(length);
    all
}

/// Sends a GET that leaves the connection open.
pub fn send_get(client: &mut TcpStream, path: &str) {
    client.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
}

/// Waits until `holds`.
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
