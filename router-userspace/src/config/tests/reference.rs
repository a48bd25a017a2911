//! Holds `docs/CONFIGURATION.md` to what the parser really accepts: every key, default, range and choice.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use crate::config::parse;
use crate::config::schema::{self, SECTIONS};
use crate::core::rules::function_names;

const REFERENCE: &str = include_str!("../../../../docs/CONFIGURATION.md");

struct Row {
    values: String,
    default: String,
}

/// The rows of each table, by the heading above it.
fn documented() -> BTreeMap<String, BTreeMap<String, Row>> {
    let mut tables = BTreeMap::<String, BTreeMap<String, Row>>::new();
    let mut heading = String::new();
    for line in REFERENCE.lines() {
        if let Some(text) = line.strip_prefix("## ") {
            heading = text.to_owned();
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let [key, values, default, _] = cells.as_slice()
            && let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`'))
        {
            let row = Row { values: (*values).to_owned(), default: (*default).to_owned() };
            let before = tables.entry(heading.clone()).or_default().insert(key.to_owned(), row);
            assert!(before.is_none(), "{key} is documented twice");
        }
    }
    tables
}

fn heading(section: &schema::Section) -> String {
    section.title.replace('`', "")
}

#[test]
fn the_reference_has_exactly_the_keys_that_the_parser_reads() {
    let documented = documented();
    let mut known = BTreeSet::new();
    for section in SECTIONS.iter().skip(1) {
        known.insert(heading(section));
        let keys: BTreeSet<&str> = section.keys.iter().map(|key| key.name).collect();
        let table = documented.get(&heading(section)).unwrap_or_else(|| panic!("no {}", section.title));
        assert_eq!(table.keys().map(String::as_str).collect::<BTreeSet<_>>(), keys, "{}", section.title);
    }
    assert_eq!(documented.into_keys().collect::<BTreeSet<_>>(), known);
    let tables: BTreeSet<String> = schema::ROOT.keys.iter().map(|key| key.name.to_owned()).collect();
    let named: BTreeSet<String> = known
        .iter()
        .filter(|title| title.starts_with('['))
        .map(|title| title.replace(['[', ']'], ""))
        .collect();
    assert_eq!(
        named,
        tables.into_iter().chain(["pool.instance", "datapath.interface"].map(str::to_owned)).collect()
    );
}

#[test]
fn the_reference_gives_the_defaults_that_are_used() {
    // Empty tables lack exactly what is required.
    let empty = "[[datapath.interface]]\n[[listener]]\naccept_proxy_protocol = {}\nsession = {}\nuser = {}\ngroups = {}\nresource = {}\n\
                 [[pool]]\ncheck = {}\nagent = {}\nreports = {}\nthresholds = {}\n\
                 [[pool.instance]]\nthresholds = {}\n[[rule]]\npersistence = {}\npreload = {}\n[default_rule]\n[reports]\n[[group]]\n";
    let lacking = parse("r.toml", empty).expect_err("names are missing").to_string();
    let documented = documented();
    for section in SECTIONS.iter().skip(1) {
        for key in section.keys {
            let row = &documented[&heading(section)][key.name];
            let required = lacking.contains(&format!("{} has no `{}`", section.title, key.name));
            let wanted = match key.default {
                Some(default) => format!("`{default}`"),
                None if required || key.name == "instance" => "required".to_owned(),
                None => "none".to_owned(),
            };
            assert_eq!(row.default, wanted, "`{}` in {}", key.name, section.title);
        }
    }
}

/// What the parser says to a value of `key` that is wrong in every table.
fn refusal(section: &schema::Section, key: &str, value: &str) -> String {
    let line = format!("{key} = {value}\n");
    let text = match section.title {
        "`thresholds` of a [[pool.instance]]" => {
            format!("[[pool]]\n[[pool.instance]]\n[pool.instance.thresholds]\n{line}")
        }
        title if title.ends_with("of a [[pool]]") => {
            let name = title.split('`').nth(1).unwrap();
            format!("[[pool]]\n[pool.{name}]\n{line}")
        }
        "`preload` of a [[rule]]" => format!("[[rule]]\n[rule.preload]\n{line}"),
        "`persistence` of a rule" => format!("[[rule]]\n[rule.persistence]\n{line}"),
        "[[pool.instance]]" => format!("[[pool]]\n[[pool.instance]]\n{line}"),
        title if title.ends_with("of a [[listener]]") => {
            let table = title.split('`').nth(1).expect("a table in a listener");
            format!("[[listener]]\n[listener.{table}]\n{line}")
        }
        title => format!("{title}\n{line}"),
    };
    let problems = parse("r.toml", &text).expect_err("a wrong value").to_string();
    let about = format!("`{key}`");
    problems.lines().filter(|line| line.contains(&about)).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_reference_gives_the_ranges_and_choices_that_are_enforced() {
    let range = Regex::new(r"from (\w+) to (\w+)").unwrap();
    let choices = Regex::new(r#"\(use ([^)]+)\)"#).unwrap();
    let documented = documented();
    let mut checked = 0;
    for section in SECTIONS.iter().skip(1) {
        for key in section.keys {
            let values = documented[&heading(section)][key.name].values.replace('`', "");
            for wrong in ["-1", "\"9999d\"", "[-1]"] {
                let said = refusal(section, key.name, wrong);
                let ranges = range.captures_iter(&said).map(|found| found[0].to_owned());
                let words = choices.captures_iter(&said).map(|found| found[1].to_owned());
                for phrase in ranges.chain(words) {
                    checked += 1;
                    assert!(
                        values.contains(&phrase),
                        "`{}` in {}: {phrase:?} is not in {values:?}",
                        key.name,
                        section.title
                    );
                }
            }
        }
    }
    assert!(checked >= 30, "only {checked} phrases were compared");
}

#[test]
fn the_reference_names_all_functions() {
    for function in function_names() {
        assert!(REFERENCE.contains(&format!("`{function}(")), "{function}");
    }
}
