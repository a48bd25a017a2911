//! What comes first on a connection, a request's head or a ClientHello: where it ends, what the rules see of it, and what the instance gets in its
//! place. The same for both routes of a first request, with a socket (`connection`) and without one (`bind`).

use std::borrow::Cow;
use std::net::SocketAddr;

use router_common::abi::reason::RefuseReason;

use super::access::Record;
use super::announced::Client;
use super::http::fields::{Framing, Upgrade};
use super::http::rewrite::rewrite;
use super::http::scan::{self, HeadLimits};
use super::http::{self, HttpHead};
use super::offload::{self, Trigger};
use super::settings::{Listener, ListenerSettings, Offload};
use super::tls::client_hello::{self, ClientHello};
use super::tls::records;
use crate::core::proxy_protocol::ProxyProtocol;
use crate::core::request::{Protocol, Request};

/// Finds where it ends, however it comes.
#[derive(Debug)]
pub(super) enum Scanner {
    Head(scan::Scanner),
    Hello(records::Scanner),
}

impl Scanner {
    pub(super) fn new(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tls => Self::Hello(records::Scanner::default()),
            // Connections below TLS never come to user space.
            Protocol::Http | Protocol::Tcp | Protocol::Udp => Self::Head(scan::Scanner::default()),
        }
    }

    /// The length of the head, or of the records of the ClientHello, in everything that has come so far. `None` while the end is missing.
    pub(super) fn scan(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<Option<usize>, RefuseReason> {
        match self {
            Self::Head(scanner) => scanner.scan(bytes, limits),
            Self::Hello(scanner) => scanner.scan(bytes, limits.head),
        }
    }
}

/// What there is to parse: a head is itself, and a ClientHello is that without the records around it.
pub(super) fn message(protocol: Protocol, head: &[u8]) -> Cow<'_, [u8]> {
    match protocol {
        Protocol::Tls => records::message(head),
        _ => Cow::Borrowed(head),
    }
}

/// A first request that is complete and well-formed.
#[derive(Debug)]
pub(super) struct FirstRequest<'a> {
    settings: &'a ListenerSettings,
    head: &'a [u8],
    surplus: &'a [u8],
    kind: Kind<'a>,
}

#[derive(Debug)]
enum Kind<'a> {
    Http { head: HttpHead<'a>, path: Cow<'a, str> },
    Tls(ClientHello<'a>),
}

impl<'a> FirstRequest<'a> {
    /// `head` is as it came, `message` is [`message`] of it, and `surplus` is what has come behind it. Counts further requests there, and refuses
    /// them if the listener says so.
    pub(super) fn parse(
        listener: &'a Listener,
        message: &'a [u8],
        (head, surplus): (&'a [u8], &'a [u8]),
        record: &mut Record,
    ) -> Result<Self, RefuseReason> {
        let settings = &listener.settings;
        let kind = match settings.protocol {
            Protocol::Tls => {
                let hello = client_hello::parse(message)?;
                record.hello(&hello);
                Kind::Tls(hello)
            }
            _ => {
                let head = http::parse(message)?;
                record.request(&head);
                let path = head.path()?;
                check_pipelining(listener, &head, surplus)?;
                Kind::Http { head, path }
            }
        };
        Ok(Self { settings, head, surplus, kind })
    }

    /// As the rules see it.
    pub(super) fn request(&self, client: &Client) -> Request<'_> {
        let (tls, http) = match &self.kind {
            Kind::Http { head, path } => (None, Some(head.request(path))),
            Kind::Tls(hello) => (Some(hello.seen()), None),
        };
        Request { listener: &self.settings.name, client: client.ip(), tls, http }
    }

    /// Appends what the instance gets: a PROXY protocol header if its pool wants one, the head, rewritten, or the ClientHello as it came, and what
    /// has come behind it. `reached` is the address that the client has connected to, unless a proxy in front has told another.
    pub(super) fn write(
        &self,
        client: &Client,
        announced_by: Option<ProxyProtocol>,
        reached: impl FnOnce() -> Option<SocketAddr>,
        out: &mut Vec<u8>,
    ) {
        out.extend(client.announce(announced_by, reached));
        match &self.kind {
            Kind::Http { head, .. } => {
                rewrite(self.head, head, self.settings.forwarded_for.then_some(client.ip()), out);
            }
            Kind::Tls(_) => out.extend_from_slice(self.head),
        }
        out.extend_from_slice(self.surplus);
    }

    /// Why it alone calls for a handoff, if it does.
    pub(super) fn calls_for_handoff(&self) -> Option<Trigger> {
        match &self.kind {
            Kind::Http { head, .. } => offload::at_once(self.settings, head),
            Kind::Tls(_) => (self.settings.offload == Offload::Handoff).then_some(Trigger::Configured),
        }
    }

    /// Whether its response can carry a cookie.
    pub(super) fn is_http(&self) -> bool {
        matches!(self.kind, Kind::Http { .. })
    }

    /// Whether it is here to its end, and the client will send no other (`Connection: close`, RFC 9112 §9.6).
    pub(super) fn is_last(&self) -> bool {
        let Kind::Http { head, .. } = &self.kind else { return false };
        let fields = &head.fields;
        !fields.keep_alive
            && fields.upgrade == Upgrade::None
            && body(head).is_some_and(|length| self.surplus.len() as u64 == length)
    }
}

/// The length of the body; `None` if only the instance looks where it ends.
fn body(head: &HttpHead<'_>) -> Option<u64> {
    match head.fields.framing {
        Framing::NoBody => Some(0),
        Framing::Length(length) => Some(length),
        Framing::Chunked => None,
    }
}

/// Counts further requests that are here already, and refuses them if the listener says so.
fn check_pipelining(listener: &Listener, head: &HttpHead<'_>, surplus: &[u8]) -> Result<(), RefuseReason> {
    if body(head).is_none_or(|length| surplus.len() as u64 <= length) {
        return Ok(());
    }
    listener.context.counters.pipelined.add(1);
    if listener.settings.pipelining { Ok(()) } else { Err(RefuseReason::Pipelined) }
}
