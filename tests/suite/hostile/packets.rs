//! Frames that no sound sender sends, in the name of a live flow: each is counted under its name, and the flow does not notice.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use etherparse::PacketBuilder;
use support::lab::{Family, Host};
use support::link::{self, Link};
use support::{Connection, Entry, Scene, TestLab, xdp};

support::over_both_families! {
    odd_frames_in_a_flows_name_are_counted_and_the_flow_goes_on
    with_xdp_they_are_counted_just_the_same
}

/// Where the IP header lies in a frame.
const IP: usize = 14;
/// Where TCP lies behind IPv4 and behind IPv6.
const TCP: [usize; 2] = [34, 54];

/// What is odd, the reason under which it is counted, and the frames.
type Odd = (&'static str, &'static str, Vec<Vec<u8>>);

struct Forge {
    family: Family,
    near: [u8; 6],
    far: [u8; 6],
    client: SocketAddr,
    vip: SocketAddr,
}

impl Forge {
    /// An acknowledgement of nothing, far outside every window: harmless even where it is believed to be sound.
    fn frame(&self, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2(self.near, self.far);
        let ip = match (self.client.ip(), self.vip.ip()) {
            (IpAddr::V4(client), IpAddr::V4(vip)) => ethernet.ipv4(client.octets(), vip.octets(), 64),
            (IpAddr::V6(client), IpAddr::V6(vip)) => ethernet.ipv6(client.octets(), vip.octets(), 64),
            _ => panic!("a connection has one family"),
        };
        let builder = ip
            .tcp(self.client.port(), self.vip.port(), 1 << 29, 500)
            .ack(1 << 29)
            .options_raw(options)
            .expect("they are whole words");
        let mut frame = Vec::new();
        builder.write(&mut frame, payload).expect("memory takes it");
        frame
    }

    /// The same, with one thing changed.
    fn with(&self, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut frame = self.frame(&[], b"data");
        change(&mut frame);
        set_ip_checksum(&mut frame);
        frame
    }

    fn odd(&self) -> Vec<Odd> {
        let whole = self.frame(&[8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1], b"data");
        let tcp = TCP[self.family as usize];
        let tag = |tags: &[u8]| self.with(|frame| drop(frame.splice(12..12, tags.iter().copied())));
        let mut odd = match self.family {
            Family::V4 => self.odd_ipv4(),
            Family::V6 => self.odd_ipv6(),
        };
        odd.extend([
            (
                "cut after any byte",
                "truncated",
                (IP + 1..whole.len()).map(|len| whole[..len].to_vec()).collect(),
            ),
            (
                "TCP options of impossible lengths",
                "bad_tcp_options",
                [[8, 0, 1, 1], [8, 1, 1, 1], [1, 1, 1, 8], [8, 40, 1, 1], [5, 40, 1, 1], [254, 0, 0, 0]]
                    .map(|options| self.frame(&options, b"data"))
                    .to_vec(),
            ),
            (
                "a TCP header shorter than any",
                "bad_tcp_options",
                vec![self.with(|frame| frame[tcp + 12] = 0x40)],
            ),
            ("a VLAN", "vlan_tagged", vec![tag(&[0x81, 0, 0, 7])]),
            ("a VLAN in a VLAN", "vlan_tagged", vec![tag(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8])]),
            (
                "another host's frame",
                "other_host",
                vec![self.with(|frame| frame[..6].copy_from_slice(&[2, 7, 7, 7, 7, 7]))],
            ),
        ]);
        odd
    }

    fn odd_ipv4(&self) -> Vec<Odd> {
        let fragment =
            |bits: u16| self.with(|frame| frame[IP + 6..IP + 8].copy_from_slice(&bits.to_be_bytes()));
        vec![
            (
                "IP options",
                "ip_options",
                vec![
                    self.with(|frame| {
                        frame.splice(TCP[0]..TCP[0], [1, 1, 1, 0]);
                        frame[IP] = 0x46;
                        frame[IP + 3] += 4;
                    }),
                    self.with(|frame| frame[IP] = 0x44),
                ],
            ),
            (
                "fragments of a datagram whose first has not come, on top of one another",
                "fragment",
                [0x0001, 0x2001, 0x0002, 0x0001].map(fragment).to_vec(),
            ),
        ]
    }

    fn odd_ipv6(&self) -> Vec<Odd> {
        // Eight bytes that say themselves that TCP follows.
        let before_tcp = |kind: u8, header: [u8; 8]| {
            self.with(|frame| {
                frame[IP + 6] = kind;
                frame[IP + 5] += 8;
                frame.splice(TCP[1]..TCP[1], header);
            })
        };
        let padding = [6, 0, 1, 4, 0, 0, 0, 0];
        let fragment = |field: u16| {
            let [high, low] = field.to_be_bytes();
            before_tcp(44, [6, 0, high, low, 1, 2, 3, 4])
        };
        vec![
            (
                "extension headers",
                "extension_header",
                vec![
                    before_tcp(0, padding),
                    before_tcp(60, padding),
                    before_tcp(43, [6, 0, 4, 0, 0, 0, 0, 0]),
                ],
            ),
            ("another version of IP", "not_ip", vec![self.with(|frame| frame[IP] = 0x40)]),
            (
                "fragments of a datagram whose first has not come, on top of one another",
                "fragment",
                [0x0008, 0x0009, 0x0010, 0x0008].map(fragment).to_vec(),
            ),
        ]
    }
}

