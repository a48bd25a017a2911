//! `explain`: the decision for a request, rule by rule and instance by instance.

use std::io::{self, Write};

use router_common::abi::reason::CookieEvent;

use super::arguments::Question;
use super::client::Client;
use super::overview::{admin, health};
use super::table::{BAD, BOLD, Cell, DIM, GOOD, Table};
use super::{Exit, Failure};
use crate::control::protocol::ACTIVE_SESSION_NAME;
use crate::control::protocol::{ExplainRequest, ExplainedOutcome, Explanation, RuleResult};

pub(super) fn run(
    client: &Client,
    question: &Question,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let request = ExplainRequest {
        listener: question.listener.clone(),
        client: question.client,
        client_port: question.client_port,
        method: question.method.clone(),
        path: question.path.clone(),
        http_version: question.http_version.clone(),
        headers: question.headers.clone(),
        server_name: question.server_name.clone(),
        alpn: question.alpn.clone(),
    };
    let answer = client.post::<Explanation>("/v1/explain", &request)?;
    if !answer.print_json(json, out)? {
        print(&request, &answer.value, out)?;
    }
    let reaches = matches!(answer.value.outcome, ExplainedOutcome::Instance { .. });
    Ok(if reaches { Exit::Ok } else { Exit::Negative })
}

fn print(request: &ExplainRequest, explanation: &Explanation, out: &mut dyn Write) -> io::Result<()> {
    let ExplainRequest { method, path, client, listener, .. } = request;
    if request.server_name.is_some() || !request.alpn.is_empty() {
        let name = request.server_name.as_deref().unwrap_or("no name");
        let alpn = request.alpn.join(", ");
        let offering = if alpn.is_empty() { String::new() } else { format!(", offering {alpn},") };
        writeln!(out, "TLS for {name}{offering} from {client} on listener {listener}")?;
    } else if explanation.normalised_path.is_none() && !explanation.rules.is_empty() {
        let port = request.client_port.map(|port| format!(", port {port},")).unwrap_or_default();
        writeln!(out, "a new flow from {client}{port} to listener {listener}")?;
    } else {
        writeln!(out, "{method} {path} from {client} on listener {listener}")?;
    }
    if let Some(normalised) = &explanation.normalised_path
        && path.split('?').next() != Some(normalised)
    {
        writeln!(out, "rules see the path {normalised}")?;
    }

    identity(explanation, out)?;
    if !explanation.rules.is_empty() {
        writeln!(out)?;
        rules(explanation, out)?;
    }
    if !explanation.instances.is_empty() {
        writeln!(out)?;
        instances(explanation, out)?;
    }
    writeln!(out)?;
    let style = if matches!(explanation.outcome, ExplainedOutcome::Instance { .. }) { BOLD } else { BAD };
    writeln!(out, "{style}{}{style:#}", outcome(explanation))
}

/// Who asks for what, as far as the listener looks for it.
fn identity(explanation: &Explanation, out: &mut dyn Write) -> io::Result<()> {
    if let Some(session) = &explanation.session {
        writeln!(out, "its session {session}")?;
    }
    if let Some(user) = &explanation.user {
        writeln!(out, "user {user}")?;
    }
    if !explanation.groups.is_empty() {
        writeln!(out, "groups {}", explanation.groups.join(", "))?;
    }
    if let Some(resource) = &explanation.resource {
        writeln!(out, "resource {resource}")?;
    }
    if let Some(event) = &explanation.cookie {
        let said = if event == CookieEvent::Honoured.name() { "honoured" } else { "ignored" };
        let meaning = CookieEvent::ALL.iter().find(|known| known.name() == event);
        let meaning = meaning.map_or(event.as_str(), |event| event.description().trim());
        writeln!(out, "its persistence cookie is {said} ({meaning})")?;
    }
    if explanation.untrusted {
        writeln!(out, "a user or groups were sent from an address that is not trusted, and are ignored")?;
    }
    for part in &explanation.too_long {
        writeln!(out, "its {} is longer than 1024 bytes, and is ignored", part.replace('_', " "))?;
    }
    Ok(())
}

