//! When a connection leaves user space, and what it takes along.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use router::proxy::settings::{AutoHandoff, ListenerSettings, Offload};
use router_common::abi::reason::RelayReason;

use crate::actors::*;
use crate::splicer::Splicer;

/// Never hands off, but for what `change` allows.
fn auto(change: impl FnOnce(&mut AutoHandoff)) -> AutoHandoff {
    let mut auto = AutoHandoff {
        after_bytes: u64::MAX / 16,
        after_age: Duration::from_secs(3600),
        second_request: false,
    };
    change(&mut auto);
    auto
}

/// A proxy in front of one instance that offers its connections to `flows` as `change` says.
fn offering(flows: &Arc<Splicer>, instance: SocketAddr, change: impl FnOnce(&mut ListenerSettings)) -> Proxy {
    proxy([instance]).flows(flows.clone()).with(change).start()
}

/// The same, that hands off every connection.
fn forcing(flows: &Arc<Splicer>, instance: SocketAddr) -> Proxy {
    offering(flows, instance, |settings| settings.offload = Offload::Handoff)
}

/// Asks for one path after the other on a connection, whose instance is `keep_alive`.
fn ask_for_each(client: &mut TcpStream, paths: &[&str]) {
    for path in paths {
        send_get(client, path);
        assert!(read_response(client).starts_with(&format!("GET {path} ")));
    }
}

fn receive_all(proxy: &Proxy) -> Vec<u8> {
    let mut client = proxy.connect();
    client.write_all(get("/").as_bytes()).unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    received
}

fn download(length: usize) -> SocketAddr {
    instance(move |mut connection| {
        read_head(&mut connection);
        connection.write_all(&pattern(length)).unwrap();
    })
}

#[test]
fn a_forced_handoff_happens_before_the_instance_has_got_a_byte() {
    let flows = Arc::new(Splicer::default());
    let proxy = forcing(&flows, echo_head());
    let request = format!("{}surplus", get("/x"));
    let response = proxy.ask(&request);
    let head = get("/x").replace("close\r\n\r\n", "close\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n");
    assert!(response.ends_with(&head), "{response}");

    let [taken] = &flows.taken()[..] else { panic!("one handoff") };
    assert_eq!(taken.consumed_head_len, get("/x").len());
    assert_eq!(taken.surplus_len, "surplus".len());
    assert_eq!(taken.to_instance, format!("{head}surplus").as_bytes());
    assert_eq!(taken.rule, "default");
    assert_eq!(taken.source_port, Some(taken.bound));
    assert!(SOURCE_PORTS.contains(&taken.bound.port()));
    assert_eq!(flows.prepared.load(Ordering::Relaxed), 1);
    proxy.wait_until_idle();
    assert_eq!((proxy.counters().handoffs.get(), proxy.counters().relayed.total()), (1, 0));
}

#[test]
fn the_session_and_the_port_live_as_long_as_the_flow() {
    let flows = Arc::new(Splicer::default());
    let address = keep_alive();
    let proxy = forcing(&flows, address);
    let source = "127.0.0.1".parse().unwrap();
    let all = proxy.context.ports.free(source, address);
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    read_response(&mut client);
    eventually("the daemon has let go", || proxy.counters().open() == 0);
    assert_eq!(proxy.sessions(), [1]);
    assert_eq!(proxy.context.ports.free(source, address), all - 1);
    drop(client);
    proxy.wait_until_idle();
    assert_eq!(proxy.context.ports.free(source, address), all);
}

#[test]
fn a_short_connection_is_relayed() {
    let flows = Arc::new(Splicer::default());
    let proxy = proxy([echo_head()]).flows(flows.clone()).start();
    assert!(proxy.ask(get("/")).starts_with("HTTP/1.1 200 "));
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().relayed.get(RelayReason::Short), 1);
    assert!(flows.taken().is_empty());
}

#[test]
fn a_second_request_is_enough() {
    let flows = Arc::new(Splicer::default());
    let proxy =
        offering(&flows, keep_alive(), |settings| settings.auto = auto(|auto| auto.second_request = true));
    let mut client = proxy.connect();
    ask_for_each(&mut client, &["/1", "/2", "/3"]);
    let [taken] = &flows.taken()[..] else { panic!("one handoff") };
    assert_eq!(taken.to_instance, b"GET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((taken.consumed_head_len, taken.surplus_len), (0, taken.to_instance.len()));
    drop(client);
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().relayed.total(), 0);
}

#[test]
fn a_long_download_is_handed_over_in_the_middle_and_arrives_whole() {
    const LENGTH: usize = 32 * 1024 * 1024;
    let flows = Arc::new(Splicer::default());
    let proxy = offering(&flows, download(LENGTH), |settings| {
        settings.auto = auto(|auto| auto.after_bytes = 200_000)
    });
    assert!(receive_all(&proxy) == pattern(LENGTH));
    assert_eq!(flows.taken().len(), 1);
    assert!(flows.taken()[0].to_instance.is_empty());
    proxy.wait_until_idle();
}

