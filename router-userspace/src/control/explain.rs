//! Answering `explain`: a head as a client would send it, read by the listeners' own parser, decided by the decision
//! core's own code, and the trace in words.

use std::time::{Instant, SystemTime};

use router_common::abi::reason::RefuseReason;

use super::flows::unknown;
use super::protocol::{
    ExplainRequest, ExplainedInstance, ExplainedOutcome, ExplainedRule, ExplainedTest, Explanation, Listener,
    RuleResult as Verdict,
};
use super::routes::Refusal;
use super::state::State;
use super::view;
use crate::core::choose::{Exclusion, LostBy};
use crate::core::decide::{Attempt, Outcome};
use crate::core::explain::{InstanceResult, InstanceTrace, RuleResult, RuleTrace, SessionTrace, Trace};
use crate::core::health::Reachability;
use crate::core::persistence::unix_time;
use crate::core::pool::Method;
use crate::core::request::{ClientHello, HttpRequest, Protocol, Request};
use crate::core::table::{RoutingTable, RuleRef};

/// The decision for a request now, or why the question makes no sense.
pub fn explain(state: &State, asked: &ExplainRequest) -> Result<Explanation, Refusal> {
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
    if listener.protocol == Protocol::Tls.name() {
        no_http(asked)?;
        let name = asked.server_name.as_deref().map(|name| state.heads.server_name(name)).transpose();
        let alpn: Vec<&[u8]> = asked.alpn.iter().map(|protocol| protocol.as_bytes()).collect();
        return Ok(match name {
            Ok(server_name) => decide(Some(ClientHello { server_name, alpn: &alpn }), None),
            Err(reason) => refused(reason),
        });
    }
    if asked.server_name.is_some() || !asked.alpn.is_empty() {
        let error = format!("listener {} speaks http: it reads no server name and no ALPN", listener.name);
        return Err(Refusal::bad_request(error, "give the host as a header field: Host: NAME"));
    }

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

/// Of a connection that is encrypted nobody sees a request.
fn no_http(asked: &ExplainRequest) -> Result<(), Refusal> {
    let ExplainRequest { listener, method, path, http_version, headers, .. } = asked;
    let is_default = method == "GET" && path == "/" && http_version == "1.1" && headers.is_empty();
    if is_default {
        return Ok(());
    }
    Err(Refusal::bad_request(
        format!("listener {listener} speaks tls: it reads no method, path, version or header field"),
        "give server_name and alpn, or nothing",
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
    let candidates =
        trace.instances.iter().filter(|one| !matches!(one.result, InstanceResult::Excluded(_))).count();
    let winner = trace.instances.iter().find(|one| one.result == InstanceResult::Chosen).cloned();
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
        because: why(table, one, winner.as_ref(), candidates, trace.method) + doubt(one),
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
        method: (candidates > 1).then(|| trace.method.name().to_owned()),
        fell_back_from: (trace.asked_method != trace.method).then(|| trace.asked_method.name().to_owned()),
        session: trace.session.as_ref().map(|session| in_session(table, session)),
        user: trace.identity.user.clone(),
        groups: trace.identity.groups.clone(),
        resource: trace.identity.resource.clone(),
        untrusted: trace.identity.untrusted,
        too_long: trace.identity.too_long.parts().map(|part| part.name().to_owned()).collect(),
    }
}

/// Where the request's session lives, and whether it may go on there.
fn in_session(table: &RoutingTable, session: &SessionTrace) -> String {
    match (session.id, session.usable) {
        (Some(id), true) => format!("lives on instance {}", table.instance(id).name),
        (Some(id), false) => format!("lives on instance {}, which cannot serve now", table.instance(id).name),
        (None, _) => "lives on an instance that is no longer configured".to_owned(),
    }
}

fn explain_rule(rule: &RuleTrace) -> ExplainedRule {
    let (result, failed, because) = match &rule.result {
        RuleResult::Selected => {
            let tests: Vec<_> = rule
                .tests
                .iter()
                .map(|test| format!("{} {}", test.text, if test.holds { "holds" } else { "does not hold" }))
                .collect();
            (Verdict::Matched, None, tests.join(", "))
        }
        RuleResult::NoMatch { failed } => {
            (Verdict::NotMatched, Some(failed.clone()), format!("{failed} does not hold"))
        }
        RuleResult::Disabled => (Verdict::Disabled, None, "disabled rules are skipped".to_owned()),
    };
    let tests = rule.tests.iter().map(|test| ExplainedTest { test: test.text.clone(), holds: test.holds });
    ExplainedRule {
        name: rule.name.clone(),
        condition: rule.condition.clone(),
        result,
        failed,
        tests: tests.collect(),
        because,
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

/// Why an instance that is down was judged as if it were up.
fn doubt(one: &InstanceTrace) -> &'static str {
    let believed = matches!(one.result, InstanceResult::Excluded(Exclusion::Down | Exclusion::Maintenance));
    if one.reachability == Reachability::Down && !believed {
        "; that it is down is not believed, because every instance of the pool fails its checks (fail-open)"
    } else {
        ""
    }
}

fn why(
    table: &RoutingTable,
    one: &InstanceTrace,
    winner: Option<&InstanceTrace>,
    candidates: usize,
    method: Method,
) -> String {
    let instance = table.instance(one.id);
    let load = |one: Option<&InstanceTrace>| one.and_then(|one| one.load).unwrap_or(f64::INFINITY);
    match one.result {
        InstanceResult::Chosen if candidates == 1 => "the only candidate".to_owned(),
        InstanceResult::Chosen => "comes first among the candidates".to_owned(),
        InstanceResult::Excluded(Exclusion::Tried) => "this request tried it in vain".to_owned(),
        InstanceResult::Excluded(Exclusion::Maintenance) => "in maintenance".to_owned(),
        InstanceResult::Excluded(Exclusion::Down) => match instance.status.health().last_failure() {
            Some((failure, _)) => format!("down: {failure}"),
            None => "down: not checked yet".to_owned(),
        },
        InstanceResult::Excluded(Exclusion::OutOfContact) => {
            "out of contact: it must report and is silent".to_owned()
        }
        InstanceResult::Excluded(Exclusion::Exhausted) => "exhausted".to_owned(),
        InstanceResult::Excluded(Exclusion::NoWeight) => "its weight is 0".to_owned(),
        InstanceResult::Excluded(Exclusion::Full) => {
            format!("full: {} of {} sessions", one.sessions, instance.max_sessions.unwrap_or(u32::MAX))
        }
        InstanceResult::Lost(LostBy::Draining) => "draining, and another can serve".to_owned(),
        InstanceResult::Lost(LostBy::Group) => {
            format!("not in this router's group \"{}\", and another is", table.group().unwrap_or_default())
        }
        InstanceResult::Lost(LostBy::Spare) => "a spare, and an ordinary instance can serve".to_owned(),
        InstanceResult::Lost(LostBy::Affinity) => {
            let other = winner.map_or("another", |winner| &winner.name);
            format!("{other} served the user last")
        }
        InstanceResult::Lost(LostBy::LoadStatus) => {
            let other = winner.map_or("better", |winner| winner.load_status.name());
            format!("{}, and another is {other}", one.load_status.name())
        }
        InstanceResult::Lost(LostBy::Resource) => "another has the resource loaded already".to_owned(),
        InstanceResult::Lost(LostBy::Hash) => "the key belongs to another".to_owned(),
        InstanceResult::Lost(LostBy::Load) if method == Method::FewestSessions => {
            format!("load {:.2} against {:.2}", load(Some(one)), load(winner))
        }
        InstanceResult::Lost(LostBy::Load) => {
            let figure = |one: Option<&InstanceTrace>| {
                one.and_then(|one| one.figure)
                    .map_or_else(|| "unknown".to_owned(), |figure| format!("{figure:.2}"))
            };
            format!("{} {} against {}", method.name(), figure(Some(one)), figure(winner))
        }
        InstanceResult::Lost(LostBy::Sessions) => {
            let other = winner.map_or(0, |winner| winner.sessions);
            format!("same load, {} sessions against {other}", one.sessions)
        }
        InstanceResult::Lost(LostBy::ChosenLater) => "equal, but chosen more recently".to_owned(),
        InstanceResult::Lost(LostBy::Order) => {
            "equal in everything, but later in the configuration".to_owned()
        }
    }
}