fn rules(explanation: &Explanation, out: &mut dyn Write) -> io::Result<()> {
    let mut rules = Table::new(&[">#", "RULE", "RESULT", "BECAUSE"]);
    for (number, rule) in explanation.rules.iter().enumerate() {
        let (result, style) = match rule.result {
            RuleResult::Matched => ("match", GOOD),
            RuleResult::NotMatched => ("no match", DIM),
            RuleResult::Disabled => ("disabled", DIM),
        };
        rules.row(vec![
            Cell::number(number + 1),
            Cell::new(&rule.name),
            Cell::new(result).style(style),
            Cell::new(&rule.because),
        ]);
    }
    rules.print(out)
}

fn instances(explanation: &Explanation, out: &mut dyn Write) -> io::Result<()> {
    let titles = [
        "INSTANCE",
        "POOL",
        "ADDRESS",
        "HEALTH",
        "ADMIN",
        ">WEIGHT",
        ">SESSIONS",
        ">LOAD",
        "RESULT",
        "BECAUSE",
    ];
    let mut instances = Table::new(&titles);
    for candidate in &explanation.instances {
        let instance = &candidate.instance;
        let (result, style) = if candidate.chosen { ("chosen", GOOD) } else { ("not chosen", DIM) };
        instances.row(vec![
            Cell::new(&instance.name),
            Cell::new(&instance.pool),
            Cell::new(instance.address),
            health(instance),
            admin(instance),
            Cell::number(instance.weight),
            Cell::number(instance.sessions),
            Cell::number(candidate.load.map_or_else(|| "-".to_owned(), |load| format!("{load:.2}"))),
            Cell::new(result).style(style),
            Cell::new(&candidate.because),
        ]);
    }
    instances.print(out)
}

fn outcome(explanation: &Explanation) -> String {
    match &explanation.outcome {
        ExplainedOutcome::Instance { rule, pool, instance, address } => {
            let method =
                explanation.method.as_ref().map(|method| format!(", by {method}")).unwrap_or_default();
            if rule == ACTIVE_SESSION_NAME {
                return format!("it belongs to a session on instance {instance} ({address}) of pool {pool}");
            }
            let method = match &explanation.fell_back_from {
                Some(asked) => format!("{method}: {asked} lacks a fresh report"),
                None => method,
            };
            format!("rule {rule} sends it to instance {instance} ({address}) of pool {pool}{method}")
        }
        ExplainedOutcome::Refused { reason, description } => {
            format!("the listener refuses it before any rule: {reason}: {description}")
        }
        ExplainedOutcome::Deny { rule, status } => format!("rule {rule} refuses it with status {status}"),
        ExplainedOutcome::Unavailable { rule, pools, action } => {
            let pools = pools.join(", ");
            let reaction = match action.as_str() {
                "503" => "the client gets status 503",
                "reset" => "the connection is reset",
                "silent" => "the client gets no reply",
                _ => "",
            };
            let reaction = match action.strip_prefix("queue:") {
                Some(patience) => format!("the request waits at most {patience} for one to free"),
                None => reaction.to_owned(),
            };
            format!("rule {rule} selects it, but no instance of pool {pools} can serve: {reaction}")
        }
        ExplainedOutcome::NotPlaced { rule, reason, description, dropped } => {
            let fate =
                if *dropped { "it is dropped" } else { "the stack answers with a reset or an ICMP error" };
            format!(
                "rule {rule} selects it, and the kernel programs do not place it: {reason}: {description}: {fate}"
            )
        }
        ExplainedOutcome::AmbiguousPath { raw_rule, normalised_rule } => format!(
            "refused with status 400: the path as sent selects rule {raw_rule}, normalised it selects {normalised_rule}"
        ),
    }
}
