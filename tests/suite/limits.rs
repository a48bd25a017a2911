//! Where something runs out or is missing: whatever can go on goes on, it is counted, and one sentence says what to do.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use support::lab::{Family, Host, Lab};
use support::router::{binary, configuration, ended_within};
use support::{Connection, Router, TestLab, router};

const VIP: &str = "10.77.1.10:8080";

/// One listener that hands off, one pool of two instances.
fn service(lab: &Lab, datapath: &str) -> String {
    let rest = format!(
        r#"[[listener]]
name = "web"
address = "{VIP}"
offload = "handoff"

[[pool]]
name = "web"

{instances}
[default_rule]
pools = ["web"]
"#,
        instances = router::instances(Family::V4, "web", 2)
    );
    configuration(lab, "", datapath, &rest)
}

fn connect(lab: &Lab) -> Connection {
    Connection::open(lab, Host::Client, VIP).expect("the router accepts")
}

fn status(router: &Router) -> Value {
    router.ctl(["status"])
}

/// The router serves by relaying, says in one sentence why, and counts.
fn assert_relays(lab: &Lab, router: &Router, why: &[&str]) {
    let datapath = status(router)["datapath"].clone();
    let detail = datapath["detail"].as_str().unwrap();
    assert_eq!(datapath["loaded"], false, "{detail}");
    assert!(why.iter().all(|part| detail.contains(part)), "{detail}");
    assert!(!detail.contains('\n'), "{detail}");
    let log = router.log();
    assert!(log.contains(detail.trim_start_matches("not loaded: ")), "the log says nothing of it: {log}");
    let mut connection = connect(lab);
    for _ in 0..2 {
        assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10);
    }
    drop(connection);
    router.eventually(Duration::from_secs(5), "it is counted", |router| {
        status(router)["relayed"]["no_datapath"] == 1
    });
}

#[test]
#[ignore = "needs root"]
fn connections_beyond_the_flow_table_are_relayed_and_handed_off_again_when_there_is_room() {
    let lab = TestLab::with_backends(2);
    let router = Router::start(&lab, &service(&lab, "max_flows = 5"));
    let mut held: Vec<Connection> = (0..8).map(|_| connect(&lab)).collect();
    for connection in &mut held {
        assert_eq!(connection.get("/whoami").unwrap().status, 200);
    }
    router.eventually(Duration::from_secs(5), "five are handed off and three are not", |router| {
        let connections = status(router)["connections"].clone();
        connections["handed_off"] == 5 && connections["open"] == 3
    });
    assert_eq!(status(&router)["datapath"]["flows"], 5);
    // The relayed ones work as well, and go on when they end.
    for connection in &mut held {
        assert_eq!(connection.get("/files/64k").unwrap().body.len(), 64 << 10);
    }
    drop(held);
    router.eventually(Duration::from_secs(10), "all ends, and the reason was counted", |router| {
        let status = status(router);
        status["datapath"]["flows"] == 0 && status["relayed"]["table_full"] == 3
    });
    // A slot rests for some milliseconds before it serves again, and a table of five has no other: who comes until then is relayed
    // for the same reason as before, and nobody for any other.
    let mut later = 0;
    let handed_off = |router: &Router| status(router)["connections"]["handed_off"].as_u64().unwrap();
    router.eventually(Duration::from_secs(5), "a later one is handed off", |router| {
        later += 1;
        assert_eq!(connect(&lab).get("/whoami").unwrap().status, 200);
        handed_off(router) > 5
    });
    router.eventually(Duration::from_secs(5), "each has a flow, or the reason why not", |router| {
        let relayed = &status(router)["relayed"];
        let full = relayed["table_full"].as_u64().unwrap();
        relayed.as_object().unwrap().len() == 1 && handed_off(router) + full == 8 + later
    });
}

#[test]
#[ignore = "needs root"]
fn connections_without_a_port_of_the_router_s_own_are_relayed_and_nobody_is_blamed() {
    let lab = TestLab::with_backends(2);
    let router = Router::start(&lab, &service(&lab, "source_ports = \"20000-20002\""));
    let mut held: Vec<Connection> = (0..6).map(|_| connect(&lab)).collect();
    for connection in &mut held {
        assert_eq!(connection.get("/whoami").unwrap().status, 200);
    }
    let mut relayed = connect(&lab);
    for _ in 0..2 {
        assert_eq!(relayed.get("/files/64k").unwrap().body.len(), 64 << 10);
    }
    router.eventually(Duration::from_secs(5), "six are handed off", |router| {
        status(router)["connections"]["handed_off"] == 6
    });
    let seen = status(&router);
    assert_eq!(seen["pools"][0]["serving"], 2);
    assert_eq!((&seen["refused"], &seen["relayed"]["no_source_port"]), (&json!({}), &1.into()));

    held.clear();
    router.eventually(Duration::from_secs(10), "the port of an ended flow serves again", |router| {
        assert_eq!(connect(&lab).get("/whoami").unwrap().status, 200);
        status(router)["connections"]["handed_off"] == 7
    });
}

