//! Echo requests (ping) to the VIPs of Layer-4 listeners.

use std::time::Duration;

use support::TestLab;
use support::balanced::Balanced;
use support::lab::{Family, Host, peers};
use support::pinger::Pinger;
use support::xdp;

support::over_both_families! {
    a_vip_answers_while_one_of_its_listeners_has_an_instance
    where_listeners_say_so_the_stack_answers
    a_vip_answers_at_interfaces_with_xdp_too
}

/// For a TCP listener; behind the UDP listener nobody answers such checks.
const CHECK: &str =
    "check = { type = \"tcp\", interval = \"200ms\", timeout = \"200ms\", fall = 2, rise = 2 }";
/// Nothing comes back that takes longer.
const SILENCE: Duration = Duration::from_millis(300);

fn pinger(scene: &Balanced) -> Pinger {
    Pinger::new(&scene.lab, Host::Client, scene.family.vip())
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|place| (place * 13) as u8).collect()
}

fn a_vip_answers_while_one_of_its_listeners_has_an_instance(family: Family) {
    let scene = Balanced::with(family, 1, "", "", CHECK);
    let pinger = pinger(&scene);
    for (number, len) in [(1, 0), (2, 1), (3, 56), (4, 1_452)] {
        assert_eq!(pinger.ask(number, &payload(len)).unwrap(), payload(len), "{len} bytes");
    }
    assert_eq!(scene.packets("l4_echo_answered"), 4, "{:?}", scene.router.ctl(["reasons"]));

    // The stack puts fragments together, and the VIP is an address of this host.
    assert_eq!(pinger.ask(5, &payload(3_000)).unwrap(), payload(3_000));
    assert_eq!(scene.packets("l4_echo_too_long"), 3);
    if family == Family::V4 {
        pinger.send_broken(6, &payload(56)).unwrap();
        assert!(pinger.reply(6, SILENCE).is_err());
        assert_eq!(scene.packets("l4_echo_malformed"), 1);
    }

    peers::stop_one(&scene.lab, 1).unwrap();
    let mut number = 100;
    scene.router.eventually(Duration::from_secs(20), "no instance is left, and the VIP falls silent", |_| {
        number += 1;
        pinger.send(number, &payload(56)).unwrap();
        pinger.reply(number, SILENCE).is_err()
    });
    let silent = scene.packets("l4_echo_unavailable");
    assert!(silent >= 1, "{:?}", scene.router.ctl(["reasons"]));
    pinger.send(number + 1, &payload(3_000)).unwrap();
    assert!(pinger.reply(number + 1, SILENCE).is_err());
    assert_eq!(scene.packets("l4_echo_unavailable"), silent + 3, "nor does the stack answer fragments");

    peers::start_one(&scene.lab, 1).unwrap();
    scene.router.eventually(Duration::from_secs(20), "the instance is back, and the VIP answers", |_| {
        number += 2;
        pinger.send(number, &payload(56)).unwrap();
        pinger.reply(number, SILENCE).is_ok()
    });
}

fn where_listeners_say_so_the_stack_answers(family: Family) {
    let scene = Balanced::with(family, 1, "", "echo = false", CHECK);
    let pinger = pinger(&scene);
    peers::stop_one(&scene.lab, 1).unwrap();
    assert_eq!(pinger.ask(1, &payload(56)).unwrap(), payload(56));
    for reason in ["l4_echo_answered", "l4_echo_unavailable"] {
        assert_eq!(scene.packets(reason), 0, "{reason}");
    }
}

fn a_vip_answers_at_interfaces_with_xdp_too(family: Family) {
    let lab = TestLab::with_backends(1);
    xdp::open(&lab);
    let scene = Balanced::in_lab_with(lab, family, 1, "attach = \"xdp\"", "");
    let pinger = pinger(&scene);
    for number in 1..=10 {
        assert_eq!(pinger.ask(number, &payload(1_000)).unwrap(), payload(1_000));
    }
    assert_eq!(scene.packets("l4_echo_answered"), 10, "{:?}", scene.router.ctl(["reasons"]));
}
