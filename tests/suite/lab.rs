//! The lab itself: what the other stories stand on.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use support::lab::{Host, Lab, VIP, address};
use support::router::ended_within;
use support::{Curl, Scene, TestLab};

fn ping(lab: &Lab, from: Host, to: &str) {
    let output = lab.command(from, "ping").args(["-c", "1", "-W", "2", to]).output().expect("ping starts");
    assert!(
        output.status.success(),
        "{from} does not reach {to}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
#[ignore = "needs root"]
fn every_host_reaches_the_others_over_ipv4_and_ipv6() {
    let lab = TestLab::with_backends(3);
    let gateway = [VIP.to_string(), "10.77.2.1".to_owned(), "fd77:1::10".to_owned(), "fd77:2::1".to_owned()];
    for target in &gateway {
        ping(&lab, Host::Client, target);
        ping(&lab, Host::Backend(3), target);
    }
    for number in 1..=3 {
        ping(&lab, Host::Client, &lab.backend_address(number).to_string());
        ping(&lab, Host::Client, &format!("fd77:2::{}", 10 + number));
        ping(&lab, Host::Backend(number), &address(Host::Client).to_string());
    }
}

#[test]
#[ignore = "needs root"]
fn a_second_up_keeps_the_lab_and_another_size_replaces_it() {
    let lab = TestLab::with_backends(2);
    // Kept open, so that no other namespace can get its number meanwhile.
    let client = || fs::File::open(format!("/run/netns/{}-client", lab.name())).unwrap();
    let identity = |file: &fs::File| file.metadata().unwrap().ino();
    let first = client();
    Lab::up(lab.name(), 2).expect("a second up succeeds");
    assert_eq!(identity(&client()), identity(&first));
    let larger = Lab::up(lab.name(), 3).expect("a larger lab comes up");
    assert_ne!(identity(&client()), identity(&first));
    assert_eq!(Curl::new(&larger).get("http://10.77.2.13/whoami").text(), "backend3\n");
}

#[test]
#[ignore = "needs root"]
fn the_client_uses_an_instance_by_plain_routing() {
    let lab = TestLab::with_backends(2);
    let reply = Curl::new(&lab).header("X-Forwarded-For: 192.0.2.7").get("http://10.77.2.12/a?b");
    assert_eq!((reply.status, reply.instance()), (200, Some("backend2")));
    assert!(reply.text().contains("request: GET /a?b HTTP/1.1\n"), "{}", reply.text());
    assert!(reply.text().contains("x-forwarded-for: 192.0.2.7\n"), "{}", reply.text());
    assert!(reply.text().contains("peer: 10.77.1.2:"), "{}", reply.text());

    let served = Curl::new(&lab).get("http://10.77.2.11/files/64k").body;
    let original = fs::read(lab.state_dir().join("files/64k")).unwrap();
    assert_eq!(original.len(), 64 << 10);
    assert!(served == original, "the file arrives changed");

    let upload = lab.state_dir().join("files/64k");
    let reply = Curl::new(&lab).arg("--upload-file").arg(&upload).get("http://10.77.2.11/upload/copy");
    assert_eq!(reply.status, 201);
    assert!(fs::read(lab.host_dir(Host::Backend(1)).join("upload/copy")).unwrap() == original);
}

#[test]
#[ignore = "needs root"]
fn loss_on_arrival_slows_a_transfer_and_its_end_restores_it() {
    let lab = TestLab::with_backends(1);
    lab.lose(Host::Client, 1000).unwrap();
    let reply = Curl::new(&lab).within(Duration::from_secs(1)).get("http://10.77.2.11/whoami");
    assert_eq!((reply.status, reply.exit_code), (0, 28));

    for host in [Host::Client, Host::Backend(1)] {
        lab.lose(host, 20).unwrap();
    }
    let served = Curl::new(&lab).get("http://10.77.2.11/files/200m").body;
    assert!(served == fs::read(lab.state_dir().join("files/200m")).unwrap());
    let rules = lab.command(Host::Client, "nft").args(["list", "ruleset"]).output().unwrap();
    let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
    assert!(
        rules.contains("counter packets") && !rules.contains("counter packets 0 "),
        "nothing was lost: {rules}"
    );

    lab.lose(Host::Client, 0).unwrap();
    assert_eq!(lab.command(Host::Client, "nft").args(["list", "ruleset"]).output().unwrap().stdout, b"");
}

/// What a lab could leave behind on the host.
fn traces() -> BTreeSet<String> {
    let lines = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let names = |path: &str| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect::<Vec<_>>()
    };
    let mut found: BTreeSet<String> = lines("/proc/self/mounts").lines().map(str::to_owned).collect();
    found.extend(names("/run/netns"));
    found.extend(names("/run/router-lab"));
    found.extend(names("/sys/fs/bpf"));
    found.extend(names("/sys/class/net"));
    let rules = Command::new("nft").args(["list", "ruleset"]).output().expect("nft starts");
    found.insert(String::from_utf8_lossy(&rules.stdout).into_owned());
    found
}

#[test]
#[ignore = "needs root"]
fn a_lab_that_was_killed_half_way_is_removed_without_a_trace() {
    let lab = TestLab::with_backends(2);
    Lab::down(lab.name()).unwrap();
    let before = traces();

    Lab::up(lab.name(), 2).unwrap();
    let server = lab.command(Host::Gateway, "sleep").arg("1000").spawn().unwrap();
    let stubborn = lab.command(Host::Client, "sh").args(["-c", "trap '' TERM; sleep 1000"]).spawn().unwrap();
    let nginx = fs::read_to_string(lab.host_dir(Host::Backend(1)).join("nginx.pid")).unwrap();
    let nginx_runs = || {
        let words = fs::read_to_string(format!("/proc/{}/cmdline", nginx.trim())).unwrap_or_default();
        words.contains(lab.name())
    };
    assert!(nginx_runs());
    let gone =
        Command::new("ip").args(["netns", "delete", &format!("{}-backend1", lab.name())]).status().unwrap();
    assert!(gone.success());
    fs::create_dir(lab.pin_dir()).unwrap();

    Lab::down(lab.name()).unwrap();
    for mut child in [server, stubborn] {
        let ended = ended_within(&mut child, Duration::from_secs(10));
        assert!(ended.is_some_and(|status| !status.success()), "a process of the lab was not ended");
    }
    assert!(!nginx_runs(), "nginx outlives the namespace that was removed by hand");
    assert_eq!(traces().difference(&before).collect::<Vec<_>>(), Vec::<&String>::new());
    Lab::down(lab.name()).expect("down without a lab is fine");
}

/// The story of this name, in a process of its own: where it waits, there it hangs.
const HANGS: &str = "a_story_that_hangs_is_ended_and_says_where_it_waits";

#[test]
#[ignore = "needs root"]
fn a_story_that_hangs_is_ended_and_says_where_it_waits() {
    const LIMIT: &str = "ROUTER_STORY_LIMIT";
    if std::env::var_os(LIMIT).is_some() {
        let _scene = Scene::with_backends(1);
        loop {
            std::thread::park();
        }
    }
    let output = Command::new("timeout")
        .arg("60")
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", HANGS])
        .env(LIMIT, "2")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(101), "{said}");
    for part in
        [&format!("{HANGS} hangs: it has not ended after 2s"), "futex_wait", "control: S", "listening"]
    {
        assert!(said.contains(part), "{part} is missing from\n{said}");
    }
    let lab = TestLab::with_backends(1);
    assert!(lab.processes(Host::Gateway).is_empty(), "the daemon of the story was ended");
}
