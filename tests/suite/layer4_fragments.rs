//! Datagrams that are longer than a packet, through Layer-4 listeners: their fragments stay together.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use support::balanced::{Balanced, ask};
use support::behind::ip;
use support::lab::{Family, Host};
use support::unwrapper::Unwrapper;

/// Six fragments over Ethernet.
const LONG: usize = 8_000;

support::over_both_families! {
    long_questions_and_answers_arrive_whole_in_every_mode
}

fn long_questions_and_answers_arrive_whole_in_every_mode(family: Family) {
    for source in ["snat", "transparent", "dsr-l2", "dsr-ipip"] {
        let scene = match source {
            "snat" | "transparent" => Balanced::with(family, 2, "", &format!("source = \"{source}\""), ""),
            _ => Balanced::direct(family, source),
        };
        let _unwrapping: Vec<_> = (1..=2)
            .filter(|_| source == "dsr-ipip")
            .map(|number| Unwrapper::start(&scene.lab, number, family))
            .collect();
        if source == "dsr-ipip" {
            // Fragments that fill their link do not fit into a tunnel.
            let vip = scene.family.vip();
            let bits = if vip.is_ipv4() { 32 } else { 128 };
            ip(&scene.lab, Host::Client, &format!("route add {vip}/{bits} dev eth0 mtu lock 1400"));
        }
        let seen = match source {
            "snat" => family.source(),
            _ => family.address(Host::Client),
        };
        let askers: Vec<_> = (0..20).map(|_| scene.asker()).collect();
        for (number, asker) in askers.iter().enumerate() {
            // The first datagram of a flow, and a later one.
            for round in 0..2 {
                let question = format!("{number} {round} ").repeat(LONG / 5);
                assert_answers(asker, &question, seen, &format!("{source}, {family:?}"));
            }
        }
        let placed = scene.packets("l4_placed");
        assert_eq!(placed, 20, "{source}: {:?}", scene.router.ctl(["reasons"]));
        assert_eq!(scene.packets("l4_fragment_unknown"), 0, "{source}");
    }
}

fn assert_answers(asker: &UdpSocket, question: &str, seen: IpAddr, what: &str) {
    let answer = ask(asker, question).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (_, rest) = answer.split_once(' ').unwrap();
    assert!(rest == format!("{seen} {question}"), "{what}: the answer is another one");
}

#[test]
#[ignore = "needs root"]
fn a_later_fragment_that_comes_first_is_dropped_and_counted() {
    let scene = Balanced::new(Family::V4, 1);
    let asker = scene.asker();
    assert!(ask(&asker, "short").unwrap().ends_with(" short"));
    let port = asker.local_addr().unwrap().port();
    let sender = support::fragments::Sender::new(&scene.lab, Host::Client, scene.family.vip()).unwrap();
    let datagram = support::fragments::udp(port, 53, &[b'x'; 2_500]);
    let [first, rest] = [&datagram[..1_480], &datagram[1_480..]];
    sender.send(7, 1_480, rest, false).unwrap();
    sender.send(7, 0, first, true).unwrap();
    assert_eq!(scene.packets("l4_fragment_unknown"), 1);
    asker.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(asker.recv(&mut [0; 16]).is_err(), "nobody can have put it together");
    // In their order they arrive.
    sender.send(8, 0, first, true).unwrap();
    sender.send(8, 1_480, rest, false).unwrap();
    asker.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut answer = vec![0; 65_536];
    let length = asker.recv(&mut answer).unwrap();
    assert!(length > 2_500, "{length}");
    assert_eq!(scene.packets("l4_fragment_unknown"), 1);
}
