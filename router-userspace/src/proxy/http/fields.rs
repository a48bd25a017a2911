//! What the header fields say about framing and about the connection.

use router_common::abi::reason::RefuseReason;

use crate::core::request::{Header, HttpVersion};

/// How the end of the request's body is found (RFC 9112 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    NoBody,
    /// Bytes of body that follow the head.
    Length(u64),
    Chunked,
}

/// The protocol that the client offers to change to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    None,
    /// HTTP/2 over cleartext. Never passed on: the router would stop understanding the connection.
    H2c,
    /// WebSocket or another protocol that the instance may accept.
    Other,
}

/// The fields that the router itself acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields<'a> {
    pub host: Option<&'a [u8]>,
    pub framing: Framing,
    pub upgrade: Upgrade,
    /// Whether the client means to keep the connection open after the response.
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
}

impl<'a> Fields<'a> {
    /// Reads them, and refuses every combination that two servers might understand differently.
    pub fn read(version: HttpVersion, headers: &[Header<'a>]) -> Result<Self, RefuseReason> {
        let mut host = None;
        let mut length = None;
        let mut chunked = false;
        let mut expects_continue = false;
        let (mut h2c, mut other_upgrade) = (false, false);
        let (mut close, mut keep_alive, mut upgrade_offered) = (false, false, false);

        for Header { name, value } in headers.iter().copied() {
            // The length decides first: most fields end here.
            match name.len() {
                4 if name.eq_ignore_ascii_case("host") => once(&mut host, value)?,
                6 if name.eq_ignore_ascii_case("expect") => {
                    expects_continue |= value.eq_ignore_ascii_case(b"100-continue");
                }
                7 if name.eq_ignore_ascii_case("upgrade") => {
                    for protocol in list(value) {
                        if is_h2c(protocol) { h2c = true } else { other_upgrade = true }
                    }
                }
                10 if name.eq_ignore_ascii_case("connection") => {
                    for option in list(value) {
                        close |= option.eq_ignore_ascii_case(b"close");
                        keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                        upgrade_offered |= option.eq_ignore_ascii_case(b"upgrade");
                        // Would make an instance that is itself a proxy drop what the router vouches for.
                        if option.eq_ignore_ascii_case(b"x-forwarded-for") {
                            return Err(RefuseReason::BadRequest);
                        }
                    }
                }
                14 if name.eq_ignore_ascii_case("content-length") => {
                    once(&mut length, content_length(value)?)?;
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    // Any other coding, or this one twice, and servers disagree about where the body ends.
                    if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                        return Err(RefuseReason::BadRequest);
                    }
                    chunked = true;
                }
                _ => {}
            }
        }

        let framing = match (chunked, length) {
            (true, None) if version == HttpVersion::Http11 => Framing::Chunked,
            (true, _) => return Err(RefuseReason::BadRequest),
            (false, Some(length)) if length > 0 => Framing::Length(length),
            (false, _) => Framing::NoBody,
        };
        let upgrade = match (h2c, other_upgrade) {
            (true, true) => return Err(RefuseReason::H2cUpgrade),
            (true, false) => Upgrade::H2c,
            (false, true) if upgrade_offered => Upgrade::Other,
            (false, _) => Upgrade::None,
        };
        let keep_alive = !close && (version == HttpVersion::Http11 || keep_alive);
        Ok(Self { host, framing, upgrade, keep_alive, expects_continue })
    }
}

/// The non-empty elements of a comma-separated list.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// `h2c`, or the drafts' `h2c-14` and the like.
pub fn is_h2c(protocol: &[u8]) -> bool {
    protocol.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"h2c"))
}

/// Sets what may be said only once.
fn once<T>(place: &mut Option<T>, value: T) -> Result<(), RefuseReason> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(RefuseReason::BadRequest),
    }
}

/// Digits only: no sign, no list, not empty, and within what every server can count.
fn content_length(value: &[u8]) -> Result<u64, RefuseReason> {
    if !value.iter().all(u8::is_ascii_digit) {
        return Err(RefuseReason::BadRequest);
    }
    let digits = std::str::from_utf8(value).map_err(|_| RefuseReason::BadRequest)?;
    let length: i64 = digits.parse().map_err(|_| RefuseReason::BadRequest)?;
    u64::try_from(length).map_err(|_| RefuseReason::BadRequest)
}
