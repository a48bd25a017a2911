//! Reads the cookie by which a rule keeps its clients. Each value alone; what they mean to each other is `plan::persistence`'s matter.

use std::path::PathBuf;
use std::time::Duration;

use super::reader::{Placed, Section, describe};
use super::report::Span;
use super::values::{self, Found, Wrong};
use crate::core::persistence::SameSite;

const DAY: Duration = Duration::from_secs(86_400);

pub(super) struct Persistence {
    pub span: Span,
    pub cookie: Option<Placed<String>>,
    pub key_file: Option<Placed<PathBuf>>,
    pub age: Placed<Duration>,
    pub domain: Option<Placed<String>>,
    pub path: Placed<String>,
    pub secure: Placed<bool>,
    pub http_only: Placed<bool>,
    pub same_site: Option<Placed<SameSite>>,
    pub generation: Placed<u32>,
}

const SAME_SITES: &[(&str, SameSite)] =
    &[("strict", SameSite::Strict), ("lax", SameSite::Lax), ("none", SameSite::None)];

pub(super) fn read(section: Section<'_, '_>) -> Persistence {
    let persistence = Persistence {
        span: section.span.clone(),
        cookie: section.required("cookie", values::token),
        key_file: section.required("key_file", values::path),
        age: section.defaulted("age", values::duration(Duration::ZERO..=400 * DAY)),
        domain: section.optional("domain", cookie_attribute),
        path: section.defaulted("path", cookie_attribute),
        secure: section.defaulted("secure", values::boolean),
        http_only: section.defaulted("http_only", values::boolean),
        same_site: section.optional("same_site", values::choice(SAME_SITES)),
        generation: section.defaulted("generation", values::integer(0..=u32::MAX)),
    };
    section.finish();
    persistence
}

/// A value that can stand in a `Set-Cookie` attribute (RFC 6265 §4.1.1).
fn cookie_attribute(found: Found<'_>) -> Result<String, Wrong> {
    let text = values::string(found)?;
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';') {
        return Ok(text);
    }
    Err(Wrong::new(format!("cannot stand in a cookie: {}", describe(found)))
        .help("use visible ASCII characters other than ';'"))
}
