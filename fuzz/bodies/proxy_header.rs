//! Any bytes begin with a PROXY protocol header, with a part of one, or with none: alike in whatever pieces they come. What is read can
//! be written again and means the same.

use router::core::proxy_protocol::{HeaderError, MAX_HEADER, ProxyProtocol, is_header, read};

pub fn check(bytes: &[u8]) {
    let whole = read(bytes);
    let pieces = (0..=bytes.len()).map(|length| read(&bytes[..length]));
    let first = pieces.into_iter().find(|outcome| *outcome != Ok(None)).unwrap_or(Ok(None));
    assert_eq!(first, whole);
    match whole {
        Ok(Some(announced)) => {
            assert!(announced.length <= bytes.len() && announced.length <= MAX_HEADER);
            assert!(is_header(bytes));
            let Some((client, destination)) = announced.ends else { return };
            for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
                let written = version.header(client, destination);
                let again = read(&written).expect("it is a header").expect("it is whole");
                assert_eq!((again.length, again.ends), (written.len(), announced.ends));
            }
        }
        Ok(None) => assert!(bytes.len() < MAX_HEADER),
        Err(HeaderError::Missing) => assert!(!is_header(bytes)),
        Err(HeaderError::Malformed) => {}
    }
}
