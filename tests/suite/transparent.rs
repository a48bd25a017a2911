//! `source = "transparent"` on listeners that accept connections: instances see the clients' addresses, relayed or handed off.

use std::time::Duration;

use support::lab::{Family, Host};
use support::scene::is_prefix;
use support::{Curl, Entry, Scene};

support::over_both_families! {
    instances_see_the_client_s_address_whichever_way_its_connection_goes
    long_transfers_arrive_whole_whichever_way_they_go
    handed_off_connections_outlive_the_daemon_and_their_tuples_stay_taken
}

const ENTRIES: [Entry; 3] = [Entry::Handoff, Entry::Auto, Entry::Relay];
const LENGTH: u64 = 200 << 20;

fn instances_see_the_client_s_address_whichever_way_its_connection_goes(family: Family) {
    let scene = Scene::transparent_over(family);
    let client = family.address(Host::Client);
    for entry in ENTRIES {
        let mut connection = scene.connect(entry);
        for _ in 0..3 {
            let text = connection.get("/where").unwrap().text();
            let peer = text.lines().find_map(|line| line.strip_prefix("peer: ")).expect("nginx says it");
            let (address, port) = peer.rsplit_once(':').unwrap();
            assert_eq!(address, client.to_string(), "{entry:?}: {text}");
            assert!(
                (20_000..60_000).contains(&port.parse::<u16>().unwrap()),
                "one of `source_ports`: {peer}"
            );
        }
        if entry == Entry::Handoff {
            let flow = scene.flow_of(&connection);
            assert!(flow["source"].as_str().unwrap().contains(&client.to_string()), "{flow}");
        }
    }
    scene.comes_to_rest();
    let rule = |lab: &support::TestLab| {
        let family = if family == Family::V4 { "-4" } else { "-6" };
        let mut command = lab.command(Host::Gateway, "ip");
        String::from_utf8(command.args([family, "rule"]).output().unwrap().stdout).unwrap()
    };
    assert!(rule(&scene.lab).contains("fwmark 0x726f7574 lookup 29295"), "{}", rule(&scene.lab));
    let Scene { mut router, lab, .. } = scene;
    assert!(router.stop().success());
    assert!(!rule(&lab).contains("29295"), "the host is as it was found: {}", rule(&lab));
}

fn long_transfers_arrive_whole_whichever_way_they_go(family: Family) {
    let scene = Scene::transparent_over(family);
    let original = scene.lab.state_dir().join("files/200m");
    for entry in ENTRIES {
        let arriving = scene.lab.state_dir().join(format!("received-{entry:?}"));
        let status = Curl::for_files(&scene.lab).download(scene.url(entry, "/files/200m"), &arriving);
        assert_eq!(status, Ok(200), "{entry:?}");
        assert!(is_prefix(&arriving, LENGTH, &original).unwrap(), "{entry:?}: another file arrives");
        let url = scene.url(entry, &format!("/upload/{entry:?}"));
        let status = Curl::for_files(&scene.lab).upload(&original, url);
        assert!(matches!(status, Ok(201 | 204)), "{entry:?}: {status:?}");
        let arrived = scene.lab.host_dir(Host::Backend(1)).join(format!("upload/{entry:?}"));
        assert!(is_prefix(&arrived, LENGTH, &original).unwrap(), "{entry:?}: another file arrives");
    }
    let (handed_off, relayed) = scene.carried();
    assert_eq!((handed_off, relayed), (4, 2), "{:?}", scene.router.ctl(["reasons"]));
    // While a connection is handed off, its packets take two ways through the gateway.
    scene.assert_no_segment_but_an_overtaken_one_was_discarded();
}

fn handed_off_connections_outlive_the_daemon_and_their_tuples_stay_taken(family: Family) {
    let mut scene = Scene::transparent_over(family);
    let mut open: Vec<_> = (0..20).map(|_| scene.connect(Entry::Handoff)).collect();
    for connection in &mut open {
        assert_eq!(connection.get("/whoami").unwrap().status, 200);
    }
    scene.router.eventually(Duration::from_secs(10), "all are handed off", |_| scene.flows(None).len() == 20);
    scene.router.kill();
    for connection in &mut open {
        assert_eq!(connection.get("/whoami").unwrap().status, 200, "nobody is needed for a flow");
    }
    scene.router.restart();
    let mut more: Vec<_> = (0..20).map(|_| scene.connect(Entry::Handoff)).collect();
    for connection in open.iter_mut().chain(&mut more) {
        assert_eq!(connection.get("/whoami").unwrap().status, 200);
    }
    let mut sources: Vec<_> = scene.flows(None).iter().map(|flow| flow["source"].to_string()).collect();
    sources.sort();
    sources.dedup();
    assert_eq!(sources.len(), 40, "each has a tuple of its own");
    drop((open, more));
    scene.comes_to_rest();
}
