//! `cargo xtask check`: formatting, lints, and the rules of the house that no compiler knows.

mod arrows;
mod edges;
mod source;
mod unfinished;

use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::{setup, workspace};
use source::Source;

/// A place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: PathBuf,
    line: usize,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.text)
    }
}

/// Runs all checks, also when one fails.
pub fn run() -> Result<()> {
    setup::ensure(setup::For::Building)?;
    let cargo = |arguments: &[&str]| workspace::succeed(workspace::cargo().args(arguments));
    let results = [
        rules(),
        cargo(&["fmt", "--all", "--check"]),
        cargo(&["fmt", "--check", "--manifest-path", "fuzz/Cargo.toml"]),
        cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]),
    ];
    let errors: Vec<_> =
        results.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    if !errors.is_empty() {
        bail!("{}", errors.join("; "));
    }
    Ok(())
}

fn rules() -> Result<()> {
    let sources = Source::read_all()?;
    let mut findings = arrows::between_packages()?;
    findings.extend(edges::without_need(&sources));
    for source in &sources {
        findings.extend(arrows::between_rooms(source));
        findings.extend(edges::unsafe_code(source));
        findings.extend(unfinished::marks(source));
    }
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} places break the rules of the house", findings.len());
    }
    println!("check: {} files keep the rules of the house", sources.len());
    Ok(())
}
