//! Agents on the loopback interface that say what HAProxy's and Equalizer's agents say, and worse.

use std::sync::Mutex;

use super::*;
use crate::core::agent::{AgentSpec, AgentWeight};

/// An agent that answers each connection with the line that is written on its slate.
#[derive(Clone)]
struct Slate(Arc<Mutex<&'static [u8]>>);

impl Slate {
    fn say(&self, line: &'static [u8]) {
        *self.0.lock().unwrap() = line;
    }
}

async fn agent(line: &'static [u8]) -> (u16, Slate, AbortHandle) {
    let slate = Slate(Arc::new(Mutex::new(line)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let written = slate.clone();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let line = *written.0.lock().unwrap();
            let _ = stream.write_all(line).await;
        }
    });
    (port, slate, task.abort_handle())
}

/// One instance without checks, whose agent is asked on `port`.
fn table_with(port: u16, require_response: bool) -> RoutingTable {
    let agent = AgentSpec {
        port,
        interval: Duration::from_millis(20),
        timeout: Duration::from_millis(500),
        require_response,
        send: Vec::new(),
    };
    let instance = Instance::new("app1", "127.0.0.1:1".parse().unwrap(), None);
    let pool =
        Pool { name: "app".to_owned(), agent: Some(agent), instances: vec![instance], ..Pool::default() };
    RoutingTable::new(Vec::new(), DefaultRule::default(), vec![pool], None).unwrap()
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let reached = async {
        while !holds() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(Duration::from_secs(20), reached).await.unwrap_or_else(|_| panic!("never {what}"));
}

#[tokio::test]
async fn an_agents_words_weigh_drain_and_take_down_while_it_says_them() {
    let (port, slate, _agent) = agent(b"75%\n").await;
    let table = table_with(port, false);
    let prober = prober();
    prober.install(&table);
    let status = &table.pools()[0].instances[0].status;
    let weight = || status.adjustment().agent_weight();
    eventually("weighed", || weight() == Some(AgentWeight::Percent(75))).await;
    slate.say(b"drain 30 maxconn:9\r\n");
    eventually("draining", || status.admin() == AdminState::Drain).await;
    let now = std::time::Instant::now();
    assert_eq!(status.gauges().agent_value(table.pools()[0].load.report_ttl, now), Some(30));
    assert_eq!(status.max_sessions(None), Some(9));
    slate.say(b"ready down#no disk");
    eventually("down", || status.reachability() == Reachability::Down).await;
    assert_eq!((status.admin(), status.agent_text().as_str()), (AdminState::Enabled, "no disk"));
    slate.say(b"-1\n");
    slate.say(b"0\n");
    eventually("up", || status.reachability() == Reachability::Up).await;
}

#[tokio::test]
async fn an_agent_that_cannot_be_reached_is_a_failure_only_where_an_answer_is_required() {
    let (port, _, gone) = agent(b"up\n").await;
    gone.abort();
    let (lenient, strict) = (table_with(port, false), table_with(port, true));
    let (first, second) = (prober(), prober());
    first.install(&lenient);
    second.install(&strict);
    becomes(&strict, 0, Reachability::Down).await;
    let status = &strict.pools()[0].instances[0].status;
    assert_eq!(status.health().last_failure().unwrap().0, Failure::AgentSilent);
    assert_eq!(lenient.pools()[0].instances[0].status.reachability(), Reachability::Up);
    // It comes back, and says nothing about being up.
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"50%\n").await;
        }
    });
    becomes(&strict, 0, Reachability::Up).await;
}

#[tokio::test]
async fn an_agent_that_babbles_is_read_to_a_bound_and_believed_in_what_makes_sense() {
    static BABBLE: [u8; 100_000] = [b'x'; 100_000];
    let (port, slate, _agent) = agent(&BABBLE).await;
    let table = table_with(port, false);
    let prober = prober();
    prober.install(&table);
    let status = &table.pools()[0].instances[0].status;
    let ignored = || status.health_counts().agent_words_ignored.get();
    eventually("ignored", || ignored() >= 2).await;
    assert_eq!(status.health_counts().reports.get(), 0);
    assert_eq!(status.reachability(), Reachability::Up);
    slate.say(b"\xff\xfe 200% sideways weight:\n");
    eventually("understood in part", || {
        status.adjustment().agent_weight() == Some(AgentWeight::Percent(200))
    })
    .await;
}

#[tokio::test]
async fn a_pool_whose_agents_are_asked_no_more_forgets_what_they_said() {
    let (port, _slate, _agent) = agent(b"maint down\n").await;
    let table = table_with(port, false);
    let prober = prober();
    prober.install(&table);
    becomes(&table, 0, Reachability::Down).await;
    let mut next = table_with(port, false);
    let mut pool = next.pools()[0].clone();
    pool.agent = None;
    next = RoutingTable::new(Vec::new(), DefaultRule::default(), vec![pool], None).unwrap();
    next.carry_over(&table);
    prober.install(&next);
    let status = &next.pools()[0].instances[0].status;
    assert_eq!((status.reachability(), status.admin()), (Reachability::Up, AdminState::Enabled));
}
