//! PROXY protocol, versions 1 and 2: how a proxy tells whoever is behind it where a connection comes from and where it went to.
//!
//! The specification is HAProxy's `proxy-protocol.txt`. A header is the first thing on a connection, and there is one. What it announces
//! is believed from proxies that are known only; that is for the reader's caller to see to.

use std::net::{IpAddr, SocketAddr};

use ppp::v2::{Addresses, Builder, Command, Protocol, Version};
use ppp::{v1, v2};

/// The longest header that is read, in bytes; the specification allows 65,551.
pub const MAX_HEADER: usize = 4_096;

/// The signature of version 2, which no text protocol begins with.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The signature, the command, the family, and the length of what follows.
const V2_FIXED: usize = 16;
const V1_PREFIX: &[u8] = b"PROXY ";
/// The longest line of version 1, with its end.
const V1_MAX: usize = 107;

/// The type of the checksum among the values behind the addresses; type and length take three bytes.
const CRC32C: u8 = 3;
const TLV_FIXED: usize = 3;

/// How headers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// One line of text.
    V1,
    /// Binary.
    V2,
}

/// A header that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Bytes of the header.
    pub length: usize,
    /// Client and destination; `None` if the connection is the proxy's own, or of a kind that has no addresses here.
    pub ends: Option<(SocketAddr, SocketAddr)>,
}

/// Why there is no header that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("the connection begins without a PROXY protocol header")]
    Missing,
    #[error("the PROXY protocol header is malformed or longer than 4096 bytes")]
    Malformed,
}

impl ProxyProtocol {
    /// The name used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }

    /// The header of a connection that `client` made to `destination`.
    pub fn header(self, client: SocketAddr, destination: SocketAddr) -> Vec<u8> {
        let ends = of_one_family(client, destination);
        match self {
            Self::V1 => v1::Addresses::from(ends).to_string().into_bytes(),
            Self::V2 => Builder::with_addresses(Version::Two | Command::Proxy, Protocol::Stream, ends)
                .build()
                .expect("addresses are shorter than any limit"),
        }
    }

    /// The header of a connection that is the router's own, such as a check's.
    pub fn own(self) -> Vec<u8> {
        match self {
            Self::V1 => b"PROXY UNKNOWN\r\n".to_vec(),
            Self::V2 => Builder::with_addresses(
                Version::Two | Command::Local,
                Protocol::Unspecified,
                Addresses::Unspecified,
            )
            .build()
            .expect("nothing is shorter than any limit"),
        }
    }
}

/// The wire has one family for both ends.
fn of_one_family(client: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    if client.is_ipv4() == destination.is_ipv4() {
        (client, destination)
    } else {
        (mapped(client), mapped(destination))
    }
}

/// Whether a connection begins with a header, as far as `bytes` show.
pub fn is_header(bytes: &[u8]) -> bool {
    let v1 = ["TCP4 ", "TCP6 ", "UNKNOWN"].map(str::as_bytes);
    bytes.starts_with(SIGNATURE)
        || bytes.strip_prefix(V1_PREFIX).is_some_and(|rest| v1.iter().any(|kind| rest.starts_with(kind)))
}

/// Reads the header from everything received so far; `None` while its end is missing.
pub fn read(bytes: &[u8]) -> Result<Option<Announced>, HeaderError> {
    let begins_with = |start: &[u8]| bytes.iter().zip(start).all(|(byte, wanted)| byte == wanted);
    if begins_with(SIGNATURE) {
        return read_v2(bytes);
    }
    if begins_with(V1_PREFIX) {
        return read_v1(bytes);
    }
    Err(HeaderError::Missing)
}

fn read_v1(bytes: &[u8]) -> Result<Option<Announced>, HeaderError> {
    let line = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        return if line.len() == V1_MAX { Err(HeaderError::Malformed) } else { Ok(None) };
    };
    let length = end + 2;
    let header = v1::Header::try_from(&line[..length]).map_err(|_| HeaderError::Malformed)?;
    let ends = match header.addresses {
        v1::Addresses::Unknown => None,
        v1::Addresses::Tcp4(ends) => Some((
            SocketAddr::new(ends.source_address.into(), ends.source_port),
            SocketAddr::new(ends.destination_address.into(), ends.destination_port),
        )),
        v1::Addresses::Tcp6(ends) => Some((
            SocketAddr::new(ends.source_address.into(), ends.source_port),
            SocketAddr::new(ends.destination_address.into(), ends.destination_port),
        )),
    };
    Ok(Some(Announced { length, ends: ends.map(canonical) }))
}

