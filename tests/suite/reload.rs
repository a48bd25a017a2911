//! Reloads and run-time changes while clients are served: nobody notices, and what should change does.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::lab::{Host, Lab};
use support::{Connection, Entry, Router, TestLab, router};

/// Long enough for every change that a story makes; a story ends the load itself.
const LOAD_SECONDS: &str = "300";
const PATIENCE: Duration = Duration::from_secs(20);

/// Two pools of one instance each, and two rules that hold for the same requests.
const SITE: &str = r#"
[[listener]]
name = "handoff"
address = "10.77.1.10:80"
offload = "handoff"

[[listener]]
name = "relay"
address = "10.77.1.10:82"
offload = "relay"

[[pool]]
name = "one"
check = { type = "http", path = "/health", interval = "200ms", timeout = "100ms" }
[[pool.instance]]
name = "one1"
address = "10.77.2.11:80"
weight = 100

[[pool]]
name = "two"
check = { type = "http", path = "/health", interval = "200ms", timeout = "100ms" }
[[pool.instance]]
name = "two1"
address = "10.77.2.12:80"

[[rule]]
name = "first"
match = 'PathPrefix("/whoami")'
pool = "one"

[[rule]]
name = "second"   # the same requests
match = 'PathPrefix("/whoami")'
pool = "two"
"#;

struct Site {
    // Ends before its lab does.
    router: Router,
    lab: TestLab,
}

impl Site {
    fn new() -> Self {
        Self::with_datapath("")
    }

    /// With further lines of `[datapath]`.
    fn with_datapath(datapath: &str) -> Self {
        let lab = TestLab::with_backends(2);
        let router = Router::start(&lab, &router::configuration(&lab, "", datapath, SITE));
        let site = Self { router, lab };
        site.router.eventually(PATIENCE, "both instances serve", |router| {
            router.ctl(["instances"]).as_array().unwrap().iter().all(|one| one["serving"] == true)
        });
        site
    }

    fn connect(&self, entry: Entry) -> Connection {
        Connection::open(&self.lab, Host::Client, &entry.address().to_string()).expect("the router accepts")
    }

