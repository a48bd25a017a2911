//! Layer-4 listeners: clients are placed by the kernel programs, packet by packet.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use support::balanced::{Balanced, UDP_PORT, ask};
use support::lab::{Family, Host};
use support::unwrapper::Unwrapper;

#[test]
#[ignore = "needs root"]
fn connections_and_datagrams_reach_every_instance_and_are_counted_until_they_end() {
    for family in Family::BOTH {
        let scene = Balanced::new(family, 2);
        let mut served = BTreeMap::<String, u32>::new();
        let mut open = Vec::new();
        for _ in 0..40 {
            let mut connection = scene.connect().unwrap();
            let instance = connection.get("/whoami").unwrap().text();
            *served.entry(instance).or_default() += 1;
            open.push(connection);
        }
        assert_eq!(served.len(), 2, "{family:?}: {served:?}");
        let askers: Vec<_> = (0..40).map(|_| scene.asker()).collect();
        let mut answered = BTreeMap::<String, u32>::new();
        for asker in &askers {
            let answer = ask(asker, "who?").unwrap();
            assert!(answer.ends_with(" who?"), "{answer}");
            *answered.entry(answer).or_default() += 1;
            assert!(ask(asker, &"long ".repeat(200)).unwrap().ends_with(&"long ".repeat(200)));
        }
        assert_eq!(answered.len(), 2, "{family:?}: {answered:?}");

        let flows = scene.flows();
        let of = |protocol: &str| flows.iter().filter(|flow| flow["protocol"] == protocol).count();
        assert_eq!((of("tcp"), of("udp")), (40, 40), "{family:?}: {flows:?}");
        let one = flows.iter().find(|flow| flow["protocol"] == "tcp").unwrap();
        assert_eq!((&one["listener"], &one["pool"]), (&"stream".into(), &"nginx".into()), "{one}");
        assert!(one["bytes_to_client"].as_u64().unwrap() > 100, "{one}");
        scene
            .router
            .eventually(Duration::from_secs(10), "every flow is a session", |_| scene.sessions() == 80);

        drop((open, askers));
        scene.router.eventually(
            Duration::from_secs(30),
            "connections that have ended are no sessions",
            |_| scene.sessions() <= 40,
        );
        assert_eq!(scene.packets("l4_placed"), 80, "{family:?}");
        scene
            .router
            .eventually(Duration::from_secs(90), "conversations end by silence", |_| scene.sessions() == 0);
    }
}

#[test]
#[ignore = "needs root"]
fn connections_outlive_the_daemon_and_its_successor_adopts_them() {
    let mut scene = Balanced::new(Family::V4, 2);
    let mut open: Vec<_> = (0..20).map(|_| scene.connect().unwrap()).collect();
    let before: Vec<_> = open.iter_mut().map(|one| one.get("/whoami").unwrap().text()).collect();
    scene.router.kill();
    for (connection, instance) in open.iter_mut().zip(&before) {
        assert_eq!(
            connection.get("/whoami").unwrap().text(),
            *instance,
            "nobody is needed for a stored flow"
        );
    }
    let mut new = scene.connect().unwrap();
    assert_eq!(new.get("/whoami").unwrap().status, 200, "new connections are placed without a daemon");
    scene.router.restart();
    for (connection, instance) in open.iter_mut().zip(&before) {
        assert_eq!(connection.get("/whoami").unwrap().text(), *instance);
    }
    assert_eq!(scene.flows().len(), 21);
    scene
        .router
        .eventually(Duration::from_secs(10), "adopted flows are sessions", |_| scene.sessions() == 21);
}

#[test]
#[ignore = "needs root"]
fn a_drained_instance_keeps_its_connections_and_gets_no_new_ones() {
    let scene = Balanced::new(Family::V4, 2);
    let mut open: Vec<_> = (0..30).map(|_| scene.connect().unwrap()).collect();
    let before: Vec<_> = open.iter_mut().map(|one| one.get("/whoami").unwrap().text()).collect();
    scene.router.ctl(["instance", "set", "nginx1", "--state", "drain"]);
    thread::sleep(Duration::from_millis(500));
    for _ in 0..20 {
        assert_eq!(scene.connect().unwrap().get("/whoami").unwrap().text().trim(), "backend2");
    }
    for (connection, instance) in open.iter_mut().zip(&before) {
        assert_eq!(connection.get("/whoami").unwrap().text(), *instance);
    }
}

#[test]
#[ignore = "needs root"]
fn a_client_with_affinity_comes_back_to_its_instance_whatever_its_port() {
    let affinity = "session = { client_address = true, idle_timeout = \"30m\" }";
    let scene = Balanced::with(Family::V4, 3, "", affinity, "");
    let first = scene.connect().unwrap().get("/whoami").unwrap().text();
    for _ in 0..30 {
        assert_eq!(scene.connect().unwrap().get("/whoami").unwrap().text(), first);
    }
}

