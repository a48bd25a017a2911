//! Stands between the client and the HTTP library: every head passes the listener's own checks before the library sees it.
//!
//! The library is more lenient than this listener may be. So it gets a message only after [`Scanner`] and [`http::parse`] have accepted its head,
//! and no byte of the next one before that has been accepted too. What it gets is the head as instances are to see it.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::Uri;
use router_common::abi::reason::RefuseReason;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::super::announced;
use super::super::budget::HalfReadHead;
use super::super::buffer::Buffer;
use super::super::http;
use super::super::http::fields::Upgrade;
use super::super::http::framing::BodyEnd;
use super::super::http::rewrite::rewrite;
use super::super::http::scan::{HeadLimits, Scanner};
use super::super::settings::Listener;
use super::shared::{Shared, Verdict};
use crate::core::request::HttpVersion;

/// The client's side, as the library reads and writes it.
pub(super) struct Gate<'a> {
    client: &'a TcpStream,
    listener: &'a Listener,
    shared: Arc<Shared>,
    limits: HeadLimits,
    /// Received and not looked at.
    received: Option<Buffer>,
    /// A head that did not come whole.
    half: Option<HalfReadHead<'a>>,
    scanner: Scanner,
    /// Runs while a head is awaited that has begun, and for the first one from the start.
    deadline: Option<Pin<Box<Sleep>>>,
    /// An accepted head, on its way to the library.
    passing: Vec<u8>,
    passed: usize,
    body: BodyEnd,
    /// The request offers to change the protocol: what follows may be no HTTP.
    holds: bool,
}

impl<'a> Gate<'a> {
    pub(super) fn new(client: &'a TcpStream, listener: &'a Listener, shared: Arc<Shared>) -> Self {
        let settings = &listener.settings;
        Self {
            client,
            listener,
            shared,
            // The library knows no HTTP/0.9.
            limits: HeadLimits { http09: false, ..settings.head },
            received: None,
            half: None,
            scanner: Scanner::default(),
            deadline: Some(Box::pin(sleep(settings.header_timeout))),
            passing: Vec::new(),
            passed: 0,
            body: BodyEnd::of(http::fields::Framing::NoBody),
            holds: false,
        }
    }

    /// Bytes that have been received and that the library has not got.
    pub(super) fn rest(&self) -> Vec<u8> {
        self.received.as_ref().map_or_else(Vec::new, |received| received.pending().to_vec())
    }

    fn address(&self) -> IpAddr {
        self.shared.client.ip()
    }

