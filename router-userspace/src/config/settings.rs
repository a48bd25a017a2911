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
    /// The best place that this version knows, which is TC.
    Auto,
    /// TC ingress and egress, by TCX (Linux 6.6).
    Tc,
}

pub use crate::core::request::Protocol;

/// Whose address instances see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The router's own.
    Snat,
}

/// When a connection leaves user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Relayed first, handed off once that pays.
    Auto,
    /// Handed off with the first request.
    Handoff,
    /// Never handed off.
    Relay,
}
