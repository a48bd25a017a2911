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

/// What a client says before its TLS connection is encrypted. Borrows from the received ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientHello<'a> {
    /// The name that the client asks for (SNI, RFC 6066 §3), case preserved, without a trailing dot. With Encrypted Client Hello it is
    /// the outer one.
    pub server_name: Option<&'a str>,
    /// The protocols that it offers (ALPN, RFC 7301), the preferred one first.
    pub alpn: &'a [&'a [u8]],
}

/// What a listener speaks with its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    /// TLS, of which only the ClientHello is read.
    Tls,
    /// Anything over TCP: connections are placed by the client's address alone, packet by packet, in the kernel.
    Tcp,
    /// The same for datagrams of UDP.
    Udp,
}

impl Protocol {
    /// The name used in the configuration and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tls => "tls",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// Whether nothing is known of a client but its address, and user space never sees it: Layer 4.
    pub fn is_layer4(self) -> bool {
        matches!(self, Self::Tcp | Self::Udp)
    }
}

/// What rules, affinity and session keys are evaluated against.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The listener's configured name.
    pub listener: &'a str,
    /// The client's address; never an IPv4-mapped IPv6 address.
    pub client: IpAddr,
    /// `None` on a listener that does not speak TLS.
    pub tls: Option<ClientHello<'a>>,
    /// `None` on a listener that does not read HTTP.
    pub http: Option<HttpRequest<'a>>,
}
