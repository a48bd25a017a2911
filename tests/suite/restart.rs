//! What users notice when the daemon dies, ends or starts again: of handed-off connections, nothing.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use support::lab::{Family, Host};
use support::scene::{PEER_PORT, is_prefix};
use support::{Connection, Curl, Entry, Peer, Scene, peer};

const LENGTH: u64 = 200 << 20;
/// Bytes a second: the transfers take some seconds, and the daemon dies in the middle of them.
const RATE: &str = "32M";

support::over_both_families! {
    a_download_and_an_upload_outlive_the_daemon_and_are_the_next_one_s
    a_thousand_kept_alive_connections_answer_before_during_and_after
    a_request_that_is_lost_on_its_way_is_sent_again_though_the_daemon_is_dead
    a_request_that_cannot_be_delivered_after_the_daemon_s_death_is_not_waited_for
}

/// A transfer in the background.
struct Transfer {
    /// Where the bytes are in the end; of a download they arrive here one by one.
    arriving: PathBuf,
    curl: JoinHandle<Result<u16, String>>,
}

impl Transfer {
    fn arrived(&self) -> u64 {
        fs::metadata(&self.arriving).map_or(0, |file| file.len())
    }
}

fn download(scene: &Scene, entry: Entry) -> Transfer {
    let arriving = scene.lab.state_dir().join(format!("received-{entry:?}"));
    let curl = Curl::for_files(&scene.lab).arg("--limit-rate").arg(RATE);
    let (url, file) = (scene.url(entry, "/files/200m"), arriving.clone());
    Transfer { arriving, curl: thread::spawn(move || curl.download(url, &file)) }
}

fn upload(scene: &Scene, entry: Entry) -> Transfer {
    let arriving = scene.lab.host_dir(Host::Backend(1)).join(format!("upload/{entry:?}"));
    let curl = Curl::for_files(&scene.lab).arg("--limit-rate").arg(RATE);
    let (url, file) =
        (scene.url(entry, &format!("/upload/{entry:?}")), scene.lab.state_dir().join("files/200m"));
    Transfer { arriving, curl: thread::spawn(move || curl.upload(&file, url)) }
}

/// What tells flows apart, and how far each has come in both directions.
fn flows(scene: &Scene) -> Vec<(String, String, u64)> {
    let mut flows: Vec<_> = scene
        .flows(None)
        .into_iter()
        .map(|flow| {
            let text = |name: &str| flow[name].as_str().unwrap().to_owned();
            let bytes = |name: &str| flow[name].as_u64().unwrap();
            let ends = format!("{} {}", text("source"), text("instance_address"));
            (text("client"), ends, bytes("bytes_to_client") + bytes("bytes_to_instance"))
        })
        .collect();
    flows.sort();
    flows
}

