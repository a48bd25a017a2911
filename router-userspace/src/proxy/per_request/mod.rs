//! Routes every request of a connection by itself, in user space: `once_only = false`.
//!
//! [`serve`] is the conductor: the [`gate`] lets one message at a time through to the HTTP library, which calls [`exchange`] for it; an
//! [`upstream`] connection is kept for the client's next request and belongs to this client alone, so that a disagreement about framing
//! can reach nobody else. [`interim`] responses go past the library. After an [`upgrade`] the two sockets are plain streams.

mod accounting;
mod body;
mod exchange;
mod fields;
mod gate;
mod interim;
mod shared;
mod upgrade;
mod upstream;

use std::future::poll_fn;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use router_common::abi::reason::{RefuseReason, RelayReason};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::access::Record;
use super::announced::Client;
use super::choice::{Action, Refusal};
use super::connection::{count_refusal, respond};
use super::endpoint::Endpoint;
use super::refuse;
use super::settings::Listener;
use exchange::exchange;
use gate::Gate;
use shared::{Shared, Verdict};

/// Bytes that the library buffers of a request beyond its head, and of a response.
const BUFFER: usize = 64 * 1024;

/// Serves one accepted connection to its end.
pub(super) async fn serve(listener: &Arc<Listener>, endpoint: Endpoint, client: Client, record: Record) {
    let counters = &listener.context.counters;
    let shared = Shared::new(listener, client);
    let Ok(client) = endpoint.into_stream() else {
        return counters.refused.add(RefuseReason::OutOfResources);
    };
    let (ending, rest) = converse(listener, &client, &shared).await;
    if let Some(upgraded) = shared.take_upgraded() {
        return upgrade::carry_on(listener, client, &rest, *upgraded).await;
    }
    if shared.has_reached() {
        counters.relayed.add(RelayReason::PerRequest);
    }
    let client = Endpoint::Registered(client);
    match (shared.take_verdict(), ending) {
        (Some(Verdict::BadHead { reason, any_received }), Ending::Closed) => {
            let refusal = Refusal::bad(reason);
            let answered = any_received && refuse::status(reason).is_some();
            count_refusal(listener, &refusal, answered, &record);
            if answered {
                respond(listener, client, &refusal).await;
            }
        }
        (Some(Verdict::Broken(refusal)), Ending::Broken { unanswered }) => {
            let is_answer = matches!(refusal.action, Action::Answer { .. });
            count_refusal(listener, &refusal, is_answer && unanswered, &record);
            if is_answer && !unanswered {
                client.reset();
            } else {
                respond(listener, client, &refusal).await;
            }
        }
        (Some(Verdict::BadHead { reason, .. }), ending) => {
            count_refusal(listener, &Refusal::bad(reason), false, &record);
            end(client, ending).await;
        }
        (_, ending) => end(client, ending).await,
    }
}

/// Closes a connection that gets no further word.
async fn end(client: Endpoint, ending: Ending) {
    match ending {
        Ending::Idle => client.reset(),
        Ending::Failed => refuse::deliver_then_reset(client).await,
        Ending::Closed | Ending::Broken { .. } => {
            // Closing with bytes unread would reset the connection and could take the response with it.
            if client.socket().shutdown(Shutdown::Write).is_ok() {
                refuse::linger(client).await;
            }
        }
    }
}

enum Ending {
    /// After a response, or between two requests.
    Closed,
    /// The client's connection failed, or a response could not be completed.
    Failed,
    /// A verdict ended the request in progress. `unanswered`: nothing of its response has been sent.
    Broken { unanswered: bool },
    /// Nothing moved for too long.
    Idle,
}

/// Serves requests until there are no more. Also returns what the client has sent that nobody has looked at.
async fn converse(listener: &Arc<Listener>, client: &TcpStream, shared: &Arc<Shared>) -> (Ending, Vec<u8>) {
    let settings = &listener.settings;
    let gate = Gate::new(client, listener, Arc::clone(shared));
    let service =
        service_fn(|request| Box::pin(exchange(Arc::clone(shared), client.as_fd(), request)) as Serving<'_>);
    let mut connection = Builder::new()
        .preserve_header_case(true)
        .title_case_headers(true)
        .auto_date_header(false)
        .header_read_timeout(None)
        // One more for the address of the client.
        .max_headers(settings.head.fields + 1)
        .max_buf_size(settings.head.head + BUFFER)
        .serve_connection(TokioIo::new(gate), service);
    let mut idle = pin!(sleep_until(Instant::now() + settings.idle_timeout));
    let mut told = false;
    let ending = poll_fn(|cx| {
        shared.interim.wake(cx);
        loop {
            match connection.poll_without_shutdown(cx) {
                Poll::Ready(_) if shared.is_broken() => {}
                Poll::Ready(Ok(())) => return Poll::Ready(Ending::Closed),
                Poll::Ready(Err(error)) => {
                    if error.is_parse() {
                        // We let pass what the library does not read, and it has said so to the client.
                        listener.context.counters.refused.add(RefuseReason::BadRequest);
                        return Poll::Ready(Ending::Closed);
                    }
                    return Poll::Ready(Ending::Failed);
                }
                Poll::Pending => {}
            }
            if shared.is_broken() {
                let unanswered = shared.is_undecided() && !shared.interim.is_within_a_head();
                return Poll::Ready(Ending::Broken { unanswered });
            }
            if shared.has_ended() && !told {
                told = true;
                Pin::new(&mut connection).graceful_shutdown();
                continue;
            }
            if idle.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let (now, mut until) = (Instant::now(), shared.activity.last() + settings.idle_timeout);
            if until <= now {
                if !shared.is_undecided() {
                    return Poll::Ready(Ending::Idle);
                }
                // A request that waits has a time-out of its own.
                until = now + settings.idle_timeout;
            }
            idle.as_mut().reset(until);
        }
    })
    .await;
    let parts = connection.into_parts();
    let mut rest = parts.read_buf.to_vec();
    rest.extend(parts.io.into_inner().rest());
    (ending, rest)
}

type Serving<'a> = Pin<
    Box<
        dyn Future<Output = Result<hyper::Response<body::ResponseBody>, std::convert::Infallible>>
            + Send
            + 'a,
    >,
>;
