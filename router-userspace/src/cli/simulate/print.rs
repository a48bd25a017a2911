//! The report of a simulation as tables: one column for each configuration, and with two the difference.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::time::Duration;

use crate::cli::table::{BAD, BOLD, Cell, Table};
use crate::simulate::{ConfigurationReport, InstanceReport, LogReport, PoolReport, Report};

/// What configurations are called in the heads of columns.
const LETTERS: [&str; 2] = ["A", "B"];

pub(super) fn report(
    report: &Report,
    instances: usize,
    took: Duration,
    out: &mut dyn Write,
) -> io::Result<()> {
    let Report { requests, seconds, seed, interrupted, .. } = report;
    writeln!(
        out,
        "{requests} requests in {seconds:.1} s of simulated time, seed {seed}, done in {took:.1?}"
    )?;
    if *interrupted {
        writeln!(out, "{BAD}interrupted{BAD:#}: this is what there was")?;
    }
    report.log.as_ref().map_or(Ok(()), |log| malformed(log, out))?;
    let configurations = &report.configurations[..];
    if configurations.len() > 1 {
        for (letter, one) in LETTERS.iter().zip(configurations) {
            writeln!(out, "{BOLD}{letter}{BOLD:#}  {}", one.file)?;
        }
    }
    writeln!(out)?;
    summary(configurations).print(out)?;
    writeln!(out)?;
    rules(configurations, *requests).print(out)?;
    for pool in union(configurations.iter().map(|one| one.pools.iter().map(|pool| pool.name.as_str()))) {
        let of_each: Vec<_> = configurations.iter().map(|one| one.pool(pool)).collect();
        writeln!(out)?;
        pool_report(pool, &of_each, instances, out)?;
    }
    Ok(())
}

fn malformed(log: &LogReport, out: &mut dyn Write) -> io::Result<()> {
    for (reason, count) in &log.malformed {
        writeln!(out, "{BAD}{count} of {} lines skipped{BAD:#}: {reason}", log.lines)?;
    }
    match log.first_malformed {
        Some(line) => writeln!(out, "the first of them is line {line}"),
        None => Ok(()),
    }
}

/// Names in the order in which they come, each once.
fn union<'a>(lists: impl Iterator<Item = impl Iterator<Item = &'a str>>) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    lists.flatten().filter(|name| seen.insert(*name)).collect()
}

/// A value of each configuration, and how it is written.
struct Row {
    label: String,
    values: Vec<Option<f64>>,
    decimals: usize,
    unit: &'static str,
}

impl Row {
    fn counts(label: impl Into<String>, values: impl IntoIterator<Item = Option<u64>>) -> Self {
        let values = values.into_iter().map(|value| value.map(|count| count as f64)).collect();
        Self { label: label.into(), values, decimals: 0, unit: "" }
    }

    fn numbers(
        label: impl Into<String>,
        unit: &'static str,
        values: impl IntoIterator<Item = Option<f64>>,
    ) -> Self {
        Self { label: label.into(), values: values.into_iter().collect(), decimals: 2, unit }
    }

    fn cells(&self) -> Vec<Cell> {
        let Self { label, values, decimals, unit } = self;
        let shown = |value: &Option<f64>| match value {
            Some(value) => Cell::number(format!("{value:.decimals$}{unit}")),
            None => Cell::number("-"),
        };
        let mut cells = vec![Cell::new(label)];
        cells.extend(values.iter().map(shown));
        if let [a, b] = values[..] {
            let difference = a.zip(b).map(|(a, b)| format!("{:+.decimals$}{unit}", b - a));
            cells.push(Cell::number(difference.unwrap_or_else(|| "-".to_owned())));
        }
        cells
    }
}

/// A table whose columns are the configurations.
fn compared(title: &str, many: usize) -> Table {
    match many {
        1 => Table::new(&[title, ">VALUE"]),
        _ => Table::new(&[title, ">A", ">B", ">DIFFERENCE"]),
    }
}

fn summary(configurations: &[ConfigurationReport]) -> Table {
    let mut table = compared("", configurations.len());
    let mut add = |row: Row| {
        if row.values.iter().any(|value| value.is_some_and(|value| value != 0.0)) {
            table.row(row.cells());
        }
    };
    let each = || configurations.iter();
    for outcome in union(each().map(|one| one.outcomes.keys().map(String::as_str))) {
        add(Row::counts(outcome, each().map(|one| Some(one.outcomes.get(outcome).copied().unwrap_or(0)))));
    }
    add(Row::counts("peak sessions", each().map(|one| Some(one.peak_sessions))));
    add(Row::counts("resumed sessions", each().map(|one| Some(one.resumed))));
    add(Row::counts("by server affinity", each().map(|one| Some(one.by_affinity))));
    add(Row::counts("fell back to fewest-sessions", each().map(|one| Some(one.fell_back))));
    let resources = || each().map(|one| one.resources.as_ref());
    add(Row::numbers(
        "resource loaded already",
        " %",
        resources().map(|one| one.map(|one| one.hit_rate * 100.0)),
    ));
    add(Row::counts("resources loaded, times", resources().map(|one| one.map(|one| one.loads))));
    add(Row::counts("different resources", resources().map(|one| one.map(|one| one.opened))));
    add(Row::counts("  on two instances or more", resources().map(|one| one.map(|one| one.loaded_twice))));
    add(Row::counts("  most copies of one", resources().map(|one| one.map(|one| one.most_copies.into()))));
    table
}

