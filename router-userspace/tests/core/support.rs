//! Short ways to say "a request like this" and "a table like that".

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use router::core::decide::{Attempt, Decision, Outcome};
use router::core::health::{CheckKind, CheckSpec, Failure, Observation, Reachability};
use router::core::identity::{
    Identities, IdentitySpec, Place, ResourceSource, SessionSource, SessionSpec, Trusted, UserSource,
};
use router::core::load::Report;
use router::core::path::normalise;
use router::core::pool::{Instance, InstanceId, Method, Pool, PoolId};
use router::core::request::{ClientHello, Header, HttpRequest, HttpVersion, Request};
use router::core::rules::compile;
use router::core::session::Session;
use router::core::status::AdminState;
use router::core::table::{Action, DefaultRule, Overrides, RoutingTable, Rule};

/// A request as a client would send it.
#[derive(Clone, Debug)]
pub struct Ask {
    pub version: HttpVersion,
    pub method: &'static str,
    pub host: Option<&'static str>,
    pub target: String,
    pub headers: Vec<(&'static str, &'static [u8])>,
    pub client: &'static str,
    pub listener: &'static str,
    /// `None` if the client does not speak TLS; else the server name, which may be none, and the protocols offered.
    pub tls: Option<(Option<&'static str>, &'static [&'static [u8]])>,
}

pub fn get(target: &str) -> Ask {
    Ask {
        version: HttpVersion::Http11,
        method: "GET",
        host: Some("a.example"),
        target: target.to_owned(),
        headers: vec![],
        client: "10.1.2.3",
        listener: "web",
        tls: None,
    }
}

impl Ask {
    pub fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    pub fn host(mut self, host: &'static str) -> Self {
        self.host = Some(host);
        self
    }

    pub fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value.as_bytes()));
        self
    }

    pub fn client(mut self, client: &'static str) -> Self {
        self.client = client;
        self
    }

    /// Shows the request to `see` as the proxy would.
    pub fn seen<T>(&self, see: impl FnOnce(&Request<'_>) -> T) -> T {
        let (raw_path, query) = match self.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (self.target.as_str(), None),
        };
        let path = normalise(raw_path).expect("a path that the proxy would let through");
        let headers: Vec<_> = self.headers.iter().map(|&(name, value)| Header { name, value }).collect();
        see(&Request {
            listener: self.listener,
            client: self.client.parse::<IpAddr>().unwrap(),
            tls: self.tls.map(|(server_name, alpn)| ClientHello { server_name, alpn }),
            http: Some(HttpRequest {
                version: self.version,
                method: self.method,
                host: self.host,
                raw_path,
                path: &path,
                query,
                headers: &headers,
            }),
        })
    }

    pub fn matches(&self, expression: &str) -> bool {
        let condition = compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        self.seen(|request| condition.matches(request))
    }
}

pub fn check() -> CheckSpec {
    CheckSpec {
        kind: CheckKind::Tcp,
        interval: Duration::from_secs(2),
        timeout: Duration::from_secs(1),
        rise: 2,
        fall: 3,
        initial: Reachability::Up,
    }
}

pub fn instance(name: &str) -> Instance {
    Instance {
        name: name.to_owned(),
        address: SocketAddr::from(([10, 77, 2, 11], 80)),
        weight: 100,
        group: None,
        max_sessions: None,
        state: AdminState::Enabled,
        ..Instance::new(name, SocketAddr::from(([10, 77, 2, 11], 80)), Some(&check()))
    }
}

pub trait InstanceExt {
    fn weight(self, weight: u32) -> Self;
    fn group(self, group: &str) -> Self;
    fn max_sessions(self, max: u32) -> Self;
    fn state(self, state: AdminState) -> Self;
    fn down(self) -> Self;
    fn spare(self) -> Self;
}

impl InstanceExt for Instance {
    fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    fn group(mut self, group: &str) -> Self {
        self.group = Some(group.to_owned());
        self
    }

    fn max_sessions(mut self, max: u32) -> Self {
        self.max_sessions = Some(max);
        self
    }

    fn state(mut self, state: AdminState) -> Self {
        self.state = state;
        self.status.set_admin(state);
        self
    }

    fn spare(mut self) -> Self {
        self.spare = true;
        self
    }

    fn down(self) -> Self {
        let refused = Observation::TrafficFailed(Failure::Refused);
        self.status.observe(Some(&check()), refused, std::time::Instant::now()).expect("it was up");
        self
    }
}

pub fn pool(name: &str, instances: impl IntoIterator<Item = Instance>) -> Pool {
    Pool {
        name: name.to_owned(),
        method: Method::FewestSessions,
        on_unavailable: None,
        check: Some(check()),
        instances: instances.into_iter().collect(),
        ..Pool::default()
    }
}

pub fn rule(name: &str, condition: &str, action: Action) -> Rule {
    Rule {
        name: name.to_owned(),
        enabled: true,
        condition: compile(condition).unwrap_or_else(|error| panic!("{condition}: {error}")),
        action,
        overrides: Overrides::default(),
        persistence: None,
        preload: None,
        hits: Arc::default(),
    }
}

pub const FIRST: Action = Action::Pool(PoolId(0));
pub const SECOND: Action = Action::Pool(PoolId(1));

