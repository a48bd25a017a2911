//! What differs between two configurations, in the words of the file: what a reload would do, or has done.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// `listener`, `pool`, `instance`, `rule`, or the name of a table such as `default_rule`.
    pub what: String,
    /// Empty if there is only one such thing.
    pub name: String,
    pub how: How,
    /// Which keys have other values, such as `weight 100 → 50`; the pool of an added or removed instance.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    Added,
    Removed,
    Changed,
    /// Another place among the rules.
    Moved,
}

impl How {
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
            Self::Moved => "moved",
        }
    }
}

/// Keys of `[daemon]` that take effect without a restart.
const LIVE_DAEMON_KEYS: &[&str] = &["group", "session_limit"];

/// The same of `[datapath]`.
const LIVE_DATAPATH_KEYS: &[&str] = &["attach", "interface"];

/// What differs between two valid configurations, without what needs a restart.
pub fn differences(before: &str, after: &str) -> Vec<Difference> {
    let (before, after) = (parsed(before), parsed(after));
    let mut found = Vec::new();
    compare(&mut found, "listener", &things(&before, "listener"), &things(&after, "listener"));
    compare(&mut found, "pool", &things(&before, "pool"), &things(&after, "pool"));
    compare(&mut found, "instance", &instances(&before), &instances(&after));
    let (old, new) = (things(&before, "rule"), things(&after, "rule"));
    compare(&mut found, "rule", &old, &new);
    moved(&mut found, &old, &new);
    compare(&mut found, "group", &things(&before, "group"), &things(&after, "group"));
    let lists = ["listener", "pool", "rule", "group", "daemon", "datapath", "reports"];
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let empty = Value::Table(Table::new());
    for key in keys.into_iter().filter(|key| !lists.contains(&key.as_str())) {
        let (old, new) = (before.get(key).unwrap_or(&empty), after.get(key).unwrap_or(&empty));
        let detail = changed_keys(old, new, &[]).join(", ");
        if !detail.is_empty() {
            found.push(Difference { what: key.clone(), name: String::new(), how: How::Changed, detail });
        }
    }
    for (table, keys) in [("daemon", LIVE_DAEMON_KEYS), ("datapath", LIVE_DATAPATH_KEYS)] {
        let (old, new) = (before.get(table).unwrap_or(&empty), after.get(table).unwrap_or(&empty));
        let live = changed_keys(old, new, &[]).into_iter();
        let live = live.filter(|change| keys.iter().any(|key| change.starts_with(&format!("{key} "))));
        let detail = live.collect::<Vec<_>>().join(", ");
        if !detail.is_empty() {
            found.push(Difference { what: table.to_owned(), name: String::new(), how: How::Changed, detail });
        }
    }
    found
}

/// What differs and takes a restart of the daemon to come into effect, such as `[daemon] workers 2 → 4`.
pub fn needs_restart(running: &str, after: &str) -> Vec<String> {
    let (running, after) = (parsed(running), parsed(after));
    let empty = Value::Table(Table::new());
    let of = |key: &'static str, live: &'static [&'static str]| {
        let (old, new) = (running.get(key).unwrap_or(&empty), after.get(key).unwrap_or(&empty));
        changed_keys(old, new, live).into_iter().map(move |change| format!("[{key}] {change}"))
    };
    of("daemon", LIVE_DAEMON_KEYS)
        .chain(of("datapath", LIVE_DATAPATH_KEYS))
        .chain(of("reports", &[]))
        .collect()
}

fn parsed(text: &str) -> Table {
    text.parse().unwrap_or_default()
}

/// The tables of a list by name, in order.
type Things<'t> = Vec<(&'t str, &'t Table, String)>;

fn things<'t>(root: &'t Table, key: &str) -> Things<'t> {
    let list = root.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let tables = list.iter().filter_map(Value::as_table);
    tables.map(|table| (name(table), table, String::new())).collect()
}

