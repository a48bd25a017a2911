//! The head as the instance gets it: byte for byte the client's, but for the fields named here.
//!
//! `X-Forwarded-For` gains the client's address. An offer to change to HTTP/2 in cleartext is withdrawn: the instance
//! answers in HTTP/1.1, as any server without it would. An empty line before the request line is not sent on.

use std::io::Write;
use std::net::IpAddr;

use super::fields::{Upgrade, list};
use super::{HttpHead, parse};

/// Appends to `out` what the instance receives in place of `head`, which `parsed` was read from.
pub fn rewrite(head: &[u8], parsed: &HttpHead<'_>, forwarded_for: Option<IpAddr>, out: &mut Vec<u8>) {
    let start = if head.starts_with(b"\r\n") { 2 } else { 0 };
    let head = &head[start..];
    if parsed.http09 {
        out.extend_from_slice(head);
        return;
    }
    if parsed.fields.upgrade == Upgrade::H2c {
        let withdrawn = withdraw_h2c(head, parsed);
        // Leaving lines out of a head that was accepted gives a head that is accepted.
        if let Ok(parsed) = parse(&withdrawn) {
            return rewrite(&withdrawn, &parsed, forwarded_for, out);
        }
    }
    match forwarded_for {
        Some(client) => append_forwarded_for(head, parsed, client, out),
        None => out.extend_from_slice(head),
    }
}

/// Adds the client to the last `X-Forwarded-For`, or adds the field. One more line would say the same
/// (RFC 9110 §5.3), but many servers read only one of several.
fn append_forwarded_for(head: &[u8], parsed: &HttpHead<'_>, client: IpAddr, out: &mut Vec<u8>) {
    let mut fields = parsed.headers.iter().rev();
    let (place, lead, end) = match fields.find(|field| field.name.eq_ignore_ascii_case("x-forwarded-for")) {
        // An empty value may be a slice of anywhere: it starts behind the colon.
        Some(field) if field.value.is_empty() => {
            (offset(head, field.name.as_bytes()) + field.name.len() + 1, " ", "")
        }
        Some(field) => (offset(head, field.value) + field.value.len(), ", ", ""),
        None => (head.len() - 2, "X-Forwarded-For: ", "\r\n"),
    };
    let (before, behind) = head.split_at(place);
    out.extend_from_slice(before);
    let written = write!(out, "{lead}{client}{end}");
    debug_assert!(written.is_ok(), "writing to a Vec cannot fail");
    out.extend_from_slice(behind);
}

/// The head without `Upgrade` and `HTTP2-Settings`, and without the connection options that announce them.
fn withdraw_h2c(head: &[u8], parsed: &HttpHead<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(head.len());
    let mut copied = 0;
    for field in &parsed.headers {
        let gone =
            field.name.eq_ignore_ascii_case("upgrade") || field.name.eq_ignore_ascii_case("http2-settings");
        let options = field.name.eq_ignore_ascii_case("connection");
        if !gone && !options {
            continue;
        }
        let line = offset(head, field.name.as_bytes());
        let length =
            head[line..].iter().position(|byte| *byte == b'\n').map_or(head.len() - line, |at| at + 1);
        out.extend_from_slice(&head[copied..line]);
        copied = line + length;
        if options {
            let others: Vec<&[u8]> = list(field.value)
                .filter(|option| {
                    !option.eq_ignore_ascii_case(b"upgrade")
                        && !option.eq_ignore_ascii_case(b"http2-settings")
                })
                .collect();
            if !others.is_empty() {
                out.extend_from_slice(field.name.as_bytes());
                out.extend_from_slice(b": ");
                out.extend_from_slice(&others.join(&b", "[..]));
                out.extend_from_slice(b"\r\n");
            }
        }
    }
    out.extend_from_slice(&head[copied..]);
    out
}

/// Where `part`, a slice of `head`, starts.
pub(super) fn offset(head: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - head.as_ptr() as usize
}
