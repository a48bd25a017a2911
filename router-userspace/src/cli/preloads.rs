//! `preloads` as a table.

use std::io::{self, Write};

use super::table::{BAD, BOLD, Cell, DIM, GOOD, Table, duration};
use crate::control::protocol::{Preload, PreloadRun};

pub(super) fn preloads(preloads: &[Preload], out: &mut dyn Write) -> io::Result<()> {
    let titles = [
        "RULE", "RESOURCE", "POOL", "INSTANCE", "STATE", "LAST RUN", ">TOOK", "RESULT", "NEXT RUN", ">FAILED",
    ];
    let mut table = Table::new(&titles);
    for preload in preloads {
        let last = preload.last.as_ref();
        table.row(vec![
            Cell::new(&preload.rule),
            Cell::new(&preload.resource),
            Cell::new(&preload.pool),
            Cell::optional(preload.instance.as_ref()),
            state(preload),
            Cell::optional(last.map(|last| format!("{} ago", duration(last.seconds_ago)))),
            Cell::number(last.map_or_else(|| "-".to_owned(), |last| duration(last.took_seconds))),
            result(last),
            Cell::optional(preload.next_in_seconds.map(|wait| format!("in {}", duration(wait)))),
            Cell::number(preload.failed_attempts),
        ]);
    }
    table.print(out)
}

fn state(preload: &Preload) -> Cell {
    let style = match preload.state.as_str() {
        "loaded" | "refreshing" => GOOD,
        "stopped" | "no-instance" => BAD,
        "retrying" => BOLD,
        _ => DIM,
    };
    Cell::new(&preload.state).style(style)
}

fn result(last: Option<&PreloadRun>) -> Cell {
    match last {
        None => Cell::new("-"),
        Some(PreloadRun { failure: Some(failure), .. }) => Cell::new(failure).style(BAD),
        Some(PreloadRun { status, .. }) => {
            Cell::new(status.map_or_else(|| "ok".to_owned(), |status| format!("HTTP status {status}")))
        }
    }
}
