//! The choices that the configuration offers beside the core's own.

/// Which interfaces get the packet path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interfaces {
    /// Those that carry listeners and those that lead to instances.
    Auto,
    Named(Vec<String>),
}

/// Where the packet path is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// XDP where the driver has it and nothing speaks for TC, else TC.
    Auto,
    /// XDP, in the driver or else in the kernel's general code; TC gets what XDP leaves.
    Xdp,
    /// TC ingress and egress, by TCX (Linux 6.6).
    Tc,
}

pub use crate::core::request::Protocol;

/// Whose address instances see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The router's own.
    Snat,
    /// The client's; answers come back through this host.
    Transparent,
    /// The client's, in a packet that is still addressed to the VIP; the instance answers the client directly.
    DsrL2,
    /// The same, wrapped in another IP header.
    DsrIpip,
}

impl Source {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Snat => "snat",
            Self::Transparent => "transparent",
            Self::DsrL2 => "dsr-l2",
            Self::DsrIpip => "dsr-ipip",
        }
    }

    /// Whether instances answer clients directly, from the VIP.
    pub fn is_direct_return(self) -> bool {
        matches!(self, Self::DsrL2 | Self::DsrIpip)
    }
}

/// When a connection leaves user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Relayed first, handed off once that pays.
    Auto,
    /// Bound without a socket where the first packet tells enough, else as with `Auto`.
    Bind,
    /// Handed off with the first request.
    Handoff,
    /// Never handed off.
    Relay,
}

/// When the tables of Layer-4 listeners are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer4Tables {
    /// When the daemon starts with such a listener.
    Auto,
    /// Whenever it starts, so that the first such listener may come by a reload.
    Always,
}
