//! What this route needs from its surroundings, beside the packet: the tables of `abi::balance`. The kernel programs implement it over BPF maps,
//! the host tests over plain memory.

use super::datagram::Datagram;
use super::place::{self, Placement};
use super::table::{self, ReplyKey};
use super::{Outcome, answer};
use crate::abi::balance::{
    Affinity, AffinityKey, Course, EndpointBucket, FlowBucket, FlowId, Group, Instance, Link, NewFlows,
    ReplyBucket, RingChunk, RuleKey, Service, Settings, Tunnel,
};
use crate::abi::next_hop::NextHop;
use crate::abi::shared::Shared32;
use crate::path::fragment::DatagramKey;

pub trait Tables {
    fn settings(&self) -> Option<&Settings>;
    fn endpoints(&self, bucket: u32) -> Option<&EndpointBucket>;
    fn service(&self, index: u32) -> Option<&Service>;
    fn instance(&self, index: u32) -> Option<&Instance>;
    fn tunnel(&self, index: u32) -> Option<&Tunnel>;
    fn group(&self, index: u32) -> Option<&Group>;
    fn ring(&self, chunk: u32) -> Option<&RingChunk>;
    fn flows(&self, bucket: u32) -> Option<&FlowBucket>;
    fn replies(&self, bucket: u32) -> Option<&ReplyBucket>;
    fn next_hop(&self, index: u32) -> Option<&NextHop>;

    /// The value of the longest prefix that holds the client.
    fn rule(&self, key: &RuleKey) -> Option<u32>;

    fn affinity(&self, key: &AffinityKey) -> Option<Affinity>;
    fn remember(&self, key: &AffinityKey, affinity: Affinity);

    /// Where the latest few thousand fragmented datagrams go.
    fn recall(&self, key: &DatagramKey) -> Option<Course>;
    fn note(&self, key: &DatagramKey, course: Course);

    /// The counter of this CPU.
    fn new_flows(&self) -> Option<&NewFlows>;

    fn link(&self, interface: u32) -> Option<&Link>;

    /// Whether packets can be sent to this instance from here.
    fn reaches(&self, _instance: u32) -> bool {
        true
    }

    /// Whether packets can be sent by this interface from here.
    fn sends_by(&self, _interface: u32) -> bool {
        true
    }

    /// Sets a word that is `old` to `new`; returns what it was. Everything written before is seen by whoever sees the new value.
    fn swap_if(&self, word: &Shared32, old: u32, new: u32) -> u32;

    /// Adds to a word that others add to at the same time.
    fn add(&self, word: &Shared32, count: u32);

    /// The same number, of which the kernel's verifier knows nothing any more: what follows is then one path for it, and not one for each value
    /// that the number may have.
    fn opaque(&self, number: u32) -> u32;

    /// Monotonic time in ticks, read from the clock.
    fn ticks(&self) -> u32;

    // Steps with many paths inside. The kernel programs make them functions which the verifier follows once, whoever calls them.

    /// See [`balance::target`](super::target).
    #[inline(always)]
    fn target(&self, address: &[u32; 4], port: u32) -> u32
    where
        Self: Sized,
    {
        super::target(self, address, port)
    }

    /// See [`table::flow_of`].
    #[inline(always)]
    fn flow_of(&self, client: &[u32; 4], origin: u32) -> Option<FlowId>
    where
        Self: Sized,
    {
        table::flow_of(self, client, origin)
    }

    /// See [`place::begin`].
    #[inline(always)]
    fn begin(&self, datagram: &Datagram, service: u32) -> Result<Placement, Outcome>
    where
        Self: Sized,
    {
        place::begin_apart(self, datagram, service)
    }

    /// See [`answer::find`].
    #[inline(always)]
    fn answered(&self, datagram: &Datagram, instance: u32) -> Option<FlowId>
    where
        Self: Sized,
    {
        answer::find(self, datagram, instance)
    }

    /// See [`table::claim`].
    #[inline(always)]
    fn claim(&self, hash: u64) -> Option<FlowId>
    where
        Self: Sized,
    {
        table::claim(self, hash)
    }

    /// See [`table::enter`].
    #[inline(always)]
    fn enter(&self, answers: &ReplyKey, id: FlowId) -> bool
    where
        Self: Sized,
    {
        table::enter(self, answers, id)
    }
}
