//! Handshakes that differ between the two legs of a connection: bytes must arrive whole in both directions whatever each side has
//! agreed to. Every story reads from both ends' kernels that its options were in force.

use std::process::Command;
use std::time::Duration;

use support::counters::counter;
use support::lab::{Family, Host};
use support::scene::pattern;
use support::stage::{LENGTH, Stage};
use support::{Entry, Scene, peer};

const CLIENT: Host = Host::Client;
const INSTANCE: Host = Host::Backend(1);

support::over_both_families! {
    windows_of_any_pair_of_scales_are_translated
    a_side_without_window_scaling_is_served_by_shifting
    what_a_client_does_not_offer_is_not_agreed_with_its_instance_either
    an_instance_without_timestamps_or_sack_serves_clients_that_have_both
    a_client_of_small_segments_is_sent_small_segments
    an_instance_that_acknowledges_late_receives_everything
}

/// The receive buffers from which a kernel derives this window scale (RFC 7323 §2.3).
fn buffers_for_scale(scale: u8) -> String {
    format!("4096 131072 {}", 65_535u64 << scale)
}

fn windows_of_any_pair_of_scales_are_translated(family: Family) {
    let stage = Stage::new(family);
    // The client's, the router's own, and the instance's. This kernel's smallest is 7.
    let triples = [(7, 10, 10), (10, 10, 7), (9, 10, 10), (7, 9, 14), (14, 7, 9), (10, 7, 10)];
    for (client, router, instance) in triples {
        for (host, scale) in [(CLIENT, client), (Host::Gateway, router), (INSTANCE, instance)] {
            stage.set(&[(host, "tcp_rmem", &buffers_for_scale(scale))]);
        }
        for entry in Entry::OFFLOADING {
            let (client_end, instance_end) = stage.exchange(entry);
            // What the peer announced comes first.
            assert_eq!(client_end.scales, Some((router, client)), "of the client's connection");
            assert_eq!(instance_end.scales, Some((router, instance)), "of the instance's connection");
        }
    }
    stage.assert_carried(2 * triples.len() as u64);
}

fn a_side_without_window_scaling_is_served_by_shifting(family: Family) {
    let stage = Stage::new(family);
    for (client, instance) in [("0", "1"), ("1", "0"), ("0", "0")] {
        stage.set(&[(CLIENT, "tcp_window_scaling", client), (INSTANCE, "tcp_window_scaling", instance)]);
        for entry in Entry::OFFLOADING {
            let (client_end, instance_end) = stage.exchange(entry);
            assert_eq!(
                (client_end.scales.is_some(), instance_end.scales.is_some()),
                (client == "1", instance == "1")
            );
        }
    }
    stage.assert_carried(6);
}

fn what_a_client_does_not_offer_is_not_agreed_with_its_instance_either(family: Family) {
    let stage = Stage::new(family);
    let mut connections = 0;
    for permille in [0, 20] {
        stage.scene.lose(permille);
        for (timestamps, sack) in [("1", "0"), ("0", "1"), ("0", "0")] {
            stage.set(&[(CLIENT, "tcp_timestamps", timestamps), (CLIENT, "tcp_sack", sack)]);
            for entry in Entry::OFFLOADING {
                let (client, instance) = stage.exchange(entry);
                let wanted = (timestamps == "1", sack == "1");
                assert_eq!((client.timestamps, client.sack), wanted, "{client:?}");
                assert_eq!((instance.timestamps, instance.sack), wanted, "{instance:?}");
                connections += 1;
            }
        }
    }
    stage.scene.lose(0);
    stage.assert_carried(connections);
}

fn an_instance_without_timestamps_or_sack_serves_clients_that_have_both(family: Family) {
    let stage = Stage::new(family);
    let mut connections = 0;
    for permille in [0, 20] {
        stage.scene.lose(permille);
        for (timestamps, sack) in [("0", "1"), ("1", "0"), ("0", "0")] {
            stage.set(&[(INSTANCE, "tcp_timestamps", timestamps), (INSTANCE, "tcp_sack", sack)]);
            for entry in Entry::OFFLOADING {
                let (client, instance) = stage.exchange(entry);
                assert!(client.timestamps && client.sack, "{client:?}");
                assert_eq!(
                    (instance.timestamps, instance.sack),
                    (timestamps == "1", sack == "1"),
                    "{instance:?}"
                );
                connections += 1;
            }
        }
    }
    stage.scene.lose(0);
    stage.assert_carried(connections);
}

fn a_client_of_small_segments_is_sent_small_segments(family: Family) {
    let stage = Stage::new(family);
    let route = match family {
        Family::V4 => "route change 10.77.1.0/24 dev eth0 src 10.77.1.2 advmss 536",
        Family::V6 => "-6 route change fd77:1::/64 dev eth0 proto kernel metric 256 advmss 536",
    };
    let mut ip: Command = stage.scene.lab.command(CLIENT, "ip");
    assert!(ip.args(route.split(' ')).status().unwrap().success());
    for entry in Entry::OFFLOADING {
        let (_, instance) = stage.exchange(entry);
        assert!(instance.segment <= 536, "{instance:?}");
    }
    stage.assert_carried(2);
}

fn an_instance_that_acknowledges_late_receives_everything(family: Family) {
    const SMALL: usize = 1000;
    let scene = Scene::over(family);
    let body = pattern(LENGTH + 20 * SMALL);
    let length = body.len();
    let _peer = scene.peer(move |stream| peer::acknowledge_late(stream, length));
    for permille in [0, 20] {
        scene.lose(permille);
        let delayed_before = counter(&scene.lab, INSTANCE, "DelayedACKs");
        for entry in Entry::OFFLOADING {
            let mut connection = scene.connect(entry);
            let head = format!("PUT /peer/late HTTP/1.1\r\nHost: lab\r\nContent-Length: {length}\r\n\r\n");
            connection.send(head).unwrap();
            // A kernel may hold back its acknowledgement of a segment that no second one follows.
            for part in body[..20 * SMALL].chunks(SMALL) {
                connection.send(part).unwrap();
                std::thread::sleep(Duration::from_millis(60));
            }
            connection.send(&body[20 * SMALL..]).unwrap();
            assert!(connection.reply().unwrap().body == body, "{entry:?}");
        }
        let delayed = counter(&scene.lab, INSTANCE, "DelayedACKs") - delayed_before;
        println!("{delayed} acknowledgements were late at {permille} ‰ loss");
        assert!(delayed > 10, "{delayed} acknowledgements were late");
    }
    assert_eq!(scene.carried(), (4, 0));
    scene.lose(0);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}
