//! Any bytes are a ClientHello, a part of one, or refused: alike in whatever pieces they come. What rustls accepts is accepted, and read
//! alike.

use router::proxy::tls::client_hello::{ClientHello, parse};
use router::proxy::tls::records::{Scanner, message};
use router_common::abi::reason::RefuseReason;
use rustls::server::Acceptor;

/// The greatest length that is accepted; small, so that it is met.
const LIMIT: usize = 2_048;

pub fn check(bytes: &[u8]) {
    let whole = Scanner::default().scan(bytes, LIMIT);
    let mut scanner = Scanner::default();
    let pieces = (0..=bytes.len()).map(|length| scanner.scan(&bytes[..length], LIMIT));
    let first = pieces.into_iter().find(|outcome| *outcome != Ok(None)).unwrap_or(Ok(None));
    assert_eq!(first, whole);
    let end = match whole {
        Ok(Some(end)) => end,
        Ok(None) => return assert!(bytes.len() < LIMIT, "{} bytes are too many to go on", bytes.len()),
        Err(reason) => return refused(bytes, reason),
    };
    assert!(end <= LIMIT && end <= bytes.len());
    let message = message(&bytes[..end]);
    match parse(&message) {
        Ok(hello) => read(bytes, &hello),
        Err(reason) => refused(bytes, reason),
    }
}

fn read(bytes: &[u8], hello: &ClientHello<'_>) {
    if let Some(name) = hello.server_name {
        assert!((1..=255).contains(&name.len()) && name.is_ascii());
    }
    assert!(hello.alpn.iter().all(|protocol| !protocol.is_empty()));
    // A ClientHello from before TLS 1.2 is read here and refused there.
    let Some((name, alpn)) = by_rustls(bytes) else { return };
    if let Some(name) = name {
        assert_eq!(hello.server_name, Some(&*name));
    }
    assert_eq!(hello.alpn.iter().map(|protocol| protocol.to_vec()).collect::<Vec<_>>(), alpn);
}

fn refused(bytes: &[u8], reason: RefuseReason) {
    let strict = matches!(reason, RefuseReason::HeadTooLarge | RefuseReason::BadServerName);
    assert!(
        strict || matches!(reason, RefuseReason::BadClientHello | RefuseReason::HttpOnTls),
        "{}",
        reason.name()
    );
    assert!(strict || by_rustls(bytes).is_none(), "rustls accepts it");
}

type Read = (Option<String>, Vec<Vec<u8>>);

/// What rustls reads; `None` if it refuses, or if there is more to come.
fn by_rustls(mut bytes: &[u8]) -> Option<Read> {
    let mut acceptor = Acceptor::default();
    loop {
        if acceptor.read_tls(&mut bytes).ok()? == 0 {
            return None;
        }
        if let Some(accepted) = acceptor.accept().ok()? {
            let hello = accepted.client_hello();
            let alpn = hello.alpn().map(|list| list.map(<[u8]>::to_vec).collect());
            return Some((hello.server_name().map(str::to_owned), alpn.unwrap_or_default()));
        }
    }
}