    /// Receives more. `false` at the end of the stream.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut buffer = Buffer::take();
        loop {
            ready!(self.client.poll_read_ready(cx))?;
            match self.client.try_read_buf(buffer.as_vec()) {
                Ok(0) => return Poll::Ready(Ok(false)),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.shared.activity.moved();
        self.received = Some(buffer);
        Poll::Ready(Ok(true))
    }

    /// Waits for the next head to be complete and accepted. When there will be none, a verdict says why, and this stays pending.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(received) = self.received.take().filter(|received| !received.is_empty()) {
                match self.take_in(received) {
                    Ok(true) => return Poll::Ready(Ok(())),
                    Ok(false) => {}
                    Err(reason) => return self.refuse(reason),
                }
            }
            match self.poll_receive(cx)? {
                Poll::Ready(true) => {}
                Poll::Ready(false) if self.half.is_some() => return self.refuse(RefuseReason::ClientGone),
                Poll::Ready(false) => {
                    self.shared.end(Verdict::ClientDone);
                    return Poll::Pending;
                }
                Poll::Pending => {
                    let late =
                        self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready());
                    return if late { self.refuse(RefuseReason::HeaderTimeout) } else { Poll::Pending };
                }
            }
        }
    }

    fn refuse(&mut self, reason: RefuseReason) -> Poll<io::Result<()>> {
        let any_received = reason != RefuseReason::HeaderTimeout || self.half.is_some();
        self.half = None;
        self.shared.end(Verdict::BadHead { reason, any_received });
        Poll::Pending
    }

    fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, RefuseReason> {
        self.scanner.scan(bytes, &self.limits).map_err(|reason| announced::refusal_of(bytes, reason))
    }

    /// Whether `received` completes a head.
    fn take_in(&mut self, mut received: Buffer) -> Result<bool, RefuseReason> {
        let listener = self.listener;
        let Some(mut half) = self.half.take() else {
            if let Some(length) = self.scan(received.pending())? {
                self.accept(&received.pending()[..length])?;
                received.consume(length);
                self.received = Some(received);
                return Ok(true);
            }
            let timeout = listener.settings.header_timeout;
            self.deadline.get_or_insert_with(|| Box::pin(sleep(timeout)));
            let half = listener.context.heads.admit(self.address());
            let half = half.and_then(|mut half| half.append(received.pending()).then_some(half));
            self.half = Some(half.ok_or(RefuseReason::TooManyHeads)?);
            return Ok(false);
        };
        if !half.append(received.pending()) {
            return Err(RefuseReason::TooManyHeads);
        }
        match self.scan(half.bytes())? {
            Some(length) => {
                self.accept(&half.bytes()[..length])?;
                self.received = Some(received.refilled(&half.bytes()[length..]));
                Ok(true)
            }
            None => {
                self.half = Some(half);
                Ok(false)
            }
        }
    }

    /// Judges a complete head and lets it pass.
    fn accept(&mut self, bytes: &[u8]) -> Result<(), RefuseReason> {
        let Listener { context, settings } = self.listener;
        let head = http::parse(bytes)?;
        head.path()?;
        let mut outgoing = Vec::with_capacity(bytes.len() + 64);
        rewrite(bytes, &head, settings.forwarded_for.then(|| self.address()), &mut outgoing);
        // Characters that RFC 3986 does not allow in a target; the library would refuse them in its own words.
        let target = outgoing.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        Uri::try_from(target).map_err(|_| RefuseReason::BadRequest)?;
        context.counters.requests.add(1);
        self.body = BodyEnd::of(head.fields.framing);
        self.holds = head.fields.upgrade == Upgrade::Other && head.version == HttpVersion::Http11;
        self.passing.clone_from(&outgoing);
        self.passed = 0;
        self.scanner = Scanner::default();
        self.deadline = None;
        if self.shared.vetted(outgoing) {
            context.counters.pipelined.add(1);
            if !settings.pipelining {
                self.passing.clear();
                return Err(RefuseReason::Pipelined);
            }
        }
        Ok(())
    }

    /// Passes more of the accepted head, or of the body behind it.
    fn pass(&mut self, into: &mut ReadBuf<'_>) -> io::Result<bool> {
        if self.passed < self.passing.len() {
            let count = into.remaining().min(self.passing.len() - self.passed);
            into.put_slice(&self.passing[self.passed..self.passed + count]);
            self.passed += count;
            if self.passed == self.passing.len() {
                self.passing = Vec::new();
                self.passed = 0;
            }
            return Ok(true);
        }
        let Some(received) = self.received.as_mut().filter(|received| !received.is_empty()) else {
            return Ok(false);
        };
        let room = into.remaining().min(received.pending().len());
        match self.body.pass(&received.pending()[..room]) {
            Ok(count) => {
                into.put_slice(&received.pending()[..count]);
                received.consume(count);
                Ok(true)
            }
            Err(_) => {
                self.shared
                    .end(Verdict::Broken(super::super::choice::Refusal::bad(RefuseReason::BadRequest)));
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }
}

impl AsyncRead for Gate<'_> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let gate = self.get_mut();
        loop {
            if gate.shared.has_ended() {
                return Poll::Pending;
            }
            if gate.passed < gate.passing.len() || !gate.body.is_complete() {
                if gate.pass(into)? {
                    return Poll::Ready(Ok(()));
                }
                // The end within a body: the library sees that something is missing.
                gate.received = None;
                if !ready!(gate.poll_receive(cx))? {
                    return Poll::Ready(Ok(()));
                }
            } else if gate.holds && gate.shared.poll_in_flight(cx) {
                // Until that request is answered otherwise nothing is taken from the socket, but a reset is noticed.
                let looked = gate.client.poll_peek(cx, &mut ReadBuf::new(&mut [0]));
                return match looked {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Ready(Ok(_)) | Poll::Pending => Poll::Pending,
                };
            } else {
                ready!(gate.poll_head(cx))?;
            }
        }
    }
}

impl AsyncWrite for Gate<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.client.poll_write_ready(cx))?;
            match self.client.try_write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.shared.activity.moved();
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The library has written all that it has. Interim responses wait only as long as the response has not begun.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gate = self.get_mut();
        let shared = Arc::clone(&gate.shared);
        shared.interim.poll_write(|bytes| Pin::new(&mut *gate).poll_write(cx, bytes))
    }

    /// Whoever owns the socket closes it.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
