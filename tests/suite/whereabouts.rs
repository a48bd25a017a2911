//! `routerctl where`: what it answers is what the packet then does, and nothing has changed by the question.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use data_encoding::BASE64;
use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};
use serde_json::Value;
use support::forger::numbers;
use support::lab::{Family, Host};
use support::link::{Link, PacketSocket};
use support::{Entry, Router, Scene, TestLab, pinned, router};

support::over_both_families! {
    new_and_known_packets_of_each_mode_go_where_they_were_said_to_go
    packets_that_go_nowhere_are_said_to
    explain_names_the_rule_of_a_client_and_the_instance_that_its_packets_go_to
    a_handed_off_connection_is_followed_in_both_directions
}

/// Small tables, so that all of them can be read.
const SMALL: &str = "max_flows = 512\nl4_max_flows = 512";
const PATIENCE: Duration = Duration::from_secs(10);

/// One listener for each protocol and mode, without anybody behind it who answers.
struct Modes {
    // Ends before its lab does.
    router: Router,
    client: Wire,
    backends: Vec<Wire>,
    family: Family,
    lab: TestLab,
}

/// A mode, its port, and the port of its instances.
const MODES: [(&str, u16, u16); 4] =
    [("snat", 8001, 80), ("transparent", 8002, 81), ("dsr-l2", 8003, 8003), ("dsr-ipip", 8004, 8004)];

/// A place where frames are sent and received, and the two Ethernet addresses of its cable.
struct Wire {
    socket: PacketSocket,
    own: [u8; 6],
    gateway: [u8; 6],
}

impl Wire {
    fn new(lab: &TestLab, host: Host, gateway: &'static str) -> Self {
        let (socket, own) =
            lab.inside(host, || (PacketSocket::on("eth0").unwrap(), Link::address("eth0").unwrap())).unwrap();
        let gateway = lab.inside(Host::Gateway, || Link::address(gateway).unwrap()).unwrap();
        Self { socket, own, gateway }
    }

