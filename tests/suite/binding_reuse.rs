//! Few tuples, and many connections on each: what one connection has left at the client, at the gateway or at the instance must not meet the next one.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use support::lab::{Family, Host};
use support::{Connection, Entry, Scene, pinned};

support::over_both_families! {
    connections_that_use_the_same_ports_again_and_again_are_all_served
    a_port_whose_last_connection_had_a_socket_is_used_again
}

/// Clients' addresses, and ports that each of them uses in turn.
const ADDRESSES: u16 = 40;
const PORTS: u16 = 60;
/// Clients that are busy at the same time; each has addresses of its own.
const CLIENTS: u16 = 8;
/// Connections on each tuple, unless `ROUTER_REUSE_ROUNDS` says another number: over both families they make a hundred thousand.
const ROUNDS: u16 = 21;
const PATIENCE: Duration = Duration::from_secs(30);

fn client_address(family: Family, number: u16) -> IpAddr {
    match family {
        Family::V4 => [10, 77, 1, 100 + number as u8].into(),
        Family::V6 => [0xfd77, 1, 0, 0, 0, 0, 1, number].into(),
    }
}

fn connections_that_use_the_same_ports_again_and_again_are_all_served(family: Family) {
    let scene = Scene::binding(family, 1, "");
    for number in 0..ADDRESSES {
        let (address, length) = match client_address(family, number) {
            address @ IpAddr::V4(_) => (address, "32"),
            address @ IpAddr::V6(_) => (address, "128 nodad"),
        };
        scene.lab.ip(Host::Client, &format!("address add {address}/{length} dev eth0"));
    }
    scene.warm_up();
    let before = scene.bound();
    let vip = scene.address(Entry::Bind);
    let rounds =
        std::env::var("ROUTER_REUSE_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let failed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (scene, failed) = (&scene, &failed);
            scope.spawn(move || {
                for round in 0..rounds {
                    for port in 0..PORTS {
                        for number in (client..ADDRESSES).step_by(CLIENTS.into()) {
                            let source = SocketAddr::new(client_address(family, number), 20_000 + port);
                            if let Err(error) = ask(scene, source, vip) {
                                println!("{source}, round {round}: {error}");
                                failed.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "some connections failed");
    scene.comes_to_rest();
    let all = u64::from(ADDRESSES) * u64::from(PORTS) * u64::from(rounds);
    let bound = scene.bound() - before;
    println!("{bound} of {all} were bound");
    assert!(bound >= all * 99 / 100, "{bound} of {all} were bound");
    pinned::assert_no_connection_is_left(&scene.lab.pin_dir());
    scene.assert_no_segment_was_spoiled();
}

/// The router has closed such a connection first, and remembers it (TIME-WAIT).
fn a_port_whose_last_connection_had_a_socket_is_used_again(family: Family) {
    let scene = Scene::binding(family, 1, "");
    scene.warm_up();
    let before = scene.bound();
    let vip = scene.address(Entry::Bind);
    let source = SocketAddr::new(family.address(Host::Client), 20_000);
    for _ in 0..5 {
        let mut connection = connect(&scene, source, vip).unwrap();
        // Refused, with an answer.
        connection.send("GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(connection.reply().unwrap().status, 400);
        assert!(connection.receive_all().unwrap().is_empty());
        drop(connection);
        ask(&scene, source, vip).unwrap();
    }
    scene.become_bound(before, 5);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}

/// By an address and port that may have been used just before.
fn connect(scene: &Scene, source: SocketAddr, vip: SocketAddr) -> io::Result<Connection> {
    let connect = || {
        let socket = Socket::new(Domain::for_address(vip), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&source.into())?;
        socket.connect_timeout(&vip.into(), PATIENCE)?;
        Ok::<_, io::Error>(TcpStream::from(socket))
    };
    Connection::over(scene.lab.inside(Host::Client, connect).map_err(io::Error::other)??)
}

/// One request, by this address and port. The instance closes first, so that the client can use both again at once.
fn ask(scene: &Scene, source: SocketAddr, vip: SocketAddr) -> io::Result<()> {
    let mut connection = connect(scene, source, vip)?;
    connection.send("GET /whoami HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let reply = connection.reply()?;
    if reply.status != 200 || !connection.receive_all()?.is_empty() {
        return Err(io::Error::other(format!("{reply:?}")));
    }
    Ok(())
}
