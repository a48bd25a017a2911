//! Heads of several packets on connections without a socket: of every usual length, in any order, with bodies close behind, and from clients that are slow.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use support::forger::{self, ACK, Forger, Segment};
use support::lab::{Family, Host, Lab};
use support::{Entry, Peer, Scene, peer, pinned};

const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u16 = 8082;

support::over_both_families! {
    heads_of_every_usual_length_are_bound
    segments_in_any_order_are_one_head
    a_body_close_behind_its_head_arrives_whole
    heads_arrive_whole_though_one_packet_in_fifty_is_lost
    a_client_that_speaks_byte_by_byte_gets_a_socket
    a_head_that_never_ends_is_answered
    an_instance_with_small_segments_is_served_by_a_socket
}

/// The rules of a scene with a pool whose instance is a story's own, for `/own`.
fn rules(family: Family) -> String {
    let own = SocketAddr::new(family.address(Host::Backend(1)), PORT);
    format!(
        "header_timeout = \"1s\"\nforwarded_for = false\n\n\
         [[pool]]\nname = \"own\"\n[[pool.instance]]\nname = \"own\"\naddress = \"{own}\"\n\n\
         [[rule]]\nname = \"own\"\nmatch = 'PathPrefix(\"/own\")'\npool = \"own\"\n\n"
    )
}

/// A scene whose instance tells of each head that it gets, and of the body behind it.
struct Told {
    scene: Scene,
    _peer: Peer,
    requests: Receiver<(Vec<u8>, Vec<u8>)>,
}

impl Told {
    fn new(family: Family) -> Self {
        let scene = Scene::binding(family, 1, &rules(family));
        let (tell, requests) = channel();
        let tell = Mutex::new(tell);
        let peer = Peer::start_over(family, &scene.lab, 1, PORT, move |mut stream| {
            let request = read_request(&mut stream)?;
            tell.lock().unwrap().send(request).map_err(io::Error::other)?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        });
        scene.warm_up();
        Self { scene, _peer: peer, requests }
    }

    fn gets(&self) -> (Vec<u8>, Vec<u8>) {
        self.requests.recv_timeout(PATIENCE).expect("the instance gets a request")
    }

    /// Sends a head by a connection of its own, which is bound.
    fn is_bound(&self, head: &str) {
        let before = self.scene.bound();
        let mut connection = self.scene.connect(Entry::Bind);
        connection.send(head).unwrap();
        assert_eq!(connection.reply().unwrap().status, 200);
        assert!(self.gets().0 == head.as_bytes(), "the head of {} bytes arrives changed", head.len());
        self.scene.become_bound(before, 1);
    }

    fn nothing_is_left(&self) {
        self.scene.comes_to_rest();
        self.scene.assert_no_segment_was_spoiled();
        pinned::assert_no_connection_is_left(&self.scene.lab.pin_dir());
    }
}

fn read_request(stream: &mut TcpStream) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let head = peer::read_head(stream)?;
    let text = String::from_utf8_lossy(&head);
    let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    Ok((head, body))
}

/// A head of so many bytes, no two lines of which are the same.
fn head(length: usize) -> String {
    let mut head = "GET /own HTTP/1.1\r\nHost: a\r\n".to_owned();
    let mut number = 0;
    while head.len() + 1_000 < length {
        head += &format!("X-{number}: {}\r\n", format!("{number:02}").repeat(400));
        number += 1;
    }
    let rest = length - head.len() - "X-End: \r\n\r\n".len();
    head += &format!("X-End: {}\r\n\r\n", "e".repeat(rest));
    assert_eq!(head.len(), length);
    head
}

/// Whether segments travel in packets of many, as on fast links, or one by one.
fn put_together(lab: &Lab, whether: bool) {
    let whether = if whether { "on" } else { "off" };
    for (host, interface, features) in
        [(Host::Client, "eth0", &["tso", "gso"][..]), (Host::Gateway, "client", &["gro"][..])]
    {
        for feature in features {
            let set = lab.command(host, "ethtool").args(["-K", interface, feature, whether]).output();
            assert!(set.expect("ethtool starts").status.success(), "{feature} {whether} at {interface}");
        }
    }
}

fn heads_of_every_usual_length_are_bound(family: Family) {
    let told = Told::new(family);
    for whether in [true, false] {
        put_together(&told.scene.lab, whether);
        for length in [512, 1_500, 2_048, 4_096, 8_192, 14_000] {
            told.is_bound(&head(length));
        }
    }
    assert_eq!(told.scene.unbound("head_incomplete"), 0);
    told.nothing_is_left();
}

