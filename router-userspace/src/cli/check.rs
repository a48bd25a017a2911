//! `check`: a configuration file, validated on this host without a daemon.

use std::io::{self, Write};
use std::path::Path;

use super::Exit;
use super::table::{BAD, GOOD};
use crate::config::{self, Problems};
use crate::control::protocol::{Check, Problem, located};

pub(super) fn run(file: &Path, json: bool, out: &mut dyn Write) -> io::Result<Exit> {
    let (errors, warnings) = match config::load(file) {
        Ok(plan) => (None, Some(plan.warnings).filter(|warnings| !warnings.is_empty())),
        Err(errors) => (Some(errors), None),
    };
    let exit = if errors.is_none() { Exit::Ok } else { Exit::Negative };
    if json {
        let check = Check {
            file: file.display().to_string(),
            valid: exit == Exit::Ok,
            errors: listed(errors),
            warnings: listed(warnings),
        };
        serde_json::to_writer(&mut *out, &check)?;
        writeln!(out)?;
        return Ok(exit);
    }
    // The caller strips the colours if it is not writing to a terminal.
    for problems in [&errors, &warnings].into_iter().flatten() {
        write!(out, "{}", problems.graphical(true))?;
    }
    let (style, verdict) = match (&errors, &warnings) {
        (Some(errors), _) => (BAD, counted(errors.len(), "error")),
        (None, Some(warnings)) => (GOOD, format!("valid, with {}", counted(warnings.len(), "warning"))),
        (None, None) => (GOOD, "valid".to_owned()),
    };
    writeln!(out, "{}: {style}{verdict}{style:#}", file.display())?;
    Ok(exit)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn listed(problems: Option<Problems>) -> Vec<Problem> {
    problems.map(|problems| located(&problems)).unwrap_or_default()
}
