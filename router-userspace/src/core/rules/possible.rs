//! Whether a condition can hold at all on a listener, given what the listener speaks.
//!
//! A function that asks for what a protocol does not have never holds there. Whether that settles the whole condition follows by
//! three-valued logic, so `Host("a") || HostSNI("b")` is fine wherever HTTP or TLS is spoken.

use std::ops::Range;

use super::Match;
use super::expression::{Call, Expression};
use super::predicate::{NamePattern, Predicate};
use crate::core::request::Protocol;

/// Why a condition can never hold on a listener: a call that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The function's name.
    pub function: String,
    /// The name's place in the expression, in bytes.
    pub span: Range<usize>,
    /// What the function needs a listener to speak; `None` if it asks for another listener.
    pub needs: Option<Protocol>,
}

/// What is known of a part of a condition before any request has come.
enum Known {
    Never(Obstacle),
    Maybe,
    Always(Obstacle),
}

impl Known {
    fn needs(&self) -> Option<Protocol> {
        match self {
            Self::Never(obstacle) | Self::Always(obstacle) => obstacle.needs,
            Self::Maybe => None,
        }
    }
}

impl Match {
    /// `Err` if no request on this listener can satisfy the condition.
    pub fn possible(&self, listener: &str, protocol: Protocol) -> Result<(), Obstacle> {
        let mut predicates = self.program.predicates();
        let mut call = |call: &Call| {
            let predicate = predicates.next()?;
            let (holds, needs) = known(predicate, listener, protocol)?;
            let obstacle = Obstacle { function: call.name.clone(), span: call.name_span.clone(), needs };
            Some(if holds { Known::Always(obstacle) } else { Known::Never(obstacle) })
        };
        match judge(&self.expression, &mut call) {
            Known::Never(obstacle) => Err(obstacle),
            Known::Maybe | Known::Always(_) => Ok(()),
        }
    }
}

/// `call` is asked about every call, in the order of the text.
fn judge(expression: &Expression, call: &mut dyn FnMut(&Call) -> Option<Known>) -> Known {
    match expression {
        Expression::Call(one) => call(one).unwrap_or(Known::Maybe),
        Expression::Not(part, _) => match judge(part, call) {
            Known::Never(obstacle) => Known::Always(obstacle),
            Known::Always(obstacle) => Known::Never(obstacle),
            Known::Maybe => Known::Maybe,
        },
        Expression::All(parts, _) => join(parts, call, true),
        Expression::Any(parts, _) => join(parts, call, false),
    }
}

/// In a chain of `&&` (`all`) one part that never holds settles it, in one of `||` one that always does; if every part is the
/// opposite, so is the whole.
fn join(parts: &[Expression], call: &mut dyn FnMut(&Call) -> Option<Known>, all: bool) -> Known {
    let (mut settled, mut opposite, mut maybe) = (None, None, false);
    for part in parts {
        match judge(part, call) {
            Known::Maybe => maybe = true,
            known @ Known::Never(_) if all => settled = Some(rather(settled, known)),
            known @ Known::Always(_) if !all => settled = Some(rather(settled, known)),
            known => opposite = Some(rather(opposite, known)),
        }
    }
    match (settled, opposite) {
        (Some(settled), _) => settled,
        (None, Some(opposite)) if !maybe => opposite,
        _ => Known::Maybe,
    }
}

/// The earlier of the two, unless only the later one's call asks for another protocol: that is what an operator can change.
fn rather(earlier: Option<Known>, later: Known) -> Known {
    match earlier {
        Some(earlier) if earlier.needs().is_some() || later.needs().is_none() => earlier,
        _ => later,
    }
}

