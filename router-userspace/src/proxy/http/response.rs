//! Puts a field into the head of a connection's first response, while the response passes by.
//!
//! Bytes are held back until the head is complete, and no longer. Interim responses (RFC 9110 §15.2) go on as they are: browsers
//! ignore cookies in them. What is not an HTTP/1 response, or has a head that is too long, goes on unchanged.

/// The longest head that is waited for, in bytes.
const MAX_HEAD: usize = 64 * 1024;
const MAX_FIELDS: usize = 128;

/// What became of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    Done,
    /// There was no head to put it into.
    NoHead,
}

/// A field that waits for the head which it belongs to.
#[derive(Debug)]
pub struct HeadInsertion {
    /// The whole field line, with its end.
    field: Vec<u8>,
    /// What has come so far and has not gone on.
    held: Vec<u8>,
}

impl HeadInsertion {
    pub fn new(field: Vec<u8>) -> Self {
        Self { field, held: Vec::new() }
    }

    /// Takes in the next bytes of the response and appends to `out` what may go on. `Some` once nothing is held back
    /// any more, and then there is nothing left to do.
    pub fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Option<Insertion> {
        self.held.extend_from_slice(bytes);
        loop {
            let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
            let mut response = httparse::Response::new(&mut fields);
            let head = match response.parse(&self.held) {
                Ok(httparse::Status::Complete(length)) => (length, response.code.unwrap_or(0)),
                Ok(httparse::Status::Partial) if self.held.len() < MAX_HEAD => return None,
                Ok(httparse::Status::Partial) | Err(_) => return Some(self.give_up(out)),
            };
            match head {
                // 101 ends the exchange of HTTP: it is the final response.
                (length, 100 | 102..=199) => out.extend(self.held.drain(..length)),
                _ => {
                    // Empty lines may come first, and are read over.
                    let start = self.held.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or(0);
                    let end = self.held[start..].iter().position(|&byte| byte == b'\n');
                    let status_line = end.map_or(0, |end| start + end + 1);
                    out.extend_from_slice(&self.held[..status_line]);
                    out.extend_from_slice(&self.field);
                    out.extend_from_slice(&self.held[status_line..]);
                    self.held = Vec::new();
                    return Some(Insertion::Done);
                }
            }
        }
    }

    /// The response ends here: what was held back goes on as it is.
    pub fn give_up(&mut self, out: &mut Vec<u8>) -> Insertion {
        out.append(&mut self.held);
        Insertion::NoHead
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIELD: &str = "Set-Cookie: RTID=x\r\n";

    fn passed(pieces: &[&[u8]]) -> (String, Option<Insertion>) {
        let mut insertion = HeadInsertion::new(FIELD.into());
        let mut out = Vec::new();
        let mut done = None;
        for piece in pieces {
            match done {
                None => done = insertion.pass(piece, &mut out),
                Some(_) => out.extend_from_slice(piece),
            }
        }
        (String::from_utf8(out).unwrap(), done)
    }

    #[test]
    fn the_field_stands_behind_the_status_line() {
        let (out, done) = passed(&[b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"]);
        assert_eq!(out, format!("HTTP/1.1 200 OK\r\n{FIELD}Content-Length: 2\r\n\r\nok"));
        assert_eq!(done, Some(Insertion::Done));
    }

    #[test]
    fn an_interim_response_goes_on_at_once_and_the_final_one_gets_the_field() {
        let mut insertion = HeadInsertion::new(FIELD.into());
        let mut out = Vec::new();
        assert_eq!(insertion.pass(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2", &mut out), None);
        assert_eq!(out, b"HTTP/1.1 100 Continue\r\n\r\n");
        out.clear();
        assert_eq!(insertion.pass(b"00 OK\r\n\r\n", &mut out), Some(Insertion::Done));
        assert_eq!(out, format!("HTTP/1.1 200 OK\r\n{FIELD}\r\n").into_bytes());
    }

    #[test]
    fn empty_lines_before_the_status_line_stay_before_it() {
        let (out, done) = passed(&[b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\nok"]);
        assert_eq!(out, format!("\r\n\r\nHTTP/1.1 200 OK\r\n{FIELD}\r\nok"));
        assert_eq!(done, Some(Insertion::Done));
    }

    #[test]
    fn switching_protocols_is_a_final_response() {
        let (out, done) = passed(&[b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nframe"]);
        assert!(out.starts_with(&format!("HTTP/1.1 101 Switching Protocols\r\n{FIELD}Upgrade")), "{out}");
        assert_eq!(done, Some(Insertion::Done));
    }

    #[test]
    fn what_is_not_http_goes_on_as_it_is() {
        for text in ["hello\r\n\r\n", "<html>", "HTTP/2 200\r\n\r\n"] {
            assert_eq!(passed(&[text.as_bytes()]), (text.to_owned(), Some(Insertion::NoHead)));
        }
        let long = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(MAX_HEAD));
        assert_eq!(passed(&[long.as_bytes()]), (long.clone(), Some(Insertion::NoHead)));
    }

    #[test]
    fn a_response_that_ends_within_its_head_goes_on_as_it_is() {
        let mut insertion = HeadInsertion::new(FIELD.into());
        let mut out = Vec::new();
        assert_eq!(insertion.pass(b"HTTP/1.1 200 OK\r\nContent", &mut out), None);
        assert_eq!(insertion.give_up(&mut out), Insertion::NoHead);
        assert_eq!(out, b"HTTP/1.1 200 OK\r\nContent");
    }

    proptest! {
        #[test]
        fn however_a_response_is_cut_the_client_gets_the_same(cuts in proptest::collection::vec(0usize..90, 0..6)) {
            let response = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % response.len()).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&response[from..cut]);
                from = cut;
            }
            pieces.push(&response[from..]);
            prop_assert_eq!(passed(&pieces), passed(&[response.as_slice()]));
        }
    }
}
