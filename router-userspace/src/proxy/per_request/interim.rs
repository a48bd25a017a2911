//! Interim responses (1xx) on their way to the client, such as `103 Early Hints` (RFC 9110 §15.2, RFC 8297).
//!
//! The library on the instance's side brings them; the one on the client's side knows none. So they go past it, through the gate, which
//! writes them when the library has nothing left to write and the response in question has not begun: then nothing of another message is
//! on its way.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use hyper::header::HeaderMap;
use hyper::{Request, StatusCode, Version, ext};
use router_common::abi::reason::InterimEvent;

use super::body::RequestBody;
use super::fields;
use super::shared::Shared;

/// Bytes that may wait for a client that does not read; also more than one head may have.
const MAX_WAITING: usize = 64 * 1024;

/// Heads that wait to be written.
#[derive(Debug, Default)]
pub(super) struct InterimHeads(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    written: usize,
    /// The task that serves the client.
    task: Option<Waker>,
}

impl InterimHeads {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task of `cx` is woken when there is something to write, and when all has been written.
    pub(super) fn wake(&self, cx: &Context<'_>) {
        let task = &mut self.waiting().task;
        if !task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            *task = Some(cx.waker().clone());
        }
    }

    /// Appends a whole head, unless too much waits already.
    fn push(&self, head: &[u8]) -> bool {
        let mut waiting = self.waiting();
        let has_room = waiting.bytes.len() + head.len() <= MAX_WAITING;
        if has_room {
            waiting.bytes.extend_from_slice(head);
            if let Some(task) = &waiting.task {
                task.wake_by_ref();
            }
        }
        has_room
    }

    /// Writes what waits.
    pub(super) fn poll_write(
        &self,
        mut write: impl FnMut(&[u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        let mut waiting = self.waiting();
        if waiting.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while waiting.written < waiting.bytes.len() {
            let count = ready!(write(&waiting.bytes[waiting.written..]))?;
            waiting.written += count;
        }
        (waiting.bytes, waiting.written) = (Vec::new(), 0);
        if let Some(task) = &waiting.task {
            task.wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    /// Whether a head has been written in part, so that nothing else may follow.
    pub(super) fn is_within_a_head(&self) -> bool {
        self.waiting().written > 0
    }

    /// Waits until everything has been written. The task must be the one that is woken.
    pub(super) async fn written(&self) {
        let is_empty = |_: &mut Context<'_>| {
            if self.waiting().bytes.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        };
        std::future::poll_fn(is_empty).await;
    }
}

/// Lets the interim responses to `request` go on to the client, which speaks `version`.
pub(super) fn forward(request: &mut Request<RequestBody>, shared: &Arc<Shared>, version: Version) {
    // The connection keeps the callback for as long as it is kept itself, and must not keep its own owner.
    let shared = Arc::downgrade(shared);
    ext::on_informational(request, move |response| {
        let Some(shared) = shared.upgrade() else { return };
        // The router has told the client to go on already.
        if response.status() == StatusCode::CONTINUE {
            return;
        }
        let event = if version < Version::HTTP_11 {
            InterimEvent::OldClient
        } else if shared.interim.push(&head(response.status(), response.headers())) {
            InterimEvent::Forwarded
        } else {
            InterimEvent::ClientBehind
        };
        shared.listener.context.counters.interim.add(event);
    });
}

fn head(status: StatusCode, fields: &HeaderMap) -> Vec<u8> {
    let mut fields = fields.clone();
    fields::of_interim(&mut fields);
    let mut head =
        format!("HTTP/1.1 {} {}\r\n", status.as_str(), status.canonical_reason().unwrap_or_default())
            .into_bytes();
    for (name, value) in &fields {
        let mut begins = true;
        for byte in name.as_str().bytes() {
            head.push(if begins { byte.to_ascii_uppercase() } else { byte });
            begins = byte == b'-';
        }
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn a_head_has_the_instances_fields_except_those_of_the_connection_and_of_a_body() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("link", "</a.css>; rel=preload"),
            ("link", "</b.js>; rel=preload"),
            ("connection", "x-mine"),
            ("x-mine", "1"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
        ] {
            fields.append(name, HeaderValue::from_static(value));
        }
        let hints = head(StatusCode::EARLY_HINTS, &fields);
        let text =
            "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nLink: </b.js>; rel=preload\r\n\r\n";
        assert_eq!(String::from_utf8(hints).unwrap(), text);
        let unknown = head(StatusCode::from_u16(104).unwrap(), &HeaderMap::new());
        assert_eq!(unknown, b"HTTP/1.1 104 \r\n\r\n");
    }

    #[test]
    fn heads_wait_whole_and_in_order_and_not_without_bound() {
        let heads = InterimHeads::default();
        assert!(heads.push(b"first") && heads.push(b"second"));
        assert!(!heads.push(&[0; MAX_WAITING]), "there is no room for all of it, so none of it waits");
        let mut out = Vec::new();
        let mut room = 7;
        let mut write = |bytes: &[u8]| {
            let count = bytes.len().min(room);
            if count == 0 {
                return Poll::Pending;
            }
            room -= count;
            out.extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        };
        assert!(heads.poll_write(&mut write).is_pending());
        assert!(heads.is_within_a_head());
        let mut write = |bytes: &[u8]| {
            out.extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        };
        assert!(heads.poll_write(&mut write).is_ready());
        assert_eq!(out, b"firstsecond");
        assert!(!heads.is_within_a_head());
        assert!(heads.push(&[0; MAX_WAITING]), "there is room again");
        let failing = |_: &[u8]| Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        assert!(matches!(heads.poll_write(failing), Poll::Ready(Err(_))));
    }
}