fn instances(root: &Table) -> Things<'_> {
    let pools = things(root, "pool").into_iter();
    pools
        .flat_map(|(pool, table, _)| {
            things(table, "instance").into_iter().map(move |(name, table, _)| (name, table, pool.to_owned()))
        })
        .collect()
}

fn name(table: &Table) -> &str {
    table.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn compare(found: &mut Vec<Difference>, what: &str, before: &Things<'_>, after: &Things<'_>) {
    let by_name = |things: &Things<'_>| -> HashMap<String, usize> {
        things.iter().enumerate().map(|(index, (name, ..))| ((*name).to_owned(), index)).collect()
    };
    let (old, new) = (by_name(before), by_name(after));
    let mut add = |name: &str, how, detail| {
        found.push(Difference { what: what.to_owned(), name: name.to_owned(), how, detail });
    };
    let in_pool = |pool: &str, word: &str| match pool {
        "" => String::new(),
        pool => format!("{word} pool {pool}"),
    };
    for (name, _, pool) in before.iter().filter(|(name, ..)| !new.contains_key(*name)) {
        add(name, How::Removed, in_pool(pool, "from"));
    }
    for (name, table, pool) in after {
        let Some((_, earlier, from)) = old.get(*name).map(|&index| &before[index]) else {
            add(name, How::Added, in_pool(pool, "to"));
            continue;
        };
        let mut detail = changed_keys_of(earlier, table, &["instance"]);
        if from != pool {
            detail.push(format!("pool {from} → {pool}"));
        }
        if !detail.is_empty() {
            add(name, How::Changed, detail.join(", "));
        }
    }
}

fn changed_keys(old: &Value, new: &Value, without: &[&str]) -> Vec<String> {
    match (old.as_table(), new.as_table()) {
        (Some(old), Some(new)) => changed_keys_of(old, new, without),
        _ if old == new => Vec::new(),
        _ => vec![format!("{} → {}", short(Some(old)), short(Some(new)))],
    }
}

fn changed_keys_of(old: &Table, new: &Table, without: &[&str]) -> Vec<String> {
    let keys: BTreeSet<_> =
        old.keys().chain(new.keys()).filter(|key| !without.contains(&key.as_str())).collect();
    let different = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    different
        .flat_map(|key| match (old.get(key), new.get(key)) {
            (Some(Value::Table(old)), Some(Value::Table(new))) => {
                let inner = changed_keys_of(old, new, &[]).into_iter();
                inner.map(|change| format!("{key}.{change}")).collect()
            }
            (old, new) => vec![format!("{key} {} → {}", short(old), short(new))],
        })
        .collect()
}