fn a_download_and_an_upload_outlive_the_daemon_and_are_the_next_one_s(family: Family) {
    let mut scene = Scene::over(family);
    let original = scene.lab.state_dir().join("files/200m");
    let began = Instant::now();
    let transfers: Vec<Transfer> = Entry::OFFLOADING
        .into_iter()
        .flat_map(|entry| [download(&scene, entry), upload(&scene, entry)])
        .collect();
    scene.router.eventually(Duration::from_secs(10), "all are handed off and run", |_| {
        let flows = flows(&scene);
        flows.len() == 4 && flows.iter().all(|(_, _, bytes)| *bytes > LENGTH / 10)
    });
    let before = flows(&scene);
    scene.router.kill();
    let (killed, so_far) = (began.elapsed(), transfers[0].arrived());
    thread::sleep(Duration::from_millis(500));
    let meanwhile = transfers[0].arrived();
    assert!(so_far < LENGTH * 9 / 10, "killed after {killed:?}, too late");
    assert!(
        meanwhile > so_far + (1 << 20),
        "{so_far} and {meanwhile} bytes: nothing moves without the daemon"
    );

    scene.router.restart();
    let after = flows(&scene);
    let restarted = began.elapsed();
    assert!(transfers.iter().all(|transfer| !transfer.curl.is_finished()), "too late to see the flows go on");
    for ((client, ends, bytes), (client_after, ends_after, bytes_after)) in before.iter().zip(&after) {
        assert_eq!((client, ends), (client_after, ends_after), "another flow");
        assert!(bytes_after > bytes, "{client}: {bytes} bytes before, {bytes_after} after");
    }
    assert_eq!((before.len(), after.len(), scene.sessions()), (4, 4, 4), "flows before, after, and sessions");

    for transfer in transfers {
        let status = transfer.curl.join().unwrap();
        assert!(matches!(status, Ok(200 | 201)), "{status:?}");
        assert!(is_prefix(&transfer.arriving, LENGTH, &original).unwrap(), "{:?}", transfer.arriving);
    }
    println!("killed after {killed:.1?}, back after {restarted:.1?}, all done after {:.1?}", began.elapsed());
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

fn a_thousand_kept_alive_connections_answer_before_during_and_after(family: Family) {
    let mut scene = Scene::over_with(family, 2, "source_ports = \"20000-20999\"");
    let mut connections: Vec<Connection> = (0..1000).map(|_| scene.connect(Entry::Handoff)).collect();
    let all_answer = |connections: &mut Vec<Connection>, when: &str| {
        let began = Instant::now();
        for (number, connection) in connections.iter_mut().enumerate() {
            let reply = connection.get("/files/1k").map(|reply| (reply.status, reply.body.len()));
            assert_eq!(reply.ok(), Some((200, 1024)), "connection {number} {when}");
        }
        println!("a thousand answers {when} in {:.1?}", began.elapsed());
    };
    let count = |scene: &Scene| scene.router.ctl(["flows", "--count"])["count"].clone();
    all_answer(&mut connections, "before the daemon is killed");
    assert_eq!(count(&scene), 1000);
    scene.router.kill();
    all_answer(&mut connections, "while it is dead");
    scene.router.restart();
    assert_eq!((count(&scene), scene.sessions()), (1000.into(), 1000));
    all_answer(&mut connections, "after it has started again");

    // The ports of the flows are known too: of 2,000 tuples a thousand are left for new connections, and not one more.
    let mut more: Vec<Connection> = (0..1000).map(|_| scene.connect(Entry::Handoff)).collect();
    all_answer(&mut more, "on new connections");
    assert_eq!(scene.carried(), (1000, 0));
    let mut one_too_many = scene.connect(Entry::Handoff);
    assert_eq!(one_too_many.get("/").unwrap().status, 200, "relayed from a port of the kernel's");
    assert_eq!(scene.carried(), (1000, 1));

    drop((connections, more, one_too_many));
    scene.comes_to_rest();
    let mut again = scene.connect(Entry::Handoff);
    assert_eq!(again.get("/").unwrap().status, 200, "a port is free again");
}

#[test]
#[ignore = "needs root"]
fn handed_off_connections_go_on_when_the_daemon_is_told_to_end() {
    let mut scene = Scene::with_backends(1);
    let mut connection = scene.connect(Entry::Handoff);
    connection.get("/").unwrap();
    let ended = scene.router.stop();
    assert!(ended.success(), "{ended}");
    assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10);
    let refused = Connection::open(&scene.lab, Host::Client, &Entry::Handoff.address().to_string());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    scene.router.restart();
    assert_eq!(connection.get("/").unwrap().status, 200);
    assert_eq!(flows(&scene).len(), 1);
}

/// Makes the pinned maps look like those of another version.
fn pretend_layout(pins: &Path, version: u32) {
    let map = MapData::from_pin(pins.join("LAYOUT")).unwrap();
    let mut layout: Array<_, u32> = Map::Array(map).try_into().unwrap();
    layout.set(0, version, 0).unwrap();
}

#[test]
#[ignore = "needs root"]
fn what_a_daemon_has_left_that_did_not_come_to_carry_anything_is_made_anew() {
    let mut scene = Scene::with_backends(1);
    scene.router.kill();
    // The number is written when all else has been done.
    pretend_layout(&scene.lab.pin_dir(), 0);
    scene.router.restart();
    let status = scene.router.ctl(["status"]);
    assert_eq!(status["datapath"]["loaded"], true, "{status}");
    let mut connection = scene.connect(Entry::Handoff);
    assert_eq!(connection.get("/").unwrap().status, 200);
    assert_eq!(flows(&scene).len(), 1);
}

#[test]
#[ignore = "needs root"]
fn flows_of_another_version_are_left_alone_until_they_are_to_be_replaced() {
    let mut scene = Scene::with_backends(1);
    let mut old = scene.connect(Entry::Handoff);
    old.get("/").unwrap();
    scene.router.kill();
    pretend_layout(&scene.lab.pin_dir(), 4242);

    scene.router.restart();
    let datapath = scene.router.ctl(["status"])["datapath"].clone();
    let detail = datapath["detail"].as_str().unwrap();
    assert_eq!(datapath["loaded"], false);
    assert!(detail.contains("layout 4242") && detail.contains("--replace"), "{detail}");
    assert!(scene.router.log().contains(detail.trim_start_matches("not loaded: ")), "the log says it too");
    assert_eq!(old.get("/").unwrap().status, 200, "the old programs still carry their flows");
    let mut relayed = scene.connect(Entry::Handoff);
    assert_eq!(relayed.get("/").unwrap().status, 200);
    drop(relayed);
    scene.router.eventually(Duration::from_secs(5), "it is counted as relayed", |router| {
        router.ctl(["status"])["relayed"]["no_datapath"] == 1
    });
    scene.router.stop();

    scene.router.restart_with(&["--replace"]);
    assert_eq!(scene.router.ctl(["status"])["datapath"]["loaded"], true);
    let client: SocketAddr = old.local_address();
    assert_eq!(scene.flows(Some(client)).len(), 0);
    assert!(old.get("/").is_err(), "its flow is gone");
    let mut connection = scene.connect(Entry::Handoff);
    assert_eq!(connection.get("/").unwrap().status, 200);
    assert_eq!(scene.carried(), (1, 0));
}

