//! Files that hold secrets: keys, tokens, credentials. What is in them is never shown.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::reader::{Placed, Report};
use super::report::Problem;

/// Room for hundreds of secrets with comments.
const MAX_BYTES: u64 = 64 * 1024;

/// Why a file cannot serve, without a word of what it holds.
pub(super) struct Unusable {
    message: String,
    help: &'static str,
}

impl Unusable {
    pub fn new(message: impl Into<String>, help: &'static str) -> Self {
        Self { message: message.into(), help }
    }
}

/// Reads what `parse` makes of the file's lines, or reports at the key that names the file why that is nothing. `kind` is what the file
/// is called (`key file`), and `how_to_make` tells how to make one.
///
/// Lines come trimmed and with their numbers; empty lines and lines that begin with `#` are left out.
pub(super) fn read<T>(
    file: &Placed<PathBuf>,
    (kind, how_to_make): (&str, &'static str),
    report: &Report<'_>,
    parse: impl FnOnce(&mut dyn Iterator<Item = (usize, &str)>) -> Result<T, Unusable>,
) -> Option<T> {
    let result = text(&file.value, how_to_make).and_then(|text| {
        report.has_read(&file.value, text.as_bytes());
        let lines = (1..).zip(text.lines()).map(|(number, line)| (number, line.trim()));
        parse(&mut lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')))
    });
    match result {
        Ok(found) => Some(found),
        Err(Unusable { message, help }) => {
            let message = format!("the {kind} {} {message}", file.value.display());
            report.add(Problem::at(file.span.clone(), message).help(help));
            None
        }
    }
}

fn text(path: &Path, how_to_make: &'static str) -> Result<String, Unusable> {
    let unreadable = |error: io::Error| {
        let missing = error.kind() == io::ErrorKind::NotFound;
        let help = if missing { how_to_make } else { "let the router's user read it, and nobody else" };
        Unusable::new(format!("cannot be read: {error}"), help)
    };
    // A pipe could be waited for without end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(Unusable::new("is not a regular file", how_to_make));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Unusable::new(format!("is longer than {MAX_BYTES} bytes"), how_to_make));
    }
    Ok(text)
}
