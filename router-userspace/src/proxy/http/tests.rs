//! The HTTP/1 lines of the list of hostile input, and properties over arbitrary bytes.

use std::net::IpAddr;

use proptest::prelude::*;
use router_common::abi::reason::RefuseReason;

use super::fields::{Framing, Upgrade};
use super::rewrite::rewrite;
use super::scan::{HeadLimits, Scanner};
use super::*;

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

fn read_all(bytes: &[u8]) -> Result<HttpHead<'_>, RefuseReason> {
    match read(bytes, &HeadLimits::default()) {
        Ok(Some((head, _))) => Ok(head),
        Ok(None) => panic!("incomplete: {:?}", bytes.escape_ascii().to_string()),
        Err(reason) => Err(reason),
    }
}

fn accepted(text: &str) -> HttpHead<'_> {
    read_all(text.as_bytes()).unwrap_or_else(|reason| panic!("{text:?} is refused: {}", reason.name()))
}

fn refused(text: impl AsRef<[u8]>) -> RefuseReason {
    let text = text.as_ref();
    match read(text, &HeadLimits::default()) {
        Err(reason) => reason,
        Ok(head) => panic!("{:?} is not refused: {head:?}", text.escape_ascii().to_string()),
    }
}

/// A complete HTTP/1.1 head with these further lines.
fn with_fields(fields: &str) -> String {
    format!("POST /a HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")
}

