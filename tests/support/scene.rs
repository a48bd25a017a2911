//! A router with one listener for each way of carrying connections: what most stories about carrying need.

use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::counters::{checksum_errors, paws_drops};
use crate::lab::{Family, Host};
use crate::{Connection, Peer, Router, TestLab, router};

/// A listener of the scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// `offload = "handoff"`, on port 80.
    Handoff,
    /// `offload = "auto"`, on port 81.
    Auto,
    /// `offload = "relay"`, on port 82.
    Relay,
    /// `offload = "bind"`, on port 83, where a scene has it.
    Bind,
}

impl Entry {
    /// Those whose connections become flows.
    pub const OFFLOADING: [Self; 2] = [Self::Handoff, Self::Auto];

    /// Of a scene over IPv4.
    pub fn address(self) -> SocketAddr {
        self.address_over(Family::V4)
    }

    fn address_over(self, family: Family) -> SocketAddr {
        let port = match self {
            Self::Handoff => 80,
            Self::Auto => 81,
            Self::Relay => 82,
            Self::Bind => 83,
        };
        SocketAddr::new(family.vip(), port)
    }

    /// Of a scene over IPv4.
    pub fn url(self, path: &str) -> String {
        self.url_over(Family::V4, path)
    }

    pub fn url_over(self, family: Family, path: &str) -> String {
        format!("http://{}{path}", self.address_over(family))
    }
}

/// Where a [`Peer`](crate::Peer) of the scene listens, on backend 1; it gets the requests under `/peer`.
pub const PEER_PORT: u16 = 8081;

/// Every backend's nginx is an instance of the pool `nginx`, which gets all other requests.
#[derive(Debug)]
pub struct Scene {
    // Ends before its lab does.
    pub router: Router,
    pub lab: TestLab,
    /// Of listeners and instances.
    pub family: Family,
}

impl Scene {
    /// A lab with this many backends, and the router in it.
    pub fn with_backends(backends: u8) -> Self {
        Self::with_settings(backends, "", &[])
    }

    /// `datapath` are further lines of that table; `arguments` are routerd's.
    pub fn with_settings(backends: u8, datapath: &str, arguments: &[&str]) -> Self {
        Self::in_lab(TestLab::with_backends(backends), datapath, "", arguments)
    }

    /// A lab with one backend, and the router in it, over this family.
    pub fn over(family: Family) -> Self {
        Self::built(family, TestLab::with_backends(1), ("", ""), &[])
    }

    /// The same, where instances see the clients' addresses.
    pub fn transparent_over(family: Family) -> Self {
        let lab = TestLab::with_backends(1);
        let rest = rest(family, 1, "").replace("\noffload =", "\nsource = \"transparent\"\noffload =");
        let router = Router::start_with(&lab, &router::configuration(&lab, "", "", &rest), &[]);
        Self { router, lab, family }
    }

    /// The same with more backends; `datapath` are further lines of that table.
    pub fn over_with(family: Family, backends: u8, datapath: &str) -> Self {
        Self::over_in(family, TestLab::with_backends(backends), datapath)
    }

    /// The same in a lab that a story has prepared.
    pub fn over_in(family: Family, lab: TestLab, datapath: &str) -> Self {
        Self::built(family, lab, (datapath, ""), &[])
    }

    /// A lab with this many backends, where one more listener binds, and each of several workers its own clients. `more` are further lines of that listener, or what comes behind it.
    pub fn binding(family: Family, backends: u8, more: &str) -> Self {
        let lab = TestLab::with_backends(backends);
        let address = Entry::Bind.address_over(family);
        let listener =
            format!("[[listener]]\nname = \"bind\"\naddress = \"{address}\"\noffload = \"bind\"\n");
        let rest = listener + more + "\n" + &rest(family, backends, "");
        let router = Router::start_with(&lab, &router::configuration(&lab, "workers = 3", "", &rest), &[]);
        Self { router, lab, family }
    }

