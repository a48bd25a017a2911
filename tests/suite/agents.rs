//! What an instance's agent says when it is asked decides what the instance gets.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use support::lab::{Family, Host};
use support::{Connection, Curl, Peer, Router, TestLab, router};

const AGENT_PORT: u16 = 1510;
const LIMIT: Duration = Duration::from_secs(30);

/// An agent that says the same line to everybody, until it is told another.
struct Agent {
    line: Arc<Mutex<String>>,
    _peer: Peer,
}

impl Agent {
    fn start(family: Family, lab: &TestLab, number: u8, line: &str) -> Self {
        let line = Arc::new(Mutex::new(line.to_owned()));
        let says = Arc::clone(&line);
        let peer = Peer::start_over(family, lab, number, AGENT_PORT, move |mut stream| {
            let line = says.lock().unwrap().clone();
            writeln!(stream, "{line}")
        });
        Self { line, _peer: peer }
    }

    fn say(&self, line: &str) {
        line.clone_into(&mut self.line.lock().unwrap());
    }
}

/// Two instances whose agents are asked, and whose ports nobody checks.
fn start(family: Family, lab: &TestLab, agent: &str) -> Router {
    let vip = SocketAddr::new(family.vip(), 80);
    let site = format!(
        "[[listener]]\nname = \"web\"\naddress = \"{vip}\"\noffload = \"handoff\"\n\n\
         [[pool]]\nname = \"web\"\nagent = {{ port = {AGENT_PORT}, interval = \"100ms\", timeout = \"100ms\"{agent} }}\n\n{instances}",
        instances = router::instances(family, "web", 2)
    );
    Router::start(lab, &router::configuration(lab, "", "", &site))
}

fn instance(router: &Router, number: u8) -> Value {
    let name = format!("web{number}");
    let all = router.ctl(["instances"]);
    all.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone()
}

fn connect(family: Family, lab: &TestLab) -> Connection {
    Connection::open(lab, Host::Client, &SocketAddr::new(family.vip(), 80).to_string()).unwrap()
}

/// Which backends serve eight new connections that are open at the same time.
fn served_by(family: Family, lab: &TestLab) -> BTreeSet<String> {
    let mut held: Vec<_> = (0..8).map(|_| connect(family, lab)).collect();
    held.iter_mut().map(|one| one.get("/whoami").unwrap().text().trim().to_owned()).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

support::over_both_families! {
    an_agents_words_drain_close_and_open_an_instance_whose_connections_stay
    an_agent_that_must_answer_and_is_gone_takes_its_instance_down
}

fn an_agents_words_drain_close_and_open_an_instance_whose_connections_stay(family: Family) {
    let lab = TestLab::with_backends(2);
    let first = Agent::start(family, &lab, 1, "ready up 100%");
    let _second = Agent::start(family, &lab, 2, "ready up 100%");
    let router = start(family, &lab, "");
    assert_eq!(served_by(family, &lab), names(&["backend1", "backend2"]));
    let mut held: Vec<_> = (0..2).map(|_| connect(family, &lab)).collect();
    let homes: Vec<_> = held.iter_mut().map(|one| one.get("/whoami").unwrap().text()).collect();
    assert!(homes.contains(&"backend1\n".to_owned()), "{homes:?}");

    for (line, key, value) in [
        ("drain", "admin", "drain"),
        ("ready down#disk full", "health", "down"),
        ("up 0%", "serving", "false"),
    ] {
        first.say(line);
        router.eventually(LIMIT, line, |router| {
            let found = instance(router, 1)[key].clone();
            found.as_str().map_or_else(|| found.to_string(), str::to_owned) == value
        });
        assert_eq!(served_by(family, &lab), names(&["backend2"]), "{line}");
        for (one, home) in held.iter_mut().zip(&homes) {
            assert_eq!(&one.get("/whoami").unwrap().text(), home, "{line}: connections stay");
        }
    }
    first.say("ready up 100%");
    // Flows that have ended count for a moment more, and would make the other look busier.
    router.eventually(LIMIT, "it serves again, and only the held ones are left", |router| {
        let sessions = |number| instance(router, number)["sessions"].as_u64().unwrap();
        instance(router, 1)["serving"] == true && sessions(1) + sessions(2) == 2
    });
    assert_eq!(served_by(family, &lab), names(&["backend1", "backend2"]));
}

fn an_agent_that_must_answer_and_is_gone_takes_its_instance_down(family: Family) {
    let lab = TestLab::with_backends(2);
    let first = Agent::start(family, &lab, 1, "50");
    let _second = Agent::start(family, &lab, 2, "50");
    let router = start(family, &lab, ", require_response = true");
    router.eventually(LIMIT, "both serve", |router| {
        (1..=2).all(|number| instance(router, number)["serving"] == true)
    });
    drop(first);
    router.eventually(LIMIT, "it is missed", |router| instance(router, 1)["health"] == "down");
    let ask =
        || Curl::on(&lab, Host::Client).get(format!("http://{}/whoami", SocketAddr::new(family.vip(), 80)));
    for _ in 0..4 {
        assert_eq!(ask().text(), "backend2\n");
    }
    let _again = Agent::start(family, &lab, 1, "50");
    router.eventually(LIMIT, "it serves again", |router| instance(router, 1)["serving"] == true);
}