#[test]
#[ignore = "needs root"]
fn out_of_file_descriptors_clients_wait_and_are_served_when_others_leave() {
    let lab = TestLab::with_backends(2);
    // Without this capability the limit cannot be raised again.
    let wrapper = ["prlimit", "--nofile=150:150", "setpriv", "--bounding-set=-sys_resource"];
    let router = Router::start_by(&lab, &wrapper, &service(&lab, ""), &[]);
    let idle: Vec<Connection> = (0..200).map(|_| connect(&lab)).collect();
    router.eventually(Duration::from_secs(10), "it runs out", |router| {
        router.log().contains("accepting pauses: raise the limit of open files")
    });
    let mut waiting = connect(&lab);
    waiting.send("GET /whoami HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
    drop(idle);
    assert_eq!(waiting.reply().unwrap().status, 200, "it was not refused");
    assert!(status(&router)["refused"]["out_of_resources"].as_u64().unwrap() > 0);
}

#[test]
#[ignore = "needs root"]
fn without_permission_for_bpf_everything_is_relayed() {
    let lab = TestLab::with_backends(2);
    let wrapper = ["setpriv", "--bounding-set=-sys_admin,-bpf"];
    let router = Router::start_by(&lab, &wrapper, &service(&lab, ""), &[]);
    assert_relays(&lab, &router, &["needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"]);
}

#[test]
#[ignore = "needs root"]
fn an_ordinary_user_s_router_relays_on_high_ports_and_is_told_about_low_ones() {
    let lab = TestLab::with_backends(2);
    const NOBODY: u32 = 65_534;
    let directory = lab.host_dir(Host::Gateway);
    fs::create_dir_all(&directory).unwrap();
    chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
    // The workspace may lie where only its owner may look.
    let routerd = lab.state_dir().join("routerd");
    fs::copy(binary("routerd"), &routerd).unwrap();
    fs::set_permissions(&routerd, fs::Permissions::from_mode(0o755)).unwrap();
    let text = service(&lab, "");
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let wrapper: Vec<&str> = as_nobody.into_iter().chain([routerd.to_str().unwrap()]).collect();

    // The wrapper's last word takes the place of the binary, which becomes an argument that is not understood: so start it directly.
    let start = |text: &str| -> std::process::Child {
        fs::write(directory.join("router.toml"), text).unwrap();
        let mut command = lab.command(Host::Gateway, wrapper[0]);
        command.args(&wrapper[1..]).arg("--config").arg(directory.join("router.toml"));
        command.stdout(fs::File::create(directory.join("output")).unwrap());
        command.stderr(fs::File::options().append(true).open(directory.join("output")).unwrap());
        command.spawn().unwrap()
    };
    let output = || fs::read_to_string(directory.join("output")).unwrap();
    let mut low = start(&text.replace(VIP, "10.77.1.10:80"));
    let ended = ended_within(&mut low, Duration::from_secs(20));
    assert_eq!(ended.and_then(|status| status.code()), Some(1), "{}", output());
    let wanted = "may not use 10.77.1.10:80: ports below 1024 need root or CAP_NET_BIND_SERVICE";
    assert!(output().contains(wanted), "{}", output());

    let mut high = start(&text);
    let served = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        Connection::open(&lab, Host::Client, VIP)
            .and_then(|mut connection| connection.get("/whoami"))
            .is_ok_and(|reply| reply.status == 200)
    });
    assert!(served, "{}", output());
    assert!(output().contains("every connection is relayed in user space: "), "{}", output());
    assert!(output().contains("needs root, or CAP_BPF"), "{}", output());
    high.kill().unwrap();
    high.wait().unwrap();
}

#[test]
#[ignore = "needs root"]
fn an_interface_that_is_missing_is_named_and_everything_is_relayed() {
    let lab = TestLab::with_backends(2);
    let text = service(&lab, "").replace("[\"client\", \"backends\"]", "[\"client\", \"eth9\"]");
    let router = Router::start(&lab, &text);
    assert_relays(&lab, &router, &["interface eth9 does not exist", "datapath.interfaces"]);
}

#[test]
#[ignore = "needs root"]
fn a_pin_dir_that_is_on_no_bpf_file_system_is_named_and_nothing_is_left_there() {
    let lab = TestLab::with_backends(2);
    let elsewhere = lab.state_dir().join("pins");
    let pins = format!("\"{}\"", lab.pin_dir().display());
    let text = service(&lab, "").replace(&pins, &format!("\"{}\"", elsewhere.display()));
    let router = Router::start(&lab, &text);
    let path = elsewhere.to_str().unwrap();
    assert_relays(&lab, &router, &[path, "is not on a BPF file system", "datapath.pin_dir"]);
    assert!(!elsewhere.exists());
}

/// Runs routerd, which is to end by itself.
fn run(lab: &Lab, text: &str) -> Output {
    let directory = lab.host_dir(Host::Gateway);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("router.toml"), text).unwrap();
    let mut command: Command = lab.command(Host::Gateway, "timeout");
    command.arg("20").arg(binary("routerd")).arg("--config").arg(directory.join("router.toml"));
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.clone(), output.stderr.clone()].concat()).into_owned()
}

#[test]
#[ignore = "needs root"]
fn a_port_in_use_ends_the_daemon_before_it_touches_the_kernel() {
    let lab = TestLab::with_backends(2);
    let _taken = lab.inside(Host::Gateway, || TcpListener::bind(VIP).unwrap()).unwrap();
    let output = run(&lab, &service(&lab, ""));
    let wanted =
        format!("listener \"web\" cannot use {VIP}: another process listens there; find it with `ss -ltnp`");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains(&wanted), "{}", said(&output));
    assert!(!Path::new(&lab.pin_dir()).exists(), "something was pinned");
}

#[test]
#[ignore = "needs root"]
fn a_bad_configuration_is_shown_whole_and_touches_nothing() {
    let lab = TestLab::with_backends(2);
    let text = service(&lab, "").replace("offload = \"handoff\"", "offload = \"hand-off\"");
    let text = text.replace("pools = [\"web\"]", "pools = [\"wbe\"]");
    let output = run(&lab, &text);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("router.toml:") && said.contains("hand-off") && said.contains("wbe"), "{said}");
    assert!(!Path::new(&lab.pin_dir()).exists(), "something was pinned");
}