fn rules(configurations: &[ConfigurationReport], requests: u64) -> Table {
    let mut table = match configurations.len() {
        1 => Table::new(&["RULE", ">REQUESTS", ">SHARE"]),
        _ => Table::new(&["RULE", ">A", ">B", ">DIFFERENCE", ">SHARE A", ">SHARE B"]),
    };
    for name in union(configurations.iter().map(|one| one.rules.iter().map(|rule| rule.name.as_str()))) {
        let of_each = || configurations.iter().map(|one| one.rules.iter().find(|rule| rule.name == name));
        let counts: Vec<_> = of_each().map(|rule| rule.map(|rule| rule.requests)).collect();
        let mut cells = Row::counts(name, counts.iter().copied()).cells();
        cells.extend(counts.iter().map(|count| match count {
            Some(count) => Cell::number(format!("{:.2} %", percent(*count, requests))),
            None => Cell::number("-"),
        }));
        table.row(cells);
    }
    table
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn pool_report(
    name: &str,
    of_each: &[Option<&PoolReport>],
    limit: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let methods: Vec<_> = of_each.iter().map(|pool| pool.map_or("-", |pool| pool.method.as_str())).collect();
    let mut table = compared(&format!("POOL {name}"), of_each.len());
    let each = || of_each.iter();
    let mut method = vec![Cell::new("method")];
    method.extend(methods.iter().map(Cell::number));
    if of_each.len() > 1 {
        method.push(Cell::new(""));
    }
    table.row(method);
    table.row(Row::counts("requests", each().map(|pool| pool.map(|pool| pool.requests))).cells());
    for (what, of) in [
        ("requests", (|pool: &PoolReport| pool.imbalance) as fn(&PoolReport) -> _),
        ("peak sessions", |pool: &PoolReport| pool.peak_imbalance),
    ] {
        let each = || each().map(|pool| pool.map(of));
        let label = |figure: &str| format!("{what}, {figure}");
        for row in [
            Row::numbers(label("max / mean"), "", each().map(|one| one.map(|one| one.max_over_mean))),
            Row::numbers(label("standard deviation"), "", each().map(|one| one.map(|one| one.deviation))),
            Row::numbers(
                label("deviation / mean"),
                " %",
                each().map(|one| one.map(|one| one.variation * 100.0)),
            ),
        ] {
            table.row(row.cells());
        }
    }
    table.print(out)?;
    writeln!(out)?;
    instances(of_each, limit, out)
}

/// An instance's name, and what it is in each configuration.
type InstanceRow<'a> = (&'a str, Vec<Option<&'a InstanceReport>>);

fn instances<'a>(of_each: &[Option<&'a PoolReport>], limit: usize, out: &mut dyn Write) -> io::Result<()> {
    let single = of_each.len() == 1;
    let mut table = Table::new(match single {
        true => &["INSTANCE", ">WEIGHT", ">REQUESTS", ">SHARE", ">EXPECTED", ">PEAK", ">LOADS"][..],
        false => &["INSTANCE", ">REQUESTS A", ">B", ">DIFFERENCE", ">PEAK A", ">B", ">LOADS A", ">B"][..],
    });
    let lists = || of_each.iter().flatten().map(|pool| pool.instances.iter().map(|one| one.name.as_str()));
    let named = |pool: &Option<&'a PoolReport>| -> HashMap<&'a str, &'a InstanceReport> {
        pool.iter().flat_map(|pool| &pool.instances).map(|one| (one.name.as_str(), one)).collect()
    };
    let by_name: Vec<_> = of_each.iter().map(named).collect();
    let found = |name| by_name.iter().map(move |named| named.get(name).copied()).collect();
    let mut rows: Vec<InstanceRow<'a>> = union(lists()).into_iter().map(|name| (name, found(name))).collect();
    let left_out = rows.len().saturating_sub(limit);
    if left_out > 0 {
        let requests = |row: &InstanceRow<'a>| Reverse(row.1.iter().flatten().map(|one| one.requests).max());
        rows.sort_by_key(requests);
        let most = limit.div_ceil(2);
        rows.drain(most..most + left_out);
    }
    for (name, found) in &rows {
        if let ([Some(one)], true) = (&found[..], single) {
            let requests = of_each.iter().flatten().map(|pool| pool.requests).sum();
            table.row(vec![
                Cell::new(name),
                Cell::number(one.weight),
                Cell::number(one.requests),
                Cell::number(format!("{:.2} %", percent(one.requests, requests))),
                Cell::number(format!("{:.1}", one.expected)),
                Cell::number(one.peak_sessions),
                Cell::number(one.loads),
            ]);
            continue;
        }
        let of = |value: fn(&InstanceReport) -> u64| found.iter().map(move |one| one.map(value));
        let mut cells = Row::counts(*name, of(|one| one.requests)).cells();
        let more = of(|one| one.peak_sessions.into()).chain(of(|one| one.loads));
        cells.extend(more.map(|count| count.map_or_else(|| Cell::number("-"), Cell::number)));
        table.row(cells);
    }
    table.print(out)?;
    if left_out > 0 {
        writeln!(out, "{left_out} instances between the most and the fewest requests are not shown")?;
    }
    Ok(())
}
