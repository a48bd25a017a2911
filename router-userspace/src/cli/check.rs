//! `check`: a configuration file, validated on this host without a daemon.

use std::io::{self, Write};
use std::path::Path;

use super::Exit;
use super::table::{BAD, GOOD};
use crate::config::{self, Problems};
use crate::control::protocol::{Check, Problem, located};
use crate::surroundings::{self, Warning};

pub(super) fn run(file: &Path, json: bool, out: &mut dyn Write) -> io::Result<Exit> {
    let (errors, warnings, surroundings) = match config::load(file) {
        Ok(plan) => {
            let surroundings = surroundings::warnings(&plan);
            (None, Some(plan.warnings).filter(|warnings| !warnings.is_empty()), surroundings)
        }
        Err(errors) => (Some(errors), None, Vec::new()),
    };
    let exit = if errors.is_none() { Exit::Ok } else { Exit::Negative };
    if json {
        let check = Check {
            file: file.display().to_string(),
            valid: exit == Exit::Ok,
            errors: listed(errors),
            warnings: listed(warnings).into_iter().chain(surroundings.iter().map(of_this_host)).collect(),
        };
        serde_json::to_writer(&mut *out, &check)?;
        writeln!(out)?;
        return Ok(exit);
    }
    // The caller strips the colours if it is not writing to a terminal.
    for problems in [&errors, &warnings].into_iter().flatten() {
        write!(out, "{}", problems.graphical(true))?;
    }
    for Warning { message, help } in &surroundings {
        writeln!(out, "  warning: {message}\n  help: {help}")?;
    }
    let warned = warnings.as_ref().map_or(0, Problems::len) + surroundings.len();
    let (style, verdict) = match (&errors, warned) {
        (Some(errors), _) => (BAD, counted(errors.len(), "error")),
        (None, 0) => (GOOD, "valid".to_owned()),
        (None, warned) => (GOOD, format!("valid, with {}", counted(warned, "warning"))),
    };
    writeln!(out, "{}: {style}{verdict}{style:#}", file.display())?;
    Ok(exit)
}

/// It lies in no place of the file.
fn of_this_host(warning: &Warning) -> Problem {
    Problem {
        file: "this host".to_owned(),
        message: warning.message.clone(),
        help: Some(warning.help.clone()),
        line: None,
        column: None,
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn listed(problems: Option<Problems>) -> Vec<Problem> {
    problems.map(|problems| located(&problems)).unwrap_or_default()
}
