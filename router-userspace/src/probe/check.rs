//! One active check of one instance: connect, and for `http` ask and read a bounded answer.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::exchange::{self, Stop};
use super::origin::Origin;
use crate::core::health::{CheckKind, CheckSpec, Failure, Observation};

/// How much of a body is read, and for how long, so that a server need not see a reset in the middle of its answer.
const MAX_BODY: usize = 64 * 1024;
const BODY_TIME: Duration = Duration::from_millis(100);

/// The check could not be made, which says nothing about the instance.
#[derive(Debug, thiserror::Error)]
#[error("cannot check: {0}")]
pub(super) struct NotChecked(#[from] io::Error);

/// Checks `instance` once, within the check's `timeout` in all.
pub(super) async fn check(
    spec: &CheckSpec,
    instance: SocketAddr,
    origin: &Origin,
) -> Result<Observation, NotChecked> {
    let deadline = Instant::now() + spec.timeout;
    match timeout_at(deadline, attempt(spec, instance, origin, deadline)).await {
        Ok(Ok(seen)) => Ok(seen),
        Ok(Err(Stop::Failed(failure))) => Ok(Observation::CheckFailed(failure)),
        Ok(Err(Stop::NotTried(error))) => Err(error.into()),
        Err(_) => Ok(Observation::CheckFailed(Failure::TimedOut)),
    }
}

async fn attempt(
    spec: &CheckSpec,
    instance: SocketAddr,
    origin: &Origin,
    deadline: Instant,
) -> Result<Observation, Stop> {
    let mut stream = exchange::connect(instance, origin).await?;
    let CheckKind::Http { path, host, .. } = &spec.kind else { return Ok(Observation::CheckPassed) };
    let host = host.clone().unwrap_or_else(|| instance.to_string());
    let status = ask(&mut stream, path, &host).await.map_err(Stop::Failed)?;
    // The answer is known; reading on is a courtesy, so its outcome does not matter.
    let _ = timeout_at(deadline.min(Instant::now() + BODY_TIME), drain(&mut stream)).await;
    Ok(spec.judge(status))
}

/// Sends a GET and reads the status code of the answer.
async fn ask(stream: &mut TcpStream, path: &str, host: &str) -> Result<u16, Failure> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: router-check\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    exchange::ask(stream, request.as_bytes()).await.map(|answer| answer.status)
}

async fn drain(stream: &mut TcpStream) {
    let mut buffer = [0; 4_096];
    let mut rest = MAX_BODY;
    while rest > 0 {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => rest = rest.saturating_sub(length),
        }
    }
}
