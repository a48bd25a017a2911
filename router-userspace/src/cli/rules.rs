//! `rules` and `reasons` as tables.

use std::io::{self, Write};

use super::table::{Cell, DIM, Table};
use crate::control::protocol::{Reasons, Rule};

pub(super) fn rules(rules: &[Rule], out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[">#", "RULE", "ACTION", ">REQUESTS", "MATCH"]);
    for (number, rule) in rules.iter().enumerate() {
        let style = if rule.enabled { anstyle::Style::new() } else { DIM };
        table.row(vec![
            Cell::number(number + 1).style(style),
            Cell::new(&rule.name).style(style),
            Cell::new(action(rule)).style(style),
            Cell::number(rule.requests).style(style),
            Cell::new(&rule.condition).style(style),
        ]);
    }
    table.print(out)
}

fn action(rule: &Rule) -> String {
    let mut text = match rule.deny_status {
        Some(status) => format!("deny {status}"),
        None => format!("pool {}", rule.pools.join(", ")),
    };
    if let Some(method) = &rule.method {
        text.push_str(&format!(" by {method}"));
    }
    if let Some(reaction) = &rule.on_unavailable {
        text.push_str(&format!(", else {reaction}"));
    }
    if !rule.enabled {
        text.push_str(" (disabled)");
    }
    text
}

pub(super) fn reasons(reasons: &Reasons, out: &mut dyn Write) -> io::Result<()> {
    let parts = [
        ("PACKET", &reasons.packet),
        ("NOT BOUND", &reasons.unbound),
        ("RELAYED", &reasons.relay),
        ("REFUSED", &reasons.refuse),
        ("REPORTS", &reasons.report),
        ("CONTROL", &reasons.control),
        ("COOKIE", &reasons.cookie),
        ("INTERIM", &reasons.interim),
    ];
    for (number, (title, list)) in parts.into_iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let mut table = Table::new(&[title, ">COUNT", "MEANING"]);
        for reason in list {
            table.row(vec![
                Cell::new(&reason.name),
                Cell::number(reason.count),
                Cell::new(&reason.description),
            ]);
        }
        table.print(out)?;
    }
    Ok(())
}
