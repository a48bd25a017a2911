//! What delayed binding needs from its surroundings, beyond what the packet's route does.

use core::ops::Range;

use super::super::family::Family;
use super::super::ports::{Clock, Flows, Keys, Packet};
use crate::abi::binding::{BindingSettings, BoundEndpoint, BoundListener, Embryo, Stash};

/// What a host's stack has for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// Nothing, or a socket that listens.
    None,
    /// A memory of one that has ended (TIME-WAIT), which a new connection may replace.
    Ended,
    Live,
}

/// The tables of delayed binding, for packets `P` of family `I`.
pub trait Bindings<I: Family, P: Packet>: Flows + Keys<I::Key> + Clock {
    fn settings(&self) -> Option<&BindingSettings>;

    /// The number of the processor that meets the packet.
    fn processor(&self) -> u32;

    fn listener(&self, endpoint: &BoundEndpoint) -> Option<BoundListener>;

    fn embryo(&self, key: &I::Key) -> Option<Embryo>;

    /// Replaces the one of this tuple; the oldest ones are forgotten where there are too many.
    fn remember_embryo(&self, key: &I::Key, embryo: &Embryo);

    fn stash(&self, index: u32) -> Option<&Stash>;

    /// The sequence number that answers this SYN, whose TCP header has so many bytes.
    fn cookie(&self, packet: &P, header_len: usize) -> Option<u32>;

    /// Whether this packet acknowledges a cookie of the last minutes.
    fn acknowledges_cookie(&self, packet: &P) -> bool;

    /// What this host's stack has for the packet's connection.
    fn socket(&self, packet: &P) -> Socket;

    /// The cookie for the SYN of this packet's connection if that had said nothing of segments: that of the smallest segment.
    fn smallest_cookie(&self, packet: &P) -> Option<u32>;

    /// Gives these bytes, of a segment of what a client sends first, to the worker that reads this ring. False if it takes none now.
    fn arrived(&self, packet: &P, ring: u32, bytes: Range<usize>, embryo: &Embryo) -> bool;

    /// Tells the worker that reads this ring something (`ARRIVAL_*`) of the flow in this slot. False if it takes nothing now.
    fn tell(&self, ring: u32, event: u32, slot: u32) -> bool;

    /// Sends the packet out by this interface, and keeps it. False if that is impossible.
    fn send_copy(&self, packet: &mut P, interface: u32) -> bool;

    /// Puts the stash's bytes behind the packet, which ends at `offset`. False, with the packet in an undefined state, where that is impossible.
    fn append(&self, packet: &mut P, offset: usize, stash: &Stash) -> bool;
}
