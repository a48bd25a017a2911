//! Heads that servers might read differently: refused with their reason, whatever the listener would have done with the connection.

use std::io::{Read, Write};
use std::net::TcpStream;

use support::lab::Family;
use support::scene::PEER_PORT;
use support::{Entry, Peer, Reply, Scene, peer};

/// What is to become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// An instance answers, which got the request line as it was sent.
    Accepted,
    /// The router answers with this status, closes, and counts this reason.
    Refused(u16, &'static str),
}
use Wanted::{Accepted, Refused};

const BAD: Wanted = Refused(400, "bad_request");

type Cases = Vec<(&'static str, Vec<u8>, Wanted)>;

fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: lab\r\n\r\n").into_bytes()
}

/// A POST of one byte with these lines after `Host`.
fn post(lines: &str) -> Vec<u8> {
    format!("POST /peer HTTP/1.1\r\nHost: lab\r\n{lines}\r\n\r\nx").into_bytes()
}

fn chunked(lines: &str) -> Vec<u8> {
    format!("POST /peer HTTP/1.1\r\nHost: lab\r\n{lines}\r\n\r\n1\r\nx\r\n0\r\n\r\n").into_bytes()
}

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn framing() -> Cases {
    vec![
        ("a length", post("Content-Length: 1"), Accepted),
        ("chunks", chunked("Transfer-Encoding: chunked"), Accepted),
        ("a length and chunks", chunked("Content-Length: 1\r\nTransfer-Encoding: chunked"), BAD),
        ("chunks and a length", chunked("Transfer-Encoding: chunked\r\nContent-Length: 16"), BAD),
        ("an empty coding behind chunked", chunked("Transfer-Encoding: chunked,"), BAD),
        ("chunked is not the last coding", chunked("Transfer-Encoding: chunked, gzip"), BAD),
        ("an unknown coding", chunked("Transfer-Encoding: xchunked"), BAD),
        ("chunked twice in one line", chunked("Transfer-Encoding: chunked, chunked"), BAD),
        ("chunked twice", chunked("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), BAD),
        ("junk behind chunked", chunked("Transfer-Encoding: chunked;q=1"), BAD),
        (
            "chunks in HTTP/1.0",
            bytes("POST /peer HTTP/1.0\r\nHost: lab\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            BAD,
        ),
        ("two lengths", post("Content-Length: 1\r\nContent-Length: 2"), BAD),
        ("the same length twice", post("Content-Length: 1\r\nContent-Length: 1"), BAD),
        ("a list of lengths", post("Content-Length: 1, 1"), BAD),
        ("a signed length", post("Content-Length: +1"), BAD),
        ("a negative length", post("Content-Length: -1"), BAD),
        ("an empty length", post("Content-Length:"), BAD),
        ("a hexadecimal length", post("Content-Length: 0x1"), BAD),
        ("a length beyond 64 bits", post("Content-Length: 99999999999999999999"), BAD),
    ]
}

fn syntax() -> Cases {
    let with = |line: &str| format!("GET /peer HTTP/1.1\r\nHost: lab\r\n{line}\r\n\r\n").into_bytes();
    vec![
        ("a usual head", with("X-A: b"), Accepted),
        ("a folded line", with("X-A: b\r\n c"), BAD),
        ("bare line feeds", bytes("GET /peer HTTP/1.1\nHost: lab\n\n"), BAD),
        ("one bare line feed", with("X-A: b\nX-C: d"), BAD),
        ("a bare carriage return", with("X-A: b\rX-C: d"), BAD),
        ("NUL in a value", with("X-A: b\0c"), BAD),
        ("NUL in a name", with("X\0A: b"), BAD),
        ("a control character in a value", with("X-A: b\u{1}c"), BAD),
        ("a control character in a name", with("X\u{1}A: b"), BAD),
        ("a space before the colon", with("X-A : b"), BAD),
        ("an empty name", with(": b"), BAD),
        ("no colon", with("X-A"), BAD),
        ("no Host", bytes("GET /peer HTTP/1.1\r\n\r\n"), BAD),
        ("no Host in HTTP/1.0", bytes("GET /peer HTTP/1.0\r\n\r\n"), Accepted),
        ("two Hosts", with("Host: lab"), BAD),
        ("a Host with a path", bytes("GET /peer HTTP/1.1\r\nHost: lab/x\r\n\r\n"), BAD),
        (
            "an unknown version",
            bytes("GET /peer HTTP/1.2\r\nHost: lab\r\n\r\n"),
            Refused(505, "http_version"),
        ),
        ("no HTTP version at all", bytes("GET /\r\n\r\n"), Refused(400, "http_0_9")),
        ("no version but a Host", bytes("GET /\r\nHost: lab\r\n\r\n"), Refused(400, "http_0_9")),
    ]
}

fn targets() -> Cases {
    let method =
        |method: &str, target: &str| format!("{method} {target} HTTP/1.1\r\nHost: lab\r\n\r\n").into_bytes();
    vec![
        ("an absolute target", get("http://lab/peer"), Accepted),
        ("an absolute target of another host", get("http://other/"), BAD),
        ("a CONNECT", method("CONNECT", "lab:443"), Refused(405, "method_not_allowed")),
        ("an authority as the target", method("GET", "lab:443"), Refused(405, "method_not_allowed")),
        ("a star", method("GET", "*"), Refused(405, "method_not_allowed")),
        ("a star of OPTIONS", method("OPTIONS", "*"), Accepted),
        ("an unknown method", method("FETCH", "/peer"), Accepted),
        ("a method in lower case", method("get", "/peer"), Accepted),
        ("a method that is no token", method("G(T", "/"), BAD),
        ("a path that only looks harmless", get("/a/%2e%2e/peer/x"), Refused(400, "ambiguous_path")),
        ("a path that only looks like the peer's", get("/peer/../x"), Refused(400, "ambiguous_path")),
        ("two slashes before the peer's path", get("//peer/x"), Refused(400, "ambiguous_path")),
        ("an escaped NUL", get("/peer/a%00b"), BAD),
        ("dots in overlong UTF-8", get("/a/%c0%ae%c0%ae/peer/x"), Refused(400, "ambiguous_path")),
        ("a fragment", get("/a#b"), BAD),
        ("a target of 9,000 bytes", get(&format!("/{}", "a".repeat(9_000))), Refused(414, "uri_too_long")),
        (
            "a hundred and one fields",
            format!("GET /peer HTTP/1.1\r\nHost: lab\r\n{}\r\n", "X-A: b\r\n".repeat(100)).into_bytes(),
            Refused(431, "head_too_large"),
        ),
        (
            "a head of 70,000 bytes",
            format!("GET /peer HTTP/1.1\r\nHost: lab\r\nX-A: {}\r\n\r\n", "b".repeat(70_000)).into_bytes(),
            Refused(431, "head_too_large"),
        ),
        ("the preface of HTTP/2", bytes("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Refused(505, "http2_preface")),
        ("TLS", b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03 random".to_vec(), Refused(400, "tls_on_http")),
    ]
}

/// Answers with the head that it got, as an instance of that name.
pub fn tell_head(mut stream: TcpStream) -> std::io::Result<()> {
    let head = peer::read_head(&mut stream)?;
    write!(stream, "HTTP/1.1 200 OK\r\nX-Instance: peer\r\nContent-Length: {}\r\n\r\n", head.len())?;
    stream.write_all(&head)?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

/// Sends a request on a new connection. Whoever refuses early may close before all of it is sent.
fn ask(scene: &Scene, entry: Entry, request: &[u8]) -> std::io::Result<Reply> {
    let mut connection = scene.connect(entry);
    let _ = connection.send(request);
    connection.reply()
}

/// What is wrong with how one request is treated, if anything.
fn complaint(scene: &Scene, entry: Entry, request: &[u8], wanted: Wanted) -> Option<String> {
    let refused = |reason: &str| scene.metric(&format!("router_refused_total{{reason=\"{reason}\"}}"));
    let before = match wanted {
        Refused(_, reason) => refused(reason),
        Accepted => 0,
    };
    let reply = match ask(scene, entry, request) {
        Ok(reply) => reply,
        Err(error) => return Some(format!("no reply: {error}")),
    };
    let by_instance = reply.instance().is_some();
    match wanted {
        Accepted if !by_instance => Some(format!("refused with {}", reply.status)),
        Accepted => {
            let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
            let changed = reply.instance() == Some("peer") && !reply.body.starts_with(line);
            changed.then(|| format!("the instance got {}", reply.text()))
        }
        Refused(..) if by_instance => Some(format!("an instance has answered {}", reply.status)),
        Refused(status, _) if reply.status != status => Some(format!("refused with {}", reply.status)),
        Refused(_, reason) => (refused(reason) != before + 1).then(|| format!("not counted as {reason}")),
    }
}

fn judge(cases: Cases) {
    let scene = Scene::binding(Family::V4, 1, "");
    scene.warm_up();
    let _peer = Peer::start(&scene.lab, 1, PEER_PORT, tell_head);
    let mut complaints = Vec::new();
    for (name, request, wanted) in cases {
        for entry in [Entry::Handoff, Entry::Auto, Entry::Relay, Entry::Bind] {
            if let Some(complaint) = complaint(&scene, entry, &request, wanted) {
                complaints.push(format!("{name} ({entry:?}), {wanted:?}: {complaint}"));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    scene.comes_to_rest();
}

#[test]
#[ignore = "needs root"]
fn bodies_that_servers_might_measure_differently_are_refused() {
    judge(framing());
}

#[test]
#[ignore = "needs root"]
fn heads_that_servers_might_read_differently_are_refused() {
    judge(syntax());
}

#[test]
#[ignore = "needs root"]
fn targets_and_protocols_that_do_not_belong_here_are_refused() {
    judge(targets());
}
