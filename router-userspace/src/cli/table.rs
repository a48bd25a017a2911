//! Aligned columns for people.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr;

const GAP: usize = 2;

pub(super) const GOOD: Style = AnsiColor::Green.on_default();
pub(super) const BAD: Style = AnsiColor::Red.on_default();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const BOLD: Style = Style::new().bold();

/// One field: its text, which alone counts for the width, and how it looks.
pub(super) struct Cell {
    text: String,
    style: Style,
    right: bool,
}

impl Cell {
    pub(super) fn new(text: impl ToString) -> Self {
        // Names come from files and from clients: a control character must not reach the terminal.
        let text = text.to_string().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        Self { text, style: Style::new(), right: false }
    }

    /// A number: aligned to the right.
    pub(super) fn number(value: impl ToString) -> Self {
        Self { right: true, ..Self::new(value) }
    }

    pub(super) fn optional(value: Option<impl ToString>) -> Self {
        value.map_or_else(|| Self::new("-"), Self::new)
    }

    pub(super) fn style(self, style: Style) -> Self {
        Self { style, ..self }
    }

    fn width(&self) -> usize {
        self.text.width()
    }
}

/// Rows under a head line; every row has as many cells as the head.
pub(super) struct Table {
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A title that begins with `>` heads a column of numbers.
    pub(super) fn new(titles: &[&str]) -> Self {
        let title = |title: &&str| match title.strip_prefix('>') {
            Some(number) => Cell::number(number).style(BOLD),
            None => Cell::new(title).style(BOLD),
        };
        Self { rows: vec![titles.iter().map(title).collect()] }
    }

    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column| self.rows.iter().filter_map(|row| row.get(column)).map(Cell::width).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for row in &self.rows {
            let last = row.len().saturating_sub(1);
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let padding = " ".repeat(width.saturating_sub(cell.width()));
                let (before, after) =
                    if cell.right { (padding.as_str(), "") } else { ("", padding.as_str()) };
                let style = cell.style;
                write!(out, "{before}{style}{}{style:#}", cell.text)?;
                // No blanks at the end of a line.
                if column < last {
                    write!(out, "{after}{:GAP$}", "")?;
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// `3d 4h`, `5m 12s`, `0.8s`: two units at most.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match whole {
        0..10 => format!("{seconds:.1}s"),
        10..60 => format!("{whole}s"),
        60..3_600 => format!("{minutes}m {}s", whole % 60),
        3_600..86_400 => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// `512 B`, `1.5 MiB`: powers of 1024.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_the_script_and_colour() {
        let mut table = Table::new(&["NAME", ">COUNT", "STATE"]);
        table.row(vec![Cell::new("地図"), Cell::number(7), Cell::new("up").style(GOOD)]);
        table.row(vec![Cell::new("wp1"), Cell::number(12_000), Cell::new("down\u{1b}[2J").style(BAD)]);
        let mut out = anstream::StripStream::new(Vec::new());
        table.print(&mut out).expect("memory");
        let text = String::from_utf8(out.into_inner()).expect("UTF-8");
        assert_eq!(text, "NAME  COUNT  STATE\n地図      7  up\nwp1   12000  down\u{fffd}[2J\n");
    }

    #[test]
    fn durations_and_sizes_read_at_a_glance() {
        let shown: Vec<_> = [0.84, 42.0, 312.0, 11_520.0, 273_600.0].map(duration).into();
        assert_eq!(shown, ["0.8s", "42s", "5m 12s", "3h 12m", "3d 4h"]);
        let shown: Vec<_> = [1023, 1024, 1_572_864, u64::MAX].map(bytes).into();
        assert_eq!(shown, ["1023 B", "1.0 KiB", "1.5 MiB", "16384.0 PiB"]);
    }
}
