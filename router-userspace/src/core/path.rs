//! Path normalisation: how rules see a request's path.
//!
//! Servers disagree about odd spellings: one decodes `%2f`, another does not; one merges `//`, another keeps it. The
//! normalised path is the most eager reading that any of them makes. A decision compares the rule that it selects with
//! the rule that the path as sent selects, and refuses the request if they differ; so no spelling dodges a rule. Where an
//! even third reading is possible (`..` together with an encoded or repeated slash), there is nothing to compare with,
//! and the path is refused here.

use std::borrow::Cow;

/// Why a path is refused with 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the path does not begin with /")]
    NotAbsolute,
    #[error("a % in the path is not followed by two hex digits")]
    BadEscape,
    #[error("the path contains a NUL")]
    Nul,
    #[error("the path contains a #, which is never sent")]
    Fragment,
    #[error("the path contains a ?")]
    Query,
    #[error("the path climbs above the root")]
    AboveRoot,
    #[error("the path combines .. with an encoded or repeated slash, which servers read differently")]
    Ambiguous,
}

/// Normalises an absolute path without query:
/// - escapes are decoded, except those of `%`, `?`, `#`, control characters and bytes that are not UTF-8;
///   overlong UTF-8 is decoded to what a careless server would see;
/// - `.` and `..` segments are resolved, also where a `;parameter` follows them;
/// - repeated slashes are merged.
///
/// The result is normal: normalising it again changes nothing. Borrows if nothing had to change.
pub fn normalise(raw: &str) -> Result<Cow<'_, str>, PathError> {
    if !raw.starts_with('/') {
        return Err(PathError::NotAbsolute);
    }
    if is_plain(raw.as_bytes()) {
        return Ok(Cow::Borrowed(raw));
    }
    let (decoded, encoded_slash) = decode(raw)?;
    resolve(&decoded, encoded_slash).map(Cow::Owned)
}

/// Whether nothing in the path can need a change.
fn is_plain(path: &[u8]) -> bool {
    let mut previous = 0;
    path.iter().all(|&byte| {
        let odd = matches!(byte, b'%' | b'#' | b'?' | 0..0x20 | 0x7f)
            || (previous == b'/' && matches!(byte, b'/' | b'.'));
        previous = byte;
        !odd
    })
}

/// Decodes escapes; says whether one of them was a slash.
fn decode(raw: &str) -> Result<(String, bool), PathError> {
    let mut out = String::with_capacity(raw.len());
    let mut encoded_slash = false;
    let mut rest = raw;
    while let Some(c) = rest.chars().next() {
        match c {
            '%' => {
                let mut run = Vec::new();
                while let Some(tail) = rest.strip_prefix('%') {
                    let digits = tail.as_bytes().get(..2).ok_or(PathError::BadEscape)?;
                    let byte = |digit: u8| (digit as char).to_digit(16).ok_or(PathError::BadEscape);
                    run.push((byte(digits[0])? << 4 | byte(digits[1])?) as u8);
                    rest = &tail[2..];
                }
                encoded_slash |= decode_run(&run, &mut out)?;
            }
            '#' => return Err(PathError::Fragment),
            '?' => return Err(PathError::Query),
            '\0' => return Err(PathError::Nul),
            c => {
                push(c, &mut out);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    Ok((out, encoded_slash))
}

/// Appends a run of escaped bytes; says whether a slash was among them.
fn decode_run(mut run: &[u8], out: &mut String) -> Result<bool, PathError> {
    let mut slash = false;
    while let Some(&first) = run.first() {
        match decode_char(run) {
            Some(('\0', _)) => return Err(PathError::Nul),
            Some((c, length)) => {
                slash |= c == '/';
                push(c, out);
                run = &run[length..];
            }
            None => {
                push_escape(first, out);
                run = &run[1..];
            }
        }
    }
    Ok(slash)
}

/// One UTF-8 character and its length, overlong forms included.
fn decode_char(bytes: &[u8]) -> Option<(char, usize)> {
    let (length, bits) = match bytes[0] {
        byte @ 0..=0x7f => (1, byte),
        byte @ 0xc0..=0xdf => (2, byte & 0x1f),
        byte @ 0xe0..=0xef => (3, byte & 0x0f),
        byte @ 0xf0..=0xf7 => (4, byte & 0x07),
        _ => return None,
    };
    let code = bytes.get(1..length)?.iter().try_fold(u32::from(bits), |code, &byte| {
        (byte & 0xc0 == 0x80).then_some(code << 6 | u32::from(byte & 0x3f))
    })?;
    char::from_u32(code).map(|c| (c, length))
}

/// Appends a character, or its escape if it would mean something else unescaped.
fn push(c: char, out: &mut String) {
    match c {
        '%' | '?' | '#' | '\0'..' ' | '\x7f' => push_escape(c as u8, out),
        _ => out.push(c),
    }
}

fn push_escape(byte: u8, out: &mut String) {
    let digit = |value: u8| char::from(b"0123456789ABCDEF"[usize::from(value)]);
    out.extend(['%', digit(byte >> 4), digit(byte & 0xf)]);
}

/// Merges slashes and resolves dot segments.
fn resolve(path: &str, encoded_slash: bool) -> Result<String, PathError> {
    let mut segments = Vec::new();
    let mut pieces = path[1..].split('/').peekable();
    let (mut climbed, mut repeated_slash, mut ends_in_directory) = (false, false, false);
    while let Some(piece) = pieces.next() {
        let is_last = pieces.peek().is_none();
        // Servlet containers cut `;parameters` off before they look at the dots.
        match piece.split(';').next().unwrap_or(piece) {
            ".." => {
                segments.pop().ok_or(PathError::AboveRoot)?;
                climbed = true;
                ends_in_directory = is_last;
            }
            "." => ends_in_directory = is_last,
            _ if piece.is_empty() => {
                ends_in_directory = is_last;
                repeated_slash |= !is_last;
            }
            _ => segments.push(piece),
        }
    }
    if climbed && (encoded_slash || repeated_slash) {
        return Err(PathError::Ambiguous);
    }
    let mut out = String::with_capacity(path.len());
    for segment in &segments {
        out.push('/');
        out.push_str(segment);
    }
    if ends_in_directory || segments.is_empty() {
        out.push('/');
    }
    Ok(out)
}