#[test]
fn a_long_upload_is_handed_over_in_the_middle_and_arrives_whole() {
    const LENGTH: usize = 32 * 1024 * 1024;
    let flows = Arc::new(Splicer::default());
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        let mut all = vec![0; LENGTH];
        connection.read_exact(&mut all).unwrap();
        respond(&mut connection, if all == pattern(LENGTH) { "whole" } else { "broken" });
    });
    let proxy =
        offering(&flows, instance, |settings| settings.auto = auto(|auto| auto.after_bytes = 200_000));
    let mut client = proxy.connect();
    client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    client.write_all(&pattern(LENGTH)).unwrap();
    assert_eq!(read_response(&mut client), "whole");
    assert_eq!(flows.taken().len(), 1);
}

#[test]
fn a_request_that_announces_a_long_body_or_another_protocol_does_not_wait() {
    let flows = Arc::new(Splicer::default());
    let proxy =
        offering(&flows, echo_head(), |settings| settings.auto = auto(|auto| auto.after_bytes = 1000));
    for head in [
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n",
        "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ] {
        let mut client = proxy.connect();
        client.write_all(head.as_bytes()).unwrap();
        read_response(&mut client);
    }
    let consumed: Vec<_> = flows.taken().iter().map(|taken| taken.consumed_head_len > 0).collect();
    assert_eq!(consumed, [true, true], "both with the head unsent");
}

#[test]
fn a_connection_that_lives_on_is_handed_over_while_idle() {
    let flows = Arc::new(Splicer::default());
    let proxy = offering(&flows, keep_alive(), |settings| {
        settings.auto = auto(|auto| auto.after_age = Duration::from_millis(200))
    });
    let mut client = proxy.connect();
    send_get(&mut client, "/1");
    read_response(&mut client);
    eventually("it is handed over", || flows.taken().len() == 1);
    ask_for_each(&mut client, &["/2"]);
}

#[test]
fn a_refused_handoff_is_not_noticed_by_the_client() {
    for (offload, times) in [(Offload::Handoff, 1), (Offload::Auto, 1), (Offload::Auto, 100)] {
        const LENGTH: usize = 8 * 1024 * 1024;
        let flows = Arc::new(Splicer::refusing(RelayReason::TableFull, times));
        let proxy = proxy([download(LENGTH)])
            .flows(flows.clone())
            .with(|settings| {
                settings.offload = offload;
                settings.auto = auto(|auto| auto.after_bytes = 100_000);
            })
            .start();
        assert!(receive_all(&proxy) == pattern(LENGTH));
        proxy.wait_until_idle();
        let relayed = proxy.counters().relayed.get(RelayReason::TableFull);
        // A full table may have room a little later, so it is asked again, but not for ever.
        let expected = if times == 1 { (0, 1) } else { (1, 0) };
        assert_eq!(
            (relayed, proxy.counters().handoffs.get()),
            expected,
            "{offload:?}, refused {times} times"
        );
        assert_eq!(proxy.counters().relayed.total(), relayed);
    }
}

#[test]
fn sockets_that_can_never_become_a_flow_are_offered_once() {
    let flows = Arc::new(Splicer::refusing(RelayReason::OptionMismatch, 1));
    let proxy =
        offering(&flows, keep_alive(), |settings| settings.auto = auto(|auto| auto.second_request = true));
    let mut client = proxy.connect();
    ask_for_each(&mut client, &["/1", "/2", "/3", "/4"]);
    assert!(flows.taken().is_empty());
    assert_eq!(proxy.counters().relayed.get(RelayReason::OptionMismatch), 1);
    drop(client);
    proxy.wait_until_idle();
}

#[test]
fn a_listener_that_relays_never_offers_anything() {
    let flows = Arc::new(Splicer::default());
    let proxy = proxy([download(1_000_000)])
        .flows(flows.clone())
        .with(|settings| {
            settings.offload = Offload::Relay;
            settings.auto = auto(|auto| auto.after_bytes = 1);
        })
        .start();
    assert_eq!(receive_all(&proxy).len(), 1_000_000);
    assert!(flows.taken().is_empty());
    assert_eq!(proxy.counters().relayed.get(RelayReason::Configured), 1);
    assert_eq!(flows.prepared.load(Ordering::Relaxed), 0);
}

#[test]
fn without_a_free_port_of_the_routers_a_connection_is_relayed_from_one_of_the_kernels() {
    let flows = Arc::new(Splicer::default());
    let address = echo_head();
    let proxy = forcing(&flows, address);
    let source = "127.0.0.1".parse().unwrap();
    let all: Vec<_> = std::iter::from_fn(|| proxy.context.ports.take(source, address)).collect();
    assert_eq!(all.len(), SOURCE_PORTS.len());
    assert!(proxy.ask(get("/")).starts_with("HTTP/1.1 200 "));
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().relayed.get(RelayReason::NoSourcePort), 1);
    assert!(flows.taken().is_empty());
}
