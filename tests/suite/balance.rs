//! Sessions are spread evenly, kept away from instances that are down, and all given back in the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use support::counters::tracked_connections;
use support::lab::{Family, Host, VIP, peers};
use support::{Connection, Curl, Entry, Scene, TestLab};

#[test]
#[ignore = "needs root"]
fn a_hundred_clients_at_a_time_are_twenty_five_on_each_of_four_equal_instances() {
    let scene = Scene::with_backends(4);
    for entry in [Entry::Handoff, Entry::Auto, Entry::Relay] {
        let (barrier, began) = (Arc::new(Barrier::new(100)), Instant::now());
        let clients: Vec<(Connection, String)> = thread::scope(|threads| {
            let open = |_| {
                let (scene, barrier) = (&scene, Arc::clone(&barrier));
                threads.spawn(move || {
                    let mut connection = scene.connect(entry);
                    barrier.wait();
                    let instance = connection.get("/whoami").unwrap().text();
                    (connection, instance)
                })
            };
            let clients: Vec<_> = (0..100).map(open).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        println!("{entry:?}: a hundred answers in {:.1?}", began.elapsed());
        let mut served = BTreeMap::<&str, u32>::new();
        for (_, instance) in &clients {
            *served.entry(instance).or_default() += 1;
        }
        assert_eq!(served.values().copied().collect::<Vec<_>>(), [25; 4], "{entry:?}: {served:?}");
        assert_eq!(sessions(&scene), [25; 4], "{entry:?}");
        drop(clients);
        scene.comes_to_rest();
    }
}

/// Live sessions on each nginx.
fn sessions(scene: &Scene) -> Vec<u64> {
    of_instances(scene, "sessions")
}

fn of_instances(scene: &Scene, what: &str) -> Vec<u64> {
    let instances = scene.router.ctl(["instances"]);
    let instances = instances.as_array().unwrap().iter().filter(|instance| instance["pool"] == "nginx");
    instances.map(|instance| instance[what].as_u64().unwrap()).collect()
}

const INTERVAL: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_millis(100);
const CHECK: &str = r#"check = { type = "http", path = "/health", interval = "200ms", timeout = "100ms", rise = 2, fall = 3 }"#;

fn checked_scene() -> Scene {
    let scene = Scene::in_lab(TestLab::with_backends(3), "", CHECK, &[]);
    wait_for_serving(&scene, 3);
    scene
}

fn wait_for_serving(scene: &Scene, instances: u64) -> Duration {
    let began = Instant::now();
    scene.router.eventually(Duration::from_secs(5), "the right number serves", |router| {
        router.ctl(["status"])["pools"][0]["serving"] == instances
    });
    began.elapsed()
}

/// Every one of these requests, each on a new connection, is answered by an instance other than `without`.
fn all_served(scene: &Scene, requests: usize, without: Option<u8>) {
    for number in 0..requests {
        let entry = [Entry::Handoff, Entry::Auto, Entry::Relay][number % 3];
        let reply = scene.connect(entry).get("/whoami").unwrap();
        assert_eq!(reply.status, 200, "request {number}");
        let unwanted = without.map(|number| format!("backend{number}\n"));
        assert_ne!(Some(reply.text()), unwanted, "request {number}");
    }
}

#[test]
#[ignore = "needs root"]
fn an_instance_whose_port_refuses_gets_nothing_more_and_serves_again_by_itself() {
    let scene = checked_scene();
    all_served(&scene, 6, None);
    peers::stop_one(&scene.lab, 2).unwrap();
    // Not one client sees an error, and one failed attempt is enough, whatever checks have found by then.
    all_served(&scene, 60, Some(2));
    let retries = scene.router.ctl(["status"])["connections"]["retries"].as_u64().unwrap();
    assert!(retries <= 1, "{retries} attempts went to an instance that refuses");

    peers::start_one(&scene.lab, 2).unwrap();
    let took = wait_for_serving(&scene, 3);
    println!("it serves again after {took:.1?}");
    assert!(took < 5 * INTERVAL, "{took:?} for two checks");
    let before = of_instances(&scene, "sessions_total")[1];
    all_served(&scene, 30, None);
    assert!(of_instances(&scene, "sessions_total")[1] > before, "it gets sessions again");
}

#[test]
#[ignore = "needs root"]
fn an_instance_that_falls_silent_gets_nothing_new_within_three_checks() {
    let scene = checked_scene();
    let mut held: Vec<Connection> = (0..3).map(|_| scene.connect(Entry::Handoff)).collect();
    for connection in &mut held {
        connection.get("/whoami").unwrap();
    }
    scene.lab.lose(Host::Backend(3), 1000).unwrap();
    let took = wait_for_serving(&scene, 2);
    println!("it is down after {took:.1?}");
    // Three checks and the time-out of the last, 10 % of jitter, and the time to look.
    let limit = 3 * INTERVAL * 11 / 10 + TIMEOUT + Duration::from_millis(250);
    assert!(took < limit, "{took:?} rather than {limit:?}");
    all_served(&scene, 30, Some(3));
    assert_eq!(scene.router.ctl(["status"])["connections"]["retries"], 0);

    scene.lab.lose(Host::Backend(3), 0).unwrap();
    wait_for_serving(&scene, 3);
    for connection in &mut held {
        assert_eq!(connection.get("/whoami").unwrap().status, 200, "what it had it has kept");
    }
}

/// A lab whose gateway tracks connections, as one with a stateful firewall does.
fn tracking_lab() -> TestLab {
    let lab = TestLab::with_backends(4);
    track_connections(&lab);
    lab
}

/// Loads a stateful firewall.
fn track_connections(lab: &TestLab) {
    let firewall = "table inet firewall { chain input { type filter hook input priority filter; \
                    ct state established accept; }; }";
    assert!(lab.command(Host::Gateway, "nft").arg(firewall).status().unwrap().success());
}

/// One connection of a busy day.
fn use_once(scene: &Scene, number: usize) {
    let entry = if number.is_multiple_of(2) { Entry::Handoff } else { Entry::Auto };
    let mut connection = scene.connect(entry);
    match number % 10 {
        // Relayed with `auto`.
        0..=3 => assert_eq!(connection.get("/files/1k").unwrap().body.len(), 1024),
        // Handed off with the second request.
        4..=6 => (0..2).for_each(|_| assert_eq!(connection.get("/whoami").unwrap().status, 200)),
        7 => {
            connection.get("/whoami").unwrap();
            connection.reset().unwrap();
        }
        8 => {
            // Nobody waits for the answer.
            connection.send("GET /files/64k HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
            connection.reset().unwrap();
        }
        _ if number % 20 == 9 => {
            connection.send("no request at all\r\n\r\n").unwrap();
            assert_eq!(connection.reply().unwrap().status, 400);
        }
        _ => {
            let request = "GET /whoami HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n";
            connection.send(request).unwrap();
            assert_eq!(connection.receive_all().unwrap().get(9..12), Some(&b"200"[..]));
        }
    }
}

#[test]
#[ignore = "needs root"]
fn after_ten_thousand_connections_everything_is_as_it_was() {
    const CLIENTS: usize = 8;
    const CONNECTIONS: usize = 10_000;
    let scene = Scene::in_lab(tracking_lab(), "", "", &[]);
    use_once(&scene, 0);
    use_once(&scene, 1);
    scene.comes_to_rest();
    let tracked = || tracked_connections(&scene.lab, Host::Gateway);
    let (files_before, tracked_before) = (scene.router.open_files(), tracked());

    let began = Instant::now();
    let (mut most_flows, mut most_ports) = (0, 0);
    thread::scope(|threads| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let scene = &scene;
                threads.spawn(move || {
                    for number in (client..CONNECTIONS).step_by(CLIENTS) {
                        use_once(scene, number);
                    }
                })
            })
            .collect();
        while !clients.iter().all(thread::ScopedJoinHandle::is_finished) {
            most_flows = most_flows.max(scene.metric("router_flows"));
            most_ports = most_ports.max(ports_in_use(&scene));
            thread::sleep(Duration::from_millis(200));
        }
    });
    let took = began.elapsed();
    let (handed_off, relayed) = scene.carried();
    println!(
        "{CONNECTIONS} connections in {took:.1?} ({:.0} a second): {handed_off} handed off, {relayed} relayed, \
         at most {most_flows} flows and {most_ports} ports at a time",
        CONNECTIONS as f64 / took.as_secs_f64()
    );
    assert!(handed_off > 5_000 && relayed > 1_000, "{handed_off} handed off, {relayed} relayed");
    assert!(most_flows > 100 && most_ports > 100, "the counts were seen to rise");

    scene.comes_to_rest();
    assert_eq!(scene.router.ctl(["status"])["connections"]["open"], 0);
    assert_eq!(ports_in_use(&scene), 0, "source ports");
    // Those of the control socket's clients, which we have been, close with a delay.
    scene.router.eventually(Duration::from_secs(15), "descriptors are as many as before", |router| {
        router.open_files() <= files_before
    });
    assert_eq!(tracked(), tracked_before, "tracked connections");
    scene.assert_no_segment_was_spoiled();
}

