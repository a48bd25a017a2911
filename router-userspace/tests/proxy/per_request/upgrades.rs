//! A request that changes the protocol takes its connection along.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use router::proxy::settings::Offload;
use router_common::abi::reason::{RefuseReason, RelayReason};

use super::*;
use crate::actors::*;
use crate::splicer::Splicer;

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";

/// An instance that changes the protocol on `/ws`, and then sends back what it gets.
fn switching() -> SocketAddr {
    instance(|mut connection| {
        loop {
            let head = read_head(&mut connection);
            if head.is_empty() {
                return;
            }
            if head.to_ascii_lowercase().contains("upgrade: websocket") {
                break;
            }
            respond(&mut connection, "plain");
        }
        connection
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello",
            )
            .unwrap();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = connection.read(&mut buffer) {
            connection.write_all(&buffer[..count]).unwrap();
        }
    })
}

fn talk_after_upgrade(proxy: &Proxy) {
    let mut client = proxy.connect();
    send_get(&mut client, "/");
    assert_eq!(read_response(&mut client), "plain");
    client.write_all(UPGRADE.as_bytes()).unwrap();
    let head = read_head(&mut client);
    assert_eq!(status_of(&head), "101");
    assert!(head.to_ascii_lowercase().contains("upgrade: websocket"), "{head}");
    let mut hello = [0; 5];
    client.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    for number in 0..20 {
        let frame = format!("\x01frame {number}\r\n\r\n");
        client.write_all(frame.as_bytes()).unwrap();
        let mut back = vec![0; frame.len()];
        client.read_exact(&mut back).unwrap();
        assert_eq!(back, frame.as_bytes());
    }
    assert_eq!(proxy.sessions(), [1]);
    finish(&client);
    assert_eq!(read_to_end(&mut client), "");
}

#[test]
fn after_an_upgrade_bytes_pass_unread() {
    let proxy = each([switching()]).with(|settings| settings.offload = Offload::Relay).start();
    talk_after_upgrade(&proxy);
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().relayed.get(RelayReason::Configured), 1);
    assert_eq!(proxy.counters().refused.total(), 0);
}

#[test]
fn an_upgraded_connection_is_handed_off() {
    let flows = Arc::new(Splicer::default());
    let proxy = each([switching()]).flows(flows.clone()).start();
    talk_after_upgrade(&proxy);
    proxy.wait_until_idle();
    let taken = flows.taken();
    assert_eq!((taken.len(), proxy.counters().handoffs.get()), (1, 1));
    assert_eq!(taken[0].source_port, Some(taken[0].bound));
    assert_eq!(proxy.counters().relayed.total(), 0);
}

#[test]
fn an_upgrade_that_is_declined_leaves_an_ordinary_connection() {
    let flows = Arc::new(Splicer::default());
    let proxy = each([keep_alive()]).flows(flows.clone()).start();
    let mut client = proxy.connect();
    client.write_all(UPGRADE.as_bytes()).unwrap();
    assert!(read_response(&mut client).starts_with("GET /ws "));
    send_get(&mut client, "/next");
    assert!(read_response(&mut client).starts_with("GET /next "));
    assert!(flows.taken().is_empty());
}

#[test]
fn what_a_client_sends_right_behind_an_upgrade_reaches_the_instance() {
    for flows in [None, Some(Arc::new(Splicer::default()))] {
        let mut setup = each([switching()]);
        let hands_off = flows.is_some();
        if let Some(flows) = flows {
            setup = setup.flows(flows);
        }
        let proxy = setup.start();
        let mut client = proxy.connect();
        client.write_all(format!("{UPGRADE}early bird").as_bytes()).unwrap();
        assert_eq!(status_of(&read_head(&mut client)), "101");
        let mut back = [0; 15];
        client.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"helloearly bird");
        assert_eq!(proxy.counters().handoffs.get(), u64::from(hands_off));
        drop(client);
        proxy.wait_until_idle();
    }
}

#[test]
fn a_client_that_aborts_while_it_waits_for_an_upgrade_is_noticed() {
    let instance = instance(|mut connection| {
        read_head(&mut connection);
        let _ended = connection.read(&mut [0]);
    });
    let proxy = each([instance]).start();
    let mut client = proxy.connect();
    client.write_all(UPGRADE.as_bytes()).unwrap();
    eventually("the instance is asked", || proxy.sessions() == [1]);
    abort(client);
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().refused.get(RefuseReason::ClientGone), 1);
}
