//! PROXY protocol: proxies in front that announce clients, and instances that are told where connections come from.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use router::core::proxy_protocol::{self, ProxyProtocol};
use router::core::rules::compile;
use router::core::table::{Action, Overrides, Rule};
use router::proxy::settings::Offload;
use router_common::abi::reason::RefuseReason;

use crate::actors::*;
use crate::splicer::Splicer;

/// A proxy that expects everybody on this host to announce clients.
fn announced(instances: impl IntoIterator<Item = SocketAddr>) -> Setup {
    proxy(instances).with(|settings| settings.announced_by = vec!["127.0.0.0/8".parse().unwrap()])
}

/// The same, with instances that are told.
fn telling(mut setup: Setup, version: ProxyProtocol) -> Proxy {
    setup.proxy_protocol = Some(version);
    setup.start()
}

fn header(version: ProxyProtocol, client: &str) -> Vec<u8> {
    version.header(client.parse().unwrap(), "192.0.2.80:443".parse().unwrap())
}

const VERSIONS: [ProxyProtocol; 2] = [ProxyProtocol::V1, ProxyProtocol::V2];

/// An instance that reads a header, then a head, and answers with both.
fn told() -> SocketAddr {
    instance(|mut connection| {
        let mut header = Vec::new();
        let ends = loop {
            let mut byte = [0];
            std::io::Read::read_exact(&mut connection, &mut byte).unwrap();
            header.push(byte[0]);
            if let Some(announced) = proxy_protocol::read(&header).unwrap() {
                break announced.ends;
            }
        };
        let head = read_head(&mut connection);
        respond(&mut connection, &format!("{ends:?}\n{head}"));
    })
}

