//! A normalised path is absolute, has no dot segments, no repeated slashes and no control characters, and stays as it is.

use router::core::path::normalise;

/// Input bytes from 0x80 stand for the spellings that servers disagree about.
const PIECES: [&str; 20] = [
    "/",
    ".",
    "..",
    "%2e",
    "%2F",
    "%5c",
    "%c0%ae",
    "%C0%AF",
    "%e0%80%ae",
    "%25",
    "%00",
    "%3f",
    "%23",
    "%e2%82%ac",
    "%e9",
    ";x",
    "é",
    "/../",
    "/./",
    "//",
];

pub fn check(bytes: &[u8]) {
    let mut raw = String::from("/");
    for &byte in bytes {
        match byte {
            0..0x80 => raw.push(char::from(byte)),
            _ => raw.push_str(PIECES[usize::from(byte - 0x80) % PIECES.len()]),
        }
    }
    let Ok(path) = normalise(&raw) else { return };
    assert_eq!(normalise(&path).as_deref(), Ok(&*path));
    assert!(path.starts_with('/') && !path.contains("//"));
    assert!(!path.contains(|c: char| c.is_ascii_control() || c == '#' || c == '?'));
    assert!(path.split('/').all(|segment| !matches!(segment.split(';').next(), Some("." | ".."))));
}
