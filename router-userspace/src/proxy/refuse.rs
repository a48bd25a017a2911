//! Answers that the router gives itself, and the ways of ending a connection without one.
//!
//! An answer is followed by a lingering close: the router says that it will send no more, then reads and discards until
//! the client has closed too. Closing at once with unread bytes would send an RST that can overtake the answer.

use std::fmt::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use router_common::abi::reason::RefuseReason;
use tokio::time::{sleep, timeout};

use super::buffer::Buffer;
use super::endpoint::Endpoint;
use super::sockopt;

/// How long the client gets to read an answer and close.
const LINGER: Duration = Duration::from_secs(2);
/// How much a client may go on sending meanwhile, in bytes.
const LINGER_BYTES: usize = 1024 * 1024;
/// How often it is looked whether the client has acknowledged everything.
const DELIVERY_POLL: Duration = Duration::from_millis(5);
/// How long a connection that is to get no answer at all is kept.
const SILENCE: Duration = Duration::from_secs(120);

/// The status that answers `reason`; `None` if nobody is left to read one.
pub fn status(reason: RefuseReason) -> Option<u16> {
    Some(match reason {
        RefuseReason::BadRequest
        | RefuseReason::AmbiguousPath
        | RefuseReason::TlsOnHttp
        | RefuseReason::HttpOnTls
        | RefuseReason::BadClientHello
        | RefuseReason::BadServerName
        | RefuseReason::ProxyHeaderUnexpected
        | RefuseReason::Http09
        | RefuseReason::Pipelined
        | RefuseReason::H2cUpgrade => 400,
        RefuseReason::Denied => 403,
        RefuseReason::MethodNotAllowed => 405,
        RefuseReason::HeaderTimeout => 408,
        RefuseReason::UriTooLong => 414,
        RefuseReason::HeadTooLarge => 431,
        RefuseReason::NoResponse => 502,
        RefuseReason::ResponseTimeout => 504,
        RefuseReason::Unavailable
        | RefuseReason::QueueFull
        | RefuseReason::QueueTimeout
        | RefuseReason::ConnectFailed
        | RefuseReason::TooManyHeads
        | RefuseReason::NoSourcePort
        | RefuseReason::OutOfResources => 503,
        RefuseReason::Http2Preface | RefuseReason::HttpVersion => 505,
        // A proxy in front has no use for words.
        RefuseReason::ClientGone | RefuseReason::ProxyHeaderMissing | RefuseReason::BadProxyHeader => {
            return None;
        }
    })
}

/// A complete HTTP/1.1 response that ends the connection. `without_body` for a HEAD request (RFC 9110 §9.3.2).
pub fn response(status: u16, text: &str, retry_after: Duration, without_body: bool) -> String {
    let body = page(status, text);
    let mut response = format!("HTTP/1.1 {status} {}\r\n", phrase(status));
    for (name, value) in fields(status, retry_after) {
        let _ = write!(response, "{name}: {value}\r\n");
    }
    let _ = write!(response, "Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    if !without_body {
        response.push_str(&body);
    }
    response
}

/// The fields of an answer, but for those that frame it.
pub fn fields(status: u16, retry_after: Duration) -> impl Iterator<Item = (&'static str, String)> {
    let retry = (status == 503).then(|| ("Retry-After", retry_after.as_secs().max(1).to_string()));
    let allow =
        (status == 405).then(|| ("Allow", "GET, HEAD, POST, PUT, DELETE, OPTIONS, TRACE, PATCH".to_owned()));
    let always = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")];
    retry.into_iter().chain(allow).chain(always.map(|(name, value)| (name, value.to_owned())))
}

/// The body of an answer.
pub fn page(status: u16, text: &str) -> String {
    format!("{status} {}: {text}\n", phrase(status))
}

fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        410 => "Gone",
        414 => "URI Too Long",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        // The phrase is for people only (RFC 9112 §4); a rule may name any status.
        _ => "Refused",
    }
}

/// Sends `answer` and closes so that the client can read it.
pub async fn answer(client: Endpoint, answer: &[u8]) {
    // Whatever fails here, fails because the client has gone.
    let _ = timeout(LINGER, send_and_linger(client, answer)).await;
}

async fn send_and_linger(mut client: Endpoint, mut answer: &[u8]) -> std::io::Result<()> {
    while !answer.is_empty() {
        match client.send(answer) {
            Ok(count) => answer = &answer[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                client = client.register()?;
                client.writable().await?;
            }
            Err(error) => return Err(error),
        }
    }
    client.socket().shutdown(std::net::Shutdown::Write)?;
    discard(client, LINGER_BYTES).await
}

/// Ends a connection whose last bytes are on their way while the client may still be sending.
pub async fn linger(client: Endpoint) {
    // Fails only if the connection is gone.
    let _ = client.socket().shutdown(std::net::Shutdown::Write);
    let _ = timeout(LINGER, discard(client, LINGER_BYTES)).await;
}

/// Resets a connection once the client has acknowledged what it was sent, so that it sees all of it and then that
/// more should have come.
pub async fn deliver_then_reset(client: Endpoint) {
    let delivered = async {
        while sockopt::unacknowledged(client.as_fd()).is_ok_and(|bytes| bytes > 0) {
            sleep(DELIVERY_POLL).await;
        }
    };
    let _ = timeout(LINGER, delivered).await;
    client.reset();
}

/// Receives until the client closes, or has sent `limit` bytes.
async fn discard(mut client: Endpoint, limit: usize) -> std::io::Result<()> {
    let mut discarded = 0;
    while discarded < limit {
        let mut buffer = Buffer::take();
        match client.receive(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => discarded += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                drop(buffer);
                client = client.register()?;
                client.readable().await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Gives no answer: the client waits until its own patience ends. After two minutes the connection is reset, since the
/// router's descriptors are not endless.
pub async fn stay_silent(client: Endpoint) {
    let Ok(mut client) = client.register() else { return };
    let closed = async {
        loop {
            client.readable().await?;
            let mut buffer = Buffer::take();
            match client.receive(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err::<(), std::io::Error>(error),
            }
        }
    };
    if timeout(SILENCE, closed).await.is_err() {
        client.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_an_answer_unless_nobody_can_read_it() {
        for reason in RefuseReason::ALL.iter().copied() {
            match status(reason) {
                Some(status) => {
                    let response =
                        response(status, reason.description().trim(), Duration::from_secs(5), false);
                    let mut headers = [httparse::EMPTY_HEADER; 16];
                    let mut parsed = httparse::Response::new(&mut headers);
                    let head = parsed.parse(response.as_bytes()).unwrap().unwrap();
                    let length = parsed.headers.iter().find(|field| field.name == "Content-Length").unwrap();
                    let length: usize = std::str::from_utf8(length.value).unwrap().parse().unwrap();
                    assert_eq!(head + length, response.len());
                    assert_eq!(parsed.code, Some(status));
                    assert!(response.contains("Connection: close\r\n"));
                    assert_eq!(response.contains("Retry-After: 5\r\n"), status == 503);
                }
                None => assert!(matches!(
                    reason,
                    RefuseReason::ClientGone
                        | RefuseReason::ProxyHeaderMissing
                        | RefuseReason::BadProxyHeader
                )),
            }
        }
    }

    #[test]
    fn the_answer_to_head_has_no_body() {
        assert!(response(503, "later", Duration::ZERO, true).ends_with("\r\n\r\n"));
    }
}
