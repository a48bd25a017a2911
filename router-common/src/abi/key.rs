//! The tuple under which a packet finds its flow.

/// An IPv4 packet's tuple as received. All numbers are in network byte order, exactly as they lie in the packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKeyV4 {
    pub source: u32,
    pub destination: u32,
    pub source_port: u16,
    pub destination_port: u16,
    /// IANA protocol number.
    pub protocol: u8,
    pub zero: [u8; 3],
}

/// The same of an IPv6 packet. In a map of its own, so that the look-up of the shorter keys stays as short as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKeyV6 {
    pub source: [u32; 4],
    pub destination: [u32; 4],
    pub source_port: u16,
    pub destination_port: u16,
    /// IANA protocol number.
    pub protocol: u8,
    pub zero: [u8; 3],
}

const _: () = assert!(size_of::<FlowKeyV4>() == 16);
const _: () = assert!(size_of::<FlowKeyV6>() == 40);

/// A key of either family.
pub trait Reversible: Copy {
    /// The tuple of packets in the other direction.
    fn reversed(self) -> Self;
}

macro_rules! reversible {
    ($($key:ident)*) => { $(
        impl Reversible for $key {
            #[inline(always)]
            fn reversed(self) -> Self {
                Self {
                    source: self.destination,
                    destination: self.source,
                    source_port: self.destination_port,
                    destination_port: self.source_port,
                    ..self
                }
            }
        }
    )* };
}

reversible!(FlowKeyV4 FlowKeyV6);

/// Which of a flow's two senders a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Side {
    /// The packet comes from the client.
    Client = 0,
    /// The packet comes from the instance.
    Instance = 1,
}

/// What the key maps store: the slot in the flow array and the sender's side.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowRef(pub u32);

impl FlowRef {
    pub const fn new(slot: u32, side: Side) -> Self {
        Self(slot << 1 | side as u32)
    }

    pub const fn slot(self) -> u32 {
        self.0 >> 1
    }

    pub const fn side(self) -> Side {
        if self.0 & 1 == 0 { Side::Client } else { Side::Instance }
    }
}

#[cfg(feature = "user")]
pub use user::{FlowKey, address_of, words_of};

#[cfg(feature = "user")]
mod user {
    use super::{FlowKeyV4, FlowKeyV6, FlowRef};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    // SAFETY: `repr(C)` without padding, any bit pattern is valid.
    unsafe impl aya::Pod for FlowKeyV4 {}
    // SAFETY: as above.
    unsafe impl aya::Pod for FlowKeyV6 {}
    // SAFETY: `repr(transparent)` over u32.
    unsafe impl aya::Pod for FlowRef {}

    /// A key of either family.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum FlowKey {
        V4(FlowKeyV4),
        V6(FlowKeyV6),
    }

    /// An address as it lies in a packet; IPv4 uses the first word, and the others are 0.
    pub fn words_of(address: IpAddr) -> [u32; 4] {
        match address {
            IpAddr::V4(address) => [u32::from_ne_bytes(address.octets()), 0, 0, 0],
            IpAddr::V6(address) => {
                let bytes = address.octets();
                [0, 4, 8, 12]
                    .map(|at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
            }
        }
    }

    /// The IPv6 address whose words lie like this in a packet, or the IPv4 address of the first of them.
    pub fn address_of(words: [u32; 4], is_ipv6: bool) -> IpAddr {
        let [first, second, third, fourth] = words.map(u32::to_ne_bytes);
        if !is_ipv6 {
            return Ipv4Addr::from(first).into();
        }
        let mut bytes = [0; 16];
        for (place, word) in bytes.chunks_exact_mut(4).zip([first, second, third, fourth]) {
            place.copy_from_slice(&word);
        }
        Ipv6Addr::from(bytes).into()
    }

    impl FlowKey {
        /// The key of TCP packets from `source` to `destination`; `None` if one is IPv4 and the other IPv6.
        pub fn tcp(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
            let (source_port, destination_port) = (source.port().to_be(), destination.port().to_be());
            let (protocol, zero) = (6, [0; 3]);
            let words = [source, destination].map(|address| words_of(address.ip()));
            match (source, destination) {
                (SocketAddr::V4(_), SocketAddr::V4(_)) => {
                    let [source, destination] = words.map(|[first, ..]| first);
                    Some(Self::V4(FlowKeyV4 {
                        source,
                        destination,
                        source_port,
                        destination_port,
                        protocol,
                        zero,
                    }))
                }
                (SocketAddr::V6(_), SocketAddr::V6(_)) => {
                    let [source, destination] = words;
                    Some(Self::V6(FlowKeyV6 {
                        source,
                        destination,
                        source_port,
                        destination_port,
                        protocol,
                        zero,
                    }))
                }
                _ => None,
            }
        }

        /// Where packets with this key come from.
        pub fn source(&self) -> SocketAddr {
            let (words, port) = match self {
                Self::V4(key) => ([key.source, 0, 0, 0], key.source_port),
                Self::V6(key) => (key.source, key.source_port),
            };
            SocketAddr::new(address_of(words, matches!(self, Self::V6(_))), u16::from_be(port))
        }

        /// Where packets with this key are addressed to.
        pub fn destination(&self) -> SocketAddr {
            let (words, port) = match self {
                Self::V4(key) => ([key.destination, 0, 0, 0], key.destination_port),
                Self::V6(key) => (key.destination, key.destination_port),
            };
            SocketAddr::new(address_of(words, matches!(self, Self::V6(_))), u16::from_be(port))
        }
    }

    impl From<FlowKeyV4> for FlowKey {
        fn from(key: FlowKeyV4) -> Self {
            Self::V4(key)
        }
    }

    impl From<FlowKeyV6> for FlowKey {
        fn from(key: FlowKeyV6) -> Self {
            Self::V6(key)
        }
    }

    impl std::fmt::Display for FlowKey {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{} → {}", self.source(), self.destination())
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_key_reads_back_in_either_family_and_mixed_there_is_none() {
            let parse = |text: &str| -> SocketAddr { text.parse().unwrap() };
            for (source, destination) in
                [("10.77.1.2:40000", "10.77.1.10:80"), ("[fd77:1::2]:40000", "[fd77:1::10]:80")]
            {
                let key = FlowKey::tcp(parse(source), parse(destination)).unwrap();
                assert_eq!((key.source(), key.destination()), (parse(source), parse(destination)));
            }
            assert_eq!(FlowKey::tcp(parse("10.77.1.2:40000"), parse("[fd77:1::10]:80")), None);
        }
    }
}
