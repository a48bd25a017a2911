//! What a ClientHello says: the name that the client asks for and the protocols that it offers.

use router_common::abi::reason::RefuseReason;
use smallvec::SmallVec;

use crate::core::request;

/// Extension numbers.
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;

/// The only type of name there is (RFC 6066 §3).
const HOST_NAME: u8 = 0;

/// Message type and length.
const MESSAGE_HEADER: usize = 4;
const RANDOM: usize = 32;

/// A ClientHello that has passed every check. Borrows from the message that it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello<'a> {
    /// Letters, digits, hyphens, underscores and dots, at most 255, without a dot at the end.
    pub server_name: Option<&'a str>,
    /// In the client's order.
    pub alpn: SmallVec<[&'a [u8]; 4]>,
}

impl ClientHello<'_> {
    /// As rules see it.
    pub fn seen(&self) -> request::ClientHello<'_> {
        request::ClientHello { server_name: self.server_name, alpn: &self.alpn }
    }
}

/// Takes apart a whole ClientHello message, header included.
pub fn parse(message: &[u8]) -> Result<ClientHello<'_>, RefuseReason> {
    let extensions = extensions(message).ok_or(RefuseReason::BadClientHello)?;
    let (mut names, mut protocols) = (None, None);
    let mut rest = Reader(extensions);
    while !rest.is_empty() {
        let (number, data) = rest.extension().ok_or(RefuseReason::BadClientHello)?;
        let (place, twice) = match number {
            SERVER_NAME => (&mut names, RefuseReason::BadServerName),
            ALPN => (&mut protocols, RefuseReason::BadClientHello),
            // The instance's matter.
            _ => continue,
        };
        if place.replace(data).is_some() {
            return Err(twice);
        }
    }
    Ok(ClientHello {
        server_name: names.map(server_name).transpose()?.flatten(),
        alpn: protocols.map(alpn).unwrap_or(Some(SmallVec::new())).ok_or(RefuseReason::BadClientHello)?,
    })
}

/// The extensions of a message; clients before TLS 1.2 may have none.
fn extensions(message: &[u8]) -> Option<&[u8]> {
    let mut rest = Reader(message.get(MESSAGE_HEADER..)?);
    let [major, _minor] = *rest.take(2)? else { return None };
    rest.take(RANDOM)?;
    let session = rest.vector8()?;
    let ciphers = rest.vector16()?;
    let compressions = rest.vector8()?;
    let fits = major == 3
        && session.len() <= 32
        && !ciphers.is_empty()
        && ciphers.len().is_multiple_of(2)
        && !compressions.is_empty();
    if !fits {
        return None;
    }
    if rest.is_empty() {
        return Some(&[]);
    }
    let extensions = rest.vector16()?;
    rest.is_empty().then_some(extensions)
}

/// The one host name of the extension; names of other types are passed over.
fn server_name(data: &[u8]) -> Result<Option<&str>, RefuseReason> {
    let malformed = RefuseReason::BadClientHello;
    let mut list = whole_list(data).ok_or(malformed)?;
    let mut found = None;
    while !list.is_empty() {
        let (kind, name) = list.name().ok_or(malformed)?;
        if kind == HOST_NAME && found.replace(name).is_some() {
            return Err(RefuseReason::BadServerName);
        }
    }
    found.map(host_name).transpose()
}

/// A host name as rules see it. Others than the usual characters are refused: some servers cut a name at a colon, some at NUL.
pub fn host_name(name: &[u8]) -> Result<&str, RefuseReason> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let text = std::str::from_utf8(name).ok().filter(|_| name.iter().all(allowed));
    // A dot at the end says the same as none, though RFC 6066 wants none.
    text.map(|text| text.strip_suffix('.').unwrap_or(text))
        .filter(|text| (1..=255).contains(&text.len()))
        .ok_or(RefuseReason::BadServerName)
}

fn alpn(data: &[u8]) -> Option<SmallVec<[&[u8]; 4]>> {
    let mut list = whole_list(data)?;
    let mut protocols = SmallVec::new();
    while !list.is_empty() {
        protocols.push(list.vector8().filter(|protocol| !protocol.is_empty())?);
    }
    Some(protocols)
}

/// The content of an extension that is one list, which is not empty.
fn whole_list(data: &[u8]) -> Option<Reader<'_>> {
    let mut rest = Reader(data);
    let list = rest.vector16().filter(|list| !list.is_empty())?;
    rest.is_empty().then_some(Reader(list))
}

/// Takes values from the front. `None` when there is less than was promised.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Bytes behind their number, which takes one byte.
    fn vector8(&mut self) -> Option<&'a [u8]> {
        let count = self.number8()?;
        self.take(count.into())
    }

    /// The same with two bytes.
    fn vector16(&mut self) -> Option<&'a [u8]> {
        let count = self.number16()?;
        self.take(count.into())
    }

    fn extension(&mut self) -> Option<(u16, &'a [u8])> {
        Some((self.number16()?, self.vector16()?))
    }

    fn name(&mut self) -> Option<(u8, &'a [u8])> {
        let (kind, name) = (self.number8()?, self.vector16()?);
        (!name.is_empty()).then_some((kind, name))
    }
}
