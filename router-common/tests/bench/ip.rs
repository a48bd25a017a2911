//! The two versions of IP: where things lie in a frame, and the ends of the bench's connection.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use router_common::wire::checksum;

const ETHERNET: usize = 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    V4,
    V6,
}

/// The four ends of a connection through the router.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub client: SocketAddr,
    pub vip: SocketAddr,
    pub source: SocketAddr,
    pub instance: SocketAddr,
}

impl Ip {
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// What the Ethernet header of a frame says.
    pub fn of(frame: &[u8]) -> Option<Self> {
        match frame.get(12..14)? {
            [0x08, 0x00] => Some(Self::V4),
            [0x86, 0xdd] => Some(Self::V6),
            _ => None,
        }
    }

    pub fn ethertype(self) -> [u8; 2] {
        match self {
            Self::V4 => [0x08, 0x00],
            Self::V6 => [0x86, 0xdd],
        }
    }

    /// Length of the IP header.
    pub fn header(self) -> usize {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }

    /// Bytes of one address.
    pub fn address(self) -> usize {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    /// Where the TCP header begins in a frame.
    pub fn tcp(self) -> usize {
        ETHERNET + self.header()
    }

    /// Where TCP's options begin, or its payload.
    pub fn options(self) -> usize {
        self.tcp() + 20
    }

    /// Source address and destination address.
    pub fn addresses(self) -> Range<usize> {
        self.tcp() - 2 * self.address()..self.tcp()
    }

    /// Time to live or hop limit.
    pub fn ttl(self) -> usize {
        match self {
            Self::V4 => 22,
            Self::V6 => 21,
        }
    }

    /// Protocol or next header.
    pub fn protocol(self) -> usize {
        match self {
            Self::V4 => 23,
            Self::V6 => 20,
        }
    }

    /// The header's field for the length of a datagram.
    pub fn length_field(self) -> Range<usize> {
        match self {
            Self::V4 => 16..18,
            Self::V6 => 18..20,
        }
    }

    /// What stands in that field for a datagram of this length.
    pub fn length_to_write(self, datagram: usize) -> [u8; 2] {
        let counted = match self {
            Self::V4 => datagram,
            Self::V6 => datagram - self.header(),
        };
        u16::try_from(counted).expect("the test's packet is short enough").to_be_bytes()
    }

    /// Length of the datagram as the header says it; `None` where it stands for more than the field can say.
    pub fn length_of(self, frame: &[u8]) -> Option<usize> {
        let field = &frame[self.length_field()];
        match usize::from(u16::from_be_bytes([field[0], field[1]])) {
            0 => None,
            length if self == Self::V4 => Some(length),
            length => Some(self.header() + length),
        }
    }

    /// The complement of the header's sum: 0 where its checksum holds, or where there is none.
    pub fn header_error(self, frame: &[u8]) -> u16 {
        match self {
            Self::V4 => checksum::full(&frame[ETHERNET..self.tcp()], 0),
            Self::V6 => 0,
        }
    }

    /// A router between the bench's client and the gateway, or between that and the instance.
    pub fn router(self) -> IpAddr {
        match self {
            Self::V4 => [10, 77, 9, 9].into(),
            Self::V6 => [0xfd77, 9, 0, 0, 0, 0, 0, 9].into(),
        }
    }

    /// The connection that the bench's flow carries.
    pub fn ends(self) -> Ends {
        let ends = match self {
            Self::V4 => ["10.77.1.2:40000", "10.77.1.10:80", "10.77.2.1:20000", "10.77.2.11:80"],
            Self::V6 => ["[fd77:1::2]:40000", "[fd77:1::10]:80", "[fd77:2::1]:20000", "[fd77:2::11]:80"],
        };
        let [client, vip, source, instance] = ends.map(|end| end.parse().expect("an address"));
        Ends { client, vip, source, instance }
    }
}
