//! What goes with what a listener speaks: keys that are about HTTP, and rules that no listener can ever satisfy.

use super::super::file::{File, Listener};
use super::super::reader::{Placed, Report};
use super::super::report::{Problem, Span};
use super::super::settings::Protocol;
use super::super::toml_string;
use crate::core::identity::SessionSource;
use crate::core::rules::{Match, Obstacle};
use crate::core::table::Rule;

/// Reports keys of listeners that have no meaning for what they speak.
pub(super) fn check(file: &File, report: &Report<'_>) {
    for listener in file.listeners.iter().filter(|listener| !listener.protocol.value.is_layer4()) {
        if listener.echo.written {
            let message = format!(
                "`echo` has no meaning for a listener of protocol {:?}",
                listener.protocol.value.name()
            );
            let problem = Problem::at(listener.echo.span.clone(), message).help(
                "remove it: its address is one of this host, and the kernel answers echo requests to that",
            );
            report.add(problem.earlier(listener.protocol.span.clone(), "of this protocol"));
        }
    }
    for listener in file.listeners.iter().filter(|listener| listener.protocol.value != Protocol::Http) {
        let about_proxy =
            listener.protocol.value.is_layer4().then(|| about_proxy(listener)).into_iter().flatten();
        for (key, span) in about_http(listener).into_iter().chain(about_proxy) {
            let protocol = listener.protocol.value.name();
            let message = format!("`{key}` has no meaning for a listener of protocol {protocol:?}");
            let problem = Problem::at(span.clone(), message).help("remove it");
            report.add(problem.earlier(listener.protocol.span.clone(), "of this protocol"));
        }
        let session = listener.identity.spec.session.as_ref();
        if session.is_some_and(|session| !matches!(session.source, SessionSource::ClientAddress)) {
            let span = listener.identity.session_span.clone().unwrap_or_else(|| listener.span.clone());
            let message = format!(
                "sessions of a listener of protocol {:?} can go by the client's address only",
                listener.protocol.value.name()
            );
            report.add(Problem::at(span, message).help("write session = { client_address = true }"));
        }
    }
}

type Written<'l> = Vec<(&'static str, &'l Span)>;

fn written<'l, T>(key: &'static str, value: &'l Placed<T>) -> Option<(&'static str, &'l Span)> {
    value.written.then_some((key, &value.span))
}

/// Keys about HTTP that are written for this listener.
fn about_http(listener: &Listener) -> Written<'_> {
    let identity = &listener.identity;
    [
        written("once_only", &listener.once_only),
        written("forwarded_for", &listener.forwarded_for),
        written("allow_http09", &listener.allow_http09),
        written("pipelining", &listener.pipelining),
        written("retry_after", &listener.retry_after),
        identity.user_span.as_ref().map(|span| ("user", span)),
        identity.groups_span.as_ref().map(|span| ("groups", span)),
        identity.resource_span.as_ref().map(|span| ("resource", span)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Keys about connections that user space accepts.
fn about_proxy(listener: &Listener) -> Written<'_> {
    [
        written("offload", &listener.offload),
        written("offload_after_bytes", &listener.offload_after_bytes),
        written("offload_after", &listener.offload_after),
        written("offload_second_request", &listener.offload_second_request),
        written("header_timeout", &listener.header_timeout),
        written("max_header_bytes", &listener.max_header_bytes),
        written("connect_timeout", &listener.connect_timeout),
        written("connect_retries", &listener.connect_retries),
        written("idle_timeout", &listener.idle_timeout),
        written("half_closed_timeout", &listener.half_closed_timeout),
        written("backlog", &listener.backlog),
        written("defer_accept", &listener.defer_accept),
        listener.max_segment.as_ref().and_then(|size| written("max_segment", size)),
        written("initial_window", &listener.initial_window),
        listener.announced_by.as_ref().and_then(|from| written("accept_proxy_protocol", from)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Reports a condition that no request can satisfy, whichever listener it comes in on, because of what listeners speak.
pub(super) fn check_condition(
    condition: &Match,
    source: &Placed<String>,
    listeners: &[(&str, Protocol)],
    report: &Report<'_>,
) {
    let judged = listeners.iter().map(|&(name, protocol)| condition.possible(name, protocol));
    let Ok(obstacles) = judged.map(|judged| judged.err().ok_or(())).collect::<Result<Vec<Obstacle>, ()>>()
    else {
        return;
    };
    // Where only the names of listeners stand in the way, protocols have no part in it.
    let blamed = obstacles.iter().filter_map(|obstacle| Some((obstacle, obstacle.needs?)));
    let Some((obstacle, needs)) = blamed.min_by_key(|(obstacle, _)| obstacle.span.start) else { return };
    let span = toml_string::locate(report.text, &source.span, &obstacle.span);
    let message = format!(
        "no request can ever satisfy this rule: `{}` is about listeners of protocol {:?}",
        obstacle.function,
        needs.name()
    );
    let known: Vec<String> =
        listeners.iter().map(|(name, protocol)| format!("{name} ({})", protocol.name())).collect();
    report.add(Problem::at(span, message).help(format!("the listeners are {}", known.join(", "))));
}

/// Cookies are of HTTP: a rule that only other connections can meet keeps nobody by one.
pub(super) fn warn_of_unread_cookies(
    file: &File,
    rules: &[Rule],
    listeners: &[(&str, Protocol)],
    report: &Report<'_>,
) {
    let by_rule = file.rules.iter().zip(rules).filter_map(|(written, rule)| {
        let meets = |&&(name, protocol): &&(&str, Protocol)| rule.condition.possible(name, protocol).is_ok();
        Some((written.persistence.as_ref()?, listeners.iter().filter(meets).copied().collect::<Vec<_>>()))
    });
    let default_rule = file.default_rule.as_ref().and_then(|rule| rule.persistence.as_ref());
    let by_default = default_rule.map(|persistence| (persistence, listeners.to_vec()));
    for (persistence, met_by) in by_rule.chain(by_default) {
        if met_by.is_empty() || met_by.iter().any(|&(_, protocol)| protocol == Protocol::Http) {
            continue;
        }
        let names: Vec<_> =
            met_by.iter().map(|(name, protocol)| format!("{name} ({})", protocol.name())).collect();
        let message = format!(
            "`persistence` has no effect: only connections of {} come to this rule, and cookies are of HTTP",
            names.join(", ")
        );
        let help = "remove it; to keep clients where they are, write session = { client_address = true } in the listener";
        report.warn(Problem::at(persistence.span.clone(), message).help(help));
    }
}
