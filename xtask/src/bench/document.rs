//! `docs/BENCHMARKS.md`: the part that the whole bench writes, and behind it parts of others, each written by its own command.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::workspace;

/// A part with a command of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Layer4Cost,
    Layer4Throughput,
    Flood,
}

impl Part {
    const ALL: [Self; 3] = [Self::Layer4Cost, Self::Layer4Throughput, Self::Flood];

    const fn name(self) -> &'static str {
        match self {
            Self::Layer4Cost => "layer-4-cost",
            Self::Layer4Throughput => "layer-4-throughput",
            Self::Flood => "flood",
        }
    }

    fn ends(self) -> [String; 2] {
        ["begin", "end"].map(|end| format!("<!-- {end} {} -->\n", self.name()))
    }

    /// The part of a document, with its marks.
    fn find(self, document: &str) -> Option<std::ops::Range<usize>> {
        let [begin, end] = self.ends();
        let start = document.find(&begin)?;
        let length = document[start..].find(&end)? + end.len();
        Some(start..start + length)
    }
}

/// Writes this part anew, and nothing else.
pub fn publish(part: Part, text: &str) -> Result<()> {
    let old = read()?;
    write(&with(&old, part, text))
}

/// Writes what the whole bench writes, and keeps the other parts.
pub fn publish_main(text: &str) -> Result<()> {
    let old = read().unwrap_or_default();
    write(&keeping_parts(&old, text))
}

fn with(document: &str, part: Part, text: &str) -> String {
    let [begin, end] = part.ends();
    let whole = format!("{begin}{text}{end}");
    match part.find(document) {
        Some(range) => [&document[..range.start], &whole, &document[range.end..]].concat(),
        None => format!("{}\n\n{whole}", document.trim_end()),
    }
}

fn keeping_parts(old: &str, text: &str) -> String {
    let parts = Part::ALL.into_iter().filter_map(|part| Some(&old[part.find(old)?]));
    parts.fold(text.to_owned(), |text, part| format!("{}\n\n{part}", text.trim_end()))
}

fn path() -> PathBuf {
    workspace::root().join("docs/BENCHMARKS.md")
}

fn read() -> Result<String> {
    fs::read_to_string(path()).with_context(|| format!("cannot read {}", path().display()))
}

fn write(text: &str) -> Result<()> {
    fs::write(path(), text).with_context(|| format!("cannot write {}", path().display()))?;
    println!("written: docs/BENCHMARKS.md");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_written_anew_and_leaves_the_others_alone() {
        let first = with("# Main\n", Part::Layer4Throughput, "fast\n");
        let both = with(&first, Part::Layer4Cost, "cheap\n");
        let again = with(&both, Part::Layer4Throughput, "faster\n");
        assert!(again.contains("# Main") && again.contains("cheap") && again.contains("faster"), "{again}");
        assert!(!again.contains("fast\n"), "{again}");
        assert_eq!(with(&again, Part::Layer4Cost, "cheap\n"), again);
    }

    #[test]
    fn the_main_part_keeps_the_others() {
        let old = with(&with("# Main\n", Part::Layer4Cost, "cheap\n"), Part::Layer4Throughput, "fast\n");
        let new = keeping_parts(&old, "# New\n");
        assert!(new.starts_with("# New\n") && new.contains("cheap") && new.contains("fast"), "{new}");
        assert!(!new.contains("# Main"), "{new}");
        assert_eq!(keeping_parts("# Main\n", "# New\n"), "# New\n");
    }
}
