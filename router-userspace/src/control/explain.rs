//! Answering `explain`: a head as a client would send it, read by the listeners' own parser, decided by the decision
//! core's own code, and the trace in words.

mod layer4;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::http::StatusCode;
use router_common::abi::reason::RefuseReason;

use super::flows::unknown;
use super::protocol::{
    ExplainRequest, ExplainedInstance, ExplainedOutcome, ExplainedRule, ExplainedTest, Explanation, Listener,
    RuleResult as Verdict,
};
use super::routes::Refusal;
use super::state::State;
use super::view;
use crate::core::decide::{Attempt, Outcome};
use crate::core::explain::{InstanceResult, RuleResult, RuleTrace, Trace};
use crate::core::persistence::unix_time;
use crate::core::request::{ClientHello, HttpRequest, Protocol, Request};
use crate::core::table::{RoutingTable, RuleRef};

/// The decision for a request now, or why the question makes no sense.
pub async fn ask(state: Arc<State>, asked: ExplainRequest) -> Result<Explanation, Refusal> {
    // For Layer 4 the kernel programs may have to be loaded first.
    let explained = tokio::task::spawn_blocking(move || explain(&state, &asked)).await;
    explained.unwrap_or_else(|error| {
        Err(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the question could not be answered: {error}"),
            "see the daemon's log, and please report this",
        ))
    })
}

fn explain(state: &State, asked: &ExplainRequest) -> Result<Explanation, Refusal> {
    let listeners = state.listeners.load();
    let listener = listeners.iter().find(|listener| listener.name == asked.listener).ok_or_else(|| {
        let known: Vec<_> = listeners.iter().map(|listener| listener.name.as_str()).collect();
        unknown("listener", &asked.listener, &known)
    })?;
    let table = state.table.load();
    let decide = |tls: Option<ClientHello<'_>>, http: Option<HttpRequest<'_>>| {
        let path = http.map(|http| http.path.to_owned());
        let client = asked.client.to_canonical();
        in_words(
            &table,
            table.explain(
                &Request { listener: &listener.name, client, tls, http },
                &Attempt { unix_time: unix_time(SystemTime::now()), ..Attempt::first(Instant::now()) },
            ),
            path,
        )
    };
    let is_layer4 = ["tcp", "udp"].contains(&listener.protocol.as_str());
    if is_layer4 {
        no_http(asked, listener)?;
        no_tls(asked, listener)?;
        return layer4::explain(state, &table, listener, asked, decide(None, None));
    }
    if asked.client_port.is_some() {
        let error = format!(
            "listener {} speaks {}: the client's port selects nothing",
            listener.name, listener.protocol
        );
        return Err(Refusal::bad_request(error, "leave client_port out"));
    }
    if listener.protocol == Protocol::Tls.name() {
        no_http(asked, listener)?;
        let name = asked.server_name.as_deref().map(|name| state.heads.server_name(name)).transpose();
        let alpn: Vec<&[u8]> = asked.alpn.iter().map(|protocol| protocol.as_bytes()).collect();
        return Ok(match name {
            Ok(server_name) => decide(Some(ClientHello { server_name, alpn: &alpn }), None),
            Err(reason) => refused(reason),
        });
    }
    no_tls(asked, listener)?;
    let head = head(asked, listener)?;
    let mut explanation = None;
    let read =
        state.heads.read(&listener.name, &head, &mut |http| explanation = Some(decide(None, Some(http))));
    match (read, explanation) {
        (Ok(()), Some(explanation)) => Ok(explanation),
        (Ok(()), None) => Ok(refused(RefuseReason::BadRequest)),
        (Err(reason), _) => Ok(refused(reason)),
    }
}

/// Of a connection that is encrypted, or carried packet by packet, nobody sees a request.
fn no_http(asked: &ExplainRequest, listener: &Listener) -> Result<(), Refusal> {
    let ExplainRequest { method, path, http_version, headers, .. } = asked;
    let is_default = method == "GET" && path == "/" && http_version == "1.1" && headers.is_empty();
    if is_default {
        return Ok(());
    }
    let Listener { name, protocol, .. } = listener;
    let help = if protocol == Protocol::Tls.name() {
        "give server_name and alpn, or nothing"
    } else {
        "give client_port, or nothing"
    };
    Err(Refusal::bad_request(
        format!("listener {name} speaks {protocol}: it reads no method, path, version or header field"),
        help,
    ))
}

fn no_tls(asked: &ExplainRequest, listener: &Listener) -> Result<(), Refusal> {
    if asked.server_name.is_none() && asked.alpn.is_empty() {
        return Ok(());
    }
    let Listener { name, protocol, .. } = listener;
    let help = if protocol == "http" {
        "give the host as a header field: Host: NAME"
    } else {
        "give client_port, or nothing"
    };
    Err(Refusal::bad_request(
        format!("listener {name} speaks {protocol}: it reads no server name and no ALPN"),
        help,
    ))
}

