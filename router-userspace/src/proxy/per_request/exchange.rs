//! One request and its response: `vetted head → decide → connection to the instance → request → response → session accounting`.
//!
//! The session lasts from the decision to the end of the response. Every refusal is counted, and every request gets its line in the access log.

use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Request, Response, StatusCode};
use router_common::abi::reason::{CookieEvent, RefuseReason};
use socket2::SockRef;
use tokio::time::sleep_until;

use super::super::access::Record;
use super::super::choice::{Action, Candidate, Choice, Refusal, observe};
use super::super::connect::ConnectError;
use super::super::connection::count_refusal;
use super::super::http::fields::Upgrade;
use super::super::http::{self, HttpHead};
use super::super::response_timer::ResponseTimer;
use super::super::{cookies, refuse};
use super::accounting::{Exchange, Unanswered};
use super::body::{RequestBody, ResponseBody};
use super::shared::{InFlight, Shared, Verdict};
use super::upgrade::Upgraded;
use super::upstream::Upstream;
use super::{fields, interim};
use crate::core::health::Failure;
use crate::core::request;

/// Serves the next request of a connection. What the library brings must be what the gate has let pass.
pub(super) async fn exchange(
    shared: Arc<Shared>,
    client: BorrowedFd<'_>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let mut unanswered = Unanswered { shared: &shared, record: Some(Record::begin(shared.client.address)) };
    let refusal = match (shared.next_head(), &mut unanswered.record) {
        (Some(head), Some(record)) => {
            let in_flight = InFlight::begin(&shared);
            let answer = forward(&shared, client, &head, request, record, in_flight).await;
            // They come before the response, whosever that is.
            shared.interim.written().await;
            match answer {
                Ok(Answer::Own(refusal)) | Err(refusal) => refusal,
                Ok(Answer::Instances(response, mut exchange)) => {
                    exchange.record = unanswered.record.take();
                    return Ok(carried(response, exchange));
                }
                Ok(Answer::Switched(response, mut upgraded)) => {
                    upgraded.record = unanswered.record.take();
                    shared.upgrade(*upgraded);
                    return Ok(response.map(|_| ResponseBody::Own(None)));
                }
            }
        }
        _ => Refusal::bad(RefuseReason::BadRequest),
    };
    let record = unanswered.record.take();
    if let (Action::Answer { status, without_body }, Some(record)) = (&refusal.action, &record) {
        count_refusal(&shared.listener, &refusal, true, record);
        return Ok(own_words(&shared, &refusal, *status, *without_body));
    }
    // The connection's owner acts on it, and drops this.
    shared.end(Verdict::Broken(refusal));
    std::future::pending().await
}

enum Answer {
    Own(Refusal),
    Instances(Response<Incoming>, Box<Exchange>),
    Switched(Response<Incoming>, Box<Upgraded>),
}

async fn forward(
    shared: &Arc<Shared>,
    client: BorrowedFd<'_>,
    bytes: &[u8],
    request: Request<Incoming>,
    record: &mut Record,
    in_flight: InFlight,
) -> Result<Answer, Refusal> {
    let listener = &*shared.listener;
    let head = http::parse(bytes).map_err(Refusal::bad)?;
    record.request(&head);
    if !is_same(&request, &head) {
        return Err(Refusal::bad(RefuseReason::BadRequest));
    }
    let path = head.path().map_err(Refusal::bad)?;
    let without_body = head.method == "HEAD";
    let version = request.version();
    let upgrade = head.fields.upgrade == Upgrade::Other && version == hyper::Version::HTTP_11;

    let sent = Arc::new(AtomicU64::new(bytes.len() as u64));
    let (mut parts, incoming) = request.into_parts();
    fields::to_instance(&mut parts, upgrade);
    let repeatable = incoming.is_end_stream() && fields::is_idempotent(&parts.method);
    let mut outgoing = Request::from_parts(parts, RequestBody::new(incoming, Arc::clone(&sent)));
    interim::forward(&mut outgoing, shared, version);

    let seen = request::Request {
        listener: &listener.settings.name,
        client: shared.client.ip(),
        tls: None,
        http: Some(head.request(&path)),
    };
    let mut choice = Choice::new(listener, &seen);
    let (candidate, upstream, timer, response) = loop {
        let candidate = choice.next(client, record).await?;
        let instance = candidate.table.instance(candidate.id).address;
        let mut upstream = match reuse(shared, instance, upgrade).await {
            Some(kept) => kept,
            None => match open(shared, &candidate, client, upgrade).await {
                Ok(upstream) => upstream,
                Err(error) => {
                    choice.failed(&candidate, &error)?;
                    continue;
                }
            },
        };
        shared.reached();
        let again = (repeatable && upstream.used).then(|| copy(&outgoing, &sent));
        let timer = ResponseTimer::start(Arc::clone(candidate.session.counters()));
        let failed = match respond(shared, &mut upstream, outgoing).await {
            Ok(response) => break (candidate, upstream, timer, response),
            Err(failed) => failed,
        };
        match (failed, again) {
            // A kept connection that the instance was just closing: nothing has been done with the request, or doing it twice is no harm.
            (Failed::Unsent(request), _) if upstream.used => outgoing = *request,
            (Failed::Broken { .. }, Some(request)) => outgoing = request,
            (Failed::TimedOut, _) => {
                return Err(Refusal::answer(RefuseReason::ResponseTimeout, without_body));
            }
            (Failed::Broken { reset: true }, None) => {
                observe(&candidate.table, candidate.id, Failure::Reset);
                return Err(Refusal::answer(RefuseReason::NoResponse, without_body));
            }
            _ => return Err(Refusal::answer(RefuseReason::NoResponse, without_body)),
        }
        listener.context.counters.retries.add(1);
    };
    timer.stop();
    choice.served();
    in_flight.answered();

    let switching = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if switching && !upgrade {
        return Ok(Answer::Own(Refusal::answer(RefuseReason::NoResponse, without_body)));
    }
    let Candidate { table, rule, id, session, cookie } = candidate;
    let (mut parts, incoming) = response.into_parts();
    if let Some(field) = cookies::answer(&listener.context, &table, (rule, cookie), id) {
        let inserted = fields::to_client(&mut parts, switching, Some(&field));
        listener.context.counters.cookies.add(if inserted {
            CookieEvent::Inserted
        } else {
            CookieEvent::NoResponseHead
        });
    } else {
        fields::to_client(&mut parts, switching, None);
    }
    let status = parts.status.as_u16();
    let response = Response::from_parts(parts, incoming);
    if switching {
        let upgraded = Upgraded { upstream, session, table, rule, id, record: None };
        return Ok(Answer::Switched(response, Box::new(upgraded)));
    }
    let exchange = Exchange {
        session: Some(session),
        upstream: Some(upstream),
        shared: Arc::clone(shared),
        _in_flight: in_flight,
        record: None,
        status,
        request: sent,
        response: 0,
    };
    Ok(Answer::Instances(response, Box::new(exchange)))
}