fn ports_in_use(scene: &Scene) -> u64 {
    let metrics = scene.router.metrics();
    let lines = metrics.lines().filter(|line| line.starts_with("router_source_ports_used{"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// The nftables tables of the gateway.
fn tables(scene: &Scene) -> String {
    let output = scene.lab.command(Host::Gateway, "nft").args(["list", "tables"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "needs root"]
fn only_a_host_that_tracks_connections_is_asked_to_spare_some() {
    let scene = Scene::with_backends(4);
    let mut connection = scene.connect(Entry::Handoff);
    connection.get("/").unwrap();
    assert!(!tables(&scene).contains("notrack"), "{}", tables(&scene));
    track_connections(&scene.lab);
    scene.router.eventually(Duration::from_secs(30), "the exemption is there", |_| {
        scene.connect(Entry::Handoff).get("/").unwrap();
        tables(&scene).contains("notrack")
    });
    connection.get("/").unwrap();
}

support::over_both_families! {
    connection_tracking_is_spared_while_the_router_runs_or_a_flow_lives
}

fn connection_tracking_is_spared_while_the_router_runs_or_a_flow_lives(family: Family) {
    // Without the exemption conntrack believes for days that the connections still live.
    let scene = Scene::over_in(family, tracking_lab(), "notrack = false");
    let before = tracked_connections(&scene.lab, Host::Gateway);
    for _ in 0..10 {
        scene.connect(Entry::Handoff).get("/").unwrap();
    }
    scene.comes_to_rest();
    let entries = tracked_connections(&scene.lab, Host::Gateway) - before;
    assert!(
        entries >= 20,
        "{entries} entries for 10 connections of two legs: does conntrack see them at all?"
    );
    assert!(!tables(&scene).contains("notrack"), "{}", tables(&scene));
    drop(scene);

    let mut scene = Scene::over_in(family, tracking_lab(), "");
    let before = tracked_connections(&scene.lab, Host::Gateway);
    let mut connection = scene.connect(Entry::Handoff);
    connection.get("/").unwrap();
    assert_eq!(tracked_connections(&scene.lab, Host::Gateway), before);
    assert!(tables(&scene).contains("notrack"), "{}", tables(&scene));

    scene.router.stop();
    assert!(tables(&scene).contains("notrack"), "a flow lives on");
    scene.router.restart();
    connection.get("/").unwrap();
    drop(connection);
    scene.comes_to_rest();
    scene.router.stop();
    assert_eq!(tables(&scene).trim(), "table inet firewall", "only what was there before is left");
}

#[test]
#[ignore = "needs root"]
fn forwarding_to_an_instance_by_address_translation_goes_on_beside_the_router() {
    let scene = Scene::in_lab(tracking_lab(), "", "", &[]);
    let rules = format!(
        "add table ip other; \
         add chain ip other arriving {{ type nat hook prerouting priority dstnat; }}; \
         add rule ip other arriving ip daddr {VIP} tcp dport 9000 dnat to {}:80",
        scene.lab.backend_address(1)
    );
    assert!(scene.lab.command(Host::Gateway, "nft").arg(rules).status().unwrap().success());
    // The first two are among the router's own ports towards instances.
    for port in ["25000", "45000", "61000"] {
        let reply =
            Curl::new(&scene.lab).arg("--local-port").arg(port).get(format!("http://{VIP}:9000/whoami"));
        assert_eq!((reply.exit_code, reply.status), (0, 200), "from port {port}");
    }
}
