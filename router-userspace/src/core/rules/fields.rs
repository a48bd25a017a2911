//! Cookies and query parameters, read where they lie, without copying.

use std::borrow::Cow;

/// The value of a cookie in one `Cookie` header: `a=1; b="2"` (RFC 6265 §4.2). One pair of quotes around a value is
/// not part of it. Names and values keep their case.
pub(in crate::core) fn cookie_values<'a>(header: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    cookies(header).filter_map(move |(key, value)| (key == name).then_some(value))
}

/// The names and values of all cookies in one `Cookie` header.
pub(super) fn cookies(header: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    header.split(|&byte| byte == b';').filter_map(|pair| {
        let (key, value) = split_once(pair, b'=')?;
        Some((key.trim_ascii(), unquoted(value.trim_ascii())))
    })
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value)
}

/// The decoded values of a query parameter. Parameters are separated by `&`; one without `=` has an empty value;
/// `%XX` and `+` are decoded in names and values, and a `%` without two hex digits stands for itself.
pub(in crate::core) fn query_values<'a>(
    query: &'a str,
    name: &'a [u8],
) -> impl Iterator<Item = Cow<'a, [u8]>> {
    let named = move |(key, _): &(&[u8], &[u8])| decode(key).eq(name.iter().copied());
    pairs(query).filter(named).map(|(_, value)| decoded(value))
}

/// The decoded names and values of all query parameters.
pub(super) fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, [u8]>)> {
    pairs(query).map(|(key, value)| (decoded(key), decoded(value)))
}

fn pairs(query: &str) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pairs = query.as_bytes().split(|&byte| byte == b'&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| split_once(pair, b'=').unwrap_or((pair, b"")))
}

fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        Cow::Owned(decode(text).collect())
    } else {
        Cow::Borrowed(text)
    }
}

fn decode(text: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        Some(match (byte, tail) {
            (b'+', _) => b' ',
            (b'%', &[high, low, ..]) => match (hex(high), hex(low)) {
                (Some(high), Some(low)) => {
                    rest = &tail[2..];
                    high << 4 | low
                }
                _ => b'%',
            },
            _ => byte,
        })
    })
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

fn split_once(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = text.iter().position(|&byte| byte == at)?;
    Some((&text[..place], &text[place + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(query: &str, name: &str) -> Vec<String> {
        query_values(query, name.as_bytes()).map(|v| String::from_utf8_lossy(&v).into_owned()).collect()
    }

    #[test]
    fn query_names_and_values_are_decoded() {
        assert_eq!(query("a=1&b=x%20y+z&%61=2", "a"), ["1", "2"]);
        assert_eq!(query("a=1&b=x%20y+z&%61=2", "b"), ["x y z"]);
        assert_eq!(query("flag&&x=", "flag"), [""]);
        assert_eq!(query("a=50%&b=%4", "a"), ["50%"]);
        assert_eq!(query("a=b=c", "a"), ["b=c"]);
        assert!(query("ab=1", "a").is_empty());
        assert!(query("", "").is_empty());
    }

    #[test]
    fn cookies_are_split_trimmed_and_unquoted() {
        let header = b"a=1; b=\"two words\" ;A=3;a=4; broken; c==";
        let values = |name: &str| -> Vec<String> {
            cookie_values(header, name.as_bytes()).map(|v| String::from_utf8_lossy(v).into_owned()).collect()
        };
        assert_eq!(values("a"), ["1", "4"]);
        assert_eq!(values("b"), ["two words"]);
        assert_eq!(values("A"), ["3"]);
        assert_eq!(values("c"), ["="]);
        assert!(values("broken").is_empty());
    }
}
