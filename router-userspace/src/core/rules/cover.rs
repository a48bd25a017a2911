//! What a request must have for a condition to hold: the literals by which rules are indexed.
//!
//! A cover of a condition is a set of keys of which at least one is true of every request that satisfies the condition.
//! The other way round nothing is claimed: a key that is true makes the rule a candidate, and the condition itself decides.

use std::collections::HashMap;

use ipnet::IpNet;

use super::Match;
use super::expression::Expression;
use super::predicate::{NamePattern, Predicate, ValueTest};

/// Longer hosts and header names are not indexed: a request's is brought to lower case in a buffer of this size.
pub(super) const MAX_FOLDED: usize = 255;

/// One thing that is true of a request or not, and that can be looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Lower case.
    Host(Box<[u8]>),
    /// Lower case, the last byte first.
    HostSuffix(Box<[u8]>),
    /// Lower case.
    ServerName(Box<[u8]>),
    /// Lower case, the last byte first.
    ServerNameSuffix(Box<[u8]>),
    Path(Box<[u8]>),
    PathPrefix(Box<[u8]>),
    Method(Box<[u8]>),
    Listener(Box<[u8]>),
    /// Name in lower case, and the value unless any will do.
    Header(Box<[u8]>, Option<Box<[u8]>>),
    Cookie(Box<[u8]>, Option<Box<[u8]>>),
    Query(Box<[u8]>, Option<Box<[u8]>>),
    Network(IpNet),
}

impl Key {
    /// Among equally frequent keys, the one with the smaller rank is true of fewer requests.
    fn rank(&self) -> u8 {
        match self {
            Self::Path(_) => 0,
            Self::Host(_) | Self::ServerName(_) => 1,
            Self::Header(_, Some(_)) | Self::Cookie(_, Some(_)) | Self::Query(_, Some(_)) => 2,
            Self::PathPrefix(_) => 3,
            Self::HostSuffix(_) | Self::ServerNameSuffix(_) | Self::Network(_) => 4,
            Self::Header(..) | Self::Cookie(..) | Self::Query(..) => 5,
            Self::Method(_) | Self::Listener(_) => 6,
        }
    }
}

/// How many conditions name each key.
pub(super) type Frequencies = HashMap<Key, u32>;

/// Counts the keys of one more condition.
pub(super) fn count(condition: &Match, frequencies: &mut Frequencies) {
    for predicate in condition.program.predicates() {
        for key in keys(predicate).into_iter().flatten() {
            *frequencies.entry(key).or_default() += 1;
        }
    }
}

/// The cover of a condition whose keys are the rarest; `None` if it has none.
pub(super) fn cover(condition: &Match, frequencies: &Frequencies) -> Option<Vec<Key>> {
    let mut predicates = condition.program.predicates();
    let found = weigh(&condition.expression, false, &mut predicates, frequencies)?;
    Some(found.keys)
}

/// A cover and what it costs: how many candidates its keys may bring, then how common they are among requests.
struct Weighed {
    keys: Vec<Key>,
    cost: (u64, u8),
}

/// `predicates` are those of the expression's calls, in the order of the text.
fn weigh(
    expression: &Expression,
    negated: bool,
    predicates: &mut dyn Iterator<Item = &Predicate>,
    frequencies: &Frequencies,
) -> Option<Weighed> {
    match (expression, negated) {
        (Expression::Not(part, _), _) => weigh(part, !negated, predicates, frequencies),
        (Expression::Call(_), _) => {
            let keys = keys(predicates.next()?).filter(|_| !negated)?;
            let brought = keys.iter().map(|key| u64::from(frequencies.get(key).copied().unwrap_or(0))).sum();
            let rank = keys.iter().map(Key::rank).max()?;
            Some(Weighed { keys, cost: (brought, rank) })
        }
        // All hold, so the best of them will do. Not any holds, which is: all do not.
        (Expression::All(parts, _), false) | (Expression::Any(parts, _), true) => {
            let mut best: Option<Weighed> = None;
            for part in parts {
                let found = weigh(part, negated, predicates, frequencies);
                best = match (best, found) {
                    (Some(best), Some(found)) if found.cost < best.cost => Some(found),
                    (best, found) => best.or(found),
                };
            }
            best
        }
        // Any may hold, so every one needs a cover.
        (Expression::Any(parts, _), false) | (Expression::All(parts, _), true) => {
            let mut all = Some(Weighed { keys: Vec::new(), cost: (0, 0) });
            for part in parts {
                // Also behind a part without a cover: the predicates must stay in step.
                let found = weigh(part, negated, predicates, frequencies);
                all = all.zip(found).map(|(mut all, found)| {
                    all.keys.extend(found.keys);
                    all.cost = (all.cost.0 + found.cost.0, all.cost.1.max(found.cost.1));
                    all
                });
            }
            all
        }
    }
}

