//! Which fields go on. Those that speak of one connection only are removed on the way (RFC 9110 §7.6.1), and the libraries frame each
//! message anew.

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SET_COOKIE, TE, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::{request, response};
use hyper::{Method, Uri, Version};

use super::super::http::fields::list;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Makes a request ready for the next connection. With `upgrade` the offer to change the protocol goes on.
pub(super) fn to_instance(parts: &mut request::Parts, upgrade: bool) {
    let protocol = parts.headers.get(UPGRADE).filter(|_| upgrade).cloned();
    let trailers = parts
        .headers
        .get_all(TE)
        .iter()
        .any(|value| list(value.as_bytes()).any(|coding| coding.eq_ignore_ascii_case(b"trailers")));
    remove_hop_by_hop(&mut parts.headers);
    let mut options = Vec::new();
    if let Some(protocol) = protocol {
        parts.headers.insert(UPGRADE, protocol);
        options.push("upgrade");
    }
    if trailers {
        parts.headers.insert(TE, HeaderValue::from_static("trailers"));
        options.push("TE");
    }
    if let Ok(options) = HeaderValue::try_from(options.join(", "))
        && !options.is_empty()
    {
        parts.headers.insert(CONNECTION, options);
    }
    // Host says the same: that has been checked.
    if let Some(authority) = parts.uri.authority()
        && !parts.headers.contains_key(HOST)
        && let Ok(host) = HeaderValue::try_from(authority.as_str())
    {
        parts.headers.insert(HOST, host);
    }
    if let Some(origin) = parts.uri.path_and_query() {
        parts.uri = Uri::from(origin.clone());
    }
    // Only an HTTP/1.0 request may go without a host.
    parts.version = if parts.headers.contains_key(HOST) { Version::HTTP_11 } else { Version::HTTP_10 };
    parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
}

/// Makes a response ready for the client. `switching`: it answers the offer to change the protocol.
pub(super) fn to_client(parts: &mut response::Parts, switching: bool, set_cookie: Option<&[u8]>) -> bool {
    let protocol = parts.headers.get(UPGRADE).filter(|_| switching).cloned();
    remove_hop_by_hop(&mut parts.headers);
    if let Some(protocol) = protocol {
        parts.headers.insert(UPGRADE, protocol);
        parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    // The client's connection has a version of its own.
    parts.version = Version::HTTP_11;
    let cookie = set_cookie.and_then(|field| {
        let at = field.iter().position(|byte| *byte == b':')?;
        HeaderValue::from_bytes(field[at + 1..].trim_ascii()).ok()
    });
    cookie.is_some_and(|cookie| parts.headers.try_append(SET_COOKIE, cookie).is_ok())
}

/// Leaves what an interim response may say: it has no body.
pub(super) fn of_interim(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    headers.remove(CONTENT_LENGTH);
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| list(value.as_bytes()))
        .filter_map(|option| HeaderName::from_bytes(option).ok())
        .collect();
    for name in named {
        // Naming a field that frames or routes the message does not make it one of the connection's.
        if !matches!(name.as_str(), "host" | "content-length" | "x-forwarded-for") {
            headers.remove(name);
        }
    }
    for name in [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TE, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    // Meant for the next proxy, which this router is not.
    for name in [PROXY_AUTHENTICATE, PROXY_AUTHORIZATION] {
        headers.remove(name);
    }
}

/// Whether a request may be sent again if nobody knows what became of the first one (RFC 9110 §9.2.2).
pub(super) fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE].contains(method)
}

#[cfg(test)]
mod tests {
    use hyper::{Request, Response};

    use super::*;

    fn sent(request: hyper::http::request::Builder, upgrade: bool) -> (String, HeaderMap, Version) {
        let mut parts = request.body(()).unwrap().into_parts().0;
        to_instance(&mut parts, upgrade);
        (parts.uri.to_string(), parts.headers, parts.version)
    }

    #[test]
    fn what_speaks_of_the_connection_stays_behind() {
        let (uri, headers, _) = sent(
            Request::get("http://a.example/x?y")
                .header("Host", "a.example")
                .header("Connection", "keep-alive, X-Mine, Content-Length")
                .header("X-Mine", "1")
                .header("Keep-Alive", "timeout=5")
                .header("Proxy-Connection", "close")
                .header("TE", "gzip, trailers;q=1, trailers")
                .header("Upgrade", "websocket")
                .header("Content-Length", "3")
                .header("X-Other", "2"),
            false,
        );
        assert_eq!(uri, "/x?y");
        let mut names: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        names.sort();
        assert_eq!(
            names,
            ["connection: TE", "content-length: 3", "host: a.example", "te: trailers", "x-other: 2"]
        );
    }

    #[test]
    fn an_offer_of_another_protocol_goes_on_when_it_is_one() {
        let request = || {
            Request::get("/")
                .header("Host", "a")
                .header("Connection", "Upgrade")
                .header("Upgrade", "websocket")
        };
        let (_, headers, _) = sent(request(), true);
        assert_eq!(
            (&headers["upgrade"], &headers["connection"]),
            (&"websocket".parse().unwrap(), &"upgrade".parse().unwrap())
        );
        assert!(!sent(request(), false).1.contains_key("upgrade"));
    }

    #[test]
    fn only_old_requests_go_without_a_host() {
        assert_eq!(sent(Request::get("/"), false).2, Version::HTTP_10);
        assert_eq!(sent(Request::get("/").header("Host", "a"), false).2, Version::HTTP_11);
        assert_eq!(sent(Request::get("http://b/"), false).1["host"], "b");
    }

    #[test]
    fn a_response_loses_its_connections_fields_and_gains_the_cookie() {
        let response = Response::builder()
            .header("Connection", "close")
            .header("Transfer-Encoding", "chunked")
            .header("Set-Cookie", "a=b");
        let mut parts = response.body(()).unwrap().into_parts().0;
        assert!(to_client(&mut parts, false, Some(b"Set-Cookie: RTID=x; Path=/\r\n")));
        assert_eq!(parts.headers.len(), 2);
        assert_eq!(parts.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=b", "RTID=x; Path=/"]);
    }
}