    /// A frame for the gateway.
    fn frame(&self, kind: Kind, source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2(self.own, self.gateway);
        let ip: PacketBuilderStep<IpHeaders> = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ethernet.ipv4(source.octets(), destination.octets(), 64)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ethernet.ipv6(source.octets(), destination.octets(), 64)
            }
            _ => panic!("of one family"),
        };
        let (from, to) = (source.port(), destination.port());
        let mut frame = Vec::new();
        match kind {
            Kind::Datagram => ip.udp(from, to).write(&mut frame, payload),
            Kind::Syn => ip.tcp(from, to, 1_000, 64_000).syn().write(&mut frame, payload),
            Kind::Ack(sequence, acknowledgement) => {
                ip.tcp(from, to, sequence, 500).ack(acknowledgement).write(&mut frame, payload)
            }
        }
        .unwrap();
        frame
    }

    /// This frame comes. Others may, but none from the same neighbour with the same protocol: pings and neighbour discovery are neither TCP nor UDP.
    fn receives(&self, expected: &[u8]) {
        let kind = |frame: &[u8]| {
            let protocol = if frame.get(12..14) == Some(&[0x08, 0x00]) { 14 + 9 } else { 14 + 6 };
            (frame.get(..14).map(<[u8]>::to_vec), frame.get(protocol).copied())
        };
        loop {
            let frame = self.socket.receive(PATIENCE).unwrap();
            if frame == expected {
                return;
            }
            assert_ne!(kind(&frame), kind(expected), "{frame:02x?} came, and {expected:02x?} was said");
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Datagram,
    Syn,
    /// With sequence and acknowledgement numbers.
    Ack(u32, u32),
}

impl Modes {
    fn new(family: Family) -> Self {
        let lab = TestLab::with_backends(2);
        let vip = family.vip();
        let mut rest = String::new();
        for (mode, port, instance_port) in MODES {
            for protocol in ["tcp", "udp"] {
                let address = SocketAddr::new(vip, port);
                rest += &format!(
                    "[[listener]]\nname = \"{protocol}-{mode}\"\naddress = \"{address}\"\nprotocol = \"{protocol}\"\nsource = \"{mode}\"\n\n"
                );
            }
            rest += &format!("[[pool]]\nname = \"{mode}\"\n\n");
            for number in [1, 2] {
                let address = SocketAddr::new(family.address(Host::Backend(number)), instance_port);
                rest += &format!("[[pool.instance]]\nname = \"{mode}{number}\"\naddress = \"{address}\"\n\n");
            }
        }
        let stranger = stranger(family);
        rest += &format!(
            "[[rule]]\nname = \"strangers\"\nmatch = 'ClientIP(\"{stranger}\")'\naction = \"deny\"\n\n"
        );
        for (mode, ..) in MODES {
            rest += &format!(
                "[[rule]]\nname = \"{mode}\"\nmatch = 'Listener(\"tcp-{mode}\") || Listener(\"udp-{mode}\")'\npool = \"{mode}\"\n\n"
            );
        }
        rest += "[default_rule]\npools = [\"snat\"]\n";
        for host in [Host::Client, Host::Backend(1), Host::Backend(2)] {
            // Nobody answers, so nothing moves that the story does not move.
            lab.discard(host, "meta l4proto { tcp, udp }").unwrap();
        }
        let router = Router::start(&lab, &router::configuration(&lab, "", SMALL, &rest));
        let client = Wire::new(&lab, Host::Client, "client");
        let backends = vec![
            Wire::new(&lab, Host::Backend(1), "backends"),
            Wire::new(&lab, Host::Backend(2), "backends"),
        ];
        let modes = Self { router, client, backends, family, lab };
        modes.meet_everybody();
        modes
    }

    /// Until the daemon knows every neighbour's Ethernet address.
    fn meet_everybody(&self) {
        for host in [Host::Client, Host::Backend(1), Host::Backend(2)] {
            let address = self.family.address(host).to_string();
            let mut ping = self.lab.command(Host::Gateway, "ping");
            let output = ping.args(["-c", "1", "-W", "5", &address]).output().unwrap();
            assert!(output.status.success(), "{host} answers: {output:?}");
        }
        self.router.eventually(PATIENCE, "the instances' Ethernet addresses are known", |router| {
            (1..60_000).step_by(997).all(|port| {
                let client = SocketAddr::new(self.family.address(Host::Client), port);
                let vip = SocketAddr::new(self.family.vip(), MODES[0].1);
                let answer = router.ctl(["where", "tcp", &client.to_string(), &vip.to_string()]);
                answer["packets"][0]["fate"]["leaves"]["link_address"].is_string()
            })
        });
    }

    fn contents(&self) -> pinned::Contents {
        pinned::contents(&self.lab.pin_dir()).unwrap()
    }

    fn packets(&self, reason: &str) -> u64 {
        let series = format!("router_packets_total{{reason=\"{reason}\"}} ");
        self.router.metrics().lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or(0)
    }

    /// Asks about a frame; nothing may change.
    fn ask(&self, frame: &[u8], interface: &str) -> Value {
        let before = self.contents();
        let mut answers = self.router.whereabouts(&[frame.to_vec()], interface);
        let changed = pinned::differences(&before, &self.contents());
        assert!(changed.is_empty(), "a question has changed something: {changed:?}");
        answers.remove(0)
    }

    /// Asks about a frame and sends it: it arrives at the named end as was said, and is counted as was said. Returns the answer.
    fn ask_and_send(&self, from: &Wire, frame: &[u8], interface: &str) -> Value {
        let answer = self.ask(frame, interface);
        let reason = answer["fate"]["reason"].as_str().unwrap().to_owned();
        let counted = self.packets(&reason);
        from.socket.send(frame).unwrap();
        if let Some(leaves) = answer["fate"]["leaves"]["frame"].as_str() {
            let expected = BASE64.decode(leaves.as_bytes()).unwrap();
            let instance = answer["fate"]["instance"].as_str().unwrap();
            let to = match interface {
                "backends" => &self.client,
                _ if instance.ends_with('1') => &self.backends[0],
                _ => &self.backends[1],
            };
            to.receives(&expected);
        }
        self.router.eventually(PATIENCE, "the packet is counted as was said", |_| {
            self.packets(&reason) == counted + 1
        });
        answer
    }
}

/// A client that a rule refuses.
fn stranger(family: Family) -> IpAddr {
    match family {
        Family::V4 => [10, 77, 1, 99].into(),
        Family::V6 => "fd77:1::99".parse().unwrap(),
    }
}

fn new_and_known_packets_of_each_mode_go_where_they_were_said_to_go(family: Family) {
    let modes = Modes::new(family);
    let client = SocketAddr::new(family.address(Host::Client), 40_000);
    for (mode, port, instance_port) in MODES {
        let vip = SocketAddr::new(family.vip(), port);
        for (protocol, first, next) in
            [("tcp", Kind::Syn, Kind::Ack(1_001, 7_000)), ("udp", Kind::Datagram, Kind::Datagram)]
        {
            let name = format!("{protocol}-{mode}");
            let frame = modes.client.frame(first, client, vip, b"");
            let answer = modes.ask_and_send(&modes.client, &frame, "client");
            let fate = &answer["fate"];
            assert_eq!(
                (&fate["verdict"], &fate["reason"]),
                (&"forward".into(), &"l4_placed".into()),
                "{answer}"
            );
            assert_eq!(
                (&fate["listener"], &fate["leaves"]["interface"]),
                (&name.into(), &"backends".into()),
                "{answer}"
            );
            let instance = fate["instance"].as_str().unwrap().to_owned();
            assert!(instance.starts_with(mode), "{answer}");
            let leaves = &fate["leaves"];
            let to: IpAddr = leaves["next_hop"].as_str().unwrap().parse().unwrap();
            let destination = match mode {
                "snat" | "transparent" => SocketAddr::new(to, instance_port),
                _ => vip,
            };
            assert_eq!(leaves["packet"]["destination"], destination.ip().to_string(), "{answer}");
            assert_eq!(leaves["packet"]["destination_port"], destination.port(), "{answer}");
            assert_eq!(leaves["packet"]["wrapped"][1].is_string(), mode == "dsr-ipip", "{answer}");

            let frame = modes.client.frame(next, client, vip, b"more");
            let answer = modes.ask_and_send(&modes.client, &frame, "client");
            assert_eq!(answer["fate"]["reason"], "l4_forwarded", "{answer}");
            assert_eq!(answer["fate"]["instance"], instance, "{answer}");
            if !["snat", "transparent"].contains(&mode) {
                continue;
            }
            let leaves = &answer["fate"]["leaves"]["packet"];
            let end = |address: &str, port: &str| {
                let ip: IpAddr = leaves[address].as_str().unwrap().parse().unwrap();
                SocketAddr::new(ip, leaves[port].as_u64().unwrap() as u16)
            };
            let (ours, theirs) = (end("source", "source_port"), end("destination", "destination_port"));
            let kind = if protocol == "tcp" { Kind::Ack(7_000, 1_005) } else { Kind::Datagram };
            let backend = &modes.backends[if instance.ends_with('1') { 0 } else { 1 }];
            let frame = backend.frame(kind, theirs, ours, b"answer");
            let answer = modes.ask_and_send(backend, &frame, "backends");
            let fate = &answer["fate"];
            assert_eq!(
                (&fate["reason"], &fate["instance"]),
                (&"l4_answered".into(), &instance.into()),
                "{answer}"
            );
            assert_eq!(fate["leaves"]["packet"]["source_port"], port, "{answer}");
            assert_eq!(fate["leaves"]["packet"]["destination"], client.ip().to_string(), "{answer}");
        }
    }
}

fn packets_that_go_nowhere_are_said_to(family: Family) {
    let modes = Modes::new(family);
    let own = SocketAddr::new(family.address(Host::Client), 40_000);
    let refused = SocketAddr::new(stranger(family), 40_000);
    let vip = SocketAddr::new(family.vip(), MODES[0].1);
    let nobody = SocketAddr::new(family.vip(), 9);
    for (client, destination, kind, reason) in [
        (own, vip, Kind::Ack(5, 5), "l4_no_flow"),
        (refused, vip, Kind::Syn, "l4_denied"),
        (own, nobody, Kind::Syn, "no_flow"),
    ] {
        let frame = modes.client.frame(kind, client, destination, b"");
        let answer = modes.ask_and_send(&modes.client, &frame, "client");
        let fate = &answer["fate"];
        assert_eq!((&fate["reason"], &fate["verdict"]), (&reason.into(), &"stack".into()), "{answer}");
        assert!(fate["leaves"].is_null(), "{answer}");
    }
}

fn a_handed_off_connection_is_followed_in_both_directions(family: Family) {
    let scene = Scene::over_with(family, 1, SMALL);
    let mut connection = scene.connect(Entry::Handoff);
    connection.get("/files/64k").unwrap();
    let flow = scene.flow_of(&connection);
    let client = connection.local_address();
    let vip = scene.address(Entry::Handoff);
    let [source, instance] =
        ["source", "instance_address"].map(|end| flow[end].as_str().unwrap().parse::<SocketAddr>().unwrap());
    scene.router.eventually(PATIENCE, "nothing is in custody any more", |_| {
        scene.flow_of(&connection)["state"] == "direct"
    });
    let contents = || pinned::contents(&scene.lab.pin_dir()).unwrap();
    let mut before = contents();
    scene.router.eventually(PATIENCE, "the last delayed acknowledgement has passed", |_| {
        thread::sleep(Duration::from_millis(300));
        let earlier = std::mem::replace(&mut before, contents());
        earlier == before
    });
    let ask = |from: SocketAddr, to: SocketAddr| {
        let answer = scene.router.ctl(["where", "tcp", &from.to_string(), &to.to_string()]);
        answer["packets"][0].clone()
    };
    let [there, back] = [ask(client, vip), ask(instance, source)];
    for (answer, from, to, interface) in
        [(&there, source, instance, "backends"), (&back, vip, client, "client")]
    {
        let fate = &answer["fate"];
        assert_eq!((&fate["verdict"], &fate["reason"]), (&"forward".into(), &"forwarded".into()), "{answer}");
        assert_eq!(
            (&fate["instance"], &fate["leaves"]["interface"]),
            (&"nginx1".into(), &interface.into()),
            "{answer}"
        );
        let packet = &fate["leaves"]["packet"];
        let ends =
            [&packet["source"], &packet["source_port"], &packet["destination"], &packet["destination_port"]];
        let expected: [Value; 4] =
            [from.ip().to_string().into(), from.port().into(), to.ip().to_string().into(), to.port().into()];
        assert_eq!(ends, expected.each_ref(), "{answer}");
    }
    let change = |answer: &Value, what: &str| answer["fate"]["leaves"][what].as_u64().unwrap() as u32;
    assert_eq!(
        change(&there, "sequence_change").wrapping_add(change(&back, "acknowledgement_change")),
        0,
        "one side's numbers are taken back for the other: {there} {back}"
    );
    let changed = pinned::differences(&before, &contents());
    assert!(changed.is_empty(), "a question has changed something: {changed:?}");

    // The very packet: the client's end repeats its latest acknowledgement.
    let standing = numbers(connection.stream()).unwrap();
    let wire = Wire::new(&scene.lab, Host::Client, "client");
    let frame = wire.frame(Kind::Ack(standing.next, standing.expected), client, vip, b"");
    let answer = scene.router.whereabouts(std::slice::from_ref(&frame), "client").remove(0);
    let backend = Wire::new(&scene.lab, Host::Backend(1), "backends");
    wire.socket.send(&frame).unwrap();
    backend.receives(&BASE64.decode(answer["fate"]["leaves"]["frame"].as_str().unwrap().as_bytes()).unwrap());
    assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10);
}