/// The keys of which one is true if the predicate holds; `None` if it asks for nothing that can be looked up.
fn keys(predicate: &Predicate) -> Option<Vec<Key>> {
    let each = |texts: &[Box<str>], key: fn(Box<[u8]>) -> Key| {
        Some(texts.iter().map(|text| key(text.as_bytes().into())).collect())
    };
    match predicate {
        Predicate::Host(hosts) | Predicate::HostSuffix(hosts)
            if hosts.iter().any(|host| host.len() > MAX_FOLDED) =>
        {
            None
        }
        Predicate::Host(hosts) => each(hosts, Key::Host),
        Predicate::HostSuffix(suffixes) => {
            Some(suffixes.iter().map(|suffix| Key::HostSuffix(suffix.bytes().rev().collect())).collect())
        }
        Predicate::HostSni(patterns) => patterns.iter().map(server_name).collect(),
        Predicate::HostSniSuffix(suffixes) => {
            suffixes.iter().map(|suffix| server_name_suffix(suffix)).collect()
        }
        Predicate::Path(paths) => each(paths, Key::Path),
        Predicate::PathPrefix(prefixes) => each(prefixes, Key::PathPrefix),
        Predicate::Method(methods) => each(methods, Key::Method),
        Predicate::Listener(names) => each(names, Key::Listener),
        Predicate::ClientIp(networks) => {
            Some(networks.iter().map(|network| Key::Network(network.trunc())).collect())
        }
        Predicate::Header(name, _) if name.len() > MAX_FOLDED => None,
        Predicate::Header(name, test) => {
            Some(vec![Key::Header(name.to_ascii_lowercase().as_bytes().into(), value(test))])
        }
        Predicate::Cookie(name, test) => Some(vec![Key::Cookie(name.as_bytes().into(), value(test))]),
        Predicate::Query(name, test) => Some(vec![Key::Query(name.as_bytes().into(), value(test))]),
        _ => None,
    }
}

fn server_name(pattern: &NamePattern) -> Option<Key> {
    match pattern {
        NamePattern::Any => None,
        NamePattern::Exact(name) => {
            (name.len() <= MAX_FOLDED).then(|| Key::ServerName(name.as_bytes().into()))
        }
        NamePattern::Below(parent) => server_name_suffix(parent),
    }
}

fn server_name_suffix(suffix: &str) -> Option<Key> {
    (suffix.len() <= MAX_FOLDED).then(|| Key::ServerNameSuffix(suffix.bytes().rev().collect()))
}

/// The one value that passes the test; `None` if others may.
fn value(test: &ValueTest) -> Option<Box<[u8]>> {
    match test {
        ValueTest::Equals(value) => Some(value.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::compile;
    use super::*;

    fn cover_of(source: &str) -> Option<String> {
        let condition = compile(source).unwrap();
        let mut frequencies = Frequencies::new();
        count(&condition, &mut frequencies);
        let name = |key: &Key| match key {
            Key::Host(host) => format!("host {}", String::from_utf8_lossy(host)),
            Key::PathPrefix(prefix) => format!("prefix {}", String::from_utf8_lossy(prefix)),
            other => format!("{other:?}"),
        };
        Some(cover(&condition, &frequencies)?.iter().map(name).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn of_parts_that_all_must_hold_the_rarest_is_enough() {
        assert_eq!(cover_of(r#"PathPrefix("/a") && Host("x") && Tls()"#).unwrap(), "host x");
        assert_eq!(cover_of(r#"Tls() && !Host("x") && PathPrefix("/a")"#).unwrap(), "prefix /a");
    }

    #[test]
    fn of_parts_that_may_hold_each_is_needed() {
        assert_eq!(cover_of(r#"Host("x", "y") || PathPrefix("/a")"#).unwrap(), "host x, host y, prefix /a");
        assert_eq!(cover_of(r#"Host("x") || Tls()"#), None);
        assert_eq!(cover_of(r#"(Tls() || Host("x")) && PathPrefix("/a")"#).unwrap(), "prefix /a");
    }

    #[test]
    fn what_must_not_hold_is_no_cover_and_two_negations_are_none() {
        assert_eq!(cover_of(r#"!Host("x")"#), None);
        assert_eq!(cover_of(r#"!(!Host("x") || Tls())"#).unwrap(), "host x");
        assert_eq!(cover_of(r#"!(!Host("x") && !PathPrefix("/a"))"#).unwrap(), "host x, prefix /a");
    }
}
