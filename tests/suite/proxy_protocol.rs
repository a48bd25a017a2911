//! PROXY protocol with real peers: HAProxy in front announces its clients, nginx and HAProxy behind are told.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use support::haproxy::Haproxy;
use support::lab::{Host, VIP, address, peers};
use support::nginx::Nginx;
use support::scene::is_prefix;
use support::tls::Authority;
use support::{Connection, Curl, Router, TestLab, router};

/// Listeners: for everybody, and for the proxy in front; the same for TLS.
const WEB: u16 = 80;
const BEHIND: u16 = 81;
const SECURE: u16 = 443;
const SECURE_BEHIND: u16 = 444;
/// Where instances expect headers, of either version; and with TLS behind them.
const TOLD: [u16; 2] = [8081, 8082];
const TOLD_TLS: u16 = 8443;
/// HAProxy in front, on the client's own host: its clients come from the loopback interface.
const FRONT: u16 = 8000;
const FRONT_TLS: u16 = 8001;

/// nginx on the first backend and HAProxy on the second expect headers.
struct Told {
    // Ends before its lab does.
    router: Router,
    _front: Haproxy,
    _behind: Haproxy,
    _nginx: Nginx,
    authority: Authority,
    lab: TestLab,
}

impl Told {
    /// All listeners have this `offload`.
    fn new(offload: &str) -> Self {
        let lab = TestLab::with_backends(2);
        let authority = Authority::new(&lab);
        let files = peers::files_dir(&lab);
        let answer = "default_type text/plain; return 200 \"nginx: $proxy_protocol_addr:$proxy_protocol_port to $proxy_protocol_server_addr\n\";";
        let server = |listen: &str| {
            format!(
                "server {{ {listen} location / {{ {answer} }} location /files/ {{ alias {}/; }} }}\n",
                files.display()
            )
        };
        let plain = TOLD.map(|port| format!("listen {port} proxy_protocol;")).concat();
        let more = server(&plain) + &server(&format!("listen {TOLD_TLS} ssl proxy_protocol;"));
        let nginx = authority.serve(&lab, 1, &["a.lab"], 4000, &more);
        let binds = TOLD.map(|port| format!("  bind :{port} accept-proxy\n")).concat();
        let behind = format!(
            "frontend told\n  mode http\n{binds}  http-request return status 200 content-type text/plain lf-string \"haproxy: %ci:%cp to %fi\""
        );
        let behind =
            Haproxy::start(&lab, Host::Backend(2), SocketAddr::new(lab.backend_address(2), TOLD[0]), &behind);
        let front = format!(
            "listen front\n  mode tcp\n  bind 127.0.0.1:{FRONT}\n  server router {VIP}:{BEHIND} send-proxy-v2\n\
             listen front-tls\n  mode tcp\n  bind 127.0.0.1:{FRONT_TLS}\n  server router {VIP}:{SECURE_BEHIND} send-proxy\n"
        );
        let front = Haproxy::start(&lab, Host::Client, (Ipv4Addr::LOCALHOST, FRONT).into(), &front);
        let router = Router::start(&lab, &router::configuration(&lab, "", "", &configuration(offload)));
        Self { router, _front: front, _behind: behind, _nginx: nginx, authority, lab }
    }

    fn status(&self, of: &str, name: &str) -> u64 {
        self.router.ctl(["status"])[of][name].as_u64().unwrap_or(0)
    }

    fn secure(&self, port: u16, to: &str) -> String {
        let resolve = format!("a.lab:{port}:{to}");
        let curl =
            Curl::new(&self.lab).arg("--cacert").arg(self.authority.file()).arg("--resolve").arg(resolve);
        curl.get(format!("https://a.lab:{port}/")).text()
    }
}

fn configuration(offload: &str) -> String {
    let mut text = String::new();
    for (name, port, protocol) in [
        ("web", WEB, "http"),
        ("behind", BEHIND, "http"),
        ("secure", SECURE, "tls"),
        ("secure-behind", SECURE_BEHIND, "tls"),
    ] {
        text += &format!(
            "[[listener]]\nname = \"{name}\"\naddress = \"{VIP}:{port}\"\nprotocol = \"{protocol}\"\noffload = \"{offload}\"\n"
        );
        if name.ends_with("behind") {
            text += "accept_proxy_protocol = { from = [\"10.77.1.2\"] }\n";
        }
    }
    let checked = "check = { type = \"http\", interval = \"500ms\", timeout = \"500ms\" }";
    for (name, number, port, version, check) in [
        ("nginx-v1", 1, TOLD[0], "v1", checked),
        ("nginx-v2", 1, TOLD[1], "v2", checked),
        ("haproxy-v1", 2, TOLD[0], "v1", checked),
        ("haproxy-v2", 2, TOLD[1], "v2", checked),
        ("tls", 1, TOLD_TLS, "v2", "check = { type = \"tls\" }"),
    ] {
        text += &format!(
            "[[pool]]\nname = \"{name}\"\nproxy_protocol = \"{version}\"\n{check}\n[[pool.instance]]\n\
             name = \"{name}\"\naddress = \"10.77.2.1{number}:{port}\"\n[[rule]]\nname = \"{name}\"\npool = \"{name}\"\n"
        );
        text += &match name {
            "tls" => "match = 'Tls()'\n".to_owned(),
            name => format!("match = 'Header(\"X-Pool\", \"{name}\")'\n"),
        };
    }
    text + "[default_rule]\npools = [\"nginx-v2\"]\n"
}

