//! A router with Layer-4 listeners: what stories about them need.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use crate::behind::ip;
use crate::lab::{Family, Host};
use crate::{Connection, Router, TestLab, router};

const TCP_PORT: u16 = 8080;
pub const UDP_PORT: u16 = 53;
const QUESTIONS: u16 = 5353;

/// A TCP listener in front of nginx and a UDP listener in front of servers that answer with their names, on every backend.
#[derive(Debug)]
pub struct Balanced {
    // Ends before its lab does.
    pub router: Router,
    pub servers: Vec<Server>,
    pub family: Family,
    tcp_port: u16,
    pub lab: TestLab,
}

impl Balanced {
    pub fn new(family: Family, backends: u8) -> Self {
        Self::with(family, backends, "", "", "")
    }

    /// Further lines of `[datapath]`, of each listener, and of each pool.
    pub fn with(family: Family, backends: u8, datapath: &str, listener: &str, pool: &str) -> Self {
        let lab = TestLab::with_backends(backends);
        let servers = Server::on_each(&lab, family, backends);
        Self::built(lab, servers, family, backends, (datapath, listener, pool), (TCP_PORT, QUESTIONS))
    }

    /// In a lab that a story has prepared, whose first `instances` backends are instances. `listener` are further lines of each listener.
    pub fn in_lab(lab: TestLab, family: Family, instances: u8, listener: &str) -> Self {
        Self::in_lab_with(lab, family, instances, "", listener)
    }

    /// The same with further lines of `[datapath]`.
    pub fn in_lab_with(lab: TestLab, family: Family, instances: u8, datapath: &str, listener: &str) -> Self {
        let servers = Server::on_each(&lab, family, instances);
        Self::built(lab, servers, family, instances, (datapath, listener, ""), (TCP_PORT, QUESTIONS))
    }

    /// Instances answer clients directly, from the VIP.
    pub fn direct(family: Family, source: &str) -> Self {
        Self::direct_in(TestLab::with_backends(2), family, source, "")
    }

    /// The same in a lab of two backends that a story has prepared, with further lines of `[datapath]`.
    pub fn direct_in(lab: TestLab, family: Family, source: &str, datapath: &str) -> Self {
        Self::direct_to(2, lab, family, source, datapath)
    }

    /// The same where so many of the first backends are instances.
    pub fn direct_to(instances: u8, lab: TestLab, family: Family, source: &str, datapath: &str) -> Self {
        answer_from_the_vip(&lab, family, instances);
        let servers =
            (1..=instances).map(|number| Server::start(&lab, number, family.vip(), UDP_PORT)).collect();
        Self::built(
            lab,
            servers,
            family,
            instances,
            (datapath, &format!("source = \"{source}\""), ""),
            (80, UDP_PORT),
        )
    }

    /// With the ports of the TCP listener and of the UDP instances.
    fn built(
        lab: TestLab,
        servers: Vec<Server>,
        family: Family,
        instances: u8,
        (datapath, listener, pool): (&str, &str, &str),
        (tcp_port, udp_port): (u16, u16),
    ) -> Self {
        let vip = family.vip();
        let mut rest = String::new();
        for (name, protocol, port) in [("stream", "tcp", tcp_port), ("names", "udp", UDP_PORT)] {
            let address = SocketAddr::new(vip, port);
            rest += &format!(
                "[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\nprotocol = \"{protocol}\"\n{listener}\n\n"
            );
        }
        for (name, port) in [("nginx", 80), ("servers", udp_port)] {
            rest += &format!("[[pool]]\nname = \"{name}\"\n{pool}\n\n");
            for number in 1..=instances {
                let address = SocketAddr::new(family.address(Host::Backend(number)), port);
                rest += &format!("[[pool.instance]]\nname = \"{name}{number}\"\naddress = \"{address}\"\n\n");
            }
        }
        rest += "[[rule]]\nname = \"names\"\nmatch = 'Listener(\"names\")'\npool = \"servers\"\n\n";
        rest += "[default_rule]\npools = [\"nginx\"]\n";
        let router = Router::start(&lab, &router::configuration(&lab, "", datapath, &rest));
        Self { router, servers, family, tcp_port, lab }
    }

    /// Of a document behind the TCP listener.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", SocketAddr::new(self.family.vip(), self.tcp_port))
    }

    pub fn connect(&self) -> io::Result<Connection> {
        let address = SocketAddr::new(self.family.vip(), self.tcp_port);
        Connection::open(&self.lab, Host::Client, &address.to_string())
    }

    /// A client's socket that speaks with the UDP listener.
    pub fn asker(&self) -> UdpSocket {
        let (own, vip) = (self.family.address(Host::Client), self.family.vip());
        let socket = self.lab.inside(Host::Client, || UdpSocket::bind((own, 0))).unwrap().unwrap();
        socket.connect((vip, UDP_PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    }

    pub fn flows(&self) -> Vec<Value> {
        self.router.ctl(["flows"])["flows"].as_array().unwrap().clone()
    }

    pub fn sessions(&self) -> u64 {
        let status = self.router.ctl(["status"]);
        status["pools"].as_array().unwrap().iter().map(|pool| pool["sessions"].as_u64().unwrap()).sum()
    }

    pub fn packets(&self, reason: &str) -> u64 {
        self.metric("packets", reason)
    }

    /// Frames that XDP has met and done this with.
    pub fn xdp_frames(&self, reason: &str) -> u64 {
        self.metric("xdp_frames", reason)
    }

    fn metric(&self, name: &str, reason: &str) -> u64 {
        let series = format!("router_{name}_total{{reason=\"{reason}\"}} ");
        let metrics = self.router.metrics();
        metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or(0)
    }
}

/// Sets the first backends up to answer clients directly, and the gateway to let that pass: answers come back through it, from one of its own addresses.
pub fn answer_from_the_vip(lab: &TestLab, family: Family, backends: u8) {
    for key in ["net.ipv4.conf.all.accept_local", "net.ipv4.conf.backends.accept_local"] {
        lab.sysctl(Host::Gateway, key, "1").unwrap();
    }
    for host in lab.hosts() {
        for key in ["net.ipv4.conf.all.rp_filter", "net.ipv4.conf.default.rp_filter"] {
            lab.sysctl(host, key, "0").unwrap();
        }
    }
    lab.sysctl(Host::Gateway, "net.ipv4.conf.backends.rp_filter", "0").unwrap();
    let vip = family.vip();
    let address = if vip.is_ipv4() { format!("{vip}/32") } else { format!("{vip}/128 nodad") };
    for number in 1..=backends {
        ip(lab, Host::Backend(number), &format!("address add {address} dev lo"));
    }
}

/// Answers every datagram with the backend's number, the address that asked, and what was asked.
#[derive(Debug)]
pub struct Server {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// One on each of the first backends.
    fn on_each(lab: &TestLab, family: Family, backends: u8) -> Vec<Self> {
        let start = |number| Self::start(lab, number, family.address(Host::Backend(number)), QUESTIONS);
        (1..=backends).map(start).collect()
    }

    pub fn start(lab: &TestLab, number: u8, address: IpAddr, port: u16) -> Self {
        let socket = lab.inside(Host::Backend(number), || UdpSocket::bind((address, port))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            let mut question = [0; 65_536];
            while !told.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut question) else { continue };
                let answer = [format!("{number} {} ", from.ip()).as_bytes(), &question[..length]].concat();
                let _ = socket.send_to(&answer, from);
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn ask(socket: &UdpSocket, question: &str) -> io::Result<String> {
    socket.send(question.as_bytes())?;
    let mut answer = [0; 65_536];
    let length = socket.recv(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}