    /// Edits the configuration file.
    fn edit(&self, from: &str, to: &str) {
        let file = self.router.configuration_file();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&file, text.replace(from, to)).unwrap();
    }

    fn sessions(&self) -> Vec<u64> {
        let instances = self.router.ctl(["instances"]);
        instances.as_array().unwrap().iter().map(|one| one["sessions"].as_u64().unwrap()).collect()
    }

    fn flows(&self) -> Vec<Value> {
        let mut flows = self.router.ctl(["flows"])["flows"].as_array().unwrap().clone();
        flows.sort_by_key(|flow| flow["id"].as_u64());
        flows
    }

    /// Runs routerctl, which must succeed; what it says.
    fn say(&self, arguments: &[&str]) -> String {
        let output = self.router.routerctl().args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        said
    }

    /// Runs routerctl, which must fail; what it complains of.
    fn complain(&self, arguments: &[&str]) -> String {
        let output = self.router.routerctl().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Clients that ask and ask; ended when told to, or when dropped.
struct Load(Child);

impl Load {
    fn start(lab: &Lab, entry: Entry, keep_alive: bool, number: usize) -> Self {
        // Exact figures: wrk's own output leaves out what is zero.
        let script = lab.host_dir(Host::Client).join(format!("load-{number}.lua"));
        fs::create_dir_all(script.parent().unwrap()).unwrap();
        fs::write(
            &script,
            "done = function(summary)\n local e = summary.errors\n io.write(string.format(\
             \"counted %d %d %d %d %d %d\\n\", summary.requests, e.connect, e.read, e.write, e.status, e.timeout))\nend\n",
        )
        .unwrap();
        let mut command = lab.command(Host::Client, "wrk");
        command.args(["-t", "1", "-c", "16", "-d", LOAD_SECONDS, "--timeout", "20", "-s"]).arg(script);
        if !keep_alive {
            command.args(["-H", "Connection: close"]);
        }
        command.arg(entry.url("/whoami")).stdout(Stdio::piped());
        Self(command.spawn().expect("wrk starts"))
    }

    /// Requests that were answered. Not one may have failed.
    fn end(mut self) -> u64 {
        assert!(self.0.try_wait().unwrap().is_none(), "the load has ended before the changes");
        router::send(&self.0, libc::SIGINT);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.0.stdout.take().unwrap(), &mut text).unwrap();
        self.0.wait().unwrap();
        let counted = text.lines().find_map(|line| line.strip_prefix("counted "));
        let counted = counted.unwrap_or_else(|| panic!("wrk printed no figures: {text}"));
        let numbers: Vec<u64> = counted.split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers[1..], [0; 5], "connect, read, write, status and time-out errors: {text}");
        numbers[0]
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `ROUTER_RELOADS` asks for more reloads than ten; there are four moves for each.
#[test]
#[ignore = "needs root"]
fn no_request_fails_while_the_configuration_is_reloaded_and_rules_move_under_load() {
    let reloads: usize = std::env::var("ROUTER_RELOADS").map_or(10, |count| count.parse().unwrap());
    let site = Site::new();
    let kinds =
        [(Entry::Handoff, true), (Entry::Handoff, false), (Entry::Relay, true), (Entry::Relay, false)];
    let load: Vec<Load> = kinds
        .into_iter()
        .enumerate()
        .map(|(number, (entry, keep_alive))| Load::start(&site.lab, entry, keep_alive, number))
        .collect();
    site.router.eventually(PATIENCE, "connections are handed off and relayed", |router| {
        let count = router.ctl(["status"])["connections"].clone();
        count["handed_off"].as_u64() > Some(32) && count["relayed"].as_u64() > Some(32)
    });
    let text = fs::read_to_string(site.router.configuration_file()).unwrap();
    for number in 0..reloads {
        for turn in 0..4 {
            let rule = if turn % 2 == 0 { "second" } else { "first" };
            let said = site.say(&["rule", "move", rule, "--first"]);
            assert!(said.ends_with("in force\n"), "{said}");
        }
        let extra =
            format!("\n[[rule]]\nname = \"n{number}\"\nmatch = 'Path(\"/{number}\")'\npool = \"one\"\n");
        let changed = text.replace("weight = 100", &format!("weight = {}", 50 + number % 50)) + &extra;
        fs::write(site.router.configuration_file(), changed).unwrap();
        let said = site.say(&["reload"]);
        assert!(said.contains(&format!("+ rule n{number} added")), "{said}");
    }
    let answered: Vec<u64> = load.into_iter().map(Load::end).collect();
    assert!(answered.iter().all(|requests| *requests > 0), "{answered:?}");
    println!("{reloads} reloads, {} moves; answered: {answered:?}", 4 * reloads);

    let rules = site.router.ctl(["rules"]);
    let hits = |name: &str| {
        let rule = rules.as_array().unwrap().iter().find(|rule| rule["name"] == name).unwrap();
        rule["requests"].as_u64().unwrap()
    };
    assert!(
        hits("first") > 0 && hits("second") > 0,
        "both rules decided in their turns, and are counted over all reloads"
    );
    site.router.eventually(PATIENCE, "every flow and session ends", |router| {
        router.ctl(["flows", "--count"])["count"] == 0 && site.sessions() == [0, 0]
    });
    let configuration = &site.router.ctl(["status"])["configuration"];
    assert_eq!(
        (configuration["reloads"].as_u64(), configuration["reloads_refused"].as_u64()),
        (Some(reloads as u64), Some(0))
    );
}

#[test]
#[ignore = "needs root"]
fn connections_and_their_counts_stay_and_a_moved_rule_takes_the_next_ones() {
    let site = Site::new();
    let mut early: Vec<Connection> =
        [Entry::Handoff, Entry::Handoff, Entry::Relay].into_iter().map(|entry| site.connect(entry)).collect();
    for connection in &mut early {
        assert_eq!(connection.get("/whoami").unwrap().text().trim(), "backend1");
    }
    let (sessions, flows) = (site.sessions(), site.flows());
    assert_eq!((sessions.as_slice(), flows.len()), (&[3, 0][..], 2));

    site.say(&["rule", "move", "second", "--before", "first"]);
    site.edit("weight = 100", "weight = 50");
    let said = site.say(&["reload"]);
    assert_eq!(said, "~ instance one1 changed weight 100 → 50\nin force\n");
    assert_eq!(site.sessions(), sessions);
    assert_eq!(
        site.flows().iter().map(|flow| &flow["id"]).collect::<Vec<_>>(),
        flows.iter().map(|flow| &flow["id"]).collect::<Vec<_>>()
    );

    let mut late = site.connect(Entry::Handoff);
    assert_eq!(late.get("/whoami").unwrap().text().trim(), "backend2", "the rule that is now first decides");
    for connection in &mut early {
        assert_eq!(connection.get("/whoami").unwrap().text().trim(), "backend1", "where it was");
    }
    assert_eq!(site.sessions(), [3, 1]);

    // An instance that is gone keeps what it has, and gets nothing new.
    site.say(&["instance", "add", "one2", "--pool", "one", "--address", "10.77.2.12:8082"]);
    site.say(&["instance", "remove", "one1"]);
    for connection in &mut early {
        assert_eq!(connection.get("/whoami").unwrap().text().trim(), "backend1");
    }
    drop((early, late));
    site.router.eventually(PATIENCE, "every flow and session ends", |router| {
        router.ctl(["flows", "--count"])["count"] == 0 && site.sessions().iter().sum::<u64>() == 0
    });
}

#[test]
#[ignore = "needs root"]
fn an_invalid_file_changes_nothing_by_command_or_by_signal() {
    let site = Site::new();
    let revision = site.router.ctl(["changes"])["revision"].clone();
    site.edit("pool = \"two\"", "pool = \"tow\"");
    let complaint = site.complain(&["reload"]);
    let place = format!("{}:", site.router.configuration_file().display());
    assert!(complaint.contains(&place) && complaint.contains("did you mean `two`?"), "{complaint}");
    site.router.signal(libc::SIGHUP);
    site.router.eventually(PATIENCE, "the signal is heard", |router| {
        router.ctl(["status"])["configuration"]["reloads_refused"] == 2
    });
    assert!(site.router.log().contains("did you mean `two`?"), "{}", site.router.log());
    assert_eq!(site.router.ctl(["changes"])["revision"], revision);
    assert_eq!(site.connect(Entry::Relay).get("/whoami").unwrap().text().trim(), "backend1");

    site.edit("pool = \"tow\"", "pool = \"two\"\nenabled = false");
    site.router.signal(libc::SIGHUP);
    site.router.eventually(PATIENCE, "the signal is heard", |router| {
        let configuration = router.ctl(["status"])["configuration"].clone();
        configuration["reloads"] == 1 && configuration["last_reload"]["error"].is_null()
    });
    assert_eq!(site.router.ctl(["rules"])[1]["enabled"], false);
}

#[test]
#[ignore = "needs root"]
fn listeners_come_and_go_and_their_connections_stay() {
    let site = Site::new();
    let mut held = site.connect(Entry::Relay);
    held.get("/whoami").unwrap();
    // The address of another listener, and a new one in place of the one that is there.
    site.edit(
        "name = \"relay\"\naddress = \"10.77.1.10:82\"",
        "name = \"relay\"\naddress = \"10.77.1.10:83\"",
    );
    site.edit("offload = \"handoff\"", "offload = \"handoff\"\nmax_segment = 1000\nbacklog = 64");
    site.say(&["reload"]);
    let open = |address: &str| Connection::open(&site.lab, Host::Client, address);
    open("10.77.1.10:83").expect("the new address is listened on").get("/whoami").unwrap();
    site.router.eventually(PATIENCE, "the old address is left", |_| open("10.77.1.10:82").is_err());
    assert_eq!(held.get("/whoami").unwrap().text().trim(), "backend1");
    assert_eq!(site.connect(Entry::Handoff).get("/whoami").unwrap().status, 200);

    // A port that another program has.
    let taken =
        site.lab.inside(Host::Gateway, || std::net::TcpListener::bind("10.77.1.10:84")).unwrap().unwrap();
    site.edit("10.77.1.10:83", "10.77.1.10:84");
    let complaint = site.complain(&["reload"]);
    assert!(complaint.contains("another process listens there"), "{complaint}");
    open("10.77.1.10:83").expect("nothing has changed").get("/whoami").unwrap();
    drop(taken);
    site.say(&["reload"]);
    open("10.77.1.10:84").expect("now it is free").get("/whoami").unwrap();
}

/// A Layer-4 listener in front of the pool `one`.
const STREAM: &str = "[[listener]]\nname = \"stream\"\naddress = \"10.77.1.10:8080\"\nprotocol = \"tcp\"\n\n\
     [[rule]]\nname = \"stream\"\nmatch = 'Listener(\"stream\")'\npool = \"one\"\n\n[[pool]]\nname = \"two\"";

#[test]
#[ignore = "needs root"]
fn the_first_layer_4_listener_comes_by_a_reload_where_its_tables_are_made_at_every_start() {
    let mut site = Site::with_datapath("l4_tables = \"always\"\nl4_max_flows = 10_000");
    let mut held = site.connect(Entry::Handoff);
    held.get("/whoami").unwrap();
    site.edit("[[pool]]\nname = \"two\"", STREAM);
    site.say(&["reload"]);
    let open = || Connection::open(&site.lab, Host::Client, "10.77.1.10:8080").unwrap();
    let mut streaming = open();
    assert_eq!(streaming.get("/whoami").unwrap().text().trim(), "backend1");
    site.router.kill();
    assert_eq!(streaming.get("/whoami").unwrap().status, 200);
    site.router.restart();
    assert_eq!(streaming.get("/whoami").unwrap().status, 200, "the next daemon adopts its flow");
    assert_eq!(held.get("/whoami").unwrap().status, 200, "and that of the other listener");
    let protocols: Vec<_> = site
        .flows()
        .iter()
        .filter(|flow| flow["listener"] == "stream")
        .map(|flow| flow["protocol"].clone())
        .collect();
    assert_eq!(protocols, ["tcp"]);
}

#[test]
#[ignore = "needs root"]
fn without_its_tables_the_first_layer_4_listener_is_refused_by_a_reload_and_the_operator_told_what_to_do() {
    let site = Site::new();
    site.edit("[[pool]]\nname = \"two\"", STREAM);
    let complaint = site.complain(&["reload"]);
    assert!(complaint.contains("l4_tables = \"always\""), "{complaint}");
}

#[test]
#[ignore = "needs root"]
fn checks_follow_the_configuration() {
    let site = Site::new();
    site.edit("path = \"/health\"", "path = \"/health\", expect = [\"404\"]");
    site.say(&["reload"]);
    site.router.eventually(PATIENCE, "the new checks fail", |router| {
        router.ctl(["instances"]).as_array().unwrap().iter().all(|one| one["health"] == "down")
    });
    site.say(&["pool", "set", "one", "check.expect=[\"200\"]"]);
    site.router.eventually(PATIENCE, "the changed check passes", |router| {
        router.ctl(["instances"])[0]["health"] == "up"
    });
    assert_eq!(site.router.ctl(["instances"])[1]["health"], "down");
}

#[test]
#[ignore = "needs root"]
fn run_time_changes_survive_a_killed_daemon_and_a_damaged_journal_does_not_keep_it_from_starting() {
    let mut site = Site::new();
    site.say(&["instance", "set", "one1", "--state", "maintenance"]);
    site.say(&["rule", "disable", "first"]);
    site.router.kill();
    site.router.restart();
    assert_eq!(site.router.ctl(["instances"])[0]["admin"], "maintenance");
    assert_eq!(site.router.ctl(["rules"])[0]["enabled"], false);
    assert_eq!(site.connect(Entry::Handoff).get("/whoami").unwrap().text().trim(), "backend2");

    site.say(&["changes", "write"]);
    let text = fs::read_to_string(site.router.configuration_file()).unwrap();
    assert!(text.contains("# the same requests") && text.contains("enabled = false"), "{text}");
    site.say(&["rule", "enable", "first"]);
    site.router.kill();
    let journal = site.router.configuration_file().with_file_name("state").join("changes.json");
    fs::write(&journal, "{ half of it").unwrap();
    site.router.restart();
    assert_eq!(site.router.ctl(["rules"])[0]["enabled"], false, "what the file says");
    assert!(site.router.log().contains("changes.json.damaged"), "{}", site.router.log());
}
