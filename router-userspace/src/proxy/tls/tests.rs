//! ClientHellos whole and in pieces, of real clients and such as no client sends.

use std::io::Cursor;
use std::sync::Arc;

use proptest::prelude::*;
use router_common::abi::reason::RefuseReason::{self, *};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::{client_hello, records};

const LIMIT: usize = 16 * 1024;

/// A ClientHello message with these extensions.
fn message(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut list = Vec::new();
    for (number, data) in extensions {
        list.extend(number.to_be_bytes());
        list.extend(vector16(data));
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 4, 0x13, 0x01, 0x0a, 0x0a, 1, 0]);
    body.extend(vector16(&list));
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    message
}

fn vector16(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u16).to_be_bytes()[..], data].concat()
}

/// The message in records of at most `size` bytes.
fn in_records(message: &[u8], size: usize) -> Vec<u8> {
    message.chunks(size).flat_map(|part| [&[22, 3, 1][..], &vector16(part)].concat()).collect()
}

/// A `server_name` extension with these entries.
fn names(entries: &[(u8, &[u8])]) -> (u16, Vec<u8>) {
    let list: Vec<u8> =
        entries.iter().flat_map(|(kind, name)| [&[*kind][..], &vector16(name)].concat()).collect();
    (0, vector16(&list))
}

fn name(name: &str) -> (u16, Vec<u8>) {
    names(&[(0, name.as_bytes())])
}

fn alpn(protocols: &[&[u8]]) -> (u16, Vec<u8>) {
    let list: Vec<u8> =
        protocols.iter().flat_map(|protocol| [&[protocol.len() as u8][..], protocol].concat()).collect();
    (16, vector16(&list))
}

type Read = (Option<String>, Vec<Vec<u8>>);

/// What the listener reads, and how long the ClientHello is.
fn read(bytes: &[u8]) -> Result<Option<(Read, usize)>, RefuseReason> {
    let Some(end) = records::Scanner::default().scan(bytes, LIMIT)? else { return Ok(None) };
    let message = records::message(&bytes[..end]);
    let hello = client_hello::parse(&message)?;
    let alpn = hello.alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Some(((hello.server_name.map(str::to_owned), alpn), end)))
}

fn of(extensions: &[(u16, Vec<u8>)]) -> Result<Read, RefuseReason> {
    read(&in_records(&message(extensions), LIMIT)).map(|read| read.expect("it is whole").0)
}

/// What a real client sends first.
fn real(server_name: &str, alpn: &[&str]) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(server_name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut sent = Cursor::new(Vec::new());
    client.write_tls(&mut sent).unwrap();
    sent.into_inner()
}

#[test]
fn a_real_client_is_understood() {
    let hello = real("app.example", &["h2", "http/1.1"]);
    let (seen, end) = read(&hello).unwrap().unwrap();
    assert_eq!(seen, (Some("app.example".into()), vec![b"h2".to_vec(), b"http/1.1".to_vec()]));
    assert_eq!(end, hello.len());
    // An address is no name (RFC 6066 §3), so the client sends none.
    assert_eq!(read(&real("10.0.0.1", &[])).unwrap().unwrap().0, (None, vec![]));
}

#[test]
fn names_are_those_of_hosts() {
    assert_eq!(of(&[]), Ok((None, vec![])));
    assert_eq!(of(&[name("A_b-1.Example.")]), Ok((Some("A_b-1.Example".into()), vec![])));
    // Not what RFC 6066 wants, but nobody reads it differently.
    assert_eq!(of(&[name("10.0.0.1")]).unwrap().0.as_deref(), Some("10.0.0.1"));
    for odd in ["a.example:443", "a.example\0", "a example", "[::1]", "*.example", "é.example", ".", "a/b"] {
        assert_eq!(of(&[name(odd)]), Err(BadServerName), "{odd:?}");
    }
    assert_eq!(of(&[name(&"a".repeat(255))]).unwrap().0.unwrap().len(), 255);
    assert_eq!(of(&[name(&"a".repeat(256))]), Err(BadServerName));
    assert_eq!(of(&[names(&[(0, b"\xff.example")])]), Err(BadServerName));
}

#[test]
fn two_names_are_one_too_many() {
    assert_eq!(of(&[names(&[(0, b"a"), (0, b"b")])]), Err(BadServerName));
    assert_eq!(of(&[name("a"), name("a")]), Err(BadServerName));
    assert_eq!(of(&[alpn(&[b"h2"]), alpn(&[b"h2"])]), Err(BadClientHello));
    // Of another type there may be one.
    assert_eq!(of(&[names(&[(7, b"\0"), (0, b"b")])]).unwrap().0.as_deref(), Some("b"));
    assert_eq!(of(&[names(&[(7, b"x")])]), Ok((None, vec![])));
}

#[test]
fn what_only_the_instance_understands_is_left_to_it() {
    let grease = [(0x0a0a, vec![]), (0x1a1a, vec![0])];
    let ech = (0xfe0d, vec![0; 200]);
    let unknown = (0xffff, vec![1, 2, 3]);
    let extensions =
        [&grease[..1], &[ech, name("public.example"), unknown.clone(), unknown], &grease[1..]].concat();
    assert_eq!(of(&extensions).unwrap().0.as_deref(), Some("public.example"), "the outer name");
    // TLS 1.0 without any extension.
    let mut old = message(&[]);
    old.truncate(old.len() - 2);
    old[3] -= 2;
    old[5] = 1;
    assert_eq!(read(&in_records(&old, LIMIT)).unwrap().unwrap().0, (None, vec![]));
}

