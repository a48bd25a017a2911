//! TLS by name: real clients and instances speak TLS with each other through the router, which reads the ClientHello.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use support::lab::{Host, VIP};
use support::nginx::Nginx;
use support::scene::is_prefix;
use support::tls::{self, Authority};
use support::{Connection, Curl, Router, TestLab, router, xdp};

const NAMES: [&str; 4] = ["a.lab", "b.lab", "*.wild.lab", "10.77.1.10"];

/// A router with TLS listeners in front of an nginx on each of two backends, and a listener for HTTP.
struct Secure {
    // Ends before its lab does.
    router: Router,
    _servers: Vec<Nginx>,
    authority: Authority,
    lab: TestLab,
}

/// Where `offload = "handoff"`, and where `"auto"`.
const HANDOFF: u16 = 443;
const AUTO: u16 = 444;
const HTTP: u16 = 80;

impl Secure {
    fn new() -> Self {
        Self::with_ends([4000, 4000], "")
    }

    /// The certificates end in these years; `check` is a line of both pools.
    fn with_ends(ends: [i32; 2], check: &str) -> Self {
        Self::in_lab(TestLab::with_backends(2), "", ends, check)
    }

    /// The same in a lab of two backends that a story has prepared, with further lines of `[datapath]`.
    fn in_lab(lab: TestLab, datapath: &str, ends: [i32; 2], check: &str) -> Self {
        let authority = Authority::new(&lab);
        let servers =
            [1, 2].map(|number| authority.serve(&lab, number, &NAMES, ends[usize::from(number) - 1], ""));
        let check = check.replace("AUTHORITY", &authority.file().display().to_string());
        let mut rest = String::new();
        for (name, port, offload) in [("secure", HANDOFF, "handoff"), ("auto", AUTO, "auto")] {
            rest += &format!(
                "[[listener]]\nname = \"{name}\"\naddress = \"{VIP}:{port}\"\nprotocol = \"tls\"\n\
                 offload = \"{offload}\"\nheader_timeout = \"2s\"\n\n"
            );
        }
        rest += &format!("[[listener]]\nname = \"web\"\naddress = \"{VIP}:{HTTP}\"\n\n");
        for (pool, number) in [("a", 1), ("b", 2)] {
            let address = SocketAddr::new(lab.backend_address(number), tls::PORT);
            rest += &format!(
                "[[pool]]\nname = \"{pool}\"\n{check}\n[[pool.instance]]\nname = \"nginx{number}\"\naddress = \"{address}\"\n\n"
            );
        }
        for (name, condition, action) in [
            ("by-protocol", r#"ALPN("x-lab/2")"#, "pool = \"b\""),
            ("a", r#"HostSNI("a.lab")"#, "pool = \"a\""),
            ("b", r#"HostSNI("B.lab", "*.wild.lab")"#, "pool = \"b\""),
            ("nameless", r#"Tls() && !HostSNISuffix("lab")"#, "pool = \"a\""),
            ("others", "Tls()", "action = \"deny\""),
        ] {
            rest += &format!("[[rule]]\nname = \"{name}\"\nmatch = '{condition}'\n{action}\n\n");
        }
        let router = Router::start(&lab, &router::configuration(&lab, "", datapath, &rest));
        Self { router, _servers: servers.into(), authority, lab }
    }

    /// curl that trusts the lab's authority, and finds `name` at the router.
    fn curl(&self, name: &str, port: u16) -> Curl {
        let resolve = format!("{name}:{port}:{VIP}");
        Curl::new(&self.lab).arg("--cacert").arg(self.authority.file()).arg("--resolve").arg(resolve)
    }

    fn connect(&self, port: u16) -> Connection {
        Connection::open(&self.lab, Host::Client, &format!("{VIP}:{port}")).expect("the router accepts")
    }

    fn status(&self, of: &str, name: &str) -> u64 {
        self.router.ctl(["status"])[of][name].as_u64().unwrap_or(0)
    }

    fn flows(&self) -> Vec<Value> {
        self.router.ctl(["flows"])["flows"].as_array().unwrap().clone()
    }
}

#[test]
#[ignore = "needs root"]
fn names_lead_curl_to_their_instances_and_a_denied_one_gets_an_alert() {
    let secure = Secure::new();
    for (name, instance) in [("a.lab", "backend1"), ("b.lab", "backend2"), ("x.wild.lab", "backend2")] {
        for port in [HANDOFF, AUTO] {
            let reply = secure.curl(name, port).get(format!("https://{name}:{port}/"));
            assert_eq!((reply.status, reply.instance()), (200, Some(instance)), "{name}: {reply:?}");
            assert!(reply.text().contains(&format!("server-name: {name}\n")), "{}", reply.text());
        }
    }
    let address = secure.curl("unused.lab", HANDOFF).get(format!("https://{VIP}/"));
    assert_eq!(address.instance(), Some("backend1"), "an address is not sent as a name");
    let by_protocol =
        secure.authority.client(secure.connect(HANDOFF).into_stream(), "a.lab", &["x-lab/2", "http/1.1"]);
    assert!(get(by_protocol, "/").contains("instance: backend2\n"), "the protocol's rule comes first");

    for denied in ["y.x.wild.lab", "wild.lab", "ab.lab"] {
        let reply = secure.curl(denied, HANDOFF).get(format!("https://{denied}/"));
        assert_eq!((reply.status, reply.exit_code), (0, 35), "{denied}: curl cannot make a TLS connection");
    }
    assert_eq!(secure.status("refused", "denied"), 3);
    let explained =
        secure.router.ctl(["explain", "--listener=secure", "--client=10.77.1.2", "--server-name=X.wild.lab"]);
    assert_eq!(explained["outcome"]["instance"], "nginx2", "{explained}");
}

/// Sends a request over TLS and reads to the end.
fn get(mut stream: impl Read + Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => panic!("{error}"),
        _ => String::from_utf8_lossy(&answer).into_owned(),
    }
}

/// Sends every byte in a segment of its own.
struct Dribble<S>(S);

impl<S: Write> Write for Dribble<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<S: Read> Read for Dribble<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

/// `openssl s_client`, which asks for a path over a connection of its own.
fn s_client(secure: &Secure, arguments: &[&str], path: &str) -> Output {
    let mut child = secure
        .lab
        .command(Host::Client, "openssl")
        .args(["s_client", "-connect", &format!("{VIP}:{HANDOFF}"), "-quiet", "-no_ign_eof"])
        .args(["-verify_return_error", "-CAfile"])
        .arg(secure.authority.file())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl starts");
    let mut stdin = child.stdin.take().unwrap();
    write!(stdin, "GET {path} HTTP/1.0\r\nHost: lab\r\n\r\n").unwrap();
    // It reads the answer until the instance closes.
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    output
}

#[test]
#[ignore = "needs root"]
fn a_client_hello_in_many_segments_and_records_is_read_and_handed_off() {
    let secure = Secure::new();
    for port in [HANDOFF, AUTO] {
        let dribble = Dribble(secure.connect(port).into_stream());
        let answer = get(secure.authority.client(dribble, "b.lab", &[]), "/files/64k");
        assert!(
            answer.contains("X-Instance: backend2\r\n") && answer.len() > 64 << 10,
            "{} bytes",
            answer.len()
        );
    }
    // More protocols than fit into one record of 512 bytes.
    let mut protocols: Vec<String> = (0..100).map(|number| format!("protocol-{number}")).collect();
    protocols.push("http/1.1".to_owned());
    for tls in ["-tls1_2", "-tls1_3"] {
        let arguments = [
            "-servername",
            "a.lab",
            "-verify_hostname",
            "a.lab",
            "-max_send_frag",
            "512",
            tls,
            "-alpn",
            &protocols.join(","),
        ];
        let output = s_client(&secure, &arguments, "/whoami");
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("server-name: a.lab\n"), "{tls}: {said}\n{complained}");
    }
    // The three of the listener that hands off all, and on the other one it depends on when session tickets come.
    let handed_off = secure.router.ctl(["status"])["connections"]["handed_off"].as_u64().unwrap();
    assert!((3..=4).contains(&handed_off), "{handed_off}");
}

#[test]
#[ignore = "needs root"]
fn two_hundred_megabytes_over_tls_arrive_whole_though_the_daemon_is_killed_meanwhile() {
    long_transfers_outlive_the_daemon(&mut Secure::new());
}

#[test]
#[ignore = "needs root"]
fn with_xdp_two_hundred_megabytes_over_tls_arrive_whole_too() {
    let lab = TestLab::with_backends(2);
    xdp::open(&lab);
    let mut secure = Secure::in_lab(lab, "attach = \"xdp\"", [4000, 4000], "");
    long_transfers_outlive_the_daemon(&mut secure);
    let series = "router_xdp_frames_total{reason=\"carried\"} ";
    let metrics = secure.router.metrics();
    let carried = metrics.lines().find_map(|line| line.strip_prefix(series)?.parse().ok()).unwrap_or(0_u64);
    assert!(carried > 100_000, "XDP has carried {carried} frames");
}

/// Both are handed off, and in the middle of them the daemon dies.
fn long_transfers_outlive_the_daemon(secure: &mut Secure) {
    let original = secure.lab.state_dir().join("files/200m");
    let length = fs::metadata(&original).unwrap().len();
    let transfers: Vec<_> = [HANDOFF, AUTO]
        .map(|port| {
            let arriving = secure.lab.state_dir().join(format!("received-{port}"));
            let curl = Curl::for_files(&secure.lab)
                .arg("--limit-rate")
                .arg("32M")
                .arg("--cacert")
                .arg(secure.authority.file())
                .arg("--resolve")
                .arg(format!("a.lab:{port}:{VIP}"));
            let file = arriving.clone();
            let url = format!("https://a.lab:{port}/files/200m");
            (arriving, thread::spawn(move || curl.download(url, &file)))
        })
        .into();
    let arrived = |number: usize| fs::metadata(&transfers[number].0).map_or(0, |file| file.len());
    secure.router.eventually(Duration::from_secs(20), "both are handed off and run", |_| {
        secure.flows().len() == 2 && arrived(0) > length / 20 && arrived(1) > length / 20
    });
    secure.router.kill();
    let so_far = [arrived(0), arrived(1)];
    let began = std::time::Instant::now();
    while (0..2).any(|number| arrived(number) < so_far[number] + (1 << 20)) {
        assert!(began.elapsed() < Duration::from_secs(20), "nothing moves without the daemon");
        thread::sleep(Duration::from_millis(10));
    }
    secure.router.restart();
    assert_eq!(secure.flows().len(), 2, "they are the next daemon's");
    for (arriving, curl) in transfers {
        assert_eq!(curl.join().unwrap(), Ok(200));
        assert!(is_prefix(&arriving, length, &original).unwrap(), "{}", arriving.display());
        assert_eq!(fs::metadata(&arriving).unwrap().len(), length);
    }
    secure.router.eventually(Duration::from_secs(20), "every flow ends", |_| secure.flows().is_empty());
}

/// What a client gets that sends these bytes, to the end of the connection.
fn answer_to(secure: &Secure, port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut connection = secure.connect(port);
    connection.send(bytes).unwrap();
    connection.receive_all().expect("the connection is closed in order")
}

/// A ClientHello in one record, with these extensions.
fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
    let mut list = Vec::new();
    for (number, data) in extensions {
        list.extend(number.to_be_bytes());
        list.extend((data.len() as u16).to_be_bytes());
        list.extend(*data);
    }
    let mut body = vec![3, 3];
    body.extend([9; 32]);
    // No session, TLS_AES_128_GCM_SHA256 and GREASE, no compression.
    body.extend([0, 0, 4, 0x13, 0x01, 0x1a, 0x1a, 1, 0]);
    body.extend((list.len() as u16).to_be_bytes());
    body.extend(list);
    let mut record = vec![22, 3, 1];
    record.extend((body.len() as u16 + 4).to_be_bytes());
    record.extend([1, 0]);
    record.extend((body.len() as u16).to_be_bytes());
    record.extend(body);
    record
}

#[test]
#[ignore = "needs root"]
fn what_is_no_client_hello_is_refused_with_an_alert_and_counted() {
    let secure = Secure::new();
    let name = b"\0\x08\0\0\x05a.lab";
    let two_names = b"\0\x10\0\0\x05a.lab\0\0\x05b.lab";
    let mut lying = hello(&[(0, name)]);
    lying[8] -= 1;
    let mut huge = hello(&[(0, name)]);
    huge[6..9].copy_from_slice(&[0, 0x40, 1]);
    let alert = |description: u8| vec![21, 3, 3, 0, 2, 2, description];
    for (what, bytes, wanted, reason) in [
        ("two names", hello(&[(0, two_names)]), alert(112), "bad_server_name"),
        ("a name twice", hello(&[(0, name), (0, name)]), alert(112), "bad_server_name"),
        ("a name with a port", hello(&[(0, b"\0\x08\0\0\x05a:443")]), alert(112), "bad_server_name"),
        ("an empty name", hello(&[(0, b"\0\x03\0\0\0")]), alert(50), "bad_client_hello"),
        ("a length that lies", lying, alert(50), "bad_client_hello"),
        ("more than 16 KiB", huge, alert(47), "head_too_large"),
        ("no handshake", b"\x17\x03\x03\0\x01x".to_vec(), alert(50), "bad_client_hello"),
        ("noise", vec![0xff; 100], alert(50), "bad_client_hello"),
    ] {
        let before = secure.status("refused", reason);
        assert_eq!(answer_to(&secure, HANDOFF, &bytes), wanted, "{what}");
        assert_eq!(secure.status("refused", reason), before + 1, "{what}: {reason}");
    }
    // Never completed: closed at the deadline.
    let half = answer_to(&secure, HANDOFF, &hello(&[(0, name)])[..40]);
    assert_eq!((half, secure.status("refused", "header_timeout")), (vec![], 1));

    // GREASE, an unknown extension and Encrypted Client Hello are the instance's matter: nginx answers each in its own words.
    let odd = hello(&[(0x2a2a, b""), (0xfe0d, &[0; 100]), (0, name), (0xfff0, b"?")]);
    let answer = answer_to(&secure, HANDOFF, &odd);
    assert_eq!(answer[..2], [21, 3], "it lacks key shares, says the instance: {answer:?}");
    assert_eq!(secure.router.ctl(["status"])["connections"]["handed_off"].as_u64().unwrap(), 1);
}

#[test]
#[ignore = "needs root"]
fn who_speaks_the_wrong_protocol_is_told_so() {
    let secure = Secure::new();
    let plain = Curl::new(&secure.lab).get(format!("http://{VIP}:{HANDOFF}/"));
    assert_eq!(plain.status, 400);
    assert!(plain.text().contains("HTTP request on a TLS listener"), "{}", plain.text());
    assert_eq!(secure.status("refused", "http_on_tls"), 1);
    let encrypted = secure.curl("a.lab", HTTP).get(format!("https://a.lab:{HTTP}/"));
    assert_eq!(encrypted.exit_code, 35, "curl gets no TLS");
    assert_eq!(secure.status("refused", "tls_on_http"), 1);
}

#[test]
#[ignore = "needs root"]
fn a_tls_check_takes_down_the_instance_whose_certificate_has_expired() {
    let check = "check = { type = \"tls\", server_name = \"a.lab\", ca_file = \"AUTHORITY\", interval = \"1s\", timeout = \"1s\" }";
    let secure = Secure::with_ends([4000, 2021], check);
    let health = |number: usize| {
        let instances = secure.router.ctl(["instances"]);
        let one = &instances[number];
        (one["health"].as_str().unwrap().to_owned(), one["health_detail"].as_str().unwrap_or("").to_owned())
    };
    secure.router.eventually(Duration::from_secs(20), "both have been checked", |_| {
        health(0).0 == "up" && health(1).0 == "down"
    });
    let (_, why) = health(1);
    assert!(why.starts_with("its certificate has expired or is not valid yet"), "{why}");
    assert_eq!(secure.curl("a.lab", HANDOFF).get("https://a.lab/").instance(), Some("backend1"));
    let refused = secure.curl("b.lab", HANDOFF).get("https://b.lab/");
    assert_eq!(refused.exit_code, 35, "nobody serves it, so the connection is reset");
}
