//! The request that opens a resource.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;

/// What stands for the resource in a path or a header.
pub const PLACEHOLDER: &str = "{resource}";

/// A header field.
#[derive(Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub value: String,
    /// Its value is shown to nobody but the instance.
    pub secret: bool,
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = if self.secret { "(secret)" } else { &self.value };
        write!(f, "{}: {value}", self.name)
    }
}

/// A request without a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadRequest {
    pub method: String,
    /// The request target; [`PLACEHOLDER`] stands for the resource, percent-encoded.
    pub path: String,
    /// The `Host` field; the instance's address if `None`.
    pub host: Option<String>,
    /// Further fields; [`PLACEHOLDER`] stands for the resource as it is.
    pub headers: Vec<Field>,
}

impl LoadRequest {
    /// Whether each resource makes another request.
    pub fn names_resource(&self) -> bool {
        self.path.contains(PLACEHOLDER) || self.headers.iter().any(|field| field.value.contains(PLACEHOLDER))
    }

    /// An answer to it has no body, whatever its fields say (RFC 9112, section 6.3).
    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// The head as it is sent, in HTTP/1.1 and closing after the answer.
    pub fn head(&self, resource: &str, instance: SocketAddr) -> Vec<u8> {
        let path = self.path.replace(PLACEHOLDER, &percent_encoded(resource));
        let host = self.host.clone().unwrap_or_else(|| instance.to_string());
        let mut head = format!("{} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n", self.method);
        let has = |name: &str| self.headers.iter().any(|own| own.name.eq_ignore_ascii_case(name));
        for (name, value) in [("User-Agent", "router-preload"), ("Accept", "*/*")] {
            if !has(name) {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        if !matches!(self.method.as_str(), "GET" | "HEAD" | "DELETE" | "OPTIONS") {
            head.push_str("Content-Length: 0\r\n");
        }
        for Field { name, value, .. } in &self.headers {
            let value = value.replace(PLACEHOLDER, resource);
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

/// All but the unreserved characters of RFC 3986, section 2.3.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a `String` cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_stands_encoded_in_the_path_and_as_it_is_in_fields() {
        let request = LoadRequest {
            method: "POST".to_owned(),
            path: "/open?map={resource}&quiet=1".to_owned(),
            host: Some("gis.example".to_owned()),
            headers: vec![
                Field { name: "X-Map".to_owned(), value: "<{resource}>".to_owned(), secret: false },
                Field { name: "Authorization".to_owned(), value: "Bearer hush".to_owned(), secret: true },
            ],
        };
        let head = request.head("Nord & Süd/1", "10.0.2.11:80".parse().unwrap());
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("POST /open?map=Nord%20%26%20S%C3%BCd%2F1&quiet=1 HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nHost: gis.example\r\n") && head.contains("\r\nX-Map: <Nord & Süd/1>\r\n"));
        assert!(head.contains("\r\nAuthorization: Bearer hush\r\n"), "{head}");
        let shown = format!("{request:?}");
        assert!(shown.contains("X-Map: <{resource}>") && !shown.contains("hush"), "{shown}");
        assert!(head.contains("\r\nContent-Length: 0\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }
}
