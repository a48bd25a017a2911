//! Which instance a connection reaches, and what happens when it cannot be reached.

use std::time::Duration;

use router::core::health::Reachability;
use router::core::pool::OnUnavailable;
use router_common::abi::reason::RefuseReason;

use crate::actors::*;

#[test]
fn a_hundred_clients_over_four_equal_instances_are_twenty_five_each() {
    let proxy = proxy((0..4).map(|_| keep_alive())).start();
    let clients: Vec<_> = std::thread::scope(|scope| {
        let dials: Vec<_> = (0..100)
            .map(|number| {
                let proxy = &proxy;
                scope.spawn(move || {
                    let mut client = proxy.connect();
                    send_get(&mut client, &format!("/{number}"));
                    assert!(read_response(&mut client).starts_with(&format!("GET /{number} ")));
                    client
                })
            })
            .collect();
        dials.into_iter().map(|dial| dial.join().unwrap()).collect()
    });
    assert_eq!(proxy.sessions(), [25; 4]);
    drop(clients);
    proxy.wait_until_idle();
}

#[test]
fn an_instance_that_refuses_is_passed_over_at_once_and_for_the_future() {
    let mut setup = proxy([nobody(), echo_head()]);
    setup.check = Some(tcp_check());
    let proxy = setup.start();
    for _ in 0..6 {
        assert!(proxy.ask(get("/")).starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(proxy.counters().retries.get(), 1, "one refusal takes it down");
    let table = proxy.context.table.load();
    let states: Vec<_> = table.instances().map(|(_, _, instance)| instance.status.reachability()).collect();
    assert_eq!(states, [Reachability::Down, Reachability::Up]);
    proxy.wait_until_idle();
}

#[test]
fn without_a_check_a_refusing_instance_is_tried_again_each_time_and_nobody_notices() {
    let proxy = proxy([nobody(), echo_head()]).start();
    for _ in 0..10 {
        assert!(proxy.ask(get("/")).starts_with("HTTP/1.1 200 "));
    }
    assert!(proxy.counters().retries.get() > 0);
    assert_eq!(proxy.counters().refused.total(), 0);
    proxy.wait_until_idle();
}

#[test]
fn when_everybody_refuses_the_client_is_told_so() {
    let mut setup = proxy([nobody(), nobody(), nobody()]);
    setup.on_unavailable = Some(OnUnavailable::Status503);
    let proxy = setup.start();
    assert!(proxy.ask(get("/")).starts_with("HTTP/1.1 503 "));
    assert_eq!(proxy.counters().refused.get(RefuseReason::ConnectFailed), 1);
    assert_eq!(proxy.counters().retries.get(), 3);
    proxy.wait_until_idle();
}

#[test]
fn the_number_of_attempts_is_bounded() {
    let proxy = proxy([nobody(), nobody(), nobody()]).with(|settings| settings.connect_attempts = 2).start();
    assert!(proxy.ask(get("/")).starts_with("HTTP/1.1 503 "));
    assert_eq!(proxy.counters().retries.get(), 1);
}

#[test]
fn an_instance_that_never_answers_the_handshake_costs_one_connect_timeout() {
    // The kernel drops SYNs to a listener whose backlog is full.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap().as_socket().unwrap();
    let _filling = std::net::TcpStream::connect(address).unwrap();
    let proxy = proxy([address, echo_head()])
        .with(|settings| settings.connect_timeout = Duration::from_millis(200))
        .start();
    assert!(proxy.ask(get("/")).starts_with("HTTP/1.1 200 "));
    assert_eq!(proxy.counters().retries.get(), 1);
}