/// Whether a function holds for every request of the listener (`true`) or for none, and what it needs; `None` if that depends on the
/// request.
fn known(predicate: &Predicate, listener: &str, protocol: Protocol) -> Option<(bool, Option<Protocol>)> {
    let needs = match predicate {
        Predicate::Any => return Some((true, None)),
        Predicate::Listener(names) => return Some((names.iter().any(|name| **name == *listener), None)),
        Predicate::ClientIp(_) => return None,
        Predicate::HostSni(_) | Predicate::HostSniSuffix(_) | Predicate::Alpn(_) | Predicate::Tls => {
            Protocol::Tls
        }
        Predicate::Host(_)
        | Predicate::HostSuffix(_)
        | Predicate::HostRegexp(_)
        | Predicate::Path(_)
        | Predicate::PathPrefix(_)
        | Predicate::PathSuffix(_)
        | Predicate::PathContains(_)
        | Predicate::PathRegexp(_)
        | Predicate::Extension(_)
        | Predicate::Method(_)
        | Predicate::Header(..)
        | Predicate::Cookie(..)
        | Predicate::Query(..)
        | Predicate::User(_)
        | Predicate::Group(_)
        | Predicate::Resource(_)
        | Predicate::ResourcePrefix(_)
        | Predicate::ResourceRegexp(_)
        | Predicate::Http10 => Protocol::Http,
    };
    if needs != protocol {
        return Some((false, Some(needs)));
    }
    match predicate {
        Predicate::Tls => Some((true, Some(needs))),
        Predicate::HostSni(patterns) if patterns.iter().any(|one| matches!(one, NamePattern::Any)) => {
            Some((true, Some(needs)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::compile;
    use super::*;

    fn stands_in_the_way(source: &str, listener: &str, protocol: Protocol) -> Option<String> {
        compile(source).unwrap().possible(listener, protocol).err().map(|obstacle| obstacle.function)
    }

    #[test]
    fn what_needs_another_protocol_settles_a_condition_unless_there_is_another_way() {
        let on_tls = |source: &str| stands_in_the_way(source, "secure", Protocol::Tls);
        let on_http = |source: &str| stands_in_the_way(source, "web", Protocol::Http);
        assert_eq!(on_tls(r#"Host("a") && ClientIP("10.0.0.0/8")"#).as_deref(), Some("Host"));
        assert_eq!(on_http(r#"HostSNI("a")"#).as_deref(), Some("HostSNI"));
        assert_eq!(on_tls(r#"Host("a") || HostSNI("a")"#), None);
        assert_eq!(on_http(r#"Host("a") || HostSNI("a")"#), None);
        assert_eq!(on_tls(r#"(Host("a") || Path("/")) && ALPN("h2")"#).as_deref(), Some("Host"));
        assert_eq!(on_tls(r#"!Host("a") && HostSNI("a")"#), None, "no host is not this host");
        assert_eq!(on_tls(r#"!HostSNI("*")"#).as_deref(), Some("HostSNI"));
        assert_eq!(on_tls("!Tls()").as_deref(), Some("Tls"));
        assert_eq!(on_http("!Tls()"), None);
        assert_eq!(on_http("Tls() || Http10()"), None);
        assert_eq!(on_tls(r#"User("a")"#).as_deref(), Some("User"));
    }

    #[test]
    fn a_condition_may_be_for_some_listeners_only() {
        let condition = r#"Listener("secure") && HostSNI("a")"#;
        assert_eq!(stands_in_the_way(condition, "secure", Protocol::Tls), None);
        assert_eq!(stands_in_the_way(condition, "other", Protocol::Tls).as_deref(), Some("Listener"));
        assert_eq!(
            stands_in_the_way(r#"!Listener("secure")"#, "secure", Protocol::Tls).as_deref(),
            Some("Listener")
        );
        let nested = r#"Listener("web") && !(Any() && !Tls())"#;
        assert_eq!(stands_in_the_way(nested, "secure", Protocol::Tls).as_deref(), Some("Listener"));
        assert_eq!(
            stands_in_the_way(nested, "web", Protocol::Http).as_deref(),
            Some("Tls"),
            "Any could not be changed"
        );
    }
}
