//! Finds the end of a request head and refuses the first byte that breaks its grammar.
//!
//! A state machine over single bytes: whatever the segments in which a head arrives, each byte is looked at once
//! and the outcome is the same. Limits are checked per byte too, so nothing is ever stored in the hope that it will
//! turn out well. Stricter than RFC 9112 allows a recipient to be: no bare LF, no line folding, no space around the
//! header's name, no byte above 0x7e in the request line. What is let through here, no server reads differently.

use router_common::abi::reason::RefuseReason;

/// Bounds on a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes up to and including the empty line; more are refused with 431.
    pub head: usize,
    /// Bytes of the request target; more are refused with 414.
    pub target: usize,
    /// Header fields; more are refused with 431.
    pub fields: usize,
    /// Whether a request line without a version is a request.
    pub http09: bool,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { head: 64 * 1024, target: 8 * 1024, fields: 100, http09: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the request line. RFC 9112 §2.2: one empty line may come first.
    Start,
    StartLineFeed,
    Method,
    Target,
    Version,
    RequestLineFeed,
    LineStart,
    Name,
    Value,
    ValueLineFeed,
    EndLineFeed,
    Http09LineFeed,
    Complete,
}

/// How far a head has been read. Feed it the same bytes again with more behind them.
#[derive(Clone, Copy, Debug)]
pub struct Scanner {
    state: State,
    position: usize,
    /// Where the current method, target or version starts.
    start: usize,
    fields: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { state: State::Start, position: 0, start: 0, fields: 0 }
    }
}

const TOKEN: u8 = 1;
const TARGET: u8 = 2;
const VALUE: u8 = 4;

/// Which parts of a head a byte may appear in.
static CLASS: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let character = byte as u8;
        if character.is_ascii_alphanumeric()
            || matches!(character, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+')
            || matches!(character, b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
        {
            table[byte] |= TOKEN;
        }
        // A fragment is never sent (RFC 9112 §3.2): servers disagree about what `#` then means.
        if character.is_ascii_graphic() && character != b'#' {
            table[byte] |= TARGET;
        }
        if character == b'\t' || (character >= b' ' && character != 0x7f) {
            table[byte] |= VALUE;
        }
        byte += 1;
    }
    table
}

fn is(byte: u8, class: u8) -> bool {
    CLASS[usize::from(byte)] & class != 0
}

impl Scanner {
    /// Looks at the bytes that it has not seen yet. `bytes` is everything received so far. Returns the head's length
    /// once its end has been seen.
    pub fn scan(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<Option<usize>, RefuseReason> {
        while self.state != State::Complete {
            let Some(&byte) = bytes.get(self.position) else { return Ok(None) };
            if self.position >= limits.head {
                return Err(RefuseReason::HeadTooLarge);
            }
            self.state = self.step(byte, bytes, limits)?;
            self.position += 1;
        }
        Ok(Some(self.position))
    }

    fn step(&mut self, byte: u8, bytes: &[u8], limits: &HeadLimits) -> Result<State, RefuseReason> {
        use State::*;
        Ok(match (self.state, byte) {
            (Start, 0x16) => return Err(RefuseReason::TlsOnHttp),
            (Start, b'\r') if self.position == 0 => StartLineFeed,
            (StartLineFeed, b'\n') => Start,
            (Start, _) if is(byte, TOKEN) => {
                self.start = self.position;
                Method
            }
            (Method, _) if is(byte, TOKEN) => Method,
            (Method, b' ') => self.part(Target),
            (Target, _) if is(byte, TARGET) => {
                if self.position - self.start >= limits.target {
                    return Err(RefuseReason::UriTooLong);
                }
                Target
            }
            (Target, b' ') if self.position > self.start => self.part(Version),
            (Target, b'\r') if self.position > self.start => Http09LineFeed,
            (Version, b'\r') => version(&bytes[self.start..self.position])?,
            // The longest version that can follow; the rest of the line need not be awaited.
            (Version, _) if is(byte, TARGET) && self.position - self.start < b"HTTP/1.1".len() => Version,
            (RequestLineFeed | ValueLineFeed, b'\n') => LineStart,
            (LineStart, b'\r') => EndLineFeed,
            (LineStart, _) if is(byte, TOKEN) => {
                self.fields += 1;
                if self.fields > limits.fields {
                    return Err(RefuseReason::HeadTooLarge);
                }
                Name
            }
            (Name, _) if is(byte, TOKEN) => Name,
            (Name, b':') => Value,
            (Value, _) if is(byte, VALUE) => self.rest_of_value(bytes, limits),
            (Value, b'\r') => ValueLineFeed,
            (EndLineFeed, b'\n') => Complete,
            (Http09LineFeed, b'\n') if limits.http09 => Complete,
            (Http09LineFeed, b'\n') => return Err(RefuseReason::Http09),
            _ => return Err(RefuseReason::BadRequest),
        })
    }

    fn part(&mut self, state: State) -> State {
        self.start = self.position + 1;
        state
    }

    /// Most of a head is values: skips to the last byte that surely belongs to this one.
    fn rest_of_value(&mut self, bytes: &[u8], limits: &HeadLimits) -> State {
        let seen = &bytes[..bytes.len().min(limits.head)];
        while self.position + 1 < seen.len() && is(seen[self.position + 1], VALUE) {
            self.position += 1;
        }
        State::Value
    }
}

fn version(version: &[u8]) -> Result<State, RefuseReason> {
    match version {
        b"HTTP/1.1" | b"HTTP/1.0" => Ok(State::RequestLineFeed),
        // `PRI * HTTP/2.0` (RFC 9113 §3.4), or a request line that claims the version.
        b"HTTP/2.0" => Err(RefuseReason::Http2Preface),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Err(RefuseReason::HttpVersion)
        }
        _ => Err(RefuseReason::BadRequest),
    }
}
