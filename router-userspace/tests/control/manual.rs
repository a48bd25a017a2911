//! `docs/OPERATIONS.md` describes what there is: every path, every metric, every command.

use std::collections::BTreeSet;
use std::path::Path;

use hyper::Method;

use crate::daemon::Daemon;

fn manual() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/OPERATIONS.md");
    std::fs::read_to_string(path).unwrap()
}

/// First cells of the table rows below a heading, without their backquotes.
fn first_cells<'a>(manual: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let table = manual.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`')).skip(1).collect()).collect()
}

#[test]
fn every_path_in_the_manual_is_answered() {
    let daemon = Daemon::start();
    let manual = manual();
    let rows = first_cells(&manual, "| request | answer |");
    assert_eq!(rows.len(), 18);
    for row in rows {
        let (method, path) = row[0].split_once(' ').unwrap();
        let body = match row[0] {
            "POST /v1/explain" => r#"{"listener": "web", "client": "10.1.2.3"}"#,
            "POST /v1/where" => {
                r#"{"packets": [{"kind": "described", "protocol": "udp", "source": "10.1.2.3:1", "destination": "10.0.1.1:53"}]}"#
            }
            "POST /v1/changes" => r#"{"changes": [{"change": "rule-move", "rule": "admin", "to": "first"}]}"#,
            "POST /v1/changes/drop" => "{}",
            _ => "",
        };
        let answer = daemon.ask(Method::from_bytes(method.as_bytes()).unwrap(), path, body);
        assert_eq!(answer.status, 200, "{method} {path}: {answer:?}");
    }
}

#[test]
fn the_manual_lists_exactly_the_metrics_that_there_are_with_their_labels() {
    let daemon = Daemon::start();
    let manual = manual();
    let described: BTreeSet<(String, String, String)> = first_cells(&manual, "| metric | type | labels |")
        .iter()
        .map(|row| (row[0].to_owned(), row[1].to_owned(), row[2].replace(['`', ' '], "")))
        .collect();

    let text = daemon.get("/metrics").body;
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let found: BTreeSet<_> = types
        .map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            let series = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
            let labels = series.map_or("", |series| series.split('}').next().unwrap());
            let labels: Vec<_> = labels.split("\",").filter_map(|label| label.split('=').next()).collect();
            (name.to_owned(), kind.to_owned(), labels.join(","))
        })
        .collect();
    let missing: Vec<_> = found.difference(&described).collect();
    let invented: Vec<_> = described.difference(&found).collect();
    assert!(
        missing.is_empty() && invented.is_empty(),
        "not in the manual: {missing:?}; only there: {invented:?}"
    );
}
