//! Layer-4 listeners.

use crate::abi::shared::Shared32;

/// The listener is gone from the configuration: its flows go on, and no new ones begin.
pub const ENDED: u32 = 1 << 0;
/// A client that comes back within `affinity_idle` goes to the instance that it had.
pub const AFFINITY: u32 = 1 << 1;

/// How packets travel to instances and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Full NAT: the instance sees the router's address and port.
    Snat = 1,
    /// The instance sees the client's address, and its answers come back through this host.
    Transparent = 2,
    /// Only the Ethernet addresses change; the instance answers the client directly.
    DsrL2 = 3,
    /// The packet is wrapped in another IP header (RFC 2003); the instance answers the client directly.
    DsrIpip = 4,
}

impl Mode {
    #[inline(always)]
    pub const fn of(word: u32) -> Option<Self> {
        match word {
            1 => Some(Self::Snat),
            2 => Some(Self::Transparent),
            3 => Some(Self::DsrL2),
            4 => Some(Self::DsrIpip),
            _ => None,
        }
    }

    /// Whether answers pass through this host, and must be translated by the flow.
    #[inline(always)]
    pub const fn sees_answers(self) -> bool {
        matches!(self, Self::Snat | Self::Transparent)
    }
}

/// One Layer-4 listener. Written by the daemon only.
#[repr(C, align(64))]
#[derive(Clone, Debug, Default)]
pub struct Service {
    /// The VIP, network byte order; IPv4 uses the first word.
    pub address: [Shared32; 4],
    /// As [`Endpoint::port`](super::Endpoint::port); 0 marks an unused entry.
    pub port: Shared32,
    /// A [`Mode`].
    pub mode: Shared32,
    /// [`ENDED`] and [`AFFINITY`].
    pub flags: Shared32,
    /// The set of rules in force, as [`RuleKey::set`](super::RuleKey::set); 0 if there are none.
    pub rules: Shared32,
    /// The group of clients that no rule names.
    pub group: Shared32,
    /// How long a client is remembered, in ticks.
    pub affinity_idle: Shared32,
    pub reserved: [Shared32; 6],
}

const _: () = assert!(size_of::<Service>() == 64);