fn explain_names_the_rule_of_a_client_and_the_instance_that_its_packets_go_to(family: Family) {
    let modes = Modes::new(family);
    let explain = |listener: &str, client: IpAddr, port: u16| {
        let (client, port) = (client.to_string(), port.to_string());
        let asked = ["explain", "--listener", listener, "--client", &client, "--client-port", &port];
        modes.router.ctl(asked)
    };
    let own = family.address(Host::Client);
    let mut instances = BTreeSet::new();
    for (mode, port, _) in MODES {
        for (source, protocol, kind) in
            (40_000..40_008).flat_map(|source| [(source, "tcp", Kind::Syn), (source, "udp", Kind::Datagram)])
        {
            let explained = explain(&format!("{protocol}-{mode}"), own, source);
            let (outcome, rule) =
                (&explained["outcome"], explained["rules"].as_array().unwrap().last().unwrap());
            assert_eq!(
                (&outcome["kind"], &outcome["rule"]),
                (&"instance".into(), &mode.into()),
                "{explained}"
            );
            assert_eq!((&rule["name"], &rule["result"]), (&mode.into(), &"matched".into()), "{explained}");
            let chosen: Vec<_> = explained["instances"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|one| one["chosen"] == true)
                .collect();
            assert_eq!((chosen.len(), &chosen[0]["name"]), (1, &outcome["instance"]), "{explained}");
            let (client, vip) = (SocketAddr::new(own, source), SocketAddr::new(family.vip(), port));
            let frame = modes.client.frame(kind, client, vip, b"");
            let went = modes.ask_and_send(&modes.client, &frame, "client");
            assert_eq!(went["fate"]["instance"], outcome["instance"], "{explained}");
            instances.insert(outcome["instance"].to_string());
        }
    }
    assert_eq!(instances.len(), 8, "each instance of each mode has been named: {instances:?}");

    let refused = explain("tcp-snat", stranger(family), 5);
    let outcome = &refused["outcome"];
    assert_eq!(
        (&outcome["kind"], &outcome["reason"]),
        (&"not-placed".into(), &"l4_denied".into()),
        "{refused}"
    );
    assert_eq!(outcome["rule"], "strangers", "{refused}");
    let because =
        refused["rules"].as_array().unwrap().last().unwrap()["because"].as_str().unwrap().to_owned();
    assert!(because.contains(&format!("clients of {}", stranger(family))), "{because}");

    for number in [1, 2] {
        modes.router.ctl(["instance", "set", &format!("snat{number}"), "--state", "maintenance"]);
    }
    let mut last = Value::Null;
    modes.router.eventually(PATIENCE, "nobody serves", |_| {
        last = explain("tcp-snat", own, 50_000);
        last["outcome"]["kind"] == "unavailable"
    });
    assert_eq!(
        (&last["outcome"]["action"], &last["outcome"]["rule"]),
        (&"reset".into(), &"snat".into()),
        "{last}"
    );
}
