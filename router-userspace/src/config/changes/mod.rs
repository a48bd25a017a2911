//! Run-time changes: what an operator changes without editing the file.
//!
//! A change is an edit of the configuration. The daemon runs what the file says with all changes applied in their order,
//! so a change is judged by the same rules as the file itself, and writing changes back is writing that text.

pub(super) mod edit;
pub(super) mod journal;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Keys and their new values, as in the configuration. A dot reaches into a table, as in `check.interval`; null removes
/// the key, which brings back its default.
pub type Settings = Map<String, Value>;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Change {
    /// Also of the default rule, by its name `default`.
    RuleSet {
        rule: String,
        settings: Settings,
    },
    RuleMove {
        rule: String,
        to: Place,
    },
    /// `settings` has the new rule's name. Without a place it comes last, before the default rule.
    RuleAdd {
        settings: Settings,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<Place>,
    },
    RuleRemove {
        rule: String,
    },
    InstanceSet {
        instance: String,
        settings: Settings,
    },
    /// `settings` has the new instance's name.
    InstanceAdd {
        pool: String,
        settings: Settings,
    },
    InstanceRemove {
        instance: String,
    },
    PoolSet {
        pool: String,
        settings: Settings,
    },
}

/// Where among the other rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    First,
    /// Before the default rule.
    Last,
    Before(String),
    After(String),
}

/// One change that is in force, or would be if the configuration allowed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Never used again.
    pub id: u64,
    /// When it was made, in seconds since the epoch.
    pub made_at: u64,
    pub change: Change,
    /// Why it is not in force: what it refers to is gone, say. It comes into force when a reload removes the obstacle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RuleSet { rule, settings } => write!(f, "rule {rule}: {}", listed(settings)),
            Self::RuleMove { rule, to } => write!(f, "rule {rule}: moved {to}"),
            Self::RuleAdd { settings, to } => {
                write!(f, "rule {} added", name(settings))?;
                match to {
                    Some(to) => write!(f, " {to}: {}", listed(settings)),
                    None => write!(f, ": {}", listed(settings)),
                }
            }
            Self::RuleRemove { rule } => write!(f, "rule {rule} removed"),
            Self::InstanceSet { instance, settings } => {
                write!(f, "instance {instance}: {}", listed(settings))
            }
            Self::InstanceAdd { pool, settings } => {
                write!(f, "instance {} added to pool {pool}: {}", name(settings), listed(settings))
            }
            Self::InstanceRemove { instance } => write!(f, "instance {instance} removed"),
            Self::PoolSet { pool, settings } => write!(f, "pool {pool}: {}", listed(settings)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("to the first place"),
            Self::Last => f.write_str("to the last place"),
            Self::Before(rule) => write!(f, "before {rule}"),
            Self::After(rule) => write!(f, "after {rule}"),
        }
    }
}

/// The `name` among the settings of something new.
fn name(settings: &Settings) -> &str {
    settings.get("name").and_then(Value::as_str).unwrap_or("without a name")
}

fn listed(settings: &Settings) -> String {
    let one = |(key, value): (&String, &Value)| match value {
        Value::Null => format!("{key} removed"),
        value => format!("{key} = {value}"),
    };
    settings.iter().filter(|(key, _)| *key != "name").map(one).collect::<Vec<_>>().join(", ")
}

impl Change {
    /// Whether nothing is left of `earlier` once this has been applied after it.
    fn replaces(&self, earlier: &Change) -> bool {
        let covers = |new: &Settings, old: &Settings| old.keys().all(|key| new.contains_key(key));
        match (self, earlier) {
            (Self::RuleSet { rule, settings }, Self::RuleSet { rule: other, settings: old }) => {
                rule == other && covers(settings, old)
            }
            (
                Self::InstanceSet { instance, settings },
                Self::InstanceSet { instance: other, settings: old },
            ) => instance == other && covers(settings, old),
            (Self::PoolSet { pool, settings }, Self::PoolSet { pool: other, settings: old }) => {
                pool == other && covers(settings, old)
            }
            (Self::RuleMove { rule, .. }, Self::RuleMove { rule: other, .. }) => rule == other,
            (Self::RuleRemove { rule }, earlier) => match earlier {
                Self::RuleAdd { settings, .. } => name(settings) == rule,
                Self::RuleSet { rule: other, .. } | Self::RuleMove { rule: other, .. } => rule == other,
                _ => false,
            },
            (Self::InstanceRemove { instance }, earlier) => match earlier {
                Self::InstanceAdd { settings, .. } => name(settings) == instance,
                Self::InstanceSet { instance: other, .. } => instance == other,
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether this undoes `earlier`, so that neither is needed.
    fn undoes(&self, earlier: &Change) -> bool {
        matches!(
            (self, earlier),
            (Self::RuleRemove { .. }, Self::RuleAdd { .. })
                | (Self::InstanceRemove { .. }, Self::InstanceAdd { .. })
        ) && self.replaces(earlier)
    }
}

/// The entries without those that the last one has made pointless, if they say the same without them in `text`.
pub(super) fn shortened(text: &str, entries: Vec<Entry>) -> Vec<Entry> {
    let Some((last, earlier)) = entries.split_last() else { return entries };
    let undone = earlier.iter().any(|entry| last.change.undoes(&entry.change));
    let mut short: Vec<Entry> =
        earlier.iter().filter(|entry| !last.change.replaces(&entry.change)).cloned().collect();
    if !undone {
        short.push(last.clone());
    }
    if short.len() == entries.len() {
        return entries;
    }
    let result = |entries: &[Entry]| edit::edited(text, entries.iter().map(|entry| &entry.change));
    let (long_text, long_obstacles) = result(&entries);
    let (short_text, short_obstacles) = result(&short);
    let as_before = short_text == long_text
        && short_obstacles.iter().flatten().count() == long_obstacles.iter().flatten().count();
    if as_before { short } else { entries }
}
