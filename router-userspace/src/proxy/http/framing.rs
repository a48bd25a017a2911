//! Finds the end of a request's body on the wire, and refuses the first byte that breaks its framing (RFC 9112 §7.1).
//!
//! It decodes nothing: that is the library's part. It sees to it that the library gets one message at a time, and that nobody can read its
//! end in two ways: no bare line feed, no white space around a size, and bounded extensions and trailers.

use super::fields::Framing;

/// Hexadecimal digits of a chunk's size.
const SIZE_DIGITS: u32 = 15;
/// Bytes of the extensions of one chunk.
const EXTENSION: usize = 256;
/// Bytes of all trailers of one request.
const TRAILERS: usize = 8 * 1024;

/// The framing is not what RFC 9112 says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// How far a body has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyEnd {
    state: State,
    /// Bytes of the part with a bound that is passing.
    passed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Length(u64),
    Size { size: u64, digits: u32 },
    Extension(u64),
    SizeLineFeed(u64),
    Data(u64),
    DataEnd,
    DataLineFeed,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    LastLineFeed,
    Complete,
}

impl BodyEnd {
    pub fn of(framing: Framing) -> Self {
        let state = match framing {
            Framing::NoBody => State::Complete,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Size { size: 0, digits: 0 },
        };
        Self { state, passed: 0 }
    }

    pub fn is_complete(self) -> bool {
        self.state == State::Complete
    }

    /// How many of `bytes`, the next ones received, belong to the body.
    pub fn pass(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut at = 0;
        while at < bytes.len() && !self.is_complete() {
            if let State::Length(left) | State::Data(left) = self.state {
                let taken = usize::try_from(left).map_or(bytes.len() - at, |left| left.min(bytes.len() - at));
                at += taken;
                self.state = match (self.state, left - taken as u64) {
                    (State::Length(_), 0) => State::Complete,
                    (State::Length(_), left) => State::Length(left),
                    (_, 0) => State::DataEnd,
                    (_, left) => State::Data(left),
                };
            } else {
                self.state = self.step(bytes[at])?;
                at += 1;
            }
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8) -> Result<State, Malformed> {
        use State::*;
        Ok(match (self.state, byte) {
            (Size { size, digits }, _) if byte.is_ascii_hexdigit() && digits < SIZE_DIGITS => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
            }
            (Size { size, digits: 1.. }, b'\r') => SizeLineFeed(size),
            (Size { size, digits: 1.. }, b';') => {
                self.passed = 0;
                Extension(size)
            }
            (Extension(size), b'\r') => SizeLineFeed(size),
            (Extension(size), b'\t' | b' '..=b'~') => self.bounded(Extension(size), EXTENSION)?,
            (SizeLineFeed(0), b'\n') => {
                self.passed = 0;
                TrailerStart
            }
            (SizeLineFeed(size), b'\n') => Data(size),
            (DataEnd, b'\r') => DataLineFeed,
            (DataLineFeed, b'\n') => Size { size: 0, digits: 0 },
            (TrailerStart, b'\r') => LastLineFeed,
            (TrailerName, b':') => TrailerValue,
            (TrailerStart | TrailerName, _) if is_token(byte) => self.bounded(TrailerName, TRAILERS)?,
            (TrailerValue, b'\r') => TrailerLineFeed,
            (TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => self.bounded(TrailerValue, TRAILERS)?,
            (TrailerLineFeed, b'\n') => TrailerStart,
            (LastLineFeed, b'\n') => Complete,
            _ => return Err(Malformed),
        })
    }

    fn bounded(&mut self, state: State, limit: usize) -> Result<State, Malformed> {
        self.passed += 1;
        if self.passed <= limit { Ok(state) } else { Err(Malformed) }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunked(bytes: &[u8]) -> Result<usize, Malformed> {
        BodyEnd::of(Framing::Chunked).pass(bytes)
    }

    #[test]
    fn what_follows_a_body_is_left() {
        assert_eq!(BodyEnd::of(Framing::NoBody).pass(b"GET"), Ok(0));
        assert_eq!(BodyEnd::of(Framing::Length(4)).pass(b"bodyGET"), Ok(4));
        assert_eq!(chunked(b"4\r\nbody\r\n0\r\n\r\nGET"), Ok(14));
        let body = b"4;a=\"b\"\r\nbody\r\n0\r\nA: b\r\nC:\r\n\r\nGET";
        assert_eq!(chunked(body), Ok(body.len() - 3));
    }

    #[test]
    fn whatever_two_servers_might_read_differently_is_refused() {
        for text in [
            "4\nbody\r\n0\r\n\r\n",
            "4 \r\nbody\r\n0\r\n\r\n",
            " 4\r\nbody\r\n0\r\n\r\n",
            "0x4\r\nbody\r\n0\r\n\r\n",
            "+4\r\nbody\r\n0\r\n\r\n",
            "-4\r\nbody\r\n0\r\n\r\n",
            "\r\nbody\r\n0\r\n\r\n",
            ";a\r\nbody\r\n0\r\n\r\n",
            "4\r\nbodyX\r\n0\r\n\r\n",
            "4\r\nbody\n0\r\n\r\n",
            "4\r\nbody0\r\n\r\n",
            "4;a\nb\r\nbody\r\n0\r\n\r\n",
            "4;a\rb\r\nbody\r\n0\r\n\r\n",
            "0000000000000004\r\nbody\r\n0\r\n\r\n",
            "10000000000000000\r\nbody\r\n0\r\n\r\n",
            "0\r\nA : b\r\n\r\n",
            "0\r\nA\r\n\r\n",
            "0\r\n A: b\r\n\r\n",
            "0\r\nA: b\n\r\n",
            "0\r\nA: b\rc\r\n\r\n",
            "0\r\n\n",
        ] {
            assert_eq!(chunked(text.as_bytes()), Err(Malformed), "{text:?}");
        }
        assert_eq!(chunked(format!("1;{}\r\n", "x".repeat(EXTENSION + 1)).as_bytes()), Err(Malformed));
        assert_eq!(chunked(format!("0\r\nA:{}", "x".repeat(TRAILERS)).as_bytes()), Err(Malformed));
    }

    proptest! {
        #[test]
        fn the_end_is_the_same_however_the_body_is_cut(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            cuts in proptest::collection::vec(1usize..30, 0..40),
        ) {
            let mut body = Vec::new();
            for chunk in &chunks {
                body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                body.extend_from_slice(chunk);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"0\r\nT: v\r\n\r\n");
            let length = body.len();
            body.extend_from_slice(b"GET / HTTP/1.1\r\n");
            let (mut end, mut passed, mut rest) = (BodyEnd::of(Framing::Chunked), 0, &body[..]);
            for cut in cuts.into_iter().chain([body.len()]) {
                let (piece, behind) = rest.split_at(cut.min(rest.len()));
                passed += end.pass(piece).unwrap();
                rest = behind;
            }
            prop_assert!(end.is_complete());
            prop_assert_eq!(passed, length);
        }
    }
}