    /// In a lab that a story has prepared, with the router on these interfaces.
    pub fn over_interfaces(family: Family, lab: TestLab, interfaces: &[&str]) -> Self {
        let configuration = router::configuration(&lab, "", "", &rest(family, lab.backends(), ""));
        let usual = r#"interfaces = ["client", "backends"]"#;
        assert!(configuration.contains(usual));
        let configuration = configuration.replace(usual, &format!("interfaces = {interfaces:?}"));
        let router = Router::start_with(&lab, &configuration, &[]);
        Self { router, lab, family }
    }

    /// The same, where only the first backend is an instance.
    pub fn over_only_first(family: Family, lab: TestLab) -> Self {
        let configuration = router::configuration(&lab, "", "", &rest(family, 1, ""));
        let router = Router::start_with(&lab, &configuration, &[]);
        Self { router, lab, family }
    }

    /// In a lab that a story has prepared; `check` is a line of the pool `nginx`.
    pub fn in_lab(lab: TestLab, datapath: &str, check: &str, arguments: &[&str]) -> Self {
        Self::built(Family::V4, lab, (datapath, check), arguments)
    }

    fn built(family: Family, lab: TestLab, (datapath, check): (&str, &str), arguments: &[&str]) -> Self {
        let rest = rest(family, lab.backends(), check);
        let configuration = router::configuration(&lab, "", datapath, &rest);
        let router = Router::start_with(&lab, &configuration, arguments);
        Self { router, lab, family }
    }

    pub fn address(&self, entry: Entry) -> SocketAddr {
        entry.address_over(self.family)
    }

    pub fn url(&self, entry: Entry, path: &str) -> String {
        entry.url_over(self.family, path)
    }

    pub fn connect(&self, entry: Entry) -> Connection {
        Connection::open(&self.lab, Host::Client, &self.address(entry).to_string())
            .expect("the router accepts")
    }

