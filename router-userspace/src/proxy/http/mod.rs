//! The first request's head: strict HTTP/1 (RFC 9112), so that no server behind the router reads it differently.
//!
//! After a handoff the instance alone frames the stream, and only this head was seen by the rules. So whatever two
//! servers might understand differently is refused here: [`scan`] guards the grammar byte by byte and finds the
//! end, `httparse` takes the head apart, [`target`] and [`fields`] judge what it says, [`rewrite`] writes what the instance gets. [`framing`] finds the end of a body where
//! another request may follow, and [`response`] puts a field into a response's head.

pub mod fields;
pub mod framing;
pub mod response;
pub mod rewrite;
pub mod scan;
pub mod target;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use router_common::abi::reason::RefuseReason;

use crate::core::path::{PathError, normalise};
use crate::core::request::{Header, HttpRequest, HttpVersion};
use fields::Fields;
use scan::{HeadLimits, Scanner};
use target::Target;

/// A head that has passed every check. Borrows from the bytes it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpHead<'a> {
    pub version: HttpVersion,
    /// A request line without a version (HTTP/0.9): no fields follow, and none may be added.
    pub http09: bool,
    pub method: &'a str,
    /// Without port: the absolute target's, else that of `Host`.
    pub host: Option<&'a str>,
    pub raw_path: &'a str,
    pub query: Option<&'a str>,
    pub headers: Vec<Header<'a>>,
    pub fields: Fields<'a>,
}

impl<'a> HttpHead<'a> {
    /// The path as rules see it.
    pub fn path(&self) -> Result<Cow<'a, str>, RefuseReason> {
        if self.raw_path == "*" {
            return Ok(Cow::Borrowed(self.raw_path));
        }
        normalise(self.raw_path).map_err(|error| match error {
            PathError::Ambiguous => RefuseReason::AmbiguousPath,
            _ => RefuseReason::BadRequest,
        })
    }

    /// The request as rules see it, given its normalised path.
    pub fn request<'b>(&'b self, path: &'b str) -> HttpRequest<'b> {
        HttpRequest {
            version: self.version,
            method: self.method,
            host: self.host,
            raw_path: self.raw_path,
            path,
            query: self.query,
            headers: &self.headers,
        }
    }
}

/// Reads a head from the bytes received so far: `None` while its end is missing, else the head and its length.
pub fn read<'a>(bytes: &'a [u8], limits: &HeadLimits) -> Result<Option<(HttpHead<'a>, usize)>, RefuseReason> {
    match Scanner::default().scan(bytes, limits)? {
        Some(length) => Ok(Some((parse(&bytes[..length])?, length))),
        None => Ok(None),
    }
}

/// Takes apart a complete head, which a [`Scanner`] has accepted.
pub fn parse(head: &[u8]) -> Result<HttpHead<'_>, RefuseReason> {
    if is_http09(head) {
        return parse_http09(head);
    }
    let mut storage = [httparse::EMPTY_HEADER; 32];
    let mut larger = Vec::new();
    let mut request = httparse::Request::new(&mut storage);
    let mut status = request.parse(head);
    if status == Err(httparse::Error::TooManyHeaders) {
        // The scanner has bounded them: at most one a line.
        larger.resize(head.iter().filter(|byte| **byte == b'\n').count(), httparse::EMPTY_HEADER);
        request = httparse::Request::new(&mut larger);
        status = request.parse(head);
    }
    let (Ok(httparse::Status::Complete(length)), Some(method), Some(target), Some(minor)) =
        (status, request.method, request.path, request.version)
    else {
        return Err(RefuseReason::BadRequest);
    };
    if length != head.len() {
        return Err(RefuseReason::BadRequest);
    }
    let version = if minor == 0 { HttpVersion::Http10 } else { HttpVersion::Http11 };
    let headers: Vec<Header<'_>> =
        request.headers.iter().map(|field| Header { name: field.name, value: field.value }).collect();
    if headers.iter().any(|field| frames(field.name) && raw_value(head, field).contains(&b'\t')) {
        return Err(RefuseReason::BadRequest);
    }
    let fields = Fields::read(version, &headers)?;
    let target = Target::parse(method, target)?;
    if version == HttpVersion::Http11 && fields.host.is_none() {
        return Err(RefuseReason::BadRequest);
    }
    let host = target.host(fields.host)?;
    Ok(HttpHead {
        version,
        http09: false,
        method,
        host,
        raw_path: target.path,
        query: target.query,
        headers,
        fields,
    })
}

/// Fields around whose value not every server takes a tab for white space.
fn frames(name: &str) -> bool {
    matches!(name.len(), 4 | 14 | 17)
        && ["host", "content-length", "transfer-encoding"]
            .iter()
            .any(|framing| name.eq_ignore_ascii_case(framing))
}

/// What stands between the field's colon and the end of its line.
fn raw_value<'a>(head: &'a [u8], field: &Header<'_>) -> &'a [u8] {
    let behind_name = &head[rewrite::offset(head, field.name.as_bytes()) + field.name.len()..];
    let end = behind_name.iter().position(|byte| *byte == b'\r').unwrap_or(behind_name.len());
    &behind_name[..end]
}

/// Whether the request line carries no version.
fn is_http09(head: &[u8]) -> bool {
    let line = head.strip_prefix(b"\r\n").unwrap_or(head);
    line.split(|byte| *byte == b'\r').next().is_some_and(|line| line.split(|byte| *byte == b' ').count() == 2)
}

fn parse_http09(head: &[u8]) -> Result<HttpHead<'_>, RefuseReason> {
    let line = std::str::from_utf8(head).map_err(|_| RefuseReason::BadRequest)?.trim_ascii();
    let Some(("GET", target)) = line.split_once(' ') else { return Err(RefuseReason::Http09) };
    let target = Target::parse("GET", target)?;
    Ok(HttpHead {
        version: HttpVersion::Http10,
        http09: true,
        method: "GET",
        host: target.host(None)?,
        raw_path: target.path,
        query: target.query,
        headers: Vec::new(),
        fields: Fields::read(HttpVersion::Http10, &[])?,
    })
}
