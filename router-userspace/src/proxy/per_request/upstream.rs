//! Connections to instances, kept for the next request of the same client and never given to another.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::Bytes;
use hyper::client::conn::http1::{Builder, Parts, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::connect::{ConnectError, Connected, connect};
use super::super::connection::for_handoff;
use super::body::RequestBody;
use super::shared::{Activity, Shared};
use crate::core::health::Failure;
use crate::flows::ports::PortLease;

/// Connections that one client's connection keeps open without using them: one for each instance, the last used ones.
const KEPT: usize = 8;
/// Bytes that are buffered of a response; also the longest head. As long as what persistence cookies are put into.
const BUFFER: usize = 64 * 1024;
/// Fields of a response.
const FIELDS: usize = 128;

/// A connection to an instance that speaks HTTP.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) instance: SocketAddr,
    pub(super) sender: SendRequest<RequestBody>,
    driver: Driver,
    source_port: Option<PortLease>,
    /// Whether a request has been answered on it.
    pub(super) used: bool,
}

/// The task that reads and writes. It ends with the connection's owner.
#[derive(Debug)]
struct Driver(JoinHandle<hyper::Result<Parts<TokioIo<Watched>>>>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Upstream {
    /// Connects, and sends `header` if there is one. With a `client` the connection may later be handed off together with that of the client.
    pub(super) async fn open(
        shared: &Shared,
        instance: SocketAddr,
        header: &[u8],
        client: Option<BorrowedFd<'_>>,
    ) -> Result<Self, ConnectError> {
        let listener = &*shared.listener;
        let for_handoff = client.and_then(|client| for_handoff(listener, client, instance.ip()));
        let in_name_of = listener.settings.transparent.then(|| shared.client.ip());
        let patience = listener.settings.connect_timeout;
        let Connected { mut endpoint, source_port } =
            connect(&listener.context, instance, patience, in_name_of, for_handoff).await?;
        // A connection that is new takes some hundred bytes, unless it is broken already.
        if !header.is_empty() && endpoint.send(header).ok() != Some(header.len()) {
            return Err(ConnectError::Instance(Failure::Reset));
        }
        let stream = endpoint.into_stream().map_err(ConnectError::Local)?;
        let watched = Watched { stream, activity: Arc::clone(&shared.activity) };
        let (sender, connection) = Builder::new()
            .preserve_header_case(true)
            .title_case_headers(true)
            .max_buf_size(BUFFER)
            .max_headers(FIELDS)
            .handshake(TokioIo::new(watched))
            .await
            .map_err(|error| ConnectError::Local(io::Error::other(error)))?;
        let driver = Driver(tokio::spawn(connection.without_shutdown()));
        Ok(Self { instance, sender, driver, source_port, used: false })
    }

    /// Whether a kept connection can take another request. It cannot if the instance has closed it meanwhile.
    pub(super) async fn is_usable(&mut self, shared: &Shared) -> bool {
        // The task may have something to read that has just come: the instance's end.
        tokio::task::yield_now().await;
        timeout(shared.listener.settings.connect_timeout, self.sender.ready())
            .await
            .is_ok_and(|ready| ready.is_ok())
    }

    /// Takes the socket back after the instance has changed the protocol, with what it has sent since.
    pub(super) async fn into_socket(mut self) -> Option<(TcpStream, Bytes, Option<PortLease>)> {
        let parts = (&mut self.driver.0).await.ok()?.ok()?;
        Some((parts.io.into_inner().stream, parts.read_buf, self.source_port))
    }
}

/// Idle connections of one client's connection.
#[derive(Debug, Default)]
pub(super) struct Kept(Vec<Upstream>);

impl Kept {
    /// Keeps a connection; the one that has been idle longest makes room.
    pub(super) fn put(&mut self, upstream: Upstream) {
        if self.0.len() >= KEPT {
            self.0.remove(0);
        }
        self.0.push(upstream);
    }

    pub(super) fn take(&mut self, instance: SocketAddr) -> Option<Upstream> {
        let at = self.0.iter().position(|kept| kept.instance == instance)?;
        Some(self.0.remove(at))
    }
}

/// A socket that says when something moves.
#[derive(Debug)]
struct Watched {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        if read.is_ready() {
            self.activity.moved();
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if written.is_ready() {
            self.activity.moved();
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        if written.is_ready() {
            self.activity.moved();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