fn set_ip_checksum(frame: &mut [u8]) {
    if frame[12..14] == [8, 0] {
        frame[IP + 10..IP + 12].fill(0);
        let words = frame[IP..TCP[0]].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        frame[IP + 10..IP + 12].copy_from_slice(&(!folded as u16).to_be_bytes());
    }
}

/// `routerctl where` names the same reason, as far as it can be asked: the kernel asks for a whole IP header, and takes VLAN tags off only where
/// frames really arrive.
fn assert_said(scene: &Scene, name: &str, reason: &str, frames: &[Vec<u8>]) {
    if reason == "vlan_tagged" {
        return;
    }
    let shortest = TCP[scene.family as usize];
    for (frame, answer) in frames.iter().zip(scene.router.whereabouts(frames, "client")) {
        let said = &answer["fate"]["reason"];
        assert!(said == reason || frame.len() < shortest && answer["error"].is_string(), "{name}: {answer}");
    }
}

fn assert_goes_on(scene: &Scene, connection: &mut Connection, after: &str) {
    let reply = connection.get("/files/64k").unwrap_or_else(|error| panic!("{after}: {error}"));
    assert_eq!(reply.body.len(), 64 << 10, "{after}");
    assert_eq!((scene.flows(None).len(), scene.sessions()), (1, 1), "{after}");
}

fn odd_frames_in_a_flows_name_are_counted_and_the_flow_goes_on(family: Family) {
    meets_odd_frames(&Scene::over(family));
}

fn with_xdp_they_are_counted_just_the_same(family: Family) {
    let lab = TestLab::with_backends(1);
    xdp::open(&lab);
    let scene = Scene::over_in(family, lab, "attach = \"xdp\"");
    meets_odd_frames(&scene);
    assert!(scene.xdp_frames("carried") > 0 && scene.xdp_frames("not_carried") > 0);
}

fn meets_odd_frames(scene: &Scene) {
    let family = scene.family;
    let mut connection = scene.connect(Entry::Handoff);
    connection.get("/files/64k").unwrap();
    scene.flow_of(&connection);

    let inside =
        |host, interface: &'static str| scene.lab.inside(host, || Link::address(interface)).unwrap().unwrap();
    let forge = Forge {
        family,
        near: inside(Host::Client, "eth0"),
        far: inside(Host::Gateway, "client"),
        client: connection.local_address(),
        vip: scene.address(Entry::Handoff),
    };
    let wire = scene.lab.inside(Host::Client, || link::PacketSocket::on("eth0")).unwrap().unwrap();
    for (name, reason, frames) in forge.odd() {
        assert_said(scene, name, reason, &frames);
        let before = scene.packets(reason);
        for frame in &frames {
            wire.send(frame).unwrap();
        }
        let expected = before + frames.len() as u64;
        scene.router.eventually(Duration::from_secs(10), name, |_| scene.packets(reason) >= expected);
        assert_goes_on(scene, &mut connection, name);
        assert_eq!(scene.packets(reason), expected, "{name}: counted once each");
    }
    drop(connection);
    scene.comes_to_rest();
    scene.assert_no_segment_was_spoiled();
}
