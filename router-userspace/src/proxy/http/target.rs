//! The request target (RFC 9112 §3.2) and the host it is meant for.

use std::net::Ipv6Addr;

use router_common::abi::reason::RefuseReason;

/// A host with its port, as in `Host` or in the authority of an absolute target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    /// A name or an address; an IPv6 address stays in its brackets.
    pub host: &'a str,
    pub port: Option<u16>,
}

impl<'a> Authority<'a> {
    /// `None` if `text` is not exactly a host with an optional port. Narrower than RFC 3986: no user, no
    /// percent-encoding, no empty label and no empty port, since servers read those differently.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (host, rest) = match text.strip_prefix('[') {
            Some(inner) => {
                let end = inner.find(']')?;
                inner[..end].parse::<Ipv6Addr>().ok()?;
                text.split_at(end + 2)
            }
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        if !host.starts_with('[') && !is_name(host) {
            return None;
        }
        let port = match rest.strip_prefix(':') {
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(port.parse().ok()?),
            None if rest.is_empty() => None,
            _ => return None,
        };
        Some(Self { host, port })
    }

    /// Whether both name the same place, given the port that goes without saying.
    fn same_as(&self, other: &Authority<'_>, default_port: u16) -> bool {
        self.host.eq_ignore_ascii_case(other.host)
            && self.port.unwrap_or(default_port) == other.port.unwrap_or(default_port)
    }
}

/// A host name or an IPv4 address; a dot may end it.
fn is_name(host: &str) -> bool {
    let labels = host.strip_suffix('.').unwrap_or(host);
    labels.split('.').all(|label| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    })
}

/// A request target, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The path as sent; `/` for an absolute target without one; `*` for `OPTIONS *`.
    pub path: &'a str,
    /// Without its `?`.
    pub query: Option<&'a str>,
    /// Of an absolute target.
    authority: Option<(Authority<'a>, u16)>,
}

impl<'a> Target<'a> {
    pub fn parse(method: &str, target: &'a str) -> Result<Self, RefuseReason> {
        // The router is no forward proxy.
        if method == "CONNECT" {
            return Err(RefuseReason::MethodNotAllowed);
        }
        // Reserved for the HTTP/2 preface (RFC 9113 §11.6): never a method of HTTP/1.
        if method == "PRI" {
            return Err(RefuseReason::BadRequest);
        }
        if target.starts_with('/') {
            return Ok(Self::from_origin(target, None));
        }
        if target == "*" {
            return match method {
                "OPTIONS" => Ok(Self { path: "*", query: None, authority: None }),
                _ => Err(RefuseReason::MethodNotAllowed),
            };
        }
        if let Some((scheme, rest)) = target.split_once("://") {
            let default_port = if scheme.eq_ignore_ascii_case("http") {
                80
            } else if scheme.eq_ignore_ascii_case("https") {
                443
            } else {
                return Err(RefuseReason::BadRequest);
            };
            // `http://a?b` is a URI too, but not to every server; nor is a name with an underscore.
            let (authority, origin) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if authority.contains('_') {
                return Err(RefuseReason::BadRequest);
            }
            let authority = Authority::parse(authority).ok_or(RefuseReason::BadRequest)?;
            return Ok(Self::from_origin(origin, Some((authority, default_port))));
        }
        match Authority::parse(target) {
            Some(Authority { port: Some(_), .. }) => Err(RefuseReason::MethodNotAllowed),
            _ => Err(RefuseReason::BadRequest),
        }
    }

    fn from_origin(origin: &'a str, authority: Option<(Authority<'a>, u16)>) -> Self {
        let (path, query) = match origin.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (origin, None),
        };
        Self { path: if path.is_empty() { "/" } else { path }, query, authority }
    }

    /// The host that the request is meant for: the target's, else that of the `Host` field. Both present must agree.
    pub fn host(&self, host_field: Option<&'a [u8]>) -> Result<Option<&'a str>, RefuseReason> {
        let from_field = match host_field {
            Some(value) => Some(
                std::str::from_utf8(value).ok().and_then(Authority::parse).ok_or(RefuseReason::BadRequest)?,
            ),
            None => None,
        };
        match (self.authority, from_field) {
            (Some((authority, port)), Some(field)) if !authority.same_as(&field, port) => {
                Err(RefuseReason::BadRequest)
            }
            (Some((authority, _)), _) => Ok(Some(authority.host)),
            (None, field) => Ok(field.map(|field| field.host)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_every_server_reads_alike() {
        for (text, host, port) in [
            ("example.com", "example.com", None),
            ("gis-1.example.com:8080", "gis-1.example.com", Some(8080)),
            ("10.0.0.1:80", "10.0.0.1", Some(80)),
            ("[fd77:1::2]", "[fd77:1::2]", None),
            ("[::1]:443", "[::1]", Some(443)),
            ("my_host.", "my_host.", None),
        ] {
            assert_eq!(Authority::parse(text), Some(Authority { host, port }), "{text}");
        }
    }

    #[test]
    fn hosts_that_some_server_would_read_differently() {
        for text in [
            "",
            ":80",
            "a..b",
            ".a",
            "a:",
            "a:99999",
            "a:+8",
            "a:8 0",
            "a b",
            "user@a",
            "a/b",
            "a,b",
            "[::1",
            "[::1]x",
            "[::1]:",
            "[10.0.0.1]",
            "[fe80::1%eth0]",
            "a%2eb",
            "a\u{e9}",
            "a:80:80",
            ".",
        ] {
            assert_eq!(Authority::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_absolute_target_names_host_path_and_query() {
        let target = Target::parse("GET", "http://Example.com:80/a/b?x=1").unwrap();
        assert_eq!((target.path, target.query), ("/a/b", Some("x=1")));
        assert_eq!(target.host(Some(b"example.com")), Ok(Some("Example.com")), "80 goes without saying");
        assert_eq!(target.host(Some(b"example.com:81")), Err(RefuseReason::BadRequest));
        assert_eq!(target.host(Some(b"other.com")), Err(RefuseReason::BadRequest));
        assert_eq!(Target::parse("GET", "http://a").unwrap().path, "/");
        assert_eq!(Target::parse("GET", "HTTP://a:1").unwrap().path, "/");
    }

    #[test]
    fn the_router_is_no_forward_proxy() {
        for (method, target, reason) in [
            ("CONNECT", "example.com:443", RefuseReason::MethodNotAllowed),
            ("CONNECT", "/", RefuseReason::MethodNotAllowed),
            ("GET", "example.com:80", RefuseReason::MethodNotAllowed),
            ("GET", "*", RefuseReason::MethodNotAllowed),
            ("GET", "index.html", RefuseReason::BadRequest),
            ("GET", "ftp://a/", RefuseReason::BadRequest),
            ("GET", "http://", RefuseReason::BadRequest),
            ("GET", "http:///x", RefuseReason::BadRequest),
            ("GET", "http://u@a/", RefuseReason::BadRequest),
            ("GET", "http://a?x", RefuseReason::BadRequest),
            ("GET", "http://a_b/", RefuseReason::BadRequest),
            ("GET", "?x=1", RefuseReason::BadRequest),
        ] {
            assert_eq!(Target::parse(method, target), Err(reason), "{method} {target}");
        }
        assert_eq!(Target::parse("OPTIONS", "*").unwrap().path, "*");
    }
}
