//! From a position in a string's value to its position in the file.
//!
//! A rule's expression is a TOML string, so the parser of expressions sees decoded text: without quotes, escapes
//! and joined lines. To put a caret under the offending token, positions are counted back through the string
//! as it is written: basic or literal, on one line or several (TOML 1.1, section "String").

use super::report::Span;

/// Maps `within`, a range of bytes of the decoded string, to bytes of the file. `written` is the place of the string
/// with its quotes. Falls back to the whole string if `written` is not a TOML string.
pub(super) fn locate(text: &str, written: &Span, within: &Span) -> Span {
    let Some(raw) = text.get(written.clone()) else { return written.clone() };
    let Some(literal) = Literal::of(raw) else { return written.clone() };
    let start = written.start + literal.offset_of(within.start);
    let end = written.start + literal.offset_of_end(within.end);
    start..end.max(start)
}

struct Literal<'a> {
    raw: &'a str,
    /// Bytes of `raw` between the quotes, behind a line break that directly follows the opening ones.
    body: Span,
    escapes: bool,
}

impl<'a> Literal<'a> {
    fn of(raw: &'a str) -> Option<Literal<'a>> {
        let quote = raw.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        let triple = raw.len() >= 6 && raw.bytes().take(3).all(|byte| byte == quote as u8);
        let width = if triple { 3 } else { 1 };
        let closed = raw.bytes().rev().take(width).all(|byte| byte == quote as u8);
        if raw.len() < 2 * width || !closed {
            return None;
        }
        let mut body = width..raw.len() - width;
        if triple {
            let inner = &raw[body.clone()];
            body.start += if inner.starts_with("\r\n") { 2 } else { usize::from(inner.starts_with('\n')) };
        }
        Some(Literal { raw, body, escapes: quote == '"' })
    }

    /// Where the decoded byte `wanted` begins in `raw`.
    fn offset_of(&self, wanted: usize) -> usize {
        let mut decoded = 0;
        for (at, length) in self.pieces() {
            // A piece of no length is a joined line: the token that follows it is meant.
            if length > 0 && wanted < decoded + length {
                let inside = if length > 1 && self.is_escape(at) { 0 } else { wanted - decoded };
                return at + inside;
            }
            decoded += length;
        }
        self.body.end
    }

    /// Where the decoded bytes before `wanted` end in `raw`.
    fn offset_of_end(&self, wanted: usize) -> usize {
        let mut decoded = 0;
        let mut end = self.body.start;
        for (at, length) in self.pieces() {
            if decoded >= wanted {
                return end;
            }
            decoded += length;
            end = at + self.written_length(at);
        }
        end
    }

    fn is_escape(&self, at: usize) -> bool {
        self.escapes && self.raw.as_bytes()[at] == b'\\'
    }

    /// Each piece of the body: where it is written and how many decoded bytes it stands for.
    fn pieces(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut at = self.body.start;
        std::iter::from_fn(move || {
            if at >= self.body.end {
                return None;
            }
            let piece = (at, self.decoded_length(at));
            at += self.written_length(at);
            Some(piece)
        })
    }

    fn written_length(&self, at: usize) -> usize {
        let rest = &self.raw[at..self.body.end];
        if !self.is_escape(at) {
            return rest.chars().next().map_or(1, char::len_utf8);
        }
        let wanted = match rest.as_bytes().get(1) {
            Some(b'x') => 4,
            Some(b'u') => 6,
            Some(b'U') => 10,
            // A backslash before a line break joins lines up to the next character that is not white space.
            Some(b' ' | b'\t' | b'\r' | b'\n') => {
                rest.len() - rest[1..].trim_start_matches([' ', '\t', '\r', '\n']).len()
            }
            Some(_) => 2,
            None => 1,
        };
        // Never end inside a character, whatever the text.
        (wanted.min(rest.len())..=rest.len()).find(|end| rest.is_char_boundary(*end)).unwrap_or(rest.len())
    }

    fn decoded_length(&self, at: usize) -> usize {
        let written = &self.raw[at..at + self.written_length(at)];
        if !self.is_escape(at) {
            return written.len();
        }
        match written.as_bytes().get(1) {
            Some(b'x' | b'u' | b'U') => {
                u32::from_str_radix(&written[2..], 16).ok().and_then(char::from_u32).map_or(1, char::len_utf8)
            }
            Some(b' ' | b'\t' | b'\r' | b'\n') => 0,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text that the file holds where the decoded string holds `token`.
    fn written(document: &str, token: &str) -> String {
        let table = toml::de::DeTable::parse(document).expect("a valid document");
        let value = table.get_ref().get("match").expect("the key");
        let decoded = value.get_ref().as_str().expect("a string");
        let start = decoded.find(token).expect("the token");
        document[locate(document, &value.span(), &(start..start + token.len()))].to_owned()
    }

    #[test]
    fn a_token_is_found_in_every_kind_of_string() {
        assert_eq!(written(r#"match = 'Host("a") && Bad("b")'"#, "Bad"), "Bad");
        assert_eq!(written(r#"match = "Host(\"a\") && Bad(\"b\")""#, r#"("b")"#), r#"(\"b\")"#);
        assert_eq!(written(r#"match = "\u00e9\U0001F600 \x41Bad x""#, "Bad"), "Bad");
        assert_eq!(written(r#"match = "é😀Bad x""#, "Bad"), "Bad");
        assert_eq!(written("match = '''\nHost('a') &&\r\n  Bad'''", "Bad"), "Bad");
        assert_eq!(written("match = \"\"\"\r\nHost \\\n   \n   Bad \\\n  tail\"\"\"", "Bad"), "Bad");
        assert_eq!(written("match = \"\"\"Host \\  \n  Bad\"\"\"", "Bad"), "Bad");
        assert_eq!(written(r#"match = "\t\\Bad""#, "\\Bad"), r"\\Bad");
    }

    #[test]
    fn the_end_of_a_string_is_just_before_its_closing_quotes() {
        let document = r#"match = "abc""#;
        assert_eq!(locate(document, &(8..13), &(3..3)), 12..12);
        assert_eq!(locate(document, &(8..13), &(99..120)), 12..12);
    }

    proptest! {
        #[test]
        fn a_token_between_arbitrary_escapes_is_found(
            before in prop::collection::vec(prop::sample::select(vec!["a", "é", "\\\"", "\\u00e9", "\\x41", "\\t", "\\U0001F600", " "]), 0..12),
            after in prop::collection::vec(prop::sample::select(vec!["b", "ü", "\\\\", "\\n"]), 0..6),
        ) {
            let document = format!("match = \"{}@TOKEN@{}\"", before.concat(), after.concat());
            prop_assert_eq!(written(&document, "@TOKEN@"), "@TOKEN@");
        }

        #[test]
        fn arbitrary_text_and_ranges_never_panic(text in "\\PC{0,40}", a in 0usize..60, b in 0usize..60, c in 0usize..60, d in 0usize..60) {
            locate(&text, &(a..b), &(c..d));
        }

        #[test]
        fn arbitrary_quoted_text_never_panics(inner in "\\PC{0,40}", c in 0usize..60, d in 0usize..60) {
            for text in [format!("\"{inner}\""), format!("'''{inner}'''"), format!("\"\"\"{inner}\"\"\"")] {
                locate(&text, &(0..text.len()), &(c..d));
            }
        }
    }
}