#[test]
fn lengths_that_lie_are_refused() {
    for malformed in [
        (0, vec![]),
        (0, vec![0, 0]),
        (0, vec![0, 5, 0, 0, 1, b'a']),
        (0, vec![0, 4, 0, 0, 9, b'a']),
        (0, vec![0, 3, 0, 0, 0]),
        (0, vec![0, 4, 0, 0, 1, b'a', 0]),
        (16, vec![]),
        (16, vec![0, 0]),
        (16, vec![0, 1, 0]),
        (16, vec![0, 3, 3, b'h', b'2']),
        (16, vec![0, 3, 2, b'h', b'2', 0]),
    ] {
        assert_eq!(of(std::slice::from_ref(&malformed)), Err(BadClientHello), "{malformed:?}");
    }
    let whole = message(&[name("a.example")]);
    for shorter in 0..whole.len() - 4 {
        let mut cut = whole[..4 + shorter].to_vec();
        cut[2..4].copy_from_slice(&(shorter as u16).to_be_bytes());
        let seen = read(&in_records(&cut, LIMIT));
        // Exactly without its extensions it is one again.
        let extensions = 2 + 32 + 1 + 6 + 2;
        assert_eq!(seen.is_ok(), shorter == extensions, "{shorter} bytes");
    }
    for longer in [1, 2, 100] {
        let mut padded = whole.clone();
        padded.extend(vec![0; longer]);
        padded[3] += longer as u8;
        assert_eq!(read(&in_records(&padded, LIMIT)), Err(BadClientHello));
    }
}

#[test]
fn what_is_no_tls_is_told_by_its_first_bytes() {
    let refusal = |bytes: &[u8]| records::Scanner::default().scan(bytes, LIMIT).unwrap_err();
    assert_eq!(refusal(b"G"), HttpOnTls);
    assert_eq!(refusal(b"POST / HTTP/1.1\r\n"), HttpOnTls);
    assert_eq!(refusal(b"\0"), BadClientHello);
    assert_eq!(refusal(b"\x80\x2e\x01\x03\x01"), BadClientHello, "SSL 2");
    assert_eq!(refusal(b"\x16\x02"), BadClientHello);
    assert_eq!(refusal(b"\x17\x03\x03\0\x05"), BadClientHello, "data before a handshake");
    assert_eq!(refusal(b"\x16\x03\x01\0\0"), BadClientHello, "an empty record");
    assert_eq!(refusal(b"\x16\x03\x01\x40\x01"), BadClientHello, "a record that is too long");
    assert_eq!(refusal(b"\x16\x03\x01\0\x04\x02"), BadClientHello, "a ServerHello");
    let then_an_alert = [&in_records(&message(&[name("a")])[..20], LIMIT)[..], b"\x15\x03\x01"].concat();
    assert_eq!(refusal(&then_an_alert), BadClientHello);
}

#[test]
fn a_client_hello_may_be_long_but_not_longer_than_the_limit() {
    let padding = |length: usize| message(&[name("a"), (21, vec![0; length])]);
    // The largest that fits into one record.
    let overhead = padding(0).len() + 5;
    let largest = in_records(&padding(LIMIT - overhead), LIMIT);
    assert_eq!(largest.len(), LIMIT);
    assert!(matches!(read(&largest), Ok(Some((_, LIMIT)))));
    let too_large = in_records(&padding(LIMIT - overhead + 1), LIMIT);
    assert_eq!(read(&too_large[..20]), Err(HeadTooLarge), "its length says so");
    // In many small records, their headers count.
    assert_eq!(read(&in_records(&padding(8_000), 4)), Err(HeadTooLarge));
    assert!(matches!(read(&in_records(&padding(4_000), 4)), Ok(Some(_))));
}

proptest! {
    #[test]
    fn a_client_hello_is_the_same_in_whatever_records_and_pieces(
        host in "[a-z0-9_-]{1,20}(\\.[a-z0-9]{1,20}){0,3}",
        protocols in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..20), 0..5),
        others in proptest::collection::vec((17u16.., proptest::collection::vec(any::<u8>(), 0..50)), 0..5),
        size in 1usize..300,
        surplus in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let borrowed: Vec<&[u8]> = protocols.iter().map(Vec::as_slice).collect();
        let mut extensions = others;
        extensions.push(name(&host));
        if !borrowed.is_empty() {
            extensions.push(alpn(&borrowed));
        }
        let hello = in_records(&message(&extensions), size);
        let bytes = [&hello[..], &surplus].concat();
        let (seen, end) = read(&bytes).unwrap().unwrap();
        prop_assert_eq!(seen, (Some(host), protocols));
        prop_assert_eq!(end, hello.len());
        let mut scanner = records::Scanner::default();
        for length in 0..hello.len() {
            prop_assert_eq!(scanner.scan(&bytes[..length], LIMIT), Ok(None));
        }
        prop_assert_eq!(scanner.scan(&bytes, LIMIT), Ok(Some(end)));
    }

    #[test]
    fn bytes_that_are_changed_make_no_panic(
        at in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        size in 1usize..600,
    ) {
        let mut bytes = in_records(&message(&[name("a.example"), alpn(&[b"h2"]), (0x2a2a, vec![0; 9])]), size);
        for (place, byte) in at {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let _ = read(&bytes);
    }
}