fn rewritten(head: &str, forwarded_for: Option<IpAddr>) -> String {
    let mut out = Vec::new();
    rewrite(head.as_bytes(), &accepted(head), forwarded_for, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn an_ordinary_request() {
    let text = "GET /gis/map?x=1 HTTP/1.1\r\nHost: gis.example:8080\r\nX-User: alice\r\n\r\nsurplus";
    let (head, length) = read(text.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
    assert_eq!(length, text.len() - "surplus".len());
    assert_eq!((head.method, head.raw_path, head.query), ("GET", "/gis/map", Some("x=1")));
    assert_eq!(head.host, Some("gis.example"));
    assert_eq!(head.headers[1], Header { name: "X-User", value: b"alice" });
    assert_eq!(head.fields.framing, Framing::NoBody);
    assert!(head.fields.keep_alive);
}

#[test]
fn one_empty_line_may_come_first_and_is_not_sent_on() {
    let head = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(accepted(head).raw_path, "/");
    assert_eq!(rewritten(head, None), &head[2..]);
    assert_eq!(refused("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), RefuseReason::BadRequest);
    assert_eq!(refused("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), RefuseReason::BadRequest);
}

#[test]
fn content_length_beside_transfer_encoding() {
    assert_eq!(
        refused(with_fields("Content-Length: 3\r\nTransfer-Encoding: chunked")),
        RefuseReason::BadRequest
    );
    assert_eq!(
        refused(with_fields("Transfer-Encoding: chunked\r\nContent-Length: 0")),
        RefuseReason::BadRequest
    );
}

#[test]
fn transfer_encoding_that_is_not_exactly_one_chunked() {
    assert_eq!(accepted(&with_fields("Transfer-Encoding: Chunked")).fields.framing, Framing::Chunked);
    for value in [
        "chunked,",
        ",chunked",
        "chunked, gzip",
        "gzip, chunked",
        "xchunked",
        "chunked, chunked",
        "chunked;q=1",
        "chunkedx",
        "\"chunked\"",
        "identity",
        "",
        "chunked\r\nTransfer-Encoding: chunked",
        "gzip\r\nTransfer-Encoding: chunked",
        "chunked\u{b}",
    ] {
        assert_eq!(
            refused(with_fields(&format!("Transfer-Encoding: {value}"))),
            RefuseReason::BadRequest,
            "{value:?}"
        );
    }
    assert_eq!(
        refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        RefuseReason::BadRequest,
        "HTTP/1.0 has no chunks"
    );
}

#[test]
fn content_length_that_is_not_exactly_one_number() {
    assert_eq!(accepted(&with_fields("Content-Length: 42")).fields.framing, Framing::Length(42));
    assert_eq!(
        accepted(&with_fields("Content-Length: 9223372036854775807")).fields.framing,
        Framing::Length(i64::MAX as u64)
    );
    for value in [
        "",
        "+1",
        "-1",
        "1,1",
        "1, 1",
        "0x10",
        "1 1",
        "1.0",
        "9223372036854775808",
        "18446744073709551616",
        "1\r\nContent-Length: 1",
        "\u{ff11}",
    ] {
        assert_eq!(
            refused(with_fields(&format!("Content-Length: {value}"))),
            RefuseReason::BadRequest,
            "{value:?}"
        );
    }
}

#[test]
fn lines_that_are_not_lines_and_names_that_are_not_names() {
    for text in [
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\rX",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\tfolded\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost\t: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nNoColon\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX\0: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\u{1b}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\u{7f}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX\u{e9}: b\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        "GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n",
        " GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /#fragment HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / http/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1x\r\nHost: a\r\n\r\n",
        "GET / HTTP/11\r\nHost: a\r\n\r\n",
    ] {
        assert_eq!(refused(text), RefuseReason::BadRequest, "{text:?}");
    }
    assert!(
        accepted(&with_fields("X: tab\tand caf\u{e9}")).headers.len() == 2,
        "obs-text in values is common"
    );
}

#[test]
fn host_missing_repeated_malformed_or_at_odds_with_the_target() {
    for text in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a,b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\n\r\n",
    ] {
        assert_eq!(refused(text), RefuseReason::BadRequest, "{text:?}");
    }
    for field in
        ["Host:\ta", "Host: a\t", "Host: a\r\nContent-Length: 1\t", "Host: a\r\nTransfer-Encoding:\tchunked"]
    {
        let head = format!("GET / HTTP/1.1\r\n{field}\r\n\r\n");
        assert_eq!(
            refused(&head),
            RefuseReason::BadRequest,
            "a tab is not white space to everybody: {head:?}"
        );
    }
    assert_eq!(accepted("GET / HTTP/1.0\r\n\r\n").host, None);
    assert_eq!(accepted("GET http://A/x HTTP/1.1\r\nHost: a\r\n\r\n").host, Some("A"));
}

#[test]
fn methods() {
    for (text, reason) in [
        ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", RefuseReason::MethodNotAllowed),
        ("GET a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", RefuseReason::MethodNotAllowed),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", RefuseReason::MethodNotAllowed),
        ("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", RefuseReason::BadRequest),
        ("G\u{e9}T / HTTP/1.1\r\nHost: a\r\n\r\n", RefuseReason::BadRequest),
    ] {
        assert_eq!(refused(text), reason, "{text:?}");
    }
    assert_eq!(accepted("BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n").method, "BREW");
    assert_eq!(accepted("get / HTTP/1.1\r\nHost: a\r\n\r\n").method, "get", "case is part of the method");
    assert_eq!(accepted("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").raw_path, "*");
}

#[test]
fn other_protocols_and_versions() {
    assert_eq!(refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), RefuseReason::Http2Preface);
    assert_eq!(refused("PRI / HTTP/1.1\r\nHost: a\r\n\r\n"), RefuseReason::BadRequest);
    assert_eq!(refused("GET / HTTP/1.2\r\nHost: a\r\n\r\n"), RefuseReason::HttpVersion);
    assert_eq!(refused("GET / HTTP/3.0\r\nHost: a\r\n\r\n"), RefuseReason::HttpVersion);
    assert_eq!(refused(b"\x16\x03\x01\x02\x00\x01\x00"), RefuseReason::TlsOnHttp);
    assert_eq!(refused("GET /\r\n"), RefuseReason::Http09);
    let limits = HeadLimits { http09: true, ..HeadLimits::default() };
    let (head, length) = read(b"GET /old?x\r\n", &limits).unwrap().unwrap();
    assert!(head.http09);
    assert_eq!((head.raw_path, head.query, length), ("/old", Some("x"), 12));
    assert_eq!(read(b"POST /old\r\n", &limits), Err(RefuseReason::Http09), "HTTP/0.9 knows only GET");
}

#[test]
fn limits_hold_before_the_rest_has_arrived() {
    let limits = HeadLimits { head: 1000, ..HeadLimits::default() };
    let long_target = format!("GET /{}", "a".repeat(8 * 1024));
    assert_eq!(refused(&long_target), RefuseReason::UriTooLong);
    let longest_target = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(8 * 1024 - 1));
    assert_eq!(accepted(&longest_target).raw_path.len(), 8 * 1024);

    let long_value = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "b".repeat(1000));
    assert_eq!(read(long_value.as_bytes(), &limits), Err(RefuseReason::HeadTooLarge));
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "b".repeat(1000 - 32));
    assert_eq!(head.len(), 1000);
    assert!(read(head.as_bytes(), &limits).unwrap().is_some());

    let hundred = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: b\r\n".repeat(99));
    assert_eq!(accepted(&hundred).headers.len(), 100);
    let one_more = format!("GET / HTTP/1.1\r\nHost: a\r\n{}", "X: b\r\n".repeat(100));
    assert_eq!(refused(&one_more), RefuseReason::HeadTooLarge);
}

#[test]
fn connection_expectation_and_upgrade() {
    assert!(!accepted(&with_fields("Connection: close")).fields.keep_alive);
    assert!(!accepted(&with_fields("Connection: Foo,  CLOSE")).fields.keep_alive);
    assert!(!accepted("GET / HTTP/1.0\r\n\r\n").fields.keep_alive);
    assert!(accepted("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").fields.keep_alive);
    assert!(accepted(&with_fields("Expect: 100-Continue")).fields.expects_continue);
    let websocket = with_fields("Connection: Upgrade\r\nUpgrade: websocket");
    assert_eq!(accepted(&websocket).fields.upgrade, Upgrade::Other);
    assert_eq!(accepted(&with_fields("Upgrade: websocket")).fields.upgrade, Upgrade::None, "not offered");
    assert_eq!(
        refused(with_fields("Connection: X-Forwarded-For")),
        RefuseReason::BadRequest,
        "would make the next proxy drop the client's address"
    );
}

#[test]
fn http2_in_cleartext_is_withdrawn_and_never_passed_on() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade, HTTP2-Settings\r\n\
                Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nX: y\r\n\r\n";
    assert_eq!(accepted(head).fields.upgrade, Upgrade::H2c);
    assert_eq!(rewritten(head, None), "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nX: y\r\n\r\n");
    let bare = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\nUpgrade: H2C-14\r\nConnection: Upgrade\r\n\r\n";
    assert_eq!(
        rewritten(bare, Some(CLIENT)),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1, 192.0.2.7\r\n\r\n"
    );
    assert_eq!(
        refused(with_fields("Connection: upgrade\r\nUpgrade: websocket, h2c")),
        RefuseReason::H2cUpgrade
    );
}

#[test]
fn forwarded_for_names_the_client_last() {
    for (before, after) in [
        ("", "X-Forwarded-For: 192.0.2.7\r\n"),
        ("X-Forwarded-For: 10.0.0.1\r\n", "X-Forwarded-For: 10.0.0.1, 192.0.2.7\r\n"),
        ("x-forwarded-for:10.0.0.1 \r\n", "x-forwarded-for:10.0.0.1, 192.0.2.7 \r\n"),
        ("X-Forwarded-For:\r\n", "X-Forwarded-For: 192.0.2.7\r\n"),
        // An address may end like the name of a field.
        ("X-Forwarded-For: 2001:db8::\r\n", "X-Forwarded-For: 2001:db8::, 192.0.2.7\r\n"),
        (
            "X-Forwarded-For: 10.0.0.1\r\nA: b\r\nX-Forwarded-For: 10.0.0.2\r\n",
            "X-Forwarded-For: 10.0.0.1\r\nA: b\r\nX-Forwarded-For: 10.0.0.2, 192.0.2.7\r\n",
        ),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{before}\r\n");
        assert_eq!(
            rewritten(&head, Some(CLIENT)),
            format!("GET / HTTP/1.1\r\nHost: a\r\n{after}\r\n"),
            "{before:?}"
        );
        assert_eq!(rewritten(&head, None), head);
    }
    assert!(
        rewritten("GET / HTTP/1.0\r\n\r\n", Some("fd77::2".parse().unwrap())).contains("For: fd77::2\r\n")
    );
}

/// Heads that are close to valid: pieces that matter to the grammar, glued together.
fn near_heads() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<&'static [u8]> = vec![
        b"GET",
        b"POST",
        b" ",
        b"/",
        b"/a?b",
        b"*",
        b"http://a/",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"HTTP/2.0",
        b"\r\n",
        b"\r",
        b"\n",
        b"Host",
        b":",
        b" a",
        b"Host: a\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"X-Forwarded-For: 1.2.3.4\r\n",
        b"X-Forwarded-For:\r\n",
        b"Upgrade: h2c\r\n",
        b"Connection: upgrade\r\n",
        b"\t",
        b"\0",
        b"\x16",
        b"\xff",
        b"GET / HTTP/1.1\r\n",
        b"\r\n\r\n",
    ];
    prop::collection::vec(prop::sample::select(pieces), 0..16).prop_map(|pieces| pieces.concat())
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![prop::collection::vec(any::<u8>(), 0..200), near_heads()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_bytes_make_it_panic_and_what_is_accepted_can_be_rewritten(bytes in any_bytes(), http09 in any::<bool>()) {
        let limits = HeadLimits { http09, ..HeadLimits::default() };
        if let Ok(Some((head, length))) = read(&bytes, &limits) {
            let mut out = Vec::new();
            rewrite(&bytes[..length], &head, Some(CLIENT), &mut out);
            let (again, consumed) = read(&out, &limits).unwrap().unwrap();
            prop_assert_eq!(consumed, out.len());
            prop_assert_eq!(again.raw_path, head.raw_path);
            prop_assert_eq!(again.fields.framing, head.fields.framing);
            prop_assert_eq!(again.fields.host, head.fields.host);
            prop_assert!(http09 || String::from_utf8_lossy(&out).contains("192.0.2.7"));
        }
    }

    #[test]
    fn a_head_in_pieces_is_the_same_head(bytes in any_bytes(), small in 10usize..200) {
        let limits = HeadLimits { head: small, target: small / 2, fields: 3, http09: false };
        let whole = Scanner::default().scan(&bytes, &limits);
        for split in 0..=bytes.len() {
            let mut scanner = Scanner::default();
            let first = scanner.scan(&bytes[..split], &limits);
            let in_pieces = if first == Ok(None) { scanner.scan(&bytes, &limits) } else { first };
            prop_assert_eq!(in_pieces, whole);
        }
        let mut scanner = Scanner::default();
        let mut one_by_one = Ok(None);
        for end in 0..=bytes.len() {
            one_by_one = scanner.scan(&bytes[..end], &limits);
            if one_by_one != Ok(None) { break }
        }
        prop_assert_eq!(one_by_one, whole);
    }
}