/// A value in a few words.
fn short(value: Option<&Value>) -> String {
    let Some(value) = value else { return "(default)".to_owned() };
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The fewest rules whose moves explain the new order.
fn moved(found: &mut Vec<Difference>, before: &Things<'_>, after: &Things<'_>) {
    let places: HashMap<&str, usize> =
        before.iter().enumerate().map(|(at, (name, ..))| (*name, at)).collect();
    let common: Vec<(&str, usize)> =
        after.iter().filter_map(|(name, ..)| Some((*name, *places.get(name)?))).collect();
    let stayed = longest_ascending(&common.iter().map(|(_, place)| *place).collect::<Vec<_>>());
    for (at, (name, place)) in common.iter().enumerate() {
        if stayed.binary_search(place).is_err() {
            let detail = match at.checked_sub(1).map(|before| common[before].0) {
                Some(other) => format!("now after {other}"),
                None => "now first".to_owned(),
            };
            found.push(Difference {
                what: "rule".to_owned(),
                name: (*name).to_owned(),
                how: How::Moved,
                detail,
            });
        }
    }
}

/// The longest ascending subsequence of different numbers.
fn longest_ascending(numbers: &[usize]) -> Vec<usize> {
    // For each length, the place of the smallest number that ends such a sequence; and each place's predecessor.
    let mut ends: Vec<usize> = Vec::new();
    let mut previous = vec![None; numbers.len()];
    for (place, number) in numbers.iter().enumerate() {
        let length = ends.partition_point(|&end| numbers[end] < *number);
        previous[place] = length.checked_sub(1).map(|shorter| ends[shorter]);
        if length == ends.len() {
            ends.push(place);
        } else {
            ends[length] = place;
        }
    }
    let mut sequence = Vec::new();
    let mut at = ends.last().copied();
    while let Some(place) = at {
        sequence.push(numbers[place]);
        at = previous[place];
    }
    sequence.reverse();
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(before: &str, after: &str) -> Vec<String> {
        let line = |one: Difference| format!("{} {} {} {}", one.what, one.name, one.how.name(), one.detail);
        differences(before, after).into_iter().map(|one| line(one).trim().to_owned()).collect()
    }

    const BEFORE: &str = r#"
        [daemon]
        workers = 2
        [[listener]]
        name = "web"
        address = "10.0.1.1:80"
        [[pool]]
        name = "p"
        check = { type = "tcp" }
        [[pool.instance]]
        name = "a"
        address = "10.0.2.1:80"
        [[rule]]
        name = "one"
        match = "Any()"
        [[rule]]
        name = "two"
        match = "Any()"
        [[rule]]
        name = "three"
        match = "Any()"
    "#;

    #[test]
    fn nothing_differs_from_itself_whatever_its_layout() {
        assert!(told(BEFORE, &BEFORE.replace("        ", "").replace("= ", "=")).is_empty());
    }

    #[test]
    fn what_came_went_and_changed_is_named() {
        let after = BEFORE
            .replace("name = \"a\"", "name = \"b\"")
            .replace("\"tcp\"", "\"http\"")
            .replace("10.0.1.1:80", "10.0.1.1:8080")
            .replace("name = \"two\"", "name = \"new\"");
        assert_eq!(
            told(BEFORE, &after),
            [
                "listener web changed address \"10.0.1.1:80\" → \"10.0.1.1:8080\"",
                "pool p changed check.type \"tcp\" → \"http\"",
                "instance a removed from pool p",
                "instance b added to pool p",
                "rule two removed",
                "rule new added",
            ]
        );
    }

    #[test]
    fn a_rule_that_moved_up_is_one_move() {
        let rules = |names: [&str; 4]| names.map(|name| format!("[[rule]]\nname = \"{name}\"\n")).concat();
        let (before, after) = (rules(["a", "b", "c", "d"]), rules(["a", "d", "b", "c"]));
        assert_eq!(told(&before, &after), ["rule d moved now after a"]);
        assert_eq!(told(&after, &before), ["rule d moved now after c"]);
        assert_eq!(told(&before, &rules(["d", "a", "b", "c"])), ["rule d moved now first"]);
    }

    #[test]
    fn what_only_a_restart_can_change_is_told_apart() {
        let after = BEFORE
            .replace("workers = 2", "workers = 4\ngroup = \"rack\"")
            .replace("check = {", "reports = { token_file = \"/t\" }\n        check = {");
        let after = format!("{after}\n[reports]\nlisten = \"10.0.2.1:9190\"\n");
        assert_eq!(
            needs_restart(BEFORE, &after),
            ["[daemon] workers 2 → 4", "[reports] listen (default) → \"10.0.2.1:9190\""]
        );
        assert!(
            told(BEFORE, &after)
                .contains(&"pool p changed reports (default) → { token_file = \"/t\" }".to_owned())
        );
        let after = BEFORE.replace("workers = 2", "workers = 4\ngroup = \"rack\"\nsession_limit = 100");
        assert_eq!(
            told(BEFORE, &after),
            ["daemon  changed group (default) → \"rack\", session_limit (default) → 100"]
        );
        assert_eq!(needs_restart(BEFORE, &after), ["[daemon] workers 2 → 4"]);
    }
}
