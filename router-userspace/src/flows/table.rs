//! The flow table as the rest of the daemon sees it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use router_common::abi::reason::RelayReason;

use crate::core::session::Session;
use crate::flows::ports::PortLease;
use crate::flows::xdp::Attachment;

/// The two sockets of a relayed connection at a moment when the daemon holds no byte of either
/// direction in user space, and what must still be sent once the flow entries exist.
#[derive(Debug)]
pub struct Handoff {
    /// The accepted socket: client ↔ VIP.
    pub client: OwnedFd,
    /// The connected socket: our source address ↔ instance.
    pub instance: OwnedFd,
    /// How many bytes of the head the daemon has read from the client socket and not sent: all of `to_instance`
    /// but its surplus replaces them. In mid-stream 0, with `to_instance` all surplus: the client's latest bytes,
    /// read and not yet sent (often none).
    pub consumed_head_len: usize,
    /// The rewritten head and any surplus that was read behind it, to be sent to the instance
    /// after the flow entries exist.
    pub to_instance: Vec<u8>,
    /// How many bytes of `to_instance` are surplus behind the head (they are unchanged client bytes).
    pub surplus_len: usize,
    /// The router's port that `instance` is bound to; returns to its queue when the flow ends. `None` if
    /// the kernel chose the port.
    pub source_port: Option<PortLease>,
    /// Ends when the flow ends.
    pub session: Session,
    /// The rule that selected the pool, for `routerctl flows`.
    pub rule: String,
}

/// What a client's connection agreed in its SYN. Both connections of a flow need the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    pub timestamps: bool,
    pub sack: bool,
    pub window_scaling: bool,
    pub ecn: bool,
}

/// One live flow as shown to operators.
#[derive(Clone, Debug)]
pub struct FlowInfo {
    /// Slot in the flow array; unique while the flow lives.
    pub id: u32,
    pub client: SocketAddr,
    pub vip: SocketAddr,
    pub source: SocketAddr,
    pub instance: SocketAddr,
    /// Rule name; empty for a flow adopted from an earlier daemon.
    pub rule: String,
    pub age: Duration,
    pub idle: Duration,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// `None` for Layer-4 flows, of which only bytes are counted.
    pub packets_to_instance: Option<u64>,
    pub bytes_to_instance: u64,
    pub packets_to_client: Option<u64>,
    /// With direct server return 0: these do not pass here.
    pub bytes_to_client: u64,
    /// `custody` (sockets still open), `direct`, `closing` (FIN or RST seen).
    pub state: FlowState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    Custody,
    Direct,
    Closing,
}

/// The flows of Layer-4 listeners, as the control socket reads them.
pub trait Layer4Flows: Send + Sync {
    /// Stored flows, in no particular order.
    fn flows(&self) -> Vec<FlowInfo>;

    /// Number of stored flows.
    fn count(&self) -> usize;

    /// Flows that the table is made for; 0 without Layer-4 listeners.
    fn capacity(&self) -> usize;

    /// Instances that no route leads to: no flow is placed there.
    fn unroutable(&self) -> Vec<SocketAddr>;
}

/// What the proxy hands connections to, and what the control socket reads.
pub trait FlowTable: Send + Sync {
    /// Takes over a connection: inserts both entries, sends `to_instance`, and closes the sockets silently
    /// once nothing is in custody. On refusal everything comes back
    /// unharmed and no byte has been sent, so the caller relays and counts the reason.
    #[expect(clippy::result_large_err, reason = "a refusal gives everything back")]
    fn hand_off(&self, handoff: Handoff) -> Result<(), (RelayReason, Handoff)>;

    /// A connection from `source` to `instance` is about to be opened for a client's connection with these options.
    /// Whatever must be arranged so that both can become one flow, is arranged now.
    fn prepare(&self, client: TcpOptions, source: SocketAddr, instance: SocketAddr);

    /// A port on a client's address for a connection to an instance in its name, whose packets then come to this host's socket. `None` if there is none.
    fn claim(&self, _client: IpAddr, _instance: SocketAddr) -> Option<PortLease> {
        None
    }

    /// Live flows, in no particular order.
    fn flows(&self) -> Vec<FlowInfo>;

    /// Number of live flows.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Greatest number of flows.
    fn capacity(&self) -> usize;

    /// Where the interfaces' packets are met, and why; empty without kernel programs.
    fn attachments(&self) -> Vec<Attachment> {
        Vec::new()
    }

    /// Frames that XDP has met, by what it did with them: (reason name, frames).
    fn xdp_frames(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Packets and bytes by verdict and reason, as the kernel counted them: (reason name, packets).
    fn counters(&self) -> Vec<(&'static str, u64)>;
}
