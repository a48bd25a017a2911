//! Any text either compiles or is an error at a place in it; what compiles evaluates as logic says.

use router::core::request::{Header, HttpRequest, HttpVersion, Request};
use router::core::rules::{Expression, compile};

/// Pieces that chance alone would hardly write. Input bytes from 0x80 stand for them.
const PIECES: [&str; 40] = [
    "Any()",
    "Http10()",
    "Tls()",
    "Host(",
    "HostSuffix(",
    "HostRegexp(",
    "Path(",
    "PathPrefix(",
    "PathSuffix(",
    "PathContains(",
    "PathRegexp(",
    "Extension(",
    "Method(",
    "Header(",
    "HeaderPrefix(",
    "HeaderContains(",
    "HeaderRegexp(",
    "Cookie(",
    "CookieRegexp(",
    "Query(",
    "QueryRegexp(",
    "ClientIP(",
    "Listener(",
    "User(",
    "\"/x\"",
    "\"a.example\"",
    "\"10.0.0.0/8\"",
    "\"k\", \"v\"",
    "\"^[a-z]+$\"",
    "`\\d`",
    "\"",
    "`",
    " && ",
    " || ",
    "!",
    "(",
    ")",
    ", ",
    "\\",
    "é",
];

pub fn check(bytes: &[u8]) {
    let mut source = String::new();
    for &byte in bytes.iter().take(4096) {
        match byte {
            0..0x80 => source.push(char::from(byte)),
            _ => source.push_str(PIECES[usize::from(byte - 0x80) % PIECES.len()]),
        }
    }
    let condition = match compile(&source) {
        Ok(condition) => condition,
        Err(error) => {
            assert!(source.get(error.span).is_some() && !error.message.is_empty() && !error.help.is_empty());
            return;
        }
    };
    let headers = [
        Header { name: "Cookie", value: b"k=v; a=\"b\"" },
        Header { name: "k", value: b"v" },
        Header { name: "K", value: b"\xff" },
    ];
    let request = Request {
        listener: "web",
        client: [10, 1, 2, 3].into(),
        tls: None,
        http: Some(HttpRequest {
            version: HttpVersion::Http11,
            method: "GET",
            host: Some("A.example:80"),
            raw_path: "/x/%79.png",
            path: "/x/y.png",
            query: Some("k=v&a=%62+c&k"),
            headers: &headers,
        }),
    };
    let explained = condition.explain(&request);
    assert_eq!(explained.matched, condition.matches(&request));
    assert_eq!(explained.matched, explained.failed.is_none());
    assert_eq!(explained.matched, by_logic(condition.expression(), &source, &request));
}

/// Evaluates the tree, with each call compiled by itself.
fn by_logic(expression: &Expression, source: &str, request: &Request<'_>) -> bool {
    match expression {
        Expression::All(parts, _) => parts.iter().all(|part| by_logic(part, source, request)),
        Expression::Any(parts, _) => parts.iter().any(|part| by_logic(part, source, request)),
        Expression::Not(part, _) => !by_logic(part, source, request),
        Expression::Call(call) => {
            compile(&source[call.span.clone()]).expect("a part of what compiles").matches(request)
        }
    }
}
