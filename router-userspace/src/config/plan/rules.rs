//! Rules: unique names, conditions that compile, and pools that exist.

use std::sync::Arc;

use super::super::file::{self, File};
use super::super::reader::{Placed, Report};
use super::super::report::Problem;
use super::super::settings::Protocol;
use super::super::suggest::closest;
use super::super::toml_string;
use super::protocol;
use super::unavailable::PoolNames;
use super::unique::Unique;
use crate::core::persistence::Persistence;
use crate::core::pool::{OnUnavailable, PoolId};
use crate::core::rules::{self, Match};
use crate::core::table::{Action, DEFAULT_RULE_NAME, DefaultRule, Overrides, Rule};

/// The status of a `deny` without one.
const DENY_STATUS: u16 = 403;

pub(super) fn plan(file: &File, report: &Report<'_>) -> Option<(Vec<Rule>, DefaultRule)> {
    let pools = PoolNames::of(file);
    let mut names = Unique::new(report);
    for name in file.rules.iter().filter_map(|rule| rule.name.as_ref()) {
        names.see(name, |name| {
            (format!("two rules are named `{name}`"), "give each rule its own name".to_owned())
        });
        if name.value == DEFAULT_RULE_NAME {
            let message = format!("`{DEFAULT_RULE_NAME}` is the name of the default rule");
            let help = "choose another name; the rule that is always last is written as [default_rule]";
            report.add(Problem::at(name.span.clone(), message).help(help));
        }
    }
    let listeners: Vec<(&str, Protocol)> = file
        .listeners
        .iter()
        .filter_map(|listener| Some((listener.name.as_ref()?.value.as_str(), listener.protocol.value)))
        .collect();
    let rules: Vec<Option<Rule>> =
        file.rules.iter().map(|rule| one(rule, &pools, &listeners, report)).collect();
    let default_rule = default_rule(file.default_rule.as_ref(), &pools, report);
    let rules = rules.into_iter().collect::<Option<Vec<Rule>>>()?;
    let default_rule = default_rule?;
    warn_of_idle_pools(file, &rules, &default_rule, report);
    warn_of_idle_rules(file, &rules, report);
    protocol::warn_of_unread_cookies(file, &rules, &listeners, report);
    super::preload::warn_of_unread_resources(file, report);
    Some((rules, default_rule))
}

fn one(
    rule: &file::Rule,
    pools: &PoolNames<'_>,
    listeners: &[(&str, Protocol)],
    report: &Report<'_>,
) -> Option<Rule> {
    let condition = rule.condition.as_ref().map(|source| compile(source, listeners, report));
    let action = action(rule, pools, report);
    let tried = match action {
        Some(Action::Pool(pool)) => vec![pool],
        _ => Vec::new(),
    };
    let who =
        rule.name.as_ref().map_or_else(|| "this rule".to_owned(), |name| format!("rule `{}`", name.value));
    let persistence = persistence(rule.persistence.as_ref(), report);
    let preload = match &rule.preload {
        Some(written) => super::preload::plan(written, report).map(Some),
        None => Some(None),
    };
    Some(Rule {
        name: rule.name.as_ref()?.value.clone(),
        enabled: rule.enabled.value,
        condition: condition??,
        action: action?,
        overrides: Overrides {
            method: rule.method.as_ref().map(|method| method.value),
            on_unavailable: pools.resolve(rule.on_unavailable.as_ref(), &tried, &who, report),
            affinity: rule.affinity.as_ref().map(|affinity| affinity.value),
            allow_exhausted: rule.allow_exhausted.as_ref().map(|allow| allow.value),
        },
        persistence: persistence?,
        preload: preload?,
        hits: Default::default(),
    })
}

/// `None` if there is one and it is wrong.
fn persistence(
    persistence: Option<&file::Persistence>,
    report: &Report<'_>,
) -> Option<Option<Arc<Persistence>>> {
    match persistence {
        Some(persistence) => super::persistence::plan(persistence, report).map(Some),
        None => Some(None),
    }
}

fn compile(source: &Placed<String>, listeners: &[(&str, Protocol)], report: &Report<'_>) -> Option<Match> {
    let names: Vec<&str> = listeners.iter().map(|(name, _)| *name).collect();
    match rules::compile(&source.value) {
        Ok(condition) => {
            let mut all_known = true;
            for name in condition.listeners().filter(|name| !names.contains(&name.value.as_str())) {
                all_known = false;
                let span = toml_string::locate(report.text, &source.span, &name.span);
                let message = format!("there is no listener `{}`, so this never holds", name.value);
                let help = match closest(&name.value, names.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("known listeners: {}", names.join(", ")),
                };
                report.add(Problem::at(span, message).help(help));
            }
            if all_known {
                protocol::check_condition(&condition, source, listeners, report);
            }
            Some(condition)
        }
        Err(error) => {
            let span = toml_string::locate(report.text, &source.span, &error.span);
            report.add(Problem::at(span, error.message).help(error.help));
            None
        }
    }
}

