//! What the daemon and the packet path share about Layer-4 listeners: services, instances, rings and flows.
//!
//! A *service* is a Layer-4 listener: a VIP with port and protocol. Each new flow of a service is placed by the kernel programs alone:
//! the client's address selects a *group* (by the rules, as a longest-prefix match), the group names a *ring* (a Maglev table), and
//! the ring names the *instance*. Everything that decides is built by the daemon off the packet path and put in force by one
//! write of one word.
//!
//! Indexes are stable: a service or an instance keeps its own as long as flows name it, also over a restart of the daemon.

mod course;
mod endpoint;
mod flow;
mod instance;
mod link;
mod placement;
mod service;
mod settings;
mod tunnel;

pub use course::Course;
pub use endpoint::{ENDPOINT_BUCKETS, Endpoint, EndpointBucket, Target};
pub use flow::{
    BUCKET_FLOWS, CLIENT_FIN, CLOSED, ESTABLISHED, Flow, FlowBucket, FlowId, INSTANCE_FIN, REPLIED,
    REPLY_REFS, RESET, ReplyBucket, TAG_BUSY, TAG_DEAD, TAG_LIVE, TAG_STATE, closed,
};
pub use instance::{Instance, TAKES_FLOWS, TAKES_RETURNING_CLIENTS, UNREACHABLE};
pub use link::Link;
pub use placement::{
    Affinity, AffinityKey, DENY, Group, NO_RING, NOBODY, NewFlows, RING_CHUNK, RingChunk, RuleKey, SILENT,
};
pub use service::{AFFINITY, ENDED, Mode, Service};
pub use settings::{Settings, TICK_SHIFT};
pub use tunnel::Tunnel;

/// Services at a time, those whose last flows have not ended included.
pub const MAX_SERVICES: u32 = 2_048;
/// Instances of services at a time; one per address, port and protocol.
pub const MAX_INSTANCES: u32 = 8_192;
/// Sets of instances that rules lead to.
pub const MAX_GROUPS: u32 = 1_024;
/// Interfaces of which something can be remembered, by their index.
pub const MAX_LINKS: u32 = 4_096;
