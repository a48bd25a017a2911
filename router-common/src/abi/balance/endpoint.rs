//! Which addresses and ports belong to Layer-4 listeners, and which to their instances.

use crate::abi::shared::Shared32;

/// Buckets of one table. There are two tables: one in force, one to be built.
pub const ENDPOINT_BUCKETS: u32 = 8_192;

/// An address, port and protocol that means something to the packet path.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Endpoint {
    /// Network byte order; IPv4 uses the first word.
    pub address: [Shared32; 4],
    /// The port as it lies in the packet in the low half, the IANA protocol number in bits 16–23, and
    /// bit 24 for IPv6. 0 marks an unused entry.
    pub port: Shared32,
    /// A packed [`Target`].
    pub target: Shared32,
    pub reserved: [Shared32; 2],
}

/// What an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Packets to it come from clients of this service.
    Service(u32),
    /// Packets from it may be answers of this instance.
    Instance(u32),
    /// A VIP itself, under its family's protocol number of ICMP and port 0: whether echo requests are answered.
    Vip { echo: bool },
}

impl Target {
    const INSTANCE: u32 = 1 << 31;
    const VIP: u32 = 1 << 30;
    /// Packed: nothing. No service has the index 0.
    pub const NONE: u32 = 0;

    #[inline(always)]
    pub const fn pack(self) -> u32 {
        match self {
            Self::Service(index) => index,
            Self::Instance(index) => index | Self::INSTANCE,
            Self::Vip { echo } => Self::VIP | echo as u32,
        }
    }

    #[inline(always)]
    pub const fn unpack(word: u32) -> Option<Self> {
        if word == Self::NONE {
            None
        } else if word & Self::INSTANCE != 0 {
            Some(Self::Instance(word & !Self::INSTANCE))
        } else if word & Self::VIP != 0 {
            Some(Self::Vip { echo: word & 1 != 0 })
        } else {
            Some(Self::Service(word))
        }
    }
}

impl Endpoint {
    /// In `port`: the address and the protocol are a service's, whatever the port.
    pub const ANY_PORT: u32 = 1 << 25;
    /// In `port`: the address is of IPv6.
    pub const IPV6: u32 = 1 << 24;

    /// What `port` holds for a port as it lies in the packet.
    #[inline(always)]
    pub const fn pack_port(port: u16, protocol: u8, is_ipv6: bool) -> u32 {
        port as u32 | (protocol as u32) << 16 | if is_ipv6 { Self::IPV6 } else { 0 }
    }
}

/// The endpoints with one hash. The daemon chooses a seed by which no bucket overflows.
#[repr(C, align(128))]
#[derive(Clone, Debug, Default)]
pub struct EndpointBucket {
    pub endpoints: [Endpoint; 4],
}

const _: () = assert!(size_of::<Endpoint>() == 32);
const _: () = assert!(size_of::<EndpointBucket>() == 128);