/// Whether the library has read the head as we have.
fn is_same(request: &Request<Incoming>, head: &HttpHead<'_>) -> bool {
    request.method().as_str() == head.method
        && request.uri().path() == head.raw_path
        && request.uri().query() == head.query
        && request.headers().len() == head.headers.len()
}

/// A connection to the instance, with the header that its pool wants. With `upgrade` it may later be handed off together with that of the client.
async fn open(
    shared: &Shared,
    candidate: &Candidate,
    client: BorrowedFd<'_>,
    upgrade: bool,
) -> Result<Upstream, ConnectError> {
    let Candidate { table, id, .. } = candidate;
    let reached = || SockRef::from(&client).local_addr().ok()?.as_socket();
    let header = shared.client.announce(table.pool(id.pool).proxy_protocol, reached);
    let instance = table.instance(*id).address;
    Upstream::open(shared, instance, &header, upgrade.then_some(client)).await
}

/// A connection to this instance that the client's earlier requests have used.
async fn reuse(shared: &Shared, instance: std::net::SocketAddr, upgrade: bool) -> Option<Upstream> {
    // What may be handed off needs a connection that was made for it.
    let mut kept = shared.kept(instance).filter(|_| !upgrade)?;
    kept.is_usable(shared).await.then_some(kept)
}

/// The same request once more. It has no body.
fn copy(request: &Request<RequestBody>, bytes: &Arc<AtomicU64>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::none(Arc::clone(bytes)));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    copy.headers_mut().clone_from(request.headers());
    copy.extensions_mut().clone_from(request.extensions());
    copy
}

enum Failed {
    /// Not a byte has been sent.
    Unsent(Box<Request<RequestBody>>),
    Broken {
        reset: bool,
    },
    TimedOut,
}

/// Sends the request and waits for the response's head, as long as something moves.
async fn respond(
    shared: &Shared,
    upstream: &mut Upstream,
    request: Request<RequestBody>,
) -> Result<Response<Incoming>, Failed> {
    let patience = shared.listener.settings.idle_timeout;
    shared.activity.moved();
    let mut response = std::pin::pin!(upstream.sender.try_send_request(request));
    loop {
        let until = shared.activity.last() + patience;
        tokio::select! {
            biased;
            answered = &mut response => return answered.map_err(|mut error| match error.take_message() {
                Some(request) => Failed::Unsent(Box::new(request)),
                None => Failed::Broken { reset: is_reset(error.error()) },
            }),
            () = sleep_until(until) => {
                if shared.activity.last() + patience <= tokio::time::Instant::now() {
                    return Err(Failed::TimedOut);
                }
            }
        }
    }
}

fn is_reset(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

fn carried(response: Response<Incoming>, exchange: Box<Exchange>) -> Response<ResponseBody> {
    if response.body().is_end_stream() {
        exchange.finish();
        return response.map(|_| ResponseBody::Own(None));
    }
    response.map(|incoming| ResponseBody::Carried { incoming, exchange: Some(exchange) })
}

/// The router's own answer. The connection goes on after it, unless the request itself was at fault.
fn own_words(shared: &Shared, refusal: &Refusal, status: u16, without_body: bool) -> Response<ResponseBody> {
    let page = refuse::page(status, refusal.reason.description().trim());
    let length = page.len();
    let body = ResponseBody::Own((!without_body).then(|| Bytes::from(page)));
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let headers = response.headers_mut();
    for (name, value) in refuse::fields(status, shared.listener.settings.retry_after) {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    headers.insert("Content-Length", length.into());
    if matches!(refusal.reason, RefuseReason::BadRequest | RefuseReason::AmbiguousPath) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
