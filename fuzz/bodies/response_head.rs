//! A field is put into a response's head once or not at all, and nothing else changes, in whatever pieces the response comes.

use router::proxy::http::response::{HeadInsertion, Insertion};

const FIELD: &[u8] = b"Set-Cookie: RTID=x\r\n";

/// Pieces that chance alone would hardly write. Input bytes from 0x80 to 0x9f stand for them.
const PIECES: [&str; 12] = [
    "HTTP/1.1 ",
    "HTTP/1.0 ",
    "200 OK\r\n",
    "100 Continue\r\n\r\n",
    "101 Switching Protocols\r\n",
    "103 Early Hints\r\n",
    "204\r\n",
    "Content-Length: 2\r\n",
    "\r\n",
    "\r\n\r\n",
    "X: y\r\n",
    "\n",
];

pub fn check(input: &[u8]) {
    let Some((&size, input)) = input.split_first() else { return };
    let mut bytes = Vec::new();
    for &byte in input {
        match byte {
            0x80..0xa0 => bytes.extend_from_slice(PIECES[usize::from(byte - 0x80) % PIECES.len()].as_bytes()),
            _ => bytes.push(byte),
        }
    }
    let (whole, done) = passed(bytes.chunks(bytes.len().max(1)));
    assert_eq!(passed(bytes.chunks(usize::from(size).max(1))), (whole.clone(), done));
    match done {
        Some(Insertion::Done) => {
            let at = whole.windows(FIELD.len()).position(|window| window == FIELD).expect("it is in there");
            let without = [&whole[..at], &whole[at + FIELD.len()..]].concat();
            assert_eq!(without, bytes);
            assert!(whole[..at].ends_with(b"\n"), "it stands on a line of its own");
            let mut fields = [httparse::EMPTY_HEADER; 200];
            let mut rest = &whole[..];
            loop {
                let mut response = httparse::Response::new(&mut fields);
                let Ok(httparse::Status::Complete(length)) = response.parse(rest) else {
                    panic!("the head is one no more")
                };
                if !matches!(response.code, Some(100 | 102..=199)) {
                    break assert_eq!(response.headers[0].name, "Set-Cookie");
                }
                rest = &rest[length..];
                fields = [httparse::EMPTY_HEADER; 200];
            }
        }
        Some(Insertion::NoHead) => assert_eq!(whole, bytes),
        None => assert!(bytes.starts_with(&whole)),
    }
}

fn passed<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Insertion>) {
    let mut insertion = HeadInsertion::new(FIELD.to_vec());
    let (mut out, mut done) = (Vec::new(), None);
    for piece in pieces {
        match done {
            None => done = insertion.pass(piece, &mut out),
            Some(_) => out.extend_from_slice(piece),
        }
    }
    (out, done)
}