#[test]
fn an_announced_client_is_the_client_everywhere() {
    for version in VERSIONS {
        for once_only in [true, false] {
            let mut setup = announced([echo_head()]).with(|settings| settings.once_only = once_only);
            setup.rules = vec![Rule {
                name: "far".into(),
                enabled: true,
                condition: compile(r#"ClientIP("203.0.113.0/24")"#).unwrap(),
                action: Action::Deny { status: 451 },
                overrides: Overrides::default(),
                persistence: None,
                preload: None,
                hits: Default::default(),
            }];
            let proxy = setup.start();
            let near = proxy.ask([header(version, "198.51.100.7:4000"), get("/").into_bytes()].concat());
            assert!(near.contains("X-Forwarded-For: 198.51.100.7\r\n"), "{version:?}, {once_only}: {near}");
            let far = proxy.ask([header(version, "203.0.113.9:4000"), get("/").into_bytes()].concat());
            assert!(far.starts_with("HTTP/1.1 451 "), "{version:?}, {once_only}: {far}");
            let own = proxy.ask([version.own(), get("/").into_bytes()].concat());
            assert!(own.contains("X-Forwarded-For: 127.0.0.1\r\n"), "{version:?}, {once_only}: {own}");
            proxy.wait_until_idle();
        }
    }
}

#[test]
fn a_header_may_come_in_pieces_and_with_what_is_behind_it() {
    let proxy = announced([echo_head()]).start();
    for version in VERSIONS {
        let bytes = [header(version, "198.51.100.7:4000"), get("/").into_bytes()].concat();
        for size in [1, 7, 30] {
            let mut client = proxy.connect();
            for piece in bytes.chunks(size) {
                client.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
            let response = read_to_end(&mut client);
            assert!(
                response.contains("X-Forwarded-For: 198.51.100.7\r\n"),
                "{version:?} by {size}: {response}"
            );
        }
    }
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().refused.total(), 0);
}

#[test]
fn a_listed_proxy_must_announce() {
    let proxy = announced([echo_head()])
        .with(|settings| settings.header_timeout = Duration::from_millis(300))
        .start();
    let mut lying = header(ProxyProtocol::V2, "198.51.100.7:4000");
    lying[15] -= 1;
    let cases: [(&[u8], RefuseReason); 4] = [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", RefuseReason::ProxyHeaderMissing),
        (b"PROXY TCP4 a b c d\r\n", RefuseReason::BadProxyHeader),
        (&lying, RefuseReason::BadProxyHeader),
        (b"PROXY TCP4 198.51.100.7", RefuseReason::HeaderTimeout),
    ];
    for (sent, reason) in cases {
        let mut client = proxy.connect();
        client.write_all(sent).unwrap();
        let (received, _) = read_until_broken(&mut client);
        assert!(received.is_empty(), "{}: {received:?}", reason.name());
        let expected = 1 + u64::from(sent == lying.as_slice());
        eventually(reason.name(), || proxy.counters().refused.get(reason) == expected);
    }
    drop(proxy.connect());
    proxy.wait_until_idle();
    eventually("a look whether the port is open is counted", || {
        proxy.counters().refused.get(RefuseReason::ClientGone) == 1
    });
    assert_eq!(proxy.context.heads.heads(), 0);
}

#[test]
fn only_a_listed_proxy_may_announce_and_only_once() {
    for version in VERSIONS {
        for once_only in [true, false] {
            let one = header(version, "198.51.100.7:4000");
            let request = get("/").into_bytes();
            let unlisted = proxy([echo_head()]).with(|settings| settings.once_only = once_only).start();
            let listed = announced([echo_head()]).with(|settings| settings.once_only = once_only).start();
            for (proxy, bytes) in [
                (&unlisted, [one.clone(), request.clone()].concat()),
                (&listed, [one.clone(), one.clone(), request.clone()].concat()),
            ] {
                let response = proxy.ask(bytes);
                assert!(response.starts_with("HTTP/1.1 400 "), "{version:?}, {once_only}: {response}");
                assert_eq!(proxy.counters().refused.get(RefuseReason::ProxyHeaderUnexpected), 1);
            }
        }
    }
}

#[test]
fn instances_are_told_before_anything_else_on_every_way() {
    for version in VERSIONS {
        for (once_only, offload) in [(true, Offload::Relay), (true, Offload::Handoff), (false, Offload::Auto)]
        {
            let flows = Arc::new(Splicer::default());
            let setup = proxy([told()]).flows(flows.clone()).with(|settings| {
                (settings.once_only, settings.offload) = (once_only, offload);
            });
            let proxy = telling(setup, version);
            let mut client = proxy.connect();
            let (from, to) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            client.write_all(get("/x").as_bytes()).unwrap();
            let response = read_to_end(&mut client);
            assert!(
                response.contains(&format!("Some(({from}, {to}))\nGET /x ")),
                "{version:?}, {offload:?}: {response}"
            );
            assert_eq!(flows.taken().len(), usize::from(offload == Offload::Handoff));
            drop(client);
            proxy.wait_until_idle();
        }
        // Whoever was announced is announced again, with where that client went.
        let proxy = telling(announced([told()]), version);
        let response = proxy.ask([header(version, "198.51.100.7:4000"), get("/").into_bytes()].concat());
        assert!(response.contains("Some((198.51.100.7:4000, 192.0.2.80:443))\n"), "{response}");
    }
}

#[test]
fn a_connection_is_handed_off_whatever_the_family_of_the_client_that_is_announced() {
    for version in VERSIONS {
        let flows = Arc::new(Splicer::default());
        let proxy = announced([echo_head()])
            .flows(flows.clone())
            .with(|settings| settings.offload = Offload::Handoff)
            .start();
        let client = "[2001:db8::7]:4000".parse().unwrap();
        let header = version.header(client, "[2001:db8::80]:443".parse().unwrap());
        let response = proxy.ask([header, get("/").into_bytes()].concat());
        assert!(response.contains("X-Forwarded-For: 2001:db8::7\r\n"), "{version:?}: {response}");
        assert_eq!(flows.taken().len(), 1, "{version:?}");
        proxy.wait_until_idle();
    }
}
