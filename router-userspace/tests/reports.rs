//! Instances that report over real sockets, and those that should not be believed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use router::app::reports;
use router::config;
use router::control::reports::{ReportServer, Tokens};
use router::core::counters::Counters;
use router::core::health::Reachability;
use router::core::load::LoadStatus;
use router::core::pool::PoolId;
use router::core::registry::RegistrationError;
use router::core::table::RoutingTable;
use router_common::abi::reason::ReportReason;
use serde_json::{Value, json};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";
const PATIENCE: Duration = Duration::from_secs(30);

struct Daemon {
    table: Arc<ArcSwap<RoutingTable>>,
    counters: Arc<Counters>,
    tokens: Arc<Tokens>,
    server: ReportServer,
    folder: PathBuf,
    text: String,
}

/// Puts the table in force.
struct Swap(Arc<ArcSwap<RoutingTable>>);

impl reports::Registry for Swap {
    fn register(
        &self,
        pool: PoolId,
        name: &str,
        address: SocketAddr,
        now: Instant,
    ) -> Result<Arc<RoutingTable>, RegistrationError> {
        self.0.store(Arc::new(self.0.load().register(pool, name, address, now)?));
        Ok(self.0.load_full())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Pool `gis` with two instances on one host and one on another, pool `web` with another token.
fn daemon(extra: &str) -> Daemon {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("router-reports-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("gis"), format!("{TOKEN}\n")).unwrap();
    std::fs::write(folder.join("web"), OTHER).unwrap();
    let folder_name = folder.display();
    let text = format!(
        r#"
[reports]
listen = "127.0.0.1:9190"
[[listener]]
name = "web"
address = "127.0.0.1:80"
[[pool]]
name = "gis"
reports = {{ token_file = "{folder_name}/gis"{extra} }}
thresholds = {{ window = "1ms" }}
[[pool.instance]]
name = "gis1"
address = "127.0.0.2:80"
node = "host1"
[[pool.instance]]
name = "gis2"
address = "127.0.0.2:81"
node = "host1"
[[pool.instance]]
name = "gis3"
address = "127.0.0.3:80"
node = "host2"
[[pool]]
name = "web"
reports = {{ token_file = "{folder_name}/web" }}
[[pool.instance]]
name = "web1"
address = "127.0.0.4:80"
"#
    );
    let plan = config::parse("r.toml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    let table = Arc::new(ArcSwap::from_pointee(plan.table));
    let counters = Arc::new(Counters::default());
    let tokens = Arc::new(Tokens::new(plan.reports.unwrap().tokens));
    let server = {
        let registry = Arc::new(Swap(Arc::clone(&table)));
        let (tokens, counters) = (Arc::clone(&tokens), Arc::clone(&counters));
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        reports::serve(listen, tokens, Arc::clone(&table), registry, counters).unwrap()
    };
    Daemon { table, counters, tokens, server, folder, text }
}

impl Daemon {
    /// Sends bytes and returns the status and the body of the answer.
    fn send(&self, request: &[u8]) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect(&answer);
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    fn post(&self, authorization: &str, body: &str) -> (u16, Value) {
        let request = format!(
            "POST /v1/report HTTP/1.1\r\nHost: r\r\n{authorization}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.send(request.as_bytes())
    }

    fn report(&self, token: &str, body: &Value) -> (u16, Value) {
        self.post(&format!("Authorization: Bearer {token}\r\n"), &body.to_string())
    }

    fn load(&self, name: &str) -> LoadStatus {
        let table = self.table.load();
        let (_, _, instance) = table.instances().find(|(_, _, instance)| instance.name == name).unwrap();
        instance.status.load_status()
    }

    fn refused(&self, reason: ReportReason) -> u64 {
        self.counters.reports_refused.get(reason)
    }
}

#[test]
fn a_report_makes_an_instance_strained_and_those_on_its_host_with_it() {
    let daemon = daemon("");
    let (status, answer) = daemon.report(TOKEN, &json!({ "instance": "gis1", "cpu_idle_percent": 30 }));
    assert_eq!((status, &answer["load"], &answer["pool"]), (200, &json!("strained"), &json!("gis")));
    assert_eq!(daemon.load("gis1"), LoadStatus::Strained);
    assert_eq!(daemon.load("gis2"), LoadStatus::Strained, "the same host");
    assert_eq!(daemon.load("gis3"), LoadStatus::Available);
    std::thread::sleep(Duration::from_millis(2));
    daemon.report(TOKEN, &json!({ "instance": "gis1", "cpu_idle_percent": 80 }));
    assert_eq!((daemon.load("gis1"), daemon.load("gis2")), (LoadStatus::Available, LoadStatus::Available));
}

#[test]
fn an_instance_may_take_itself_down_and_up() {
    let daemon = daemon("");
    let reach = || daemon.table.load().pools()[0].instances.each_reachability();
    daemon.report(TOKEN, &json!({ "instance": "gis1", "agent_value": -1 }));
    assert_eq!(reach(), [Reachability::Down, Reachability::Up, Reachability::Up]);
    daemon.report(TOKEN, &json!({ "instance": "gis1", "agent_value": 3 }));
    assert_eq!(reach(), [Reachability::Up; 3]);
}

trait EachReachability {
    fn each_reachability(&self) -> Vec<Reachability>;
}

impl EachReachability for Vec<router::core::pool::Instance> {
    fn each_reachability(&self) -> Vec<Reachability> {
        self.iter().map(|instance| instance.status.reachability()).collect()
    }
}

#[test]
fn nobody_reports_without_the_token_of_the_instances_own_pool() {
    let daemon = daemon("");
    let busy = json!({ "instance": "gis1", "cpu_idle_percent": 0 });
    let (status, answer) = daemon.post("", &busy.to_string());
    assert_eq!((status, &answer["error"]), (401, &json!("the report has no token")));
    assert_eq!(daemon.post("Authorization: Basic abcd\r\n", &busy.to_string()).0, 401);
    assert_eq!(daemon.report("0123456789abcdef0123456789abcdeX", &busy).0, 401);
    assert_eq!(daemon.report(OTHER, &busy).0, 404, "the token of another pool");
    assert_eq!(daemon.load("gis1"), LoadStatus::Available);
    assert_eq!(daemon.refused(ReportReason::NoToken), 2);
    assert_eq!(daemon.refused(ReportReason::WrongToken), 1);
    assert_eq!(daemon.refused(ReportReason::UnknownInstance), 1);
}

#[test]
fn nonsense_is_refused_with_a_reason_and_disturbs_nothing() {
    let daemon = daemon("");
    let with = |body: &str| daemon.post(&format!("Authorization: Bearer {TOKEN}\r\n"), body);
    for body in ["", "[]", "{", "{}", "{\"instance\":\"gis1\",\"cpu\":3}", "\u{0}"] {
        assert_eq!(with(body).0, 400, "{body}");
    }
    let (status, answer) =
        with("{\"instance\":\"gis1\",\"cpu_idle_percent\":0,\"memory_total_bytes\":16384}");
    assert_eq!(status, 400);
    assert!(answer["help"].as_str().unwrap().contains("bytes"), "{answer}");
    let (_, answer) = with("{\"instance\":\"gis1\",\"cpu_idle_percent\":0,\"time\":99999999999}");
    assert!(answer["error"].as_str().unwrap().contains("ahead of the router's clock"), "{answer}");
    assert_eq!(with("{\"instance\":\"nobody\"}").0, 404);
    assert_eq!(with(&format!("\"{}\"", "x".repeat(300_000))).0, 413);
    assert_eq!(daemon.send(b"GET /metrics HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n").0, 404);
    assert_eq!(daemon.load("gis1"), LoadStatus::Available);
    let reasons = [
        (ReportReason::Malformed, 6),
        (ReportReason::OutOfRange, 1),
        (ReportReason::FutureClock, 1),
        (ReportReason::UnknownInstance, 1),
        (ReportReason::TooLarge, 1),
        (ReportReason::NotAReport, 1),
    ];
    for (reason, count) in reasons {
        assert_eq!(daemon.refused(reason), count, "{}", reason.name());
    }
    let (status, _) = with("{\"instance\":\"gis1\"}");
    assert_eq!(status, 200, "a report that says nothing is a sign of life");
}

#[test]
fn an_agent_keeps_its_connection_for_many_reports() {
    let daemon = daemon("");
    let mut stream = TcpStream::connect(daemon.server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for idle in [5, 90, 5] {
        std::thread::sleep(Duration::from_millis(2));
        let body = json!({ "instance": "gis3", "cpu_idle_percent": idle }).to_string();
        let head = format!("POST /v1/report HTTP/1.1\r\nHost: r\r\nAuthorization: bearer {TOKEN}\r\n");
        stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
        let mut answer = [0; 1_024];
        let length = stream.read(&mut answer).unwrap();
        assert!(answer[..length].starts_with(b"HTTP/1.1 200 "));
        let wanted = if idle == 5 { LoadStatus::Exhausted } else { LoadStatus::Available };
        assert_eq!(daemon.load("gis3"), wanted);
    }
}

#[test]
fn tokens_are_exchanged_while_instances_report_and_those_of_other_pools_stay() {
    let daemon = daemon("");
    let idle = json!({ "instance": "gis3", "cpu_idle_percent": 90 });
    assert_eq!(daemon.report(TOKEN, &idle).0, 200);
    let next = "00000000000000000000000000000000";
    std::fs::write(daemon.folder.join("gis"), format!("{next}\n{TOKEN}\n")).unwrap();
    let reread = || config::parse("r.toml", &daemon.text).unwrap().reports.unwrap().tokens;
    daemon.tokens.replace(reread());
    assert_eq!((daemon.report(next, &idle).0, daemon.report(TOKEN, &idle).0), (200, 200));
    std::fs::write(daemon.folder.join("gis"), next).unwrap();
    daemon.tokens.replace(reread());
    assert_eq!((daemon.report(next, &idle).0, daemon.report(TOKEN, &idle).0), (200, 401));
    assert_eq!(daemon.report(OTHER, &json!({ "instance": "web1", "cpu_idle_percent": 90 })).0, 200);
}

#[test]
fn an_instance_joins_by_reporting_and_is_forgotten_when_it_has_been_silent_for_long() {
    let daemon = daemon(", allow_registration = true, forget_after = \"20s\"");
    let here = json!({ "instance": "gis9", "address": "127.0.0.9:80", "cpu_idle_percent": 90 });
    let (status, answer) = daemon.report(TOKEN, &json!({ "instance": "gis9" }));
    assert_eq!(status, 404);
    assert!(answer["help"].as_str().unwrap().contains("`address`"), "{answer}");
    assert_eq!(daemon.report(TOKEN, &here).1["registered"], json!(true));
    assert_eq!(daemon.report(TOKEN, &here).1["registered"], json!(false));
    assert_eq!(daemon.table.load().pools()[0].instances.len(), 4);

    // A reload keeps it, as long as the pool lets instances join.
    let table = daemon.table.load();
    let configured = |joins: bool| {
        let mut pools = table.pools().to_vec();
        pools[0].instances.retain(|instance| !instance.registered);
        pools[0].registration = pools[0].registration.filter(|_| joins);
        let mut next = RoutingTable::new(vec![], Default::default(), pools, None).unwrap();
        next.carry_over(&table);
        next.pools()[0].instances.len()
    };
    assert_eq!((configured(true), configured(false)), (4, 3));

    let now = Instant::now();
    assert!(table.forget_silent(now + Duration::from_secs(15)).is_none());
    let (next, forgotten) = table.forget_silent(now + Duration::from_secs(25)).unwrap();
    assert_eq!((forgotten, next.pools()[0].instances.len()), (vec!["gis9".to_owned()], 3));
}

#[test]
fn registration_is_bounded_and_takes_nothing_away_from_others() {
    let daemon = daemon(", allow_registration = true, max_registered = 5");
    let join =
        |name: &str, address: &str| daemon.report(TOKEN, &json!({ "instance": name, "address": address })).0;
    assert_eq!(join("thief", "127.0.0.2:80"), 409, "the address of gis1");
    assert_eq!(join("web1", "127.0.0.8:80"), 409, "the name of an instance of another pool");
    assert_eq!(join("nowhere", "0.0.0.0:80"), 409);
    assert_eq!(join("nowhere", "[fe80::1]:80"), 409, "means nothing without its interface");
    assert_eq!(join("nowhere", "[::ffff:10.0.2.9]:80"), 409, "is an IPv4 address");
    assert_eq!(join("everybody", "224.0.0.1:80"), 409);
    let flood: Vec<u16> = (1..=50).map(|n| join(&format!("f{n}"), &format!("127.0.1.{n}:80"))).collect();
    assert_eq!(flood.iter().filter(|&&status| status == 200).count(), 5);
    assert_eq!(daemon.refused(ReportReason::RegistryFull), 45);
    assert_eq!(daemon.refused(ReportReason::RegistrationConflict), 6);
    assert_eq!(daemon.report(OTHER, &json!({ "instance": "x", "address": "127.0.2.1:80" })).0, 404);
    assert_eq!(daemon.table.load().pools()[0].instances.len(), 8);
    assert_eq!(join("gis1", "127.0.0.2:80"), 200, "those of the configuration report as before");
}
