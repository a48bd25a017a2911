//! Reads how a pool's instances are checked. Each value alone; what they mean to each other is `plan::check`'s matter.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::file;
use super::reader::{Placed, Section, describe};
use super::values::{self, Found, Wrong};
use crate::core::health::Reachability;

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

pub(super) struct Check {
    pub kind: Option<Placed<CheckKind>>,
    pub path: Option<Placed<String>>,
    pub host: Option<Placed<String>>,
    pub server_name: Option<Placed<String>>,
    pub verify: Option<Placed<bool>>,
    pub ca_file: Option<Placed<PathBuf>>,
    pub alpn: Option<Placed<Vec<Placed<String>>>>,
    pub expect: Placed<Vec<Placed<RangeInclusive<u16>>>>,
    pub interval: Placed<Duration>,
    pub timeout: Placed<Duration>,
    pub rise: Placed<u32>,
    pub fall: Placed<u32>,
    pub initial: Placed<Reachability>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckKind {
    Tcp,
    Http,
    Tls,
}

impl CheckKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http => "http",
            Self::Tls => "tls",
        }
    }
}

pub(super) fn read(section: Section<'_, '_>) -> Check {
    let kinds: &[_] = &[("tcp", CheckKind::Tcp), ("http", CheckKind::Http), ("tls", CheckKind::Tls)];
    let states: &[_] = &[("down", Reachability::Down), ("up", Reachability::Up)];
    let check = Check {
        kind: section.required("type", values::choice(kinds)),
        path: section.optional("path", file::request_target),
        host: section.optional("host", file::host),
        server_name: section.optional("server_name", server_name),
        verify: section.optional("verify", values::boolean),
        ca_file: section.optional("ca_file", values::path),
        alpn: section.list("alpn", alpn_protocol),
        expect: section.defaulted_list("expect", values::status_range),
        interval: section.defaulted("interval", values::duration(100 * MILLISECOND..=DAY)),
        timeout: section.defaulted("timeout", values::duration(10 * MILLISECOND..=DAY)),
        rise: section.defaulted("rise", values::integer(1..=100)),
        fall: section.defaulted("fall", values::integer(1..=100)),
        initial: section.defaulted("initial", values::choice(states)),
    };
    section.finish();
    check
}

/// A DNS name, as it can stand in a ClientHello (RFC 6066 §3).
fn server_name(found: Found<'_>) -> Result<String, Wrong> {
    let text = values::string(found)?;
    match ServerName::try_from(text.as_str()) {
        Ok(ServerName::DnsName(_)) => Ok(text),
        _ => Err(Wrong::new(format!("is not a DNS name: {}", describe(found))).help(
            "write a name such as \"app.example\"; left out, certificates must bear the instance's address",
        )),
    }
}

/// A protocol as IANA registers them (RFC 7301 §3.1).
fn alpn_protocol(found: Found<'_>) -> Result<String, Wrong> {
    let text = values::string(found)?;
    if (1..=255).contains(&text.len()) {
        return Ok(text);
    }
    Err(Wrong::new(format!("is not a protocol: {}", describe(found)))
        .help("write names such as \"h2\" or \"http/1.1\""))
}