/// The head that a client would send. Whether it is a good one is for the listener's own parser to say; only what
/// would make it another request than the one that was asked about is refused here.
fn head(asked: &ExplainRequest, listener: &Listener) -> Result<Vec<u8>, Refusal> {
    let ExplainRequest { method, path, http_version, headers, .. } = asked;
    if !matches!(http_version.as_str(), "1.0" | "1.1") {
        return Err(Refusal::bad_request(
            format!("http_version is \"{}\"", http_version.escape_default()),
            "give \"1.0\" or \"1.1\"",
        ));
    }
    let fields = headers.iter().flat_map(|header| [&header.name, &header.value]);
    for part in [method, path].into_iter().chain(fields) {
        if part.contains(['\r', '\n']) {
            return Err(Refusal::bad_request(
                format!("\"{}\" contains a line break", part.escape_default()),
                "give method, path and header fields without line breaks",
            ));
        }
    }
    let mut head = format!("{method} {path} HTTP/{http_version}\r\n");
    // Every client of HTTP/1.1 sends a host; who asks about a path alone need not think of it.
    if http_version == "1.1" && !headers.iter().any(|header| header.name.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("Host: {}\r\n", listener.address));
    }
    for header in headers {
        head.push_str(&format!("{}: {}\r\n", header.name, header.value));
    }
    head.push_str("\r\n");
    Ok(head.into_bytes())
}

/// The listener would answer the head itself; no rule sees it.
fn refused(reason: RefuseReason) -> Explanation {
    Explanation {
        outcome: ExplainedOutcome::Refused {
            reason: reason.name().to_owned(),
            description: reason.description().trim().to_owned(),
        },
        normalised_path: None,
        rules: Vec::new(),
        cookie: None,
        instances: Vec::new(),
        method: None,
        fell_back_from: None,
        session: None,
        user: None,
        groups: Vec::new(),
        resource: None,
        untrusted: false,
        too_long: Vec::new(),
    }
}

fn in_words(table: &RoutingTable, trace: Trace, normalised_path: Option<String>) -> Explanation {
    let now = Instant::now();
    let instances = trace.instances.iter().map(|one| ExplainedInstance {
        // The counts of the trace, not those of this moment: they are what was compared.
        instance: super::protocol::Instance {
            sessions: one.sessions,
            ..view::instance(table.pool(one.id.pool), table.instance(one.id), now)
        },
        chosen: one.result == InstanceResult::Chosen,
        figure: one.figure,
        load: one.load.filter(|_| !matches!(one.result, InstanceResult::Excluded(_))),
        because: trace.why(table, one),
    });
    let rules = trace.rules.iter().map(explain_rule);
    let by_default = (trace.rule == RuleRef::Default).then(|| ExplainedRule {
        name: trace.rule_name.clone(),
        condition: "Any()".to_owned(),
        result: Verdict::Matched,
        failed: None,
        tests: Vec::new(),
        because: "no rule before it matches".to_owned(),
    });
    Explanation {
        outcome: outcome(table, &trace),
        normalised_path,
        rules: rules.chain(by_default).collect(),
        cookie: trace.cookie.map(|event| event.name().to_owned()),
        instances: instances.collect(),
        method: (trace.candidates() > 1).then(|| trace.method.name().to_owned()),
        fell_back_from: (trace.asked_method != trace.method).then(|| trace.asked_method.name().to_owned()),
        session: trace.session.as_ref().map(|session| session.describe(table)),
        user: trace.identity.user.clone(),
        groups: trace.identity.groups.clone(),
        resource: trace.identity.resource.clone(),
        untrusted: trace.identity.untrusted,
        too_long: trace.identity.too_long.parts().map(|part| part.name().to_owned()).collect(),
    }
}

fn explain_rule(rule: &RuleTrace) -> ExplainedRule {
    let (result, failed) = match &rule.result {
        RuleResult::Selected => (Verdict::Matched, None),
        RuleResult::NoMatch { failed } => (Verdict::NotMatched, Some(failed.clone())),
        RuleResult::Disabled => (Verdict::Disabled, None),
    };
    let tests = rule.tests.iter().map(|test| ExplainedTest { test: test.text.clone(), holds: test.holds });
    ExplainedRule {
        name: rule.name.clone(),
        condition: rule.condition.clone(),
        result,
        failed,
        tests: tests.collect(),
        because: rule.why(),
    }
}

fn outcome(table: &RoutingTable, trace: &Trace) -> ExplainedOutcome {
    let rule = trace.rule_name.clone();
    match trace.outcome {
        Outcome::Instance { id, .. } => ExplainedOutcome::Instance {
            rule,
            pool: table.pool(id.pool).name.clone(),
            instance: table.instance(id).name.clone(),
            address: table.instance(id).address,
        },
        Outcome::Deny { status } => ExplainedOutcome::Deny { rule, status },
        Outcome::Unavailable { action, .. } => ExplainedOutcome::Unavailable {
            rule,
            pools: trace.pools.iter().map(|&pool| table.pool(pool).name.clone()).collect(),
            action: action.describe(table.pools()),
        },
        Outcome::AmbiguousPath => ExplainedOutcome::AmbiguousPath {
            raw_rule: trace.raw_path_rule.clone().unwrap_or_default(),
            normalised_rule: rule,
        },
    }
}
