//! One active check of one instance: connect, and for `http` ask and read a bounded answer, for `tls` complete a handshake.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::exchange::{self, Stop};
use super::origin::Origin;
use super::tls::Handshake;
use crate::core::health::{CheckKind, CheckSpec, Failure, Observation};
use crate::core::proxy_protocol::ProxyProtocol;

/// How much of a body is read, and for how long, so that a server need not see a reset in the middle of its answer.
const MAX_BODY: usize = 64 * 1024;
const BODY_TIME: Duration = Duration::from_millis(100);

/// The check could not be made, which says nothing about the instance.
#[derive(Debug, thiserror::Error)]
#[error("cannot check: {0}")]
pub(super) struct NotChecked(#[from] io::Error);

/// A check, ready to be made again and again.
pub(super) struct Checker {
    spec: CheckSpec,
    handshake: Option<Handshake>,
    proxy_protocol: Option<ProxyProtocol>,
}

impl Checker {
    /// `proxy_protocol` as the pool says.
    pub fn new(spec: CheckSpec, proxy_protocol: Option<ProxyProtocol>) -> Result<Self, NotChecked> {
        let handshake = match &spec.kind {
            CheckKind::Tls(tls) => Some(Handshake::new(tls).map_err(io::Error::other)?),
            CheckKind::Tcp | CheckKind::Http { .. } => None,
        };
        Ok(Self { spec, handshake, proxy_protocol })
    }

    /// Checks `instance` once, within the check's `timeout` in all.
    pub async fn check(&self, instance: SocketAddr, origin: &Origin) -> Result<Observation, NotChecked> {
        let deadline = Instant::now() + self.spec.timeout;
        match timeout_at(deadline, self.attempt(instance, origin, deadline)).await {
            Ok(Ok(seen)) => Ok(seen),
            Ok(Err(Stop::Failed(failure))) => Ok(Observation::CheckFailed(failure)),
            Ok(Err(Stop::NotTried(error))) => Err(error.into()),
            Err(_) => Ok(Observation::CheckFailed(Failure::TimedOut)),
        }
    }

    async fn attempt(
        &self,
        instance: SocketAddr,
        origin: &Origin,
        deadline: Instant,
    ) -> Result<Observation, Stop> {
        let mut stream = exchange::connect(instance, origin).await?;
        if self.spec.kind != CheckKind::Tcp {
            exchange::announce(&mut stream, self.proxy_protocol).await?;
        }
        // Once the answer is known the rest is a courtesy, so its outcome does not matter.
        let courtesy = || deadline.min(Instant::now() + BODY_TIME);
        if let Some(handshake) = &self.handshake {
            let mut stream = handshake.complete(stream, instance).await.map_err(Stop::Failed)?;
            let _ = timeout_at(courtesy(), async {
                let _ = stream.shutdown().await;
                drain(&mut stream).await;
            })
            .await;
            return Ok(Observation::CheckPassed);
        }
        let CheckKind::Http { path, host, .. } = &self.spec.kind else {
            return Ok(Observation::CheckPassed);
        };
        let host = host.clone().unwrap_or_else(|| instance.to_string());
        let status = ask(&mut stream, path, &host).await.map_err(Stop::Failed)?;
        let _ = timeout_at(courtesy(), drain(&mut stream)).await;
        Ok(self.spec.judge(status))
    }
}

/// Sends a GET and reads the status code of the answer.
async fn ask(stream: &mut TcpStream, path: &str, host: &str) -> Result<u16, Failure> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: router-check\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    exchange::ask(stream, request.as_bytes()).await.map(|answer| answer.status)
}

async fn drain(stream: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = [0; 4_096];
    let mut rest = MAX_BODY;
    while rest > 0 {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => rest = rest.saturating_sub(length),
        }
    }
}