fn read_v2(bytes: &[u8]) -> Result<Option<Announced>, HeaderError> {
    let Some(fixed) = bytes.first_chunk::<V2_FIXED>() else { return Ok(None) };
    let length = V2_FIXED + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if length > MAX_HEADER {
        return Err(HeaderError::Malformed);
    }
    let Some(whole) = bytes.get(..length) else { return Ok(None) };
    let header = v2::Header::try_from(whole).map_err(|_| HeaderError::Malformed)?;
    let values = whole.len() - header.tlv_bytes().len();
    if !values_are_sound(whole, values) {
        return Err(HeaderError::Malformed);
    }
    let ends = match (header.command, header.protocol, header.addresses) {
        (Command::Local, ..) => None,
        // Datagrams did not come this way.
        (Command::Proxy, Protocol::Datagram, _) => return Err(HeaderError::Malformed),
        (Command::Proxy, Protocol::Stream, Addresses::IPv4(ends)) => Some((
            SocketAddr::new(ends.source_address.into(), ends.source_port),
            SocketAddr::new(ends.destination_address.into(), ends.destination_port),
        )),
        (Command::Proxy, Protocol::Stream, Addresses::IPv6(ends)) => Some((
            SocketAddr::new(ends.source_address.into(), ends.source_port),
            SocketAddr::new(ends.destination_address.into(), ends.destination_port),
        )),
        // Unix sockets, and kinds that are not said: the specification has them ignored.
        (Command::Proxy, ..) => None,
    };
    Ok(Some(Announced { length, ends: ends.map(canonical) }))
}

/// Whether the values behind the addresses, which begin at `start`, add up, and a checksum among them is right.
fn values_are_sound(header: &[u8], start: usize) -> bool {
    let mut at = start;
    while at < header.len() {
        let Some(&[kind, high, low]) = header[at..].first_chunk::<TLV_FIXED>() else { return false };
        let value = at + TLV_FIXED;
        let end = value + usize::from(u16::from_be_bytes([high, low]));
        let Some(sent) = header.get(value..end) else { return false };
        if kind == CRC32C {
            // It is of the header with zeros in its own place.
            let before = crc32c::crc32c(&header[..value]);
            let with_zeros = crc32c::crc32c_append(before, &[0; 4]);
            let computed = crc32c::crc32c_append(with_zeros, &header[end..]);
            if sent != computed.to_be_bytes() {
                return false;
            }
        }
        at = end;
    }
    true
}

