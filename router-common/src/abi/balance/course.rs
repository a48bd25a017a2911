//! Which way the fragments of a datagram go.

/// The way of a datagram whose first fragment was sent on.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    pub service: u32,
    pub instance: u32,
    /// A packed [`FlowId`](super::FlowId); 0 if the flow is not stored.
    pub flow: u32,
    /// 1 if the datagram is an answer.
    pub to_client: u32,
    /// When the first fragment came, in ticks.
    pub seen: u32,
}

#[cfg(feature = "user")]
mod user {
    use super::Course;

    // SAFETY: `repr(C)` without padding, any bit pattern is valid.
    unsafe impl aya::Pod for Course {}
}
