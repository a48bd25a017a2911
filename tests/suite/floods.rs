//! Floods at a Layer-4 listener whose flow table is small: those who were there go on, and counters say what has happened to everybody else.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use etherparse::PacketBuilder;
use support::balanced::{Balanced, UDP_PORT, ask};
use support::forger::numbers;
use support::lab::{Family, Host};
use support::link::{Link, PacketSocket};
use support::{Connection, TestLab, xdp};

support::over_both_families! {
    whoever_was_there_before_a_flood_goes_on
    with_xdp_whoever_was_there_before_goes_on_too
}

const TCP_PORT: u16 = 8080;
/// Flows that the table is made for; a third more find a place.
const FLOWS: &str = "l4_max_flows = 100";
/// Packets of one flood, many more than there are places.
const FLOOD: u16 = 1_000;
/// So many at a time, which no queue on their way is too short for.
const AT_A_TIME: u16 = 50;
const RST: u8 = 4;
const SYN: u8 = 2;
const FIN: u8 = 1;
/// Farther than any window, as are twenty more from there.
const FAR: u32 = 1 << 29;

fn whoever_was_there_before_a_flood_goes_on(family: Family) {
    let scene = Balanced::with(family, 2, FLOWS, "", "");
    floods(&scene);
    // What never opens does not keep its place for long.
    scene.router.eventually(Duration::from_secs(90), "there is room again", |_| scene.flows().len() < 50);
    assert_eq!(scene.connect().unwrap().get("/whoami").unwrap().status, 200);
}

fn with_xdp_whoever_was_there_before_goes_on_too(family: Family) {
    let lab = TestLab::with_backends(2);
    xdp::open(&lab);
    let scene = Balanced::in_lab_with(lab, family, 2, &format!("{FLOWS}\nattach = \"xdp\""), "");
    floods(&scene);
    assert!(scene.xdp_frames("carried") > 0);
    let dropped = scene.xdp_frames("dropped");
    assert!(dropped > u64::from(FLOOD), "{dropped} frames that found no place did not reach the stack");
}

fn floods(scene: &Balanced) {
    let mut established = Established::of(scene);
    established.go_on("before");
    let flooder = Flooder::new(scene);

    // Half-open for good: the senders know nothing of the answers.
    let (placed, full) =
        flooder.flood("SYN", |number| flooder.segment(flooder.stranger(number), SYN, number.into()));
    println!("SYN: {placed} placed, {full} found no place");
    assert!(placed > 50 && full > u64::from(FLOOD) / 2, "the table is full");
    established.go_on("with the table full of connections that never open");

    let (placed, full) = flooder.flood("UDP", |number| flooder.datagram(number));
    println!("UDP: {placed} placed, {full} found no place");
    assert!(full > u64::from(FLOOD) / 2, "the table is full");
    established.go_on("with the table full, and datagrams from everywhere");

    let forged = flooder.forge_endings(&established.connections);
    scene.router.eventually(Duration::from_secs(30), "none of the endings is believed", |_| {
        scene.packets("l4_ending_out_of_window") == forged
    });
    for connection in &established.connections {
        let client = connection.local_address().to_string();
        let flows = scene.flows();
        let flow = flows.iter().find(|flow| flow["client"] == client.as_str());
        assert_eq!(flow.expect("it is stored")["state"], "direct", "it stays for as long as it may be idle");
    }
    established.go_on("after endings by somebody who does not know their numbers");
    assert_eq!(scene.packets("l4_no_flow"), 0, "nobody was taken for a stranger");
    let others = ["l4_flood_dropped", "l4_unavailable", "l4_no_route", "l4_instance_down"];
    assert_eq!(others.map(|reason| scene.packets(reason)), [0; 4]);
}

/// Those who were there before.
struct Established<'s> {
    scene: &'s Balanced,
    connections: Vec<Connection>,
    askers: Vec<UdpSocket>,
}

impl<'s> Established<'s> {
    fn of(scene: &'s Balanced) -> Self {
        let connections = (0..5).map(|_| scene.connect().unwrap()).collect();
        Self { scene, connections, askers: (0..5).map(|_| scene.asker()).collect() }
    }

