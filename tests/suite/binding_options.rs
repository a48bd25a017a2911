//! Handshakes of bound connections: whatever a client or an instance does not speak, the other one is not made to believe it does, and bytes arrive whole.

use std::io::Write;
use std::process::Command;

use support::counters::counter;
use support::lab::{Family, Host};
use support::stage::Stage;
use support::{Connection, Entry};

const CLIENT: Host = Host::Client;
const INSTANCE: Host = Host::Backend(1);

support::over_both_families! {
    a_client_without_timestamps_agrees_on_nothing_that_needs_them
    a_client_without_sack_or_scaling_is_served_without
    an_instance_that_speaks_less_than_its_client_is_served_too
    a_client_of_small_segments_is_sent_small_segments
    a_client_that_asks_for_explicit_congestion_notification_is_served_without
    a_client_that_sends_data_with_its_syn_is_served
}

/// A stage on which connections are bound.
fn stage(family: Family) -> Stage {
    let stage = Stage::binding(family);
    stage.scene.warm_up();
    stage
}

/// Connections have been bound since `before`, and all is well.
fn assert_bound(stage: &Stage, before: u64, connections: u64) {
    stage.scene.become_bound(before, connections);
    stage.scene.comes_to_rest();
    stage.scene.assert_no_segment_was_spoiled();
}

fn a_client_without_timestamps_agrees_on_nothing_that_needs_them(family: Family) {
    let stage = stage(family);
    let before = stage.scene.bound();
    stage.set(&[(CLIENT, "tcp_timestamps", "0")]);
    // What a SYN says beside its segment size lies in our timestamp, which such a client does not echo.
    for permille in [0, 20] {
        stage.scene.lose(permille);
        let ends = stage.exchange(Entry::Bind);
        for end in [ends.0, ends.1] {
            assert_eq!((end.timestamps, end.sack, end.scales), (false, false, None), "{end:?}");
        }
    }
    stage.scene.lose(0);
    assert_bound(&stage, before, 2);
}

fn a_client_without_sack_or_scaling_is_served_without(family: Family) {
    let stage = stage(family);
    let before = stage.scene.bound();
    for (sack, scaling) in [("0", "1"), ("1", "0"), ("0", "0")] {
        stage.set(&[(CLIENT, "tcp_sack", sack), (CLIENT, "tcp_window_scaling", scaling)]);
        let ends = stage.exchange(Entry::Bind);
        for end in [ends.0, ends.1] {
            let agreed = (end.timestamps, end.sack, end.scales.is_some());
            assert_eq!(agreed, (true, sack == "1", scaling == "1"), "{end:?}");
        }
    }
    assert_bound(&stage, before, 3);
}

fn an_instance_that_speaks_less_than_its_client_is_served_too(family: Family) {
    let stage = stage(family);
    let before = stage.scene.bound();
    for (timestamps, scaling) in [("0", "1"), ("1", "0"), ("0", "0")] {
        let less = [(INSTANCE, "tcp_timestamps", timestamps), (INSTANCE, "tcp_window_scaling", scaling)];
        stage.set(&less);
        let (client, instance) = stage.exchange(Entry::Bind);
        assert!(client.timestamps && client.scales.is_some(), "{client:?}");
        let agreed = (instance.timestamps, instance.scales.is_some());
        assert_eq!(agreed, (timestamps == "1", scaling == "1"), "{instance:?}");
    }
    assert_bound(&stage, before, 3);
}

fn a_client_of_small_segments_is_sent_small_segments(family: Family) {
    let stage = stage(family);
    let before = stage.scene.bound();
    let route = match family {
        Family::V4 => "route change 10.77.1.0/24 dev eth0 src 10.77.1.2 advmss 536",
        Family::V6 => "-6 route change fd77:1::/64 dev eth0 proto kernel metric 256 advmss 1220",
    };
    let mut ip: Command = stage.scene.lab.command(CLIENT, "ip");
    assert!(ip.args(route.split(' ')).status().unwrap().success());
    let (_, instance) = stage.exchange(Entry::Bind);
    let most = if family == Family::V4 { 536 } else { 1220 };
    assert!(instance.segment <= most, "{instance:?}");
    assert_bound(&stage, before, 1);
}

fn a_client_that_asks_for_explicit_congestion_notification_is_served_without(family: Family) {
    let stage = stage(family);
    let before = stage.scene.bound();
    stage.set(&[(CLIENT, "tcp_ecn", "1"), (INSTANCE, "tcp_ecn", "1")]);
    stage.exchange(Entry::Bind);
    let marked = counter(&stage.scene.lab, CLIENT, "InECT0Pkts");
    assert_eq!(marked, 0, "the instance was not asked");
    assert_bound(&stage, before, 1);
}

fn a_client_that_sends_data_with_its_syn_is_served(family: Family) {
    // In the SYN, without a cookie from before (`tcp_fastopen`, ip-sysctl).
    const DATA_WITHOUT_COOKIE: &str = "5";

    let stage = stage(family);
    let scene = &stage.scene;
    stage.set(&[(CLIENT, "tcp_fastopen", DATA_WITHOUT_COOKIE)]);
    let target = scene.address(Entry::Bind);
    let stream = scene.lab.inside(CLIENT, || support::tcp::connect_with_data(target)).unwrap().unwrap();
    let mut connection = Connection::over(stream).unwrap();
    connection.stream().write_all(b"GET /whoami HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(connection.reply().unwrap().status, 200);
    assert_eq!(scene.packets("binding_syn_with_data"), 1, "the SYN had data");
    assert_eq!(connection.get("/again").unwrap().status, 200);
    drop(connection);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}
