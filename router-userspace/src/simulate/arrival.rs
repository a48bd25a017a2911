//! One request as it reaches the listener, and how a configuration's listener sees it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::config::Protocol;
use crate::core::identity::{IdentitySpec, Place, ResourceSource, SessionSource, UserSource};
use crate::core::path::normalise;
use crate::core::request::{ClientHello, Header, HttpRequest, HttpVersion, Request};

/// A request before any configuration has looked at it.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Since the begin of the simulation.
    pub at: Duration,
    /// How long its connection stays.
    pub stay: Duration,
    pub client: IpAddr,
    pub http10: bool,
    pub method: String,
    pub host: Option<String>,
    /// As sent, with its query.
    pub target: String,
    /// Without `Host`.
    pub fields: Vec<(String, String)>,
    pub user: Option<String>,
    pub session: Option<String>,
    pub resource: Option<String>,
}

impl Default for Arrival {
    fn default() -> Self {
        Self {
            at: Duration::ZERO,
            stay: Duration::ZERO,
            client: Ipv4Addr::UNSPECIFIED.into(),
            http10: false,
            method: "GET".to_owned(),
            host: None,
            target: "/".to_owned(),
            fields: Vec::new(),
            user: None,
            session: None,
            resource: None,
        }
    }
}

/// Where one listener looks for user, session key and resource: what an arrival has of them is put there.
#[derive(Clone, Debug)]
pub struct Reader {
    pub listener: String,
    pub protocol: Protocol,
    pub spec: IdentitySpec,
}

impl Reader {
    /// Shows the arrival as the listener reads it; `None` if it would answer 400 itself.
    pub fn read<T>(&self, arrival: &Arrival, see: impl FnOnce(&Request<'_>) -> T) -> Option<T> {
        let request = |tls, http| Request { listener: &self.listener, client: arrival.client, tls, http };
        if self.protocol == Protocol::Tls {
            // Of a request that is encrypted, the host is what its client has asked for by name.
            let hello = ClientHello { server_name: arrival.host.as_deref().map(without_port), alpn: &[] };
            return Some(see(&request(Some(hello), None)));
        }
        let (raw_path, query) = match arrival.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (arrival.target.as_str(), None),
        };
        let path = match raw_path {
            "*" if arrival.method == "OPTIONS" => "*".into(),
            path => normalise(path).ok()?,
        };
        let carried = self.carry(arrival);
        let query = match (query, &carried.query[..]) {
            (query, "") => query.map(str::to_owned),
            (Some(query), added) => Some(format!("{query}&{added}")),
            (None, added) => Some(added.to_owned()),
        };
        let host = arrival.host.iter().map(|host| Header { name: "Host", value: host.as_bytes() });
        let sent = arrival.fields.iter().chain(&carried.fields);
        let sent = sent.map(|(name, value)| Header { name, value: value.as_bytes() });
        let headers: Vec<_> = host.chain(sent).collect();
        Some(see(&request(
            None,
            Some(HttpRequest {
                version: if arrival.http10 { HttpVersion::Http10 } else { HttpVersion::Http11 },
                method: &arrival.method,
                host: arrival.host.as_deref().map(without_port),
                raw_path,
                path: &path,
                query: query.as_deref(),
                headers: &headers,
            }),
        )))
    }

    fn carry(&self, arrival: &Arrival) -> Carried {
        let mut carried = Carried::default();
        if let (Some(user), Some(trusted)) = (&arrival.user, &self.spec.user) {
            match &trusted.source {
                UserSource::In(place) => carried.put(place, user),
                UserSource::BasicAuth => {
                    let credentials = format!("Basic {}", BASE64.encode(format!("{user}:")));
                    carried.fields.push(("Authorization".to_owned(), credentials));
                }
            }
        }
        if let (Some(key), Some(SessionSource::In(place))) =
            (&arrival.session, self.spec.session.as_ref().map(|session| &session.source))
        {
            carried.put(place, key);
        }
        if let (Some(name), Some(ResourceSource::In(place))) = (&arrival.resource, &self.spec.resource) {
            carried.put(place, name);
        }
        carried
    }
}

/// What is added to a request.
#[derive(Default)]
struct Carried {
    query: String,
    fields: Vec<(String, String)>,
}

impl Carried {
    fn put(&mut self, place: &Place, value: &str) {
        match place {
            Place::Header(name) => self.fields.push((name.clone(), value.to_owned())),
            Place::Cookie(name) => self.fields.push(("Cookie".to_owned(), format!("{name}={value}"))),
            Place::Query(name) => {
                let separator = if self.query.is_empty() { "" } else { "&" };
                self.query.push_str(&format!("{separator}{name}={value}"));
            }
        }
    }
}

/// A bracketed IPv6 address keeps its colons.
pub(super) fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}
