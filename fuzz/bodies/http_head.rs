//! Any bytes are a head, a part of one, or refused: alike in whatever pieces they come. What is accepted loses nothing when it is rewritten.

use std::net::IpAddr;

use router::core::request::Header;
use router::proxy::http::fields::Upgrade;
use router::proxy::http::rewrite::rewrite;
use router::proxy::http::scan::{HeadLimits, Scanner};
use router::proxy::http::{HttpHead, read};

/// Pieces that chance alone would hardly write. Input bytes from 0x80 to 0xbf stand for them.
const PIECES: [&str; 40] = [
    "GET ",
    "POST ",
    "OPTIONS ",
    "CONNECT ",
    "PRI ",
    "* ",
    "/",
    "http://",
    "a.example",
    ":80",
    "?q=1",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    " HTTP/2.0\r\n",
    "Host: ",
    "Host: a.example\r\n",
    "Content-Length: ",
    "Content-Length: 1\r\n",
    "Transfer-Encoding: ",
    "chunked",
    "chunked\r\n",
    "Connection: ",
    "close",
    "keep-alive",
    "upgrade",
    "http2-settings",
    ", ",
    "Upgrade: ",
    "h2c",
    "websocket",
    "HTTP2-Settings: ",
    "X-Forwarded-For: ",
    "X-Forwarded-For:\r\n",
    "10.0.0.1",
    "Expect: 100-continue\r\n",
    "X-Long: ",
    "\r\n",
    "\r\n\r\n",
    "%2e",
    "[::1]",
];

const CLIENT: &str = "192.0.2.7";

pub fn check(input: &[u8]) {
    let Some((&options, input)) = input.split_first() else { return };
    let mut bytes = Vec::new();
    for &byte in input {
        match byte {
            0x80..0xc0 => bytes.extend_from_slice(PIECES[usize::from(byte - 0x80) % PIECES.len()].as_bytes()),
            _ => bytes.push(byte),
        }
    }
    let mut limits = HeadLimits { http09: options & 1 != 0, ..HeadLimits::default() };
    if options & 2 != 0 {
        limits = HeadLimits { head: 200, target: 20, fields: 4, ..limits };
    }

    let whole = Scanner::default().scan(&bytes, &limits);
    let mut scanner = Scanner::default();
    let pieces = (1..=bytes.len()).map(|len| scanner.scan(&bytes[..len], &limits));
    let first = pieces.into_iter().find(|outcome| *outcome != Ok(None)).unwrap_or(Ok(None));
    assert_eq!(first, whole);

    let Ok(Some((head, length))) = read(&bytes, &limits) else { return };
    assert_eq!(whole, Ok(Some(length)));
    assert!(length <= limits.head && head.headers.len() <= limits.fields && !head.raw_path.is_empty());
    if let Ok(path) = head.path() {
        assert!(path == "*" || path.starts_with('/'));
    }
    for forwarded_for in [None, Some(CLIENT.parse::<IpAddr>().unwrap())] {
        let mut out = b"kept".to_vec();
        rewrite(&bytes[..length], &head, forwarded_for, &mut out);
        let out = out.strip_prefix(b"kept").expect("what was there stays");
        check_rewritten(&head, &bytes[..length], forwarded_for.is_some(), out);
    }
}

fn check_rewritten(head: &HttpHead<'_>, original: &[u8], forwarded: bool, out: &[u8]) {
    let unlimited = HeadLimits { head: usize::MAX, target: usize::MAX, fields: usize::MAX, http09: true };
    let (again, length) = read(out, &unlimited).expect("it is accepted again").expect("it is complete");
    assert_eq!(length, out.len());
    if head.fields.upgrade != Upgrade::H2c && (!forwarded || head.http09) {
        assert_eq!(out, original.strip_prefix(b"\r\n").unwrap_or(original));
    }
    assert_eq!((again.version, again.http09, again.method), (head.version, head.http09, head.method));
    assert_eq!((again.host, again.raw_path, again.query), (head.host, head.raw_path, head.query));
    assert_eq!(again.fields.framing, head.fields.framing);
    assert_eq!(again.fields.keep_alive, head.fields.keep_alive);
    assert_ne!(again.fields.upgrade, Upgrade::H2c);
    assert_eq!(fields(&again), expected_fields(head, forwarded));
}

fn fields(head: &HttpHead<'_>) -> Vec<(String, Vec<u8>)> {
    head.headers.iter().map(|Header { name, value }| ((*name).to_owned(), value.to_vec())).collect()
}

/// What is left of the fields without an offer of HTTP/2, with the client behind whoever it came through.
fn expected_fields(head: &HttpHead<'_>, forwarded: bool) -> Vec<(String, Vec<u8>)> {
    let mut expected = fields(head);
    if head.fields.upgrade == Upgrade::H2c {
        expected.retain(|(name, _)| !["upgrade", "http2-settings"].contains(&&*name.to_ascii_lowercase()));
        for (_, value) in expected.iter_mut().filter(|(name, _)| name.eq_ignore_ascii_case("connection")) {
            let kept: Vec<_> = value
                .split(|byte| *byte == b',')
                .map(<[u8]>::trim_ascii)
                .filter(|option| !option.is_empty())
                .filter(|option| {
                    !["upgrade", "http2-settings"]
                        .iter()
                        .any(|gone| option.eq_ignore_ascii_case(gone.as_bytes()))
                })
                .collect();
            *value = kept.join(&b", "[..]);
        }
        expected.retain(|(name, value)| !(name.eq_ignore_ascii_case("connection") && value.is_empty()));
    }
    if forwarded && !head.http09 {
        match expected.iter_mut().rfind(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-for")) {
            Some((_, value)) if value.is_empty() => value.extend_from_slice(CLIENT.as_bytes()),
            Some((_, value)) => value.extend_from_slice(format!(", {CLIENT}").as_bytes()),
            None => expected.push(("X-Forwarded-For".to_owned(), CLIENT.into())),
        }
    }
    expected
}