    /// Each is served as if nothing were.
    fn go_on(&mut self, when: &str) {
        let family = self.scene.family;
        for connection in &mut self.connections {
            let reply =
                connection.get("/files/64k").unwrap_or_else(|error| panic!("{family:?}, {when}: {error}"));
            assert_eq!(reply.body.len(), 64 << 10, "{family:?}, {when}");
        }
        for asker in &self.askers {
            // Twice: a single question is forgotten soon.
            for question in ["who?", "and who now?"] {
                let answer =
                    ask(asker, question).unwrap_or_else(|error| panic!("{family:?}, {when}: {error}"));
                assert!(answer.ends_with(question), "{family:?}, {when}: {answer}");
            }
        }
    }
}

/// Sends frames of any sender from the client's host.
struct Flooder<'s> {
    scene: &'s Balanced,
    wire: PacketSocket,
    own: [u8; 6],
    gateway: [u8; 6],
}

impl<'s> Flooder<'s> {
    fn new(scene: &'s Balanced) -> Self {
        let open = || (PacketSocket::on("eth0").unwrap(), Link::address("eth0").unwrap());
        let (wire, own) = scene.lab.inside(Host::Client, open).unwrap();
        let gateway = scene.lab.inside(Host::Gateway, || Link::address("client").unwrap()).unwrap();
        Self { scene, wire, own, gateway }
    }

    /// Sends frames and waits until each is counted. Returns how many have begun a flow, and how many found no place for one.
    fn flood(&self, what: &str, frame: impl Fn(u16) -> Vec<u8>) -> (u64, u64) {
        let counted = || {
            ["l4_placed", "l4_table_full_dropped", "l4_no_source_port"]
                .map(|reason| self.scene.packets(reason))
        };
        let before = counted();
        for number in 0..FLOOD {
            self.wire.send(&frame(number)).unwrap();
            if (number + 1) % AT_A_TIME == 0 {
                let wanted = u64::from(number + 1) + before.iter().sum::<u64>();
                self.scene.router.eventually(Duration::from_secs(30), &format!("{what} are counted"), |_| {
                    counted().iter().sum::<u64>() == wanted
                });
            }
        }
        let after = counted();
        (after[0] - before[0], after[1] - before[1])
    }

    /// Sends resets and FINs in the name of these clients, with numbers far from theirs. Returns how many.
    fn forge_endings(&self, connections: &[Connection]) -> u64 {
        let mut sent = 0;
        for connection in connections {
            let far = numbers(connection.stream()).unwrap().next.wrapping_add(FAR);
            for (flags, round) in
                [RST, FIN].into_iter().flat_map(|flags| (0..20).map(move |round| (flags, round)))
            {
                let number = far.wrapping_add(round * 0x0123_4567);
                self.wire.send(&self.segment(connection.local_address(), flags, number)).unwrap();
                sent += 1;
            }
        }
        sent
    }

    /// An address and a port that nobody has.
    fn stranger(&self, number: u16) -> SocketAddr {
        let address: IpAddr = match self.scene.family {
            Family::V4 => [203, 0, 113, number as u8].into(),
            Family::V6 => [0x2001, 0xdb8, 0, 0, 0, 0, number % 251, number].into(),
        };
        SocketAddr::new(address, 1_025 + number * 37 % 60_000)
    }

    fn datagram(&self, number: u16) -> Vec<u8> {
        let mut frame = Vec::new();
        let source = self.stranger(number);
        self.ip(source.ip()).udp(source.port(), UDP_PORT).write(&mut frame, b"?").unwrap();
        frame
    }

    fn segment(&self, source: SocketAddr, flags: u8, number: u32) -> Vec<u8> {
        let tcp = self.ip(source.ip()).tcp(source.port(), TCP_PORT, number, 1_000);
        let tcp = match flags {
            SYN => tcp.syn(),
            FIN => tcp.fin().ack(0),
            _ => tcp.rst(),
        };
        let mut frame = Vec::new();
        tcp.write(&mut frame, &[]).unwrap();
        frame
    }

    fn ip(&self, source: IpAddr) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
        let ethernet = PacketBuilder::ethernet2(self.own, self.gateway);
        match (source, self.scene.family.vip()) {
            (IpAddr::V4(source), IpAddr::V4(vip)) => ethernet.ipv4(source.octets(), vip.octets(), 64),
            (IpAddr::V6(source), IpAddr::V6(vip)) => ethernet.ipv6(source.octets(), vip.octets(), 64),
            ends => panic!("two versions of IP: {ends:?}"),
        }
    }
}
