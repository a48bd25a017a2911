//! Reads the file, bounded, and says in one sentence why it cannot be read.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::report::{ConfigErrors, Problem, Problems};

/// The largest configuration that is read, in bytes: room for tens of thousands of rules.
const MAX_BYTES: u64 = 16 << 20;

pub(super) fn read(path: &Path) -> Result<String, ConfigErrors> {
    let name = path.display().to_string();
    let refuse = |problem| Problems::unreadable(&name, problem);
    let file = File::open(path).map_err(|error| refuse(cannot_open(&error)))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(refuse(
            Problem::of_file("is a directory").help("name the file itself, such as router.toml"),
        ));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| refuse(Problem::of_file(format!("cannot be read: {error}"))))?;
    if bytes.len() as u64 > MAX_BYTES {
        let message = format!("is larger than {} MiB", MAX_BYTES >> 20);
        return Err(refuse(Problem::of_file(message).help("is this the right file?")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
        let byte = error.as_bytes()[valid];
        let problem = Problem::at(valid..valid + 1, format!("not UTF-8: byte 0x{byte:02x}"));
        Problems::errors(&name, text.into(), vec![problem.help("save the file as UTF-8")])
    })
}

/// FNV-1a. Tells one content from another.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn cannot_open(error: &std::io::Error) -> Problem {
    match error.kind() {
        ErrorKind::NotFound => Problem::of_file("there is no such file").help("name it with --config FILE"),
        ErrorKind::PermissionDenied => {
            Problem::of_file("permission denied").help("let the router's user read the file")
        }
        _ => Problem::of_file(format!("cannot be opened: {error}")),
    }
}

/// A TOML syntax error in our form.
pub(super) fn syntax_problem(text: &str, error: &toml::de::Error) -> Problem {
    let mut span = error.span().unwrap_or(0..0);
    let written = text.trim_end();
    if span.start >= written.len() {
        // Something is missing at the end of the file: point behind the last thing that is there.
        let last = written.chars().next_back().map_or(0, char::len_utf8);
        span = written.len() - last..written.len();
    }
    let span = span.start..span.end.clamp(span.start, text.len());
    let message = error.message();
    let help = match message {
        "duplicate key" => "each key may be written once in a table; [[name]] begins another table",
        _ => "see https://toml.io for the syntax",
    };
    Problem::at(span, format!("TOML: {message}")).help(help)
}