/// What became of one request on a new connection.
#[derive(Debug)]
struct Attempt {
    client: SocketAddr,
    outcome: Result<(), ErrorKind>,
    took: Duration,
}

/// Requests on new connections, one after the other, until told to stop.
fn knock(scene: &Scene, entry: Entry, stop: &AtomicBool) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut connection) = Connection::open(&scene.lab, Host::Client, &entry.address().to_string())
        else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        let (client, began) = (connection.local_address(), Instant::now());
        connection.wait_at_most(Duration::from_secs(5));
        let outcome = connection.get("/peer/thinks");
        let outcome = outcome.map(|reply| assert_eq!(reply.body, b"done")).map_err(|error| error.kind());
        attempts.push(Attempt { client, outcome, took: began.elapsed() });
    }
    attempts
}

/// Answers after a moment, and acknowledges the head late: until then it is in our socket's custody.
fn thoughtful_instance(scene: &Scene) -> Peer {
    Peer::start(&scene.lab, 1, PEER_PORT, |mut stream| {
        peer::read_head(&mut stream)?;
        thread::sleep(Duration::from_millis(60));
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")?;
        peer::read_head(&mut stream).map(drop)
    })
}

#[test]
#[ignore = "needs root"]
fn no_handed_off_connection_breaks_when_the_daemon_is_killed_again_and_again_in_a_burst() {
    let mut scene = Scene::with_settings(1, "", &["--access-log"]);
    let _peer = thoughtful_instance(&scene);
    let stop = AtomicBool::new(false);
    let (mut attempts, mut custody) = (0, 0);
    for round in 0..20 {
        // How much is in custody at that very moment is a matter of luck.
        if round >= 5 && custody >= 10 {
            break;
        }
        stop.store(false, Ordering::Relaxed);
        let (shared, log_before) = (&scene, scene.router.log().len());
        let (seen, killed) = thread::scope(|threads| {
            let clients: Vec<_> =
                (0..16).map(|_| threads.spawn(|| knock(shared, Entry::Handoff, &stop))).collect();
            thread::sleep(Duration::from_millis(300 + 37 * round));
            custody += shared.flows(None).iter().filter(|flow| flow["state"] == "custody").count();
            shared.router.signal(libc::SIGKILL);
            let killed = Instant::now();
            stop.store(true, Ordering::Relaxed);
            let seen: Vec<Attempt> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
            (seen, killed.elapsed())
        });
        // Of this round alone: clients' ports come again.
        let log = scene.router.log().split_off(log_before);
        let (mut answered, mut refused) = (0, 0);
        for Attempt { client, outcome, took } in &seen {
            let entry = format!("client={client} ");
            let handed_off = log.lines().any(|line| line.contains(&entry) && line.contains("handed_off"));
            assert!(
                outcome.is_ok() || !handed_off,
                "{client} was handed off and broke after {took:?}: {outcome:?}"
            );
            *if outcome.is_ok() { &mut answered } else { &mut refused } += 1;
        }
        println!(
            "round {round}: {answered} answered, {refused} not handed off and broken; all over {killed:.1?} after the kill"
        );
        attempts += seen.len();
        scene.router.kill();
        scene.router.restart();
    }
    let stopped = scene.packets("stray_ending");
    println!("{attempts} attempts, {custody} in custody at a kill, {stopped} endings stopped");
    assert!(attempts > 300 && custody >= 10 && stopped > 0, "{attempts} attempts, {custody} in custody");
}

/// A connection whose head is in custody: it is lost on its way to the instance, however often our socket repeats it.
fn send_in_vain(scene: &Scene) -> Connection {
    // The handshake passes.
    scene.lab.discard(Host::Backend(1), "meta l4proto tcp meta length > 100").unwrap();
    let mut connection = scene.connect(Entry::Handoff);
    connection.send("GET /whoami HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
    assert_eq!(scene.flow_of(&connection)["state"], "custody");
    connection
}

fn a_request_that_is_lost_on_its_way_is_sent_again_though_the_daemon_is_dead(family: Family) {
    let mut scene = Scene::over(family);
    let mut connection = send_in_vain(&scene);
    scene.router.kill();
    scene.lab.lose(Host::Backend(1), 0).unwrap();
    let began = Instant::now();
    assert_eq!(connection.reply().unwrap().body, b"backend1\n");
    println!("answered {:.1?} after the daemon's death", began.elapsed());
    scene.router.restart();
    assert_eq!(connection.get("/whoami").unwrap().body, b"backend1\n");
    assert_eq!(scene.flow_of(&connection)["state"], "direct");
    drop(connection);
    scene.comes_to_rest();
}

fn a_request_that_cannot_be_delivered_after_the_daemon_s_death_is_not_waited_for(family: Family) {
    let mut scene = Scene::over(family);
    let mut connection = send_in_vain(&scene);
    scene.router.kill();
    scene.router.restart();
    let began = Instant::now();
    assert_eq!(connection.receive_all().unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    scene.comes_to_rest();
}
