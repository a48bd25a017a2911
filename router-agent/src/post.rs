//! Sends one report and reads the answer.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use router_report::Report;

/// Longest answer that is read.
const MAX_ANSWER: u64 = 16 * 1024;

/// Why a report did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    #[error("cannot read --token-file {}: {source}", .path.display())]
    Token { path: PathBuf, source: io::Error },
    #[error("cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    #[error("has no address")]
    NoAddress,
    #[error("refuses the report: {0}")]
    Refused(String),
}

/// Posts `report` to `router`. Each step may take `patience`.
pub fn post(router: &str, token: &str, report: &Report, patience: Duration) -> Result<(), PostError> {
    let address = router.to_socket_addrs()?.next().ok_or(PostError::NoAddress)?;
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let body = serde_json::to_string(report).map_err(io::Error::from)?;
    let length = body.len();
    let request = format!(
        "POST /v1/report HTTP/1.1\r\nHost: {router}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    match answer.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => {
            let body = answer.split_once("\r\n\r\n").map_or(&*answer, |(_, body)| body);
            Err(PostError::Refused(body.trim().to_owned()))
        }
    }
}
