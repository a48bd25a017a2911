//! One HTTP exchange with an instance, as checks and preloads need it: connect, ask, read the head of the answer.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::origin::Origin;
use crate::core::health::Failure;
use crate::core::proxy_protocol::ProxyProtocol;

/// The longest response head that is read, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Why an exchange ended early.
pub(super) enum Stop {
    Failed(Failure),
    /// It could not be tried, which says nothing about the instance.
    NotTried(io::Error),
}

/// The head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: u16,
    /// Bytes of the body, if the head says so.
    pub length: Option<u64>,
    /// Bytes of the body that have been read already.
    pub read: u64,
}

pub(super) async fn connect(instance: SocketAddr, origin: &Origin) -> Result<TcpStream, Stop> {
    let socket = origin.bind(instance).map_err(Stop::NotTried)?;
    let stream = socket.connect(instance).await.map_err(connect_failed)?;
    // Closing first would leave a TIME_WAIT of a minute behind each exchange.
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    Ok(stream)
}

/// Says that the connection is the router's own, to an instance that wants to be told where connections come from.
pub(super) async fn announce(stream: &mut TcpStream, protocol: Option<ProxyProtocol>) -> Result<(), Stop> {
    let Some(protocol) = protocol else { return Ok(()) };
    stream.write_all(&protocol.own()).await.map_err(|_| Stop::Failed(Failure::Reset))
}

/// Whose fault it is that no connection came about.
fn connect_failed(error: io::Error) -> Stop {
    use io::ErrorKind::*;
    match error.kind() {
        ConnectionRefused => Stop::Failed(Failure::Refused),
        TimedOut => Stop::Failed(Failure::TimedOut),
        ConnectionReset | ConnectionAborted => Stop::Failed(Failure::Reset),
        HostUnreachable | NetworkUnreachable | NetworkDown => Stop::Failed(Failure::Unreachable),
        // Out of ports, files or memory, an address that this host does not have, a local firewall.
        _ => Stop::NotTried(error),
    }
}

/// Sends a request and reads the head of its final answer.
pub(super) async fn ask(stream: &mut TcpStream, request: &[u8]) -> Result<Answer, Failure> {
    stream.write_all(request).await.map_err(|_| Failure::Reset)?;
    let mut head = Vec::with_capacity(1_024);
    loop {
        match stream.read_buf(&mut head).await {
            Ok(0) => return Err(Failure::Closed),
            Ok(_) => {}
            Err(_) if head.is_empty() => return Err(Failure::Reset),
            Err(_) => return Err(Failure::Closed),
        }
        if let Some(answer) = parse(&head)? {
            return Ok(answer);
        }
        if head.len() >= MAX_HEAD {
            return Err(Failure::Malformed);
        }
    }
}

/// The final answer, if its head is complete; those before it only say that it will come (RFC 9110, section 15.2).
fn parse(mut bytes: &[u8]) -> Result<Option<Answer>, Failure> {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; 128];
        let mut response = httparse::Response::new(&mut fields);
        let Ok(parsed) = response.parse(bytes) else { return Err(Failure::Malformed) };
        let httparse::Status::Complete(end) = parsed else { return Ok(None) };
        let status = response.code.ok_or(Failure::Malformed)?;
        if !matches!(status, 100 | 102 | 103) {
            let field =
                |name: &str| response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
            let length = match (status, field("transfer-encoding"), field("content-length")) {
                (204 | 304, ..) => Some(0),
                (_, None, Some(field)) => {
                    let text = std::str::from_utf8(field.value).map_err(|_| Failure::Malformed)?;
                    Some(text.trim().parse().map_err(|_| Failure::Malformed)?)
                }
                _ => None,
            };
            return Ok(Some(Answer { status, length, read: (bytes.len() - end) as u64 }));
        }
        bytes = &bytes[end..];
        if bytes.is_empty() {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_answer_counts_and_its_length_is_what_is_left_to_read() {
        let early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        assert_eq!(parse(early.as_bytes()), Ok(None));
        let whole = format!("{early}HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc");
        assert_eq!(parse(whole.as_bytes()), Ok(Some(Answer { status: 200, length: Some(5), read: 3 })));
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(parse(chunked), Ok(Some(Answer { status: 200, length: None, read: 0 })));
        assert_eq!(parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap().length, Some(0));
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), Err(Failure::Malformed));
    }
}
