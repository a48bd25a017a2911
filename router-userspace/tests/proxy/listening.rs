//! Addresses that can be used, that others use, and that are not here yet.

use std::net::TcpListener;

use router::proxy::listener::{self, ListenError};
use router::proxy::settings::ListenerSettings;

#[test]
fn a_port_that_another_process_listens_on_is_named() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let error = listener::open(&ListenerSettings::new("web", address), 2).unwrap_err();
    assert!(matches!(error, ListenError::InUse { .. }));
    let text = error.to_string();
    assert!(
        text.contains(&address.to_string()) && text.contains("\"web\"") && text.contains("ss -ltnp"),
        "{text}"
    );
}

#[test]
fn a_second_router_does_not_quietly_share_the_port() {
    let settings = ListenerSettings::new("web", "127.0.0.1:0".parse().unwrap());
    let sockets = listener::open(&settings, 2).unwrap();
    let address = listener::address_of(&sockets[0]).unwrap();
    assert_eq!(listener::address_of(&sockets[1]), Some(address), "the workers do share it");
    let second = listener::open(&ListenerSettings::new("web", address), 2);
    assert!(matches!(second, Err(ListenError::InUse { .. })));
    drop(sockets);
    assert!(listener::open(&ListenerSettings::new("web", address), 2).is_ok());
}

#[test]
fn a_vip_that_is_not_on_this_host_yet_is_listened_on_all_the_same() {
    // TEST-NET-1 (RFC 5737): on no host.
    let settings = ListenerSettings::new("web", "192.0.2.77:8080".parse().unwrap());
    assert_eq!(listener::open(&settings, 2).unwrap().len(), 2);
}
