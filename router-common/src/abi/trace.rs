//! What a kernel program says of one packet when it is asked where the packet would go. Programs that carry real packets say nothing: for
//! them the question is a constant, and the kernel removes the answer.

use super::shared::Shared32;

/// A program's word for one packet. All 0 where it said nothing: the packet is not one of its own.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// A [`SaidVerdict`], or 0.
    pub verdict: Shared32,
    /// A [`PacketReason`](super::reason::PacketReason), by its number.
    pub reason: Shared32,
    /// The index of the interface by which the packet leaves, if it does.
    pub interface: Shared32,
    /// The index of the next hop, where the kernel is to find its link-layer address.
    pub next_hop: Shared32,
}

const _: () = assert!(size_of::<Said>() == 16);

/// What the program wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SaidVerdict {
    /// The next program takes it, then the stack.
    Pass = 1,
    Drop = 2,
    /// It leaves, its Ethernet header complete.
    Redirect = 3,
    /// It leaves, and the kernel finds its neighbour's link-layer address.
    Resolve = 4,
    /// What leaves is an error that tells its sender.
    Report = 5,
}

impl SaidVerdict {
    pub const fn of(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Pass),
            2 => Some(Self::Drop),
            3 => Some(Self::Redirect),
            4 => Some(Self::Resolve),
            5 => Some(Self::Report),
            _ => None,
        }
    }
}
