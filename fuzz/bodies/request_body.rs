//! Any bytes are a body, a part of one, or refused: alike in whatever pieces they come. What is accepted in chunks, httparse reads to the
//! same end.

use router::proxy::http::fields::Framing;
use router::proxy::http::framing::{BodyEnd, Malformed};

pub fn check(input: &[u8]) {
    let Some((&[kind, size], bytes)) = input.split_first_chunk() else { return };
    let framing = match kind % 4 {
        0 => Framing::NoBody,
        1 => Framing::Length(u64::from(kind)),
        _ => Framing::Chunked,
    };
    let mut whole = BodyEnd::of(framing);
    let passed = whole.pass(bytes);
    let (in_pieces, pieces) = in_pieces(framing, bytes, usize::from(size).max(1));
    assert_eq!(in_pieces, passed);
    let Ok(length) = passed else { return };
    assert_eq!(pieces.is_complete(), whole.is_complete());
    assert!(length <= bytes.len() && (whole.is_complete() || length == bytes.len()));
    match framing {
        Framing::NoBody => assert_eq!(length, 0),
        Framing::Length(wanted) => assert_eq!(length as u64, wanted.min(bytes.len() as u64)),
        Framing::Chunked if whole.is_complete() => assert_eq!(end_by_httparse(bytes), Some(length)),
        Framing::Chunked => {}
    }
}

fn in_pieces(framing: Framing, bytes: &[u8], size: usize) -> (Result<usize, Malformed>, BodyEnd) {
    let mut end = BodyEnd::of(framing);
    let mut passed = 0;
    for piece in bytes.chunks(size) {
        match end.pass(piece) {
            Ok(count) => passed += count,
            Err(malformed) => return (Err(malformed), end),
        }
    }
    (Ok(passed), end)
}

/// Where a body in chunks ends, its trailers included.
fn end_by_httparse(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(&bytes[at..]) else {
            return None;
        };
        at += line;
        if size == 0 {
            break;
        }
        at += usize::try_from(size).ok()?;
        at += bytes.get(at..)?.starts_with(b"\r\n").then_some(2)?;
    }
    let mut fields = [httparse::EMPTY_HEADER; 4_096];
    match httparse::parse_headers(&bytes[at..], &mut fields) {
        Ok(httparse::Status::Complete((length, _))) => Some(at + length),
        _ => None,
    }
}
