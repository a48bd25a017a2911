//! A DNS server and its client, neither of which knows of the router: answers of one packet, of several fragments, and over TCP where UDP was too short.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::balanced::answer_from_the_vip;
use support::counters::counter;
use support::lab::{Family, Host, Lab};
use support::{Router, TestLab, router};

support::over_both_families! {
    a_name_server_behind_the_router_answers_short_and_long_and_over_tcp
}

const BACKENDS: u8 = 2;
const PORT: u16 = 53;
/// Strings of the long answer, of 100 bytes each: too many for one packet, few enough for `EDNS`.
const STRINGS: usize = 30;

/// An authoritative name server (NSD) on a backend; ends with this.
struct NameServer(Child);

impl NameServer {
    fn start(lab: &Lab, number: u8, address: IpAddr) -> Self {
        let host = Host::Backend(number);
        let directory = lab.host_dir(host).join("nsd");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("zone"), zone(number)).unwrap();
        let configuration = directory.join("nsd.conf");
        let at = |file: &str| directory.join(file).display().to_string();
        let text = format!(
            "server:\n ip-address: {address}@{PORT}\n server-count: 1\n username: \"\"\n chroot: \"\"\n zonesdir: \"{}\"\n pidfile: \"{}\"\n \
             zonelistfile: \"{}\"\n xfrdfile: \"{}\"\n xfrdir: \"{}\"\n cookie-secret-file: \"{}\"\n ipv4-edns-size: 4096\n ipv6-edns-size: 4096\n \
             minimal-responses: yes\nremote-control:\n control-enable: no\nzone:\n name: lab\n zonefile: zone\n",
            directory.display(),
            at("nsd.pid"),
            at("zone.list"),
            at("xfrd.state"),
            directory.display(),
            at("cookies"),
        );
        fs::write(&configuration, text).unwrap();
        let log = fs::File::create(directory.join("log")).unwrap();
        let mut command = lab.command(host, "nsd");
        command.arg("-d").arg("-c").arg(&configuration).stdin(Stdio::null());
        let server = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().expect("nsd starts");
        let server = Self(server);
        let began = Instant::now();
        while !ask_from(lab, host, address, &["+timeout=1", "+retry=0", "+short", "short.lab", "TXT"])
            .contains("short")
        {
            let log = || fs::read_to_string(directory.join("log")).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(20), "nsd does not answer:\n{}", log());
            sleep(Duration::from_millis(50));
        }
        server
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        router::send(&self.0, libc::SIGTERM);
        let _ = router::ended_within(&mut self.0, Duration::from_secs(5));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn string(number: usize) -> String {
    format!("{number:0>100}")
}

fn zone(number: u8) -> String {
    let strings: Vec<String> = (0..STRINGS).map(|number| format!("\"{}\"", string(number))).collect();
    format!(
        "$ORIGIN lab.\n$TTL 60\n@ SOA ns root 1 60 60 60 60\n@ NS ns\nns A 10.77.1.10\nshort TXT \"short\"\n\
         who TXT \"backend{number}\"\nlong TXT {}\n",
        strings.join(" ")
    )
}

/// What kdig prints.
fn ask_from(lab: &Lab, host: Host, server: IpAddr, question: &[&str]) -> String {
    let mut command: Command = lab.command(host, "kdig");
    command
        .arg(format!("@{server}"))
        .args(["-p", &PORT.to_string(), "+timeout=5", "+retry=2"])
        .args(question);
    let output = command.stdin(Stdio::null()).output().expect("kdig starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn configuration(lab: &Lab, family: Family, source: &str) -> String {
    let mut rest = String::new();
    for protocol in ["udp", "tcp"] {
        let address = SocketAddr::new(family.vip(), PORT);
        rest += &format!(
            "[[listener]]\nname = \"{protocol}\"\naddress = \"{address}\"\nprotocol = \"{protocol}\"\nsource = \"{source}\"\n\n"
        );
    }
    rest += "[[pool]]\nname = \"names\"\n\n";
    for number in 1..=BACKENDS {
        let address = SocketAddr::new(family.address(Host::Backend(number)), PORT);
        rest += &format!("[[pool.instance]]\nname = \"name{number}\"\naddress = \"{address}\"\n\n");
    }
    rest += "[default_rule]\npools = [\"names\"]\n";
    router::configuration(lab, "", "", &rest)
}

fn a_name_server_behind_the_router_answers_short_and_long_and_over_tcp(family: Family) {
    for source in ["snat", "transparent", "dsr-l2"] {
        let lab = TestLab::with_backends(BACKENDS);
        let direct = source == "dsr-l2";
        if direct {
            answer_from_the_vip(&lab, family, BACKENDS);
        }
        let served = |number| if direct { family.vip() } else { family.address(Host::Backend(number)) };
        let _servers: Vec<NameServer> =
            (1..=BACKENDS).map(|number| NameServer::start(&lab, number, served(number))).collect();
        let _router = Router::start(&lab, &configuration(&lab, family, source));
        let what = format!("{source}, {family:?}");
        answers(&lab, family, &what);
    }
}

fn answers(lab: &Lab, family: Family, what: &str) {
    let ask = |question: &[&str]| ask_from(lab, Host::Client, family.vip(), question);
    let names: Vec<String> = (0..30).map(|_| ask(&["+short", "who.lab", "TXT"])).collect();
    for number in 1..=BACKENDS {
        let name = format!("\"backend{number}\"\n");
        assert!(names.contains(&name), "{what}: {name} of {names:?}");
    }
    assert!(names.iter().all(|name| name.contains("backend")), "{what}: {names:?}");

    let whole: Vec<String> = (0..STRINGS).map(|number| format!("\"{}\"", string(number))).collect();
    let whole = whole.join(" ");
    let cut_up = || (1..=BACKENDS).map(|number| fragments(lab, Host::Backend(number), family)).sum::<u64>();
    let before = cut_up();
    let long = ask(&["+noall", "+answer", "+stats", "+bufsize=4096", "+ignore", "+notcp", "long.lab", "TXT"]);
    assert!(long.contains(&whole), "{what}: {long}");
    assert!(long.contains("(UDP)"), "{what}: {long}");
    assert!(cut_up() > before, "{what}: the answer came in fragments");

    let short = ask(&["+noall", "+header", "+bufsize=512", "+ignore", "long.lab", "TXT"]);
    let flags = short.lines().find(|line| line.contains("Flags:")).unwrap_or_default();
    assert!(flags.contains(" tc"), "{what}: what does not fit is said to be cut off: {short}");
    let again = ask(&["+noall", "+answer", "+stats", "+bufsize=512", "long.lab", "TXT"]);
    assert!(again.contains(&whole), "{what}: {again}");
    assert!(again.contains("(TCP)"), "{what}: the client has asked again over TCP: {again}");
}

/// Fragments that a host has made.
fn fragments(lab: &Lab, host: Host, family: Family) -> u64 {
    if family == Family::V4 {
        return counter(lab, host, "Ip.FragCreates");
    }
    let text = lab.read(host, "/proc/thread-self/net/snmp6").expect("the lab is up");
    let count = text.lines().find_map(|line| line.strip_prefix("Ip6FragCreates"));
    count.expect("a counter of fragments").trim().parse().expect("a number")
}
