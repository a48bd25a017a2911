//! One direction of a relay: a buffer that is held only while it holds bytes, and how far the sender has come.

use std::net::Shutdown;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::buffer::Buffer;
use super::endpoint::Endpoint;
use super::http::response::{HeadInsertion, Insertion};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// The sender has closed; what is buffered still has to go.
    Ended,
    /// The sender's connection has failed; what came before still has to go.
    Broken,
    /// The end has been passed on.
    Closed,
    /// The receiver takes no more: what comes is received and discarded, until the other direction has ended too.
    Discarding,
}

#[derive(Debug)]
pub(super) struct Direction {
    pub(super) buffer: Option<Buffer>,
    /// Bytes received from the sender.
    pub(super) bytes: u64,
    pub(super) phase: Phase,
}

/// What went wrong, and where.
pub(super) enum Fault {
    Receiving,
    Sending,
    NoResponse,
}

impl Direction {
    /// Passes what has been received through the insertion. `Some` when the insertion has nothing left to do.
    pub(super) fn insert(&mut self, insertion: &mut HeadInsertion) -> Option<Insertion> {
        let received = self.buffer.take();
        let mut out = Buffer::take();
        let mut inserted = insertion.pass(received.as_ref().map_or(&[], Buffer::pending), out.as_vec());
        if inserted.is_none() && self.phase != Phase::Open {
            inserted = Some(insertion.give_up(out.as_vec()));
        }
        self.buffer = Some(out).filter(|out| !out.is_empty());
        inserted
    }

    /// Sends what is buffered, and then the end if it has come. `None` if the receiver takes no more now.
    pub(super) fn flush(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut Endpoint,
        other_phase: Phase,
        last_moved: &mut Instant,
    ) -> Option<Result<(), Fault>> {
        let end_follows = self.phase == Phase::Ended;
        while let Some(buffer) = &mut self.buffer {
            match to.poll_send(cx, buffer.pending(), end_follows) {
                Poll::Pending => return None,
                Poll::Ready(Ok(count)) => buffer.consume(count),
                Poll::Ready(Err(_)) => return Some(Err(Fault::Sending)),
            }
            *last_moved = Instant::now();
            if buffer.is_empty() {
                self.buffer = None;
            }
        }
        if self.phase == Phase::Broken {
            return Some(Err(Fault::Receiving));
        }
        if self.phase == Phase::Ended {
            // The second end is the end of the connection: closing the socket says it too.
            if other_phase != Phase::Closed {
                // Fails only if the connection is gone, and then receiving says so.
                let _ = to.socket().shutdown(Shutdown::Write);
            }
            self.phase = Phase::Closed;
        }
        Some(Ok(()))
    }

    /// Receives into a fresh buffer what is there, up to the end if that has come too; `Ok(0)` if only the end has. `None` if
    /// there is nothing now.
    pub(super) fn receive(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Endpoint,
        last_moved: &mut Instant,
    ) -> Option<Result<usize, Fault>> {
        let mut buffer = Buffer::take();
        let mut received = 0;
        let next = loop {
            match from.poll_receive(cx, &mut buffer) {
                Poll::Ready(Ok(0)) => break Phase::Ended,
                Poll::Ready(Ok(count)) => received += count,
                // The kernel tells of a failure only once.
                Poll::Ready(Err(_)) => break Phase::Broken,
                Poll::Pending if received > 0 => break Phase::Open,
                Poll::Pending => return None,
            }
            if buffer.spare().is_empty() {
                break Phase::Open;
            }
        };
        *last_moved = Instant::now();
        self.bytes += received as u64;
        if self.phase == Phase::Open && received > 0 {
            self.buffer = Some(buffer);
        }
        self.phase = match (self.phase, next) {
            (Phase::Discarding, Phase::Ended) => Phase::Closed,
            (Phase::Discarding, Phase::Open) => Phase::Discarding,
            _ => next,
        };
        Some(if next == Phase::Broken && received == 0 { Err(Fault::Receiving) } else { Ok(received) })
    }
}
