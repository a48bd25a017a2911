//! Finds the end of the first handshake message in TLS records (RFC 8446 §5.1), which may be cut anywhere, into segments and into records.

use std::borrow::Cow;

use router_common::abi::reason::RefuseReason;

/// The content type of handshake messages.
const HANDSHAKE: u8 = 22;
/// Every version since SSL 3 has this major number on its records.
const MAJOR: u8 = 3;
/// The message type of a ClientHello.
const CLIENT_HELLO: u8 = 1;
/// Content type, version and length.
const RECORD_HEADER: usize = 5;
/// Message type and length.
const MESSAGE_HEADER: usize = 4;
/// Greatest length of a record's content that is not encrypted.
const MAX_RECORD: usize = 1 << 14;

/// How far a ClientHello has been read. Feed it the same bytes again with more behind them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scanner {
    /// Where the record begins that is not complete yet.
    record: usize,
    /// Bytes of the message in the records before it.
    seen: usize,
    header: [u8; MESSAGE_HEADER],
}

impl Scanner {
    /// `bytes` is everything received so far. Returns where the message ends once that has been seen, which need not be the end of a record.
    /// The message, with the records around it, may be `limit` bytes long.
    pub fn scan(&mut self, bytes: &[u8], limit: usize) -> Result<Option<usize>, RefuseReason> {
        loop {
            if self.record + RECORD_HEADER >= limit {
                return Err(RefuseReason::HeadTooLarge);
            }
            let record = &bytes[self.record..];
            check_start(record)?;
            let Some((header, rest)) = record.split_first_chunk::<RECORD_HEADER>() else {
                return too_large_from(bytes, limit);
            };
            let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
            if length == 0 || length > MAX_RECORD {
                return Err(RefuseReason::BadClientHello);
            }
            let content = &rest[..rest.len().min(length)];
            if let Some(needed) = self.message_length(content)? {
                let end = self.record + RECORD_HEADER + needed.saturating_sub(self.seen);
                if needed > limit || end > limit {
                    return Err(RefuseReason::HeadTooLarge);
                }
                if self.seen + content.len() >= needed {
                    return Ok(Some(end));
                }
            }
            if content.len() < length {
                return too_large_from(bytes, limit);
            }
            self.seen += length;
            self.record += RECORD_HEADER + length;
        }
    }

    /// The length of the whole message, once `content` of the current record shows it.
    fn message_length(&mut self, content: &[u8]) -> Result<Option<usize>, RefuseReason> {
        for (slot, byte) in self.header.iter_mut().skip(self.seen).zip(content) {
            *slot = *byte;
        }
        let known = self.seen + content.len();
        if known > 0 && self.header[0] != CLIENT_HELLO {
            return Err(RefuseReason::BadClientHello);
        }
        let [_, length @ ..] = self.header;
        let [high, middle, low] = length.map(usize::from);
        Ok((known >= MESSAGE_HEADER).then_some(MESSAGE_HEADER + (high << 16 | middle << 8 | low)))
    }
}

/// More is to come, unless there is too much already.
fn too_large_from(bytes: &[u8], limit: usize) -> Result<Option<usize>, RefuseReason> {
    if bytes.len() >= limit { Err(RefuseReason::HeadTooLarge) } else { Ok(None) }
}

/// Judges the first bytes of a record by themselves: what is no TLS need not be awaited.
fn check_start(record: &[u8]) -> Result<(), RefuseReason> {
    match *record {
        [] | [HANDSHAKE] | [HANDSHAKE, MAJOR, ..] => Ok(()),
        // A method; no record begins with a letter.
        [first, ..] if first.is_ascii_uppercase() => Err(RefuseReason::HttpOnTls),
        _ => Err(RefuseReason::BadClientHello),
    }
}

/// The message that ends at the end of `bytes`, which a [`Scanner`] has accepted, without the records around it.
pub fn message(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut contents = Contents(bytes);
    let first = contents.next().unwrap_or_default();
    match contents.next() {
        None => Cow::Borrowed(first),
        Some(second) => {
            let mut whole = [first, second].concat();
            contents.for_each(|content| whole.extend_from_slice(content));
            Cow::Owned(whole)
        }
    }
}

/// The contents of records, of which the last may be cut.
struct Contents<'a>(&'a [u8]);

impl<'a> Iterator for Contents<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (header, rest) = self.0.split_first_chunk::<RECORD_HEADER>()?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]])).min(rest.len());
        let (content, rest) = rest.split_at(length);
        self.0 = rest;
        Some(content)
    }
}