pub fn table(rules: Vec<Rule>, pools: Vec<Pool>) -> RoutingTable {
    RoutingTable::new(rules, DefaultRule::default(), pools, None).unwrap()
}

/// One pool, reached by the default rule.
pub fn one_pool(instances: impl IntoIterator<Item = Instance>) -> RoutingTable {
    table(vec![], vec![pool("pool", instances)])
}

/// Believed from every IPv4 address.
pub fn anywhere<T>(source: T) -> Trusted<T> {
    Trusted { source, trusted: vec!["0.0.0.0/0".parse().unwrap()] }
}

pub fn header(name: &str) -> Place {
    Place::Header(name.to_owned())
}

/// A listener that finds the session key in the cookie `S`, the user in `X-User`, the groups in `X-Groups` and the resource
/// in the path.
pub fn with_identities(table: RoutingTable) -> RoutingTable {
    let spec = IdentitySpec {
        session: Some(SessionSpec {
            source: SessionSource::In(Place::Cookie("S".to_owned())),
            idle_timeout: Duration::from_secs(60),
        }),
        user: Some(Trusted {
            source: UserSource::In(header("X-User")),
            trusted: vec!["10.0.0.0/8".parse().unwrap()],
        }),
        groups: Some(Trusted { source: "X-Groups".to_owned(), trusted: vec!["10.0.0.0/8".parse().unwrap()] }),
        resource: Some(ResourceSource::Path(regex::Regex::new("^/map/([^/]+)").unwrap())),
    };
    let members = [("finance".to_owned(), vec!["alice".to_owned(), "bob".to_owned()])];
    table.with_identities(Identities::new([("web".to_owned(), spec)].into(), members))
}

/// A report of an instance of the table, taken in at `now`.
pub fn report(table: &RoutingTable, name: &str, report: &Report, now: Instant) {
    let id = table.id(name);
    let (pool, instance) = (table.pool(id.pool), table.instance(id));
    instance.status.report(report, &pool.load, pool.thresholds(instance), now);
}

/// Reports so much CPU in use.
pub fn busy(table: &RoutingTable, name: &str, percent: f64, now: Instant) {
    report(table, name, &Report { cpu_idle_percent: Some(100.0 - percent), ..Report::default() }, now);
}

pub trait TableExt {
    /// The chosen instance's name and its session, at `now`.
    fn place_at(&self, ask: &Ask, now: Instant) -> Option<(String, Session)>;
    fn ask(&self, ask: &Ask) -> Decision;
    /// The outcome; a session ends at once.
    fn outcome(&self, ask: &Ask) -> Outcome<()>;
    /// The chosen instance's name and its session.
    fn place(&self, ask: &Ask, tried: &[InstanceId]) -> Option<(String, Session)>;
    /// The chosen instance's name; its session ends at once.
    fn goes_to(&self, ask: &Ask) -> String;
    fn id(&self, name: &str) -> InstanceId;
    fn live(&self, name: &str) -> u32;
    /// The rule that selects the request.
    fn rule_for(&self, ask: &Ask) -> String;
}

impl TableExt for RoutingTable {
    fn ask(&self, ask: &Ask) -> Decision {
        ask.seen(|request| self.decide(request, &Attempt::first(std::time::Instant::now())))
    }

    fn outcome(&self, ask: &Ask) -> Outcome<()> {
        without_session(self.ask(ask).outcome)
    }

    fn place(&self, ask: &Ask, tried: &[InstanceId]) -> Option<(String, Session)> {
        match ask
            .seen(|request| {
                self.decide(request, &Attempt { tried, ..Attempt::first(std::time::Instant::now()) })
            })
            .outcome
        {
            Outcome::Instance { id, session } => Some((self.instance(id).name.clone(), session)),
            _ => None,
        }
    }

    fn place_at(&self, ask: &Ask, now: Instant) -> Option<(String, Session)> {
        match ask.seen(|request| self.decide(request, &Attempt::first(now))).outcome {
            Outcome::Instance { id, session } => Some((self.instance(id).name.clone(), session)),
            _ => None,
        }
    }

    fn goes_to(&self, ask: &Ask) -> String {
        self.place(ask, &[]).expect("an instance").0
    }

    fn id(&self, name: &str) -> InstanceId {
        self.instances().find(|(_, _, instance)| instance.name == name).expect("an instance of that name").0
    }

    fn live(&self, name: &str) -> u32 {
        self.instance(self.id(name)).status.sessions().live()
    }

    fn rule_for(&self, ask: &Ask) -> String {
        self.rule_name(self.ask(ask).rule).to_owned()
    }
}

/// Sessions that clients hold on an instance.
pub fn sessions(instance: &Instance, count: usize) -> Vec<Session> {
    (0..count).map(|_| instance.status.sessions().begin()).collect()
}

pub fn without_session(outcome: Outcome) -> Outcome<()> {
    match outcome {
        Outcome::Instance { id, .. } => Outcome::Instance { id, session: () },
        Outcome::Deny { status } => Outcome::Deny { status },
        // Which line it would wait in matters to few stories.
        Outcome::Unavailable { action, .. } => Outcome::Unavailable { action, pool: None },
        Outcome::AmbiguousPath => Outcome::AmbiguousPath,
    }
}