fn action(rule: &file::Rule, pools: &PoolNames<'_>, report: &Report<'_>) -> Option<Action> {
    let called =
        rule.name.as_ref().map_or_else(|| "this rule".to_owned(), |name| format!("rule `{}`", name.value));
    let place = rule.name.as_ref().map_or(&rule.span, |name| &name.span);
    match (rule.has_pool, rule.has_action) {
        (false, false) => {
            let help = "add pool = \"NAME\", or action = \"deny\"";
            report.add(Problem::at(place.clone(), format!("{called} does nothing")).help(help));
            return None;
        }
        (true, true) => {
            let help = "keep one of the two";
            report.add(
                Problem::at(place.clone(), format!("{called} has both a pool and an action")).help(help),
            );
            return None;
        }
        _ => {}
    }
    if rule.has_action {
        let unused = [
            ("on_unavailable", rule.on_unavailable.as_ref().map(|value| &value.span)),
            ("method", rule.method.as_ref().map(|value| &value.span)),
            ("affinity", rule.affinity.as_ref().map(|value| &value.span)),
            ("allow_exhausted", rule.allow_exhausted.as_ref().map(|value| &value.span)),
            ("persistence", rule.persistence.as_ref().map(|value| &value.span)),
            ("preload", rule.preload.as_ref().map(|value| &value.span)),
        ];
        for (key, span) in unused {
            if let Some(span) = span {
                let message = format!("`{key}` has no meaning in a rule that denies");
                report.add(Problem::at(span.clone(), message).help("remove it"));
            }
        }
        rule.action.as_ref()?;
        return Some(Action::Deny {
            status: rule.status.as_ref().map_or(DENY_STATUS, |status| status.value),
        });
    }
    if let Some(status) = &rule.status {
        let help = "remove it, or replace the pool by action = \"deny\"";
        report.add(
            Problem::at(status.span.clone(), "`status` has a meaning only with action = \"deny\"").help(help),
        );
    }
    let name = rule.pool.as_ref()?;
    pools.find(&name.value, name, &called, report).map(Action::Pool)
}

fn default_rule(
    rule: Option<&file::DefaultRule>,
    pools: &PoolNames<'_>,
    report: &Report<'_>,
) -> Option<DefaultRule> {
    let Some(rule) = rule else { return Some(DefaultRule::default()) };
    let persistence = persistence(rule.persistence.as_ref(), report);
    let mut found = Vec::new();
    if let Some(names) = &rule.pools {
        let mut seen = Unique::new(report);
        for name in &names.value {
            seen.see(name, |name| {
                (format!("the default rule names pool `{name}` twice"), "remove one".to_owned())
            });
            found.push(pools.find(&name.value, name, "the default rule", report));
        }
        if names.value.is_empty() {
            let help = "name at least one, or leave `pools` out to use every pool";
            report.add(Problem::at(names.span.clone(), "the default rule has no pools").help(help));
            return None;
        }
    }
    let found = found.into_iter().collect::<Option<Vec<_>>>()?;
    let all = pools.all();
    let tried = if found.is_empty() { &all } else { &found };
    Some(DefaultRule {
        overrides: Overrides {
            method: rule.method.as_ref().map(|method| method.value),
            on_unavailable: pools.resolve(rule.on_unavailable.as_ref(), tried, "the default rule", report),
            affinity: rule.affinity.as_ref().map(|affinity| affinity.value),
            allow_exhausted: rule.allow_exhausted.as_ref().map(|allow| allow.value),
        },
        pools: found,
        persistence: persistence?,
        hits: Default::default(),
    })
}

/// Rules behind one that always holds are never tried.
fn warn_of_idle_rules(file: &File, rules: &[Rule], report: &Report<'_>) {
    let always = rules.iter().position(|rule| rule.enabled && rule.condition.source().trim() == "Any()");
    let Some(always) = always else { return };
    if let Some(name) = file.rules.get(always + 1).and_then(|rule| rule.name.as_ref()) {
        let message = format!(
            "rule `{}` is never tried: rule `{}` before it always holds",
            name.value, rules[always].name
        );
        report.warn(Problem::at(name.span.clone(), message).help("the first rule that holds decides"));
    }
}

/// A pool that no rule leads to is probably a slip.
fn warn_of_idle_pools(file: &File, rules: &[Rule], default_rule: &DefaultRule, report: &Report<'_>) {
    if default_rule.pools.is_empty() {
        return;
    }
    for (pool, number) in file.pools.iter().zip(0..) {
        let this = PoolId(number);
        let asked_for = |value: Option<OnUnavailable>| value == Some(OnUnavailable::Pool(this));
        let named = |pool: &file::Pool| match pool.on_unavailable.as_ref().map(|asked| &asked.value) {
            Some(file::OnUnavailable::Pool(name)) => {
                file.pools[usize::from(number)].name.as_ref().is_some_and(|own| own.value == *name)
            }
            _ => false,
        };
        let used = default_rule.pools.contains(&this)
            || asked_for(default_rule.overrides.on_unavailable)
            || file.pools.iter().any(named)
            || rules.iter().any(|rule| {
                matches!(rule.action, Action::Pool(pool) if pool == this)
                    || asked_for(rule.overrides.on_unavailable)
            });
        if let (false, Some(name)) = (used, &pool.name) {
            let message = format!("no rule leads to pool `{}`", name.value);
            report.warn(
                Problem::at(name.span.clone(), message).help("name it in a [[rule]] or in [default_rule]"),
            );
        }
    }
}