/// Rules compare addresses, of which an IPv4 one has one form.
fn canonical((client, destination): (SocketAddr, SocketAddr)) -> (SocketAddr, SocketAddr) {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    (canonical(client), canonical(destination))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn v2_header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [SIGNATURE, &[command, family], &length, rest].concat()
    }

    const V4: [u8; 12] = [10, 0, 0, 1, 10, 0, 0, 2, 0x1f, 0x90, 0, 80];

    fn ends(client: &str, destination: &str) -> Option<(SocketAddr, SocketAddr)> {
        Some((client.parse().unwrap(), destination.parse().unwrap()))
    }

    #[test]
    fn lines_of_text_are_read_to_their_end() {
        let read = |text: &str| read(text.as_bytes());
        let line = "PROXY TCP4 10.0.0.1 10.0.0.2 8080 80\r\n";
        let announced = Announced { length: line.len(), ends: ends("10.0.0.1:8080", "10.0.0.2:80") };
        assert_eq!(read(&format!("{line}GET / HTTP/1.1\r\n")), Ok(Some(announced)));
        let v6 = "PROXY TCP6 2001:db8::1 ::ffff:10.0.0.2 1 2\r\n";
        assert_eq!(read(v6).unwrap().unwrap().ends, ends("[2001:db8::1]:1", "10.0.0.2:2"));
        assert_eq!(read("PROXY UNKNOWN\r\n"), Ok(Some(Announced { length: 15, ends: None })));
        let with_rest = "PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n";
        assert_eq!(read(with_rest), Ok(Some(Announced { length: with_rest.len(), ends: None })));
        for odd in [
            "PROXY TCP4 10.0.0.1 10.0.0.2 8080\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.2 8080 80 \r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.2 65536 80\r\n",
            "PROXY TCP4 10.0.0.1 10.0.0.2 080 80\r\n",
            "PROXY TCP4 2001:db8::1 10.0.0.2 1 80\r\n",
            "PROXY TCP4  10.0.0.1 10.0.0.2 1 80\r\n",
            "PROXY TCP5 10.0.0.1 10.0.0.2 1 80\r\n",
            "PROXY \r\n",
        ] {
            assert_eq!(read(odd), Err(HeaderError::Malformed), "{odd:?}");
        }
        assert_eq!(read(&format!("PROXY UNKNOWN {}\r\n", "x".repeat(100))), Err(HeaderError::Malformed));
        assert_eq!(read("GET / HTTP/1.1\r\n"), Err(HeaderError::Missing));
        assert_eq!(read("PROPFIND / HTTP/1.1\r\n"), Err(HeaderError::Missing));
        assert_eq!(read("\r\nGET"), Err(HeaderError::Missing));
    }

    #[test]
    fn binary_headers_keep_their_word_about_lengths() {
        let whole = v2_header(0x21, 0x11, &V4);
        let announced = Announced { length: 28, ends: ends("10.0.0.1:8080", "10.0.0.2:80") };
        assert_eq!(read(&whole), Ok(Some(announced)));
        let with_values = v2_header(0x21, 0x11, &[&V4[..], &[4, 0, 2, 1, 2, 0x30, 0, 0]].concat());
        assert_eq!(read(&with_values).unwrap().unwrap().ends, announced.ends);
        for (what, lying) in [
            ("shorter than its addresses", v2_header(0x21, 0x11, &V4[..11])),
            ("shorter than IPv6", v2_header(0x21, 0x21, &V4)),
            ("a value beyond the end", v2_header(0x21, 0x11, &[&V4[..], &[4, 0, 3, 1, 2]].concat())),
            ("a value cut off", v2_header(0x21, 0x11, &[&V4[..], &[4, 0]].concat())),
            ("longer than any", [&whole[..14], &[0xff, 0xff]].concat()),
            ("of another version", v2_header(0x11, 0x11, &V4)),
            ("of another command", v2_header(0x22, 0x11, &V4)),
            ("of datagrams", v2_header(0x21, 0x12, &V4)),
            ("of another family", v2_header(0x21, 0x41, &V4)),
        ] {
            assert_eq!(read(&lying), Err(HeaderError::Malformed), "{what}");
        }
    }

    #[test]
    fn what_has_no_addresses_announces_nobody() {
        for (what, bytes) in [
            ("local", v2_header(0x20, 0, &[])),
            ("local with addresses", v2_header(0x20, 0x11, &V4)),
            ("unspecified", v2_header(0x21, 0, &[])),
            ("unspecified with more", v2_header(0x21, 0, &[0x30, 0, 1, 9])),
            ("a Unix socket", v2_header(0x21, 0x31, &[0; 216])),
        ] {
            assert_eq!(read(&bytes), Ok(Some(Announced { length: bytes.len(), ends: None })), "{what}");
        }
        for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
            let own = version.own();
            assert_eq!(read(&own), Ok(Some(Announced { length: own.len(), ends: None })));
        }
    }

    #[test]
    fn a_checksum_must_be_right() {
        let mut header = v2_header(0x21, 0x11, &[&V4[..], &[3, 0, 4, 0, 0, 0, 0, 4, 0, 1, 7]].concat());
        let sum = crc32c::crc32c(&header);
        header[31..35].copy_from_slice(&sum.to_be_bytes());
        assert!(read(&header).unwrap().is_some());
        header[20] ^= 1;
        assert_eq!(read(&header), Err(HeaderError::Malformed));
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        any::<(IpAddr, u16)>().prop_map(|(ip, port)| SocketAddr::new(ip.to_canonical(), port))
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_in_whatever_pieces_it_comes(
            client in address(),
            destination in address(),
            binary: bool,
            behind in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let version = if binary { ProxyProtocol::V2 } else { ProxyProtocol::V1 };
            let header = version.header(client, destination);
            prop_assert!(is_header(&header));
            for length in 0..header.len() {
                prop_assert_eq!(read(&header[..length]), Ok(None));
            }
            let announced = Announced { length: header.len(), ends: Some((client, destination)) };
            prop_assert_eq!(read(&[&header[..], &behind].concat()), Ok(Some(announced)));
        }

        #[test]
        fn any_bytes_are_a_header_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200), start in 0usize..3) {
            let bytes = [[&b""[..], SIGNATURE, V1_PREFIX][start], &bytes].concat();
            if let Ok(Some(announced)) = read(&bytes) {
                prop_assert!(announced.length <= bytes.len());
            }
        }
    }
}