    /// Starts the instance of the pool `peer`.
    pub fn peer(&self, serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Peer {
        Peer::start_over(self.family, &self.lab, 1, PEER_PORT, serve)
    }

    /// The flows that the router shows, with one client's address or all.
    pub fn flows(&self, client: Option<SocketAddr>) -> Vec<Value> {
        let mut arguments = vec!["flows".to_owned()];
        arguments.extend(client.map(|client| format!("--client={client}")));
        let answer = self.router.ctl(arguments);
        answer["flows"].as_array().expect("routerctl prints flows").clone()
    }

    /// The connection's flow, as soon as there is one.
    ///
    /// # Panics
    /// If the connection is not handed off within some seconds.
    pub fn flow_of(&self, connection: &Connection) -> Value {
        let client = connection.local_address();
        let mut found = None;
        self.router.eventually(Duration::from_secs(10), "the connection is handed off", |_| {
            found = self.flows(Some(client)).pop();
            found.is_some()
        });
        found.expect("the loop ends with one")
    }

    /// `(handed off, relayed)` so far.
    pub fn carried(&self) -> (u64, u64) {
        let status = self.router.ctl(["status"]);
        let count = |name: &str| status["connections"][name].as_u64().expect("the status has this count");
        (count("handed_off"), count("relayed"))
    }

    /// Packets that the packet path has counted under this reason, over all daemons since the maps were made.
    pub fn packets(&self, reason: &str) -> u64 {
        self.metric(&format!("router_packets_total{{reason=\"{reason}\"}}"))
    }

    /// Frames that XDP has met and done this with.
    pub fn xdp_frames(&self, reason: &str) -> u64 {
        self.metric(&format!("router_xdp_frames_total{{reason=\"{reason}\"}}"))
    }

    /// A value from `/metrics`, by the name and labels of its line; 0 if there is no such line.
    pub fn metric(&self, series: &str) -> u64 {
        let metrics = self.router.metrics();
        let value =
            metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
        value.map_or(0, |value| value.parse().expect("a count is a whole number"))
    }

    /// Live sessions of all pools.
    pub fn sessions(&self) -> u64 {
        let status = self.router.ctl(["status"]);
        let pools = status["pools"].as_array().expect("the status has pools");
        pools.iter().map(|pool| pool["sessions"].as_u64().expect("a pool has sessions")).sum()
    }

    /// Waits until no flow and no session is left.
    pub fn comes_to_rest(&self) {
        self.router.eventually(Duration::from_secs(20), "every flow and session ends", |router| {
            router.ctl(["flows", "--count"])["count"] == 0 && self.sessions() == 0
        });
    }

    /// # Panics
    /// If a host has discarded a segment because of its timestamps or its checksum: the packet path has rewritten it wrongly.
    pub fn assert_no_segment_was_spoiled(&self) {
        for host in self.lab.hosts().into_iter().filter(|host| *host != Host::Switch) {
            let counts = (paws_drops(&self.lab, host), checksum_errors(&self.lab, host));
            assert_eq!(counts, (0, 0), "PAWSEstab and InCsumErrors on {host}");
        }
    }

    /// The same where packets take two ways through the gateway and overtake one another: what was overtaken by a younger timestamp is discarded by right
    /// (PAWS, RFC 7323 §5). That is rare; timestamps that are rewritten wrongly are discarded by the thousand.
    ///
    /// # Panics
    /// If a host has discarded a segment because of its checksum, or more than one in a thousand packets because of its timestamp.
    pub fn assert_no_segment_but_an_overtaken_one_was_discarded(&self) {
        let most = self.packets("forwarded") / 1_000;
        for host in self.lab.hosts().into_iter().filter(|host| *host != Host::Switch) {
            assert_eq!(checksum_errors(&self.lab, host), 0, "InCsumErrors on {host}");
            let discarded = paws_drops(&self.lab, host);
            assert!(discarded <= most, "PAWSEstab on {host}: {discarded}, and {most} at most");
        }
    }

    /// Loss of this many of a thousand packets, on arrival at the client and at every backend.
    pub fn lose(&self, permille: u16) {
        for host in self.lab.hosts().into_iter().filter(|host| !matches!(host, Host::Switch | Host::Gateway))
        {
            self.lab.lose(host, permille).expect("nft drops packets");
        }
    }
}

fn rest(family: Family, backends: u8, check: &str) -> String {
    let mut text = String::new();
    for (entry, name) in [(Entry::Handoff, "handoff"), (Entry::Auto, "auto"), (Entry::Relay, "relay")] {
        let address = entry.address_over(family);
        text.push_str(&format!(
            "[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\noffload = \"{name}\"\n\n"
        ));
    }
    text.push_str(&format!("[[pool]]\nname = \"nginx\"\n{check}\n\n"));
    for number in 1..=backends {
        let address = SocketAddr::new(family.address(Host::Backend(number)), 80);
        text.push_str(&format!("[[pool.instance]]\nname = \"nginx{number}\"\naddress = \"{address}\"\n\n"));
    }
    let peer = SocketAddr::new(family.address(Host::Backend(1)), PEER_PORT);
    text.push_str(&format!(
        r#"[[pool]]
name = "peer"

[[pool.instance]]
name = "peer1"
address = "{peer}"

[[rule]]
name = "peer"
match = 'PathPrefix("/peer")'
pool = "peer"

[default_rule]
pools = ["nginx"]
"#
    ));
    text
}

/// Whether a file begins with the other, which is `length` bytes long.
pub fn is_prefix(prefix: &Path, length: u64, of: &Path) -> io::Result<bool> {
    let (mut prefix, mut of) = (File::open(prefix)?, File::open(of)?);
    if prefix.metadata()?.len() != length {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut rest = length;
    while rest > 0 {
        let part = rest.min(left.len() as u64) as usize;
        prefix.read_exact(&mut left[..part])?;
        of.read_exact(&mut right[..part])?;
        if left[..part] != right[..part] {
            return Ok(false);
        }
        rest -= part as u64;
    }
    Ok(true)
}

/// Bytes that differ at every place: nothing can be lost, repeated or swapped unnoticed.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length.next_multiple_of(8)];
    for (word, number) in bytes.chunks_exact_mut(8).zip(1u64..) {
        word.copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
