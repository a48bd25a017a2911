//! What a rule can see of a connection's first request.

use std::net::IpAddr;

/// HTTP versions that the proxy accepts on an `http` listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    Http10,
    Http11,
}

/// One header field, in the order and spelling in which it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    pub name: &'a str,
    pub value: &'a [u8],
}

/// The HTTP part of a first request. Every slice borrows from the received head.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    pub version: HttpVersion,
    /// The method token, case preserved.
    pub method: &'a str,
    /// The authority's host without port, case preserved: from the absolute-form target, else from `Host`.
    pub host: Option<&'a str>,
    /// The path as it was sent, without the query.
    pub raw_path: &'a str,
    /// The path as rules see it: percent-decoded where unambiguous, dot segments resolved, slashes merged.
    pub path: &'a str,
    /// The query without its `?`, not decoded.
    pub query: Option<&'a str>,
    pub headers: &'a [Header<'a>],
}

/// What rules, affinity and session keys are evaluated against.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The listener's configured name.
    pub listener: &'a str,
    /// The client's address; never an IPv4-mapped IPv6 address.
    pub client: IpAddr,
    /// Whether the client speaks TLS to the listener.
    pub tls: bool,
    /// `None` on a listener that does not read HTTP.
    pub http: Option<HttpRequest<'a>>,
}