/// What both a connection and a datagram meet: an instance that sees `seen`, or the router if that is `None`.
fn serves(scene: &Balanced, seen: Option<IpAddr>) {
    let router = scene.family.source();
    let mut answered = BTreeMap::<String, u32>::new();
    // All at once: a port that is free again may be chosen again, and then its flow exists.
    let askers: Vec<_> = (0..20).map(|_| scene.asker()).collect();
    for asker in &askers {
        let answer = ask(asker, "who?").unwrap();
        let (number, rest) = answer.split_once(' ').unwrap();
        assert_eq!(rest, format!("{} who?", seen.unwrap_or(router)), "{:?}", scene.family);
        *answered.entry(number.to_owned()).or_default() += 1;
    }
    assert_eq!(answered.len(), 2, "{answered:?}");
    let mut served = BTreeMap::<String, u32>::new();
    for _ in 0..20 {
        let mut connection = scene.connect().unwrap();
        *served.entry(connection.get("/whoami").unwrap().text()).or_default() += 1;
        let seen = format!("peer: {}", seen.unwrap_or(router));
        assert!(connection.get("/who/is/asking").unwrap().text().contains(&seen), "{:?}", scene.family);
    }
    assert_eq!(served.len(), 2, "{served:?}");
    let placed = scene.packets("l4_placed");
    assert_eq!(placed, 40, "{:?}", scene.router.ctl(["reasons"]));
}

#[test]
#[ignore = "needs root"]
fn transparently_instances_see_the_client_and_their_answers_come_back_through_the_router() {
    for family in Family::BOTH {
        let scene = Balanced::with(family, 2, "", "source = \"transparent\"", "");
        serves(&scene, Some(family.address(Host::Client)));
        assert!(scene.packets("l4_answered") > 40, "{family:?}");
    }
}

#[test]
#[ignore = "needs root"]
fn with_dsr_l2_instances_answer_from_the_vip_directly() {
    for family in Family::BOTH {
        let scene = Balanced::direct(family, "dsr-l2");
        serves(&scene, Some(family.address(Host::Client)));
        assert_eq!(scene.packets("l4_answered"), 0, "{family:?}");
        scene.router.eventually(Duration::from_secs(90), "flows end though one side is not seen", |_| {
            scene.sessions() == 0
        });
    }
}

#[test]
#[ignore = "needs root"]
fn with_dsr_ipip_packets_arrive_wrapped_and_clients_learn_what_fits() {
    for family in Family::BOTH {
        let scene = Balanced::direct(family, "dsr-ipip");
        let _unwrapping: Vec<_> =
            (1..=2).map(|number| Unwrapper::start(&scene.lab, number, family)).collect();
        serves(&scene, Some(family.address(Host::Client)));
        // Longer than fits into the tunnel: the client is told, and sends less the next time.
        let before = scene.packets("too_long");
        let asker = scene.asker();
        let long = "x".repeat(if family == Family::V4 { 1_472 } else { 1_452 });
        asker.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let told = (0..10).any(|_| ask(&asker, &long).is_err() && scene.packets("too_long") > before);
        assert!(told, "{family:?}: the client is told");
        asker.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut connection = scene.connect().unwrap();
        let body = "y".repeat(100_000);
        let request =
            format!("PUT /upload/long HTTP/1.1\r\nHost: lab\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        connection.send(request).unwrap();
        let status = connection.reply().unwrap().status;
        assert_eq!(status, 201, "{family:?}: a hundred kilobytes arrive");
    }
}

#[test]
#[ignore = "needs root"]
fn with_a_full_table_flows_go_on_and_what_finds_no_place_is_counted() {
    let scene = Balanced::with(Family::V4, 1, "l4_max_flows = 20", "", "");
    let askers: Vec<_> = (0..60).map(|_| scene.asker()).collect();
    let mut lucky = Vec::new();
    for asker in &askers {
        asker.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        if ask(asker, "?").is_ok() {
            lucky.push(asker);
        }
    }
    assert!((20..=30).contains(&lucky.len()), "{} of 60", lucky.len());
    assert_eq!(scene.packets("l4_table_full_dropped"), 60 - lucky.len() as u64);
    for asker in lucky {
        asker.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(ask(asker, "again").unwrap().ends_with(" again"));
    }
    drop(scene.servers);
}

#[test]
#[ignore = "needs root"]
fn a_flood_of_new_flows_takes_no_more_places_than_permitted_and_stored_flows_go_on() {
    let scene = Balanced::with(Family::V4, 1, "l4_new_flows = 50", "", "");
    let mut connection = scene.connect().unwrap();
    assert_eq!(connection.get("/whoami").unwrap().status, 200);
    let (own, vip) = (scene.family.address(Host::Client), scene.family.vip());
    let flood: Vec<_> = scene
        .lab
        .inside(Host::Client, || (0..3_000).map(|_| UdpSocket::bind((own, 0)).unwrap()).collect())
        .unwrap();
    for socket in &flood {
        let _ = socket.send_to(b"?", (vip, UDP_PORT));
    }
    assert!(scene.packets("l4_flood_dropped") > 1_000, "{}", scene.packets("l4_flood_dropped"));
    assert!(scene.flows().len() < 2_000, "{}", scene.flows().len());
    assert_eq!(connection.get("/whoami").unwrap().status, 200, "a stored flow goes on");
}
