//! Transfers over Layer-4 listeners, on networks that lose, repeat and delay packets.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

use support::balanced::Balanced;
use support::behind::run;
use support::counters::checksum_errors;
use support::lab::{Family, Host};
use support::scene::is_prefix;
use support::{Curl, UnrulyCable};

support::over_both_families! {
    files_arrive_whole_though_one_packet_in_fifty_is_lost_at_both_ends
    files_arrive_whole_though_packets_come_twice_or_late
}

const MODES: [&str; 3] = ["snat", "transparent", "dsr-l2"];
const LENGTH: u64 = 20 << 20;

/// One instance, where it answers through the router; two otherwise.
fn scene(family: Family, mode: &str) -> Balanced {
    match mode {
        "dsr-l2" => Balanced::direct(family, mode),
        _ => Balanced::with(family, 1, "", &format!("source = \"{mode}\""), ""),
    }
}

/// Sends a file down and up, and compares both byte by byte.
fn transfers(scene: &Balanced, mode: &str) {
    let directory = scene.lab.state_dir();
    let original = directory.join("files/200m");
    let (received, sent) = (directory.join("received"), directory.join("sent"));
    io::copy(&mut File::open(&original).unwrap().take(LENGTH), &mut File::create(&sent).unwrap()).unwrap();
    let range = format!("0-{}", LENGTH - 1);
    let down = Curl::for_files(&scene.lab).arg("--range").arg(range);
    assert_eq!(down.download(scene.url("/files/200m"), &received), Ok(206), "{mode}");
    assert!(is_prefix(&received, LENGTH, &original).unwrap(), "{mode}: the file arrives changed");
    let up = Curl::for_files(&scene.lab).upload(&sent, scene.url("/upload/copy"));
    assert!(matches!(up, Ok(201 | 204)), "{mode}: {up:?}");
    let stored = stored(scene).expect("an instance has stored the upload");
    assert!(is_prefix(&stored, LENGTH, &original).unwrap(), "{mode}: the upload arrives changed");
    fs::remove_file(stored).unwrap();
    assert_eq!(scene.packets("l4_no_flow"), 0, "{mode}");
}

/// Where one of the instances has put what was sent up.
fn stored(scene: &Balanced) -> Option<PathBuf> {
    let of = |number| scene.lab.host_dir(Host::Backend(number)).join("upload/copy");
    (1..=scene.lab.backends()).map(of).find(|file| file.exists())
}

fn assert_no_checksum_was_wrong(scene: &Balanced) {
    for host in scene.lab.hosts().into_iter().filter(|host| *host != Host::Switch) {
        assert_eq!(checksum_errors(&scene.lab, host), 0, "on {host}");
    }
}

fn files_arrive_whole_though_one_packet_in_fifty_is_lost_at_both_ends(family: Family) {
    for mode in MODES {
        let scene = scene(family, mode);
        let ends: Vec<Host> = (1..=scene.lab.backends()).map(Host::Backend).chain([Host::Client]).collect();
        for host in &ends {
            // Packets are lost one by one, not by 64 kB.
            let features = ["tso", "off", "gso", "off", "gro", "off"];
            run(scene.lab.command(*host, "ethtool").args(["-K", "eth0"]).args(features));
            scene.lab.lose(*host, 20).expect("nft drops packets");
        }
        transfers(&scene, mode);
        let lost: u64 = ends.iter().map(|host| scene.lab.discarded(*host)).sum();
        println!("{mode}: {lost} packets were lost");
        assert!(lost > 200, "{mode}: {lost} packets were lost");
        assert_no_checksum_was_wrong(&scene);
    }
}

fn files_arrive_whole_though_packets_come_twice_or_late(family: Family) {
    // The cable leads to the first backend alone.
    for mode in ["snat", "transparent"] {
        let scene = scene(family, mode);
        let cable = UnrulyCable::lay(&scene.lab, 10);
        transfers(&scene, mode);
        let (twice, late) = cable.misdeeds();
        println!("{mode}: {twice} packets came twice, {late} late");
        assert!(twice > 20 && late > 20, "{mode}: {twice} packets came twice, {late} late");
        assert_no_checksum_was_wrong(&scene);
    }
}