#[test]
#[ignore = "needs root"]
fn haproxy_announces_its_clients_and_nginx_and_haproxy_are_told() {
    for offload in ["handoff", "relay"] {
        let told = Told::new(offload);
        for pool in ["nginx-v1", "nginx-v2", "haproxy-v1", "haproxy-v2"] {
            let kind = pool.split('-').next().unwrap();
            let ask = |url: String| Curl::new(&told.lab).header(&format!("X-Pool: {pool}")).get(url).text();
            let direct = ask(format!("http://{VIP}:{WEB}/"));
            let client = address(Host::Client);
            assert!(direct.starts_with(&format!("{kind}: {client}:")), "{offload} {pool}: {direct}");
            assert!(direct.contains(&format!(" to {VIP}")), "{offload} {pool}: {direct}");
            let announced = ask(format!("http://127.0.0.1:{FRONT}/"));
            assert!(announced.starts_with(&format!("{kind}: 127.0.0.1:")), "{offload} {pool}: {announced}");
            assert!(announced.contains(" to 127.0.0.1"), "{offload} {pool}: {announced}");
        }
        let direct = told.secure(SECURE, &VIP.to_string());
        assert!(direct.starts_with("nginx: 10.77.1.2:"), "{offload}: {direct}");
        let announced = told.secure(FRONT_TLS, "127.0.0.1");
        assert!(announced.starts_with("nginx: 127.0.0.1:"), "{offload}: {announced}");
        let connections = told.router.ctl(["status"])["connections"].clone();
        let carried = if offload == "handoff" { "handed_off" } else { "relayed" };
        told.router.eventually(Duration::from_secs(10), "every connection is counted", |router| {
            router.ctl(["status"])["connections"][carried] == 10
        });
        assert_eq!(told.status("refused", "no_response"), 0, "{connections}");

        // Whoever is not that proxy is a client, and a proxy that announces nobody is none.
        let mut liar = Connection::open(&told.lab, Host::Client, &format!("{VIP}:{WEB}")).unwrap();
        liar.send("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
        assert_eq!(liar.reply().unwrap().status, 400);
        let mut mute = Connection::open(&told.lab, Host::Client, &format!("{VIP}:{BEHIND}")).unwrap();
        mute.send("GET / HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
        assert!(
            mute.receive_all().map_or(true, |received| received.is_empty()),
            "it is closed without a word"
        );
        let counts =
            ["proxy_header_unexpected", "proxy_header_missing"].map(|reason| told.status("refused", reason));
        assert_eq!(counts, [1, 1]);
    }
}

#[test]
#[ignore = "needs root"]
fn a_connection_with_a_header_is_handed_off_and_carries_two_hundred_megabytes() {
    let mut told = Told::new("handoff");
    let original = peers::files_dir(&told.lab).join("200m");
    let length = fs::metadata(&original).unwrap().len();
    let transfers: Vec<_> =
        [format!("http://{VIP}:{WEB}/files/200m"), format!("http://127.0.0.1:{FRONT}/files/200m")]
            .into_iter()
            .enumerate()
            .map(|(number, url)| {
                let arriving = told.lab.state_dir().join(format!("received-{number}"));
                let (file, curl) =
                    (arriving.clone(), Curl::for_files(&told.lab).arg("--limit-rate").arg("32M"));
                (arriving, thread::spawn(move || curl.download(url, &file)))
            })
            .collect();
    told.router.eventually(Duration::from_secs(20), "both run as flows", |router| {
        router.ctl(["flows", "--count"])["count"] == 2
    });
    told.router.kill();
    for (arriving, curl) in transfers {
        assert_eq!(curl.join().unwrap(), Ok(200));
        assert!(is_prefix(&arriving, length, &original).unwrap(), "{}", arriving.display());
    }
    told.router.restart();
    told.router.eventually(Duration::from_secs(20), "every flow ends", |router| {
        router.ctl(["flows", "--count"])["count"] == 0
    });
}
