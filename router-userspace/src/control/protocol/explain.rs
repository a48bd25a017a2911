//! What a request would meet: a question and its answer.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::Instance;

/// Body of `POST /v1/explain`: a first request that need not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// A listener's name.
    pub listener: String,
    /// The client's address.
    pub client: IpAddr,
    /// On a Layer-4 listener, the client's port; without it any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_port: Option<u16>,
    #[serde(default = "default_method")]
    pub method: String,
    /// The request target as it stands in the request line, with its query: `/gis/map?x=1`.
    #[serde(default = "default_path")]
    pub path: String,
    /// `1.0` or `1.1`.
    #[serde(default = "default_http_version")]
    pub http_version: String,
    /// Without a `Host` an HTTP/1.1 request gets the listener's address, as a client would send it.
    #[serde(default)]
    pub headers: Vec<Header>,
    /// On a TLS listener, the name that the client asks for (SNI); none if it sends none. Method, path, version and headers have
    /// no meaning there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// On a TLS listener, the protocols that the client offers (ALPN).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alpn: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub name: String,
    pub value: String,
}

fn default_method() -> String {
    "GET".to_owned()
}

fn default_path() -> String {
    "/".to_owned()
}

fn default_http_version() -> String {
    "1.1".to_owned()
}

/// Answer to `POST /v1/explain`: the decision that the daemon would take now, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub outcome: ExplainedOutcome,
    /// The path as rules see it; `None` on a listener that does not read HTTP.
    pub normalised_path: Option<String>,
    /// Every rule in order, up to and including the one that decided.
    pub rules: Vec<ExplainedRule>,
    /// What the rule's persistence cookie is worth, if the request carries one: `honoured`, or why it is ignored; see `GET /v1/reasons`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<String>,
    /// Every instance of the pools that the deciding rule names.
    pub instances: Vec<ExplainedInstance>,
    /// How the instance was picked among the candidates, if there was a choice.
    pub method: Option<String>,
    /// The method that was asked for, if it lacked a fresh report of some candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back_from: Option<String>,
    /// Where the request's session lives, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Whether a user or groups were sent from an address that is not trusted, and ignored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untrusted: bool,
    /// What was ignored because it was longer than 1024 bytes: `session_key`, `user`, `groups`, `resource`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub too_long: Vec<String>,
}

/// What the request would meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ExplainedOutcome {
    /// It is sent to this instance.
    Instance { rule: String, pool: String, instance: String, address: SocketAddr },
    /// The listener refuses its head before any rule sees it; see `GET /v1/reasons`.
    Refused { reason: String, description: String },
    /// The rule refuses it.
    Deny { rule: String, status: u16 },
    /// Nobody can serve it, and this is done instead (`503`, `reset`, `silent` or `queue:DURATION`).
    Unavailable { rule: String, pools: Vec<String>, action: String },
    /// A Layer-4 listener's packet path does not place it; see `GET /v1/reasons`. Unless it is dropped, the stack answers with a reset or an ICMP error.
    NotPlaced { rule: String, reason: String, description: String, dropped: bool },
    /// The raw and the normalised path would select different rules: it is refused with 400.
    AmbiguousPath { raw_rule: String, normalised_rule: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedRule {
    pub name: String,
    #[serde(rename = "match")]
    pub condition: String,
    pub result: RuleResult,
    /// The part of the expression that did not hold, such as `PathPrefix("/gis")`.
    pub failed: Option<String>,
    /// The function calls that were evaluated, in order.
    pub tests: Vec<ExplainedTest>,
    /// Why, in words.
    pub because: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedTest {
    pub test: String,
    pub holds: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleResult {
    Matched,
    NotMatched,
    Disabled,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainedInstance {
    #[serde(flatten)]
    pub instance: Instance,
    pub chosen: bool,
    /// The value by which the method compares instances; smaller wins. `None` if it was no candidate.
    pub load: Option<f64>,
    /// What the method compares instead of the load; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<f64>,
    /// Why it was chosen, or why it was not.
    pub because: String,
}
