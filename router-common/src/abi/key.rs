//! The tuple under which a packet finds its flow.

/// An IPv4 packet's tuple as received. All numbers are in network byte order, exactly as they lie in the packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    pub source: u32,
    pub destination: u32,
    pub source_port: u16,
    pub destination_port: u16,
    /// IANA protocol number.
    pub protocol: u8,
    pub zero: [u8; 3],
}

const _: () = assert!(size_of::<FlowKey>() == 16);

impl FlowKey {
    /// The tuple of packets in the other direction.
    #[inline(always)]
    pub const fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..self
        }
    }
}

/// Which of a flow's two senders a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Side {
    /// The packet comes from the client.
    Client = 0,
    /// The packet comes from the instance.
    Instance = 1,
}

/// What the key map stores: the slot in the flow array and the sender's side.
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
mod user {
    use super::{FlowKey, FlowRef};
    use std::net::{Ipv4Addr, SocketAddrV4};

    // SAFETY: `repr(C)` without padding, any bit pattern is valid.
    unsafe impl aya::Pod for FlowKey {}
    // SAFETY: `repr(transparent)` over u32.
    unsafe impl aya::Pod for FlowRef {}

    impl FlowKey {
        /// The key of TCP packets from `source` to `destination`.
        pub fn tcp(source: SocketAddrV4, destination: SocketAddrV4) -> Self {
            Self {
                source: u32::from_ne_bytes(source.ip().octets()),
                destination: u32::from_ne_bytes(destination.ip().octets()),
                source_port: source.port().to_be(),
                destination_port: destination.port().to_be(),
                protocol: 6,
                zero: [0; 3],
            }
        }

        /// Where packets with this key come from.
        pub fn source(&self) -> SocketAddrV4 {
            SocketAddrV4::new(Ipv4Addr::from(self.source.to_ne_bytes()), u16::from_be(self.source_port))
        }

        /// Where packets with this key are addressed to.
        pub fn destination(&self) -> SocketAddrV4 {
            let address = Ipv4Addr::from(self.destination.to_ne_bytes());
            SocketAddrV4::new(address, u16::from_be(self.destination_port))
        }
    }

    impl std::fmt::Display for FlowKey {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{} → {}", self.source(), self.destination())
        }
    }
}