fn segments_in_any_order_are_one_head(family: Family) {
    const PART: usize = 500;

    let told = Told::new(family);
    // Forged segments have no timestamps.
    told.scene.lab.sysctl(Host::Client, "net.ipv4.tcp_timestamps", "0").unwrap();
    let head = head(4 * PART + 100);
    let parts: Vec<&[u8]> = head.as_bytes().chunks(PART).collect();
    let overlapping = [(1, 3), (3, 5), (0, 2)];
    let orders: [Vec<(usize, usize)>; 4] = [
        (0..5).rev().map(|part| (part, part + 1)).collect(),
        [2, 2, 4, 0, 3, 1].map(|part| (part, part + 1)).into(),
        [0, 4, 4, 4, 1, 3, 2].map(|part| (part, part + 1)).into(),
        overlapping.into(),
    ];
    for order in orders {
        let before = told.scene.bound();
        let connection = told.scene.connect(Entry::Bind);
        let numbers = forger::numbers(connection.stream()).unwrap();
        let (source, vip) = (connection.local_address(), told.scene.address(Entry::Bind));
        let forger = Forger::new(&told.scene.lab, Host::Client, source, vip);
        for (from, to) in &order {
            let payload = parts[*from..*to].concat();
            let seq = numbers.next.wrapping_add((from * PART) as u32);
            forger.send(Segment { flags: ACK, seq, ack: numbers.expected, payload: &payload });
        }
        assert!(told.gets().0 == head.as_bytes(), "{order:?}");
        told.scene.become_bound(before, 1);
        connection.reset().unwrap();
    }
}

fn a_body_close_behind_its_head_arrives_whole(family: Family) {
    let told = Told::new(family);
    for whether in [true, false] {
        put_together(&told.scene.lab, whether);
        for length in [100, 10_000, 100_000] {
            let before = told.scene.bound();
            let head = format!("PUT /own HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
            let body: Vec<u8> = (0..length).map(|at| (at / 7) as u8).collect();
            let mut connection = told.scene.connect(Entry::Bind);
            connection.stream().set_nodelay(true).unwrap();
            connection.send(&head).unwrap();
            connection.send(&body).unwrap();
            assert_eq!(connection.reply().unwrap().status, 200);
            assert!(told.gets() == (head.into_bytes(), body), "a body of {length} bytes arrives changed");
            told.scene.become_bound(before, 1);
        }
    }
    // What the daemon sends on may be overtaken by the client's next packet, and is then discarded for its timestamp: no other story may see that.
    told.scene.comes_to_rest();
    pinned::assert_no_connection_is_left(&told.scene.lab.pin_dir());
}

fn heads_arrive_whole_though_one_packet_in_fifty_is_lost(family: Family) {
    const HEADS: u64 = 60;

    let told = Told::new(family);
    told.scene.lose(20);
    let before = told.scene.bound();
    for number in 0..HEADS {
        let head = head(4_000 + 60 * number as usize);
        let mut connection = told.scene.connect(Entry::Bind);
        connection.send(&head).unwrap();
        assert_eq!(connection.reply().unwrap().status, 200);
        assert!(told.gets().0 == head.as_bytes(), "the head of {} bytes arrives changed", head.len());
    }
    told.scene.lose(0);
    let bound = told.scene.bound() - before;
    assert!(bound > HEADS / 2, "{bound} of {HEADS} were bound");
    told.nothing_is_left();
}

fn a_client_that_speaks_byte_by_byte_gets_a_socket(family: Family) {
    let told = Told::new(family);
    let head = head(200);
    let mut connection = told.scene.connect(Entry::Bind);
    connection.stream().set_nodelay(true).unwrap();
    for byte in head.as_bytes() {
        connection.send([*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(connection.reply().unwrap().status, 200);
    assert!(told.gets().0 == head.as_bytes());
    assert_eq!(told.scene.unbound("head_incomplete"), 1);
    drop(connection);
    told.nothing_is_left();
}

fn a_head_that_never_ends_is_answered(family: Family) {
    let told = Told::new(family);
    // One that stands still, and one that fills the window and goes on.
    for length in [3_000, 20_000] {
        let head = head(length);
        let mut connection = told.scene.connect(Entry::Bind);
        connection.send(&head[..length - 2]).unwrap();
        assert_eq!(connection.reply().unwrap().status, 408);
    }
    assert_eq!(told.scene.unbound("head_incomplete"), 2);
    told.nothing_is_left();
}

fn an_instance_with_small_segments_is_served_by_a_socket(family: Family) {
    let told = Told::new(family);
    let gateway = if family == Family::V6 { "fd77:2::1/128" } else { "10.77.2.1/32" };
    let add = ["route", "add", gateway, "dev", "eth0", "advmss", "1000"];
    let added = told.scene.lab.command(Host::Backend(1), "ip").args(add).output();
    assert!(added.expect("ip starts").status.success());
    // What fits is bound all the same.
    told.is_bound(&head(900));
    let head = head(4_000);
    let mut connection = told.scene.connect(Entry::Bind);
    connection.send(&head).unwrap();
    assert_eq!(connection.reply().unwrap().status, 200);
    assert!(told.gets().0 == head.as_bytes());
    assert_eq!(told.scene.unbound("instance_unfit"), 1);
    drop(connection);
    told.nothing_is_left();
}
