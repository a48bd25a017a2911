//! Delayed binding, the daemon's side: from a client's first packet and a chosen instance to a flow. The packets' side, and the protocol, is
//! `router_common::path::binding`.
//!
//! A connection has no socket while it is bound. What fails before an instance has answered leaves nothing behind, since the client
//! still holds its first packet; and whatever cannot be bound at all becomes a socket ([`revive`]) and goes the way of those.

mod early;
mod fill;
mod first;
mod frames;
mod revive;
mod segment;
mod stashes;
mod syn;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use router_common::abi::binding::{
    ARRIVAL_BOUND, ARRIVAL_REFUSED, ARRIVAL_UNFIT, BoundListener, EMBRYO_DONE, EMBRYO_OPEN, Embryo,
    MAX_FIRST_WINDOW, MAX_STASHES, STASH_BYTES,
};
use router_common::abi::flow::{FLAG_DIRECT, FLAG_LIVE, FLAG_STASH};
use router_common::abi::key::{FlowKey, Side};
use router_common::abi::next_hop::NextHop;
use router_common::abi::reason::UnboundReason;
use router_common::wire::tcp::seq_before_eq;

pub use super::kernel::Arrivals;
use super::kernel::BindingMaps;
use super::kernel_table::KernelFlowTable;
use super::ports::PortLease;
use super::slots::Holding;
use super::sockets::monotonic_ns;
use super::splice::Ends;
use super::steps::{Step, before};
use crate::core::session::Session;
use frames::FrameSocket;
use stashes::Stashes;

pub use first::First;
pub use segment::Segment;

/// Bytes of IPv4 and TCP headers without options.
const HEADERS: u32 = 40;
/// The same of IPv6.
const HEADERS6: u32 = 60;
/// Timestamps in a segment.
const TIMESTAMPS: usize = 12;
/// A usual MTU, where the interface's is not known.
const USUAL_MTU: u32 = 1500;

/// What the kernel programs tell.
#[derive(Debug)]
pub enum Event {
    /// A segment of what a client sends first.
    Segment(Segment),
    /// The instance of the flow in this slot has refused.
    Refused(u32),
    /// It takes smaller segments, or less, than was laid out for it.
    Unfit(u32),
    /// It has answered, and the client has sent more meanwhile.
    Bound(u32),
}

/// How a flow stands whose instance was sent a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The instance has not answered.
    Waiting,
    /// The client has reset the connection, and the instance has not answered.
    ClientGone,
    /// Both sides are bound; the instance has not acknowledged all that it was sent.
    Bound,
    /// It has.
    Acknowledged,
}

/// What a flow is to be made of.
#[derive(Debug)]
pub struct Binding<'a> {
    pub first: &'a First,
    pub instance: SocketAddr,
    /// What the instance gets instead.
    pub to_instance: &'a [u8],
    pub source_port: PortLease,
    pub session: Session,
    pub rule: String,
}

/// Binds connections. Each worker that has one of the rings looks after what it has bound.
#[derive(Debug)]
pub struct Binder {
    table: Arc<KernelFlowTable>,
    maps: BindingMaps,
    stashes: Stashes,
    frames: FrameSocket,
    /// Makes the sequence numbers of one tuple unpredictable from those of others (RFC 6528).
    secret: RandomState,
    /// Our timestamp clock minus the monotonic one, in ms.
    clock_offset: u32,
    /// Some of those who would come are taken by nobody.
    abandoned: AtomicBool,
}

impl Binder {
    /// Also returns the rings, one for each worker that binds. Nobody is answered before [`Binder::listen`].
    pub fn new(table: Arc<KernelFlowTable>, mut maps: BindingMaps) -> io::Result<(Self, Vec<Arrivals>)> {
        let frames = FrameSocket::open()?;
        maps.ignore_all();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A clock that goes on over a reboot: instances remember the timestamps of connections that ended a minute ago (PAWS, RFC 7323 §5).
        let clock_offset = (since_epoch.as_millis() as u32).wrapping_sub((monotonic_ns() / 1_000_000) as u32);
        let generation = since_epoch.as_nanos() as u32 | 1;
        maps.settings[0].clock_offset.set(clock_offset);
        maps.settings[0].generation.set(generation);
        let rings = std::mem::take(&mut maps.rings);
        maps.settings[0].rings.set(rings.len() as u32);
        let stashes = Stashes::new(Arc::clone(&maps.stashes), table.stashes_in_use());
        let secret = RandomState::new();
        let abandoned = AtomicBool::new(false);
        Ok((Self { table, maps, stashes, frames, secret, clock_offset, abandoned }, rings))
    }

    /// Answers the clients of a VIP, which must not be a wildcard. They may send `window` bytes before an instance answers.
    pub fn listen(&self, vip: SocketAddr, max_segment: Option<u16>, window: u16) -> Result<(), String> {
        let usual = USUAL_MTU - if vip.is_ipv6() { HEADERS6 } else { HEADERS };
        let max_segment = max_segment.unwrap_or(usual as u16);
        self.maps.listen(vip, BoundListener { max_segment, window: window.min(MAX_FIRST_WINDOW) })
    }

    /// Leaves the clients of a VIP to its listening sockets.
    pub fn ignore(&self, vip: SocketAddr) {
        self.maps.ignore(vip);
    }

    /// First packets will be taken for so long.
    pub fn attend(&self, patience: Duration) {
        if !self.abandoned.load(Ordering::Relaxed) {
            self.maps.settings[0].attended_until.set(monotonic_ns() + patience.as_nanos() as u64);
        }
    }

    /// A ring is read no more: the stack gets new connections from now on, whoever else attends.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.maps.settings[0].attended_until.set(monotonic_ns());
    }

    /// What the programs have told one worker.
    pub fn next(&self, arrivals: &mut Arrivals) -> Option<Event> {
        loop {
            let told = arrivals.read(|arrival, bytes| match arrival.event {
                ARRIVAL_REFUSED => Ok(Event::Refused(arrival.slot)),
                ARRIVAL_UNFIT => Ok(Event::Unfit(arrival.slot)),
                ARRIVAL_BOUND => Ok(Event::Bound(arrival.slot)),
                _ => match Segment::read(arrival, bytes) {
                    Some(segment) => Ok(Event::Segment(segment)),
                    None => Err((arrival.embryo, Segment::key(arrival, bytes))),
                },
            })?;
            match told {
                Ok(event) => {
                    if matches!(event, Event::Segment(_)) {
                        before(Step::Choose);
                    }
                    return Some(event);
                }
                // What is damaged the client sends again.
                Err((embryo, client)) => self.give_back(&embryo, client),
            }
        }
    }

    /// Makes a flow and sends the instance a SYN. Nothing is left where that fails.
    pub fn bind(&self, binding: Binding<'_>) -> Result<u32, UnboundReason> {
        let Binding { first, instance, to_instance, source_port, session, rule } = binding;
        let ends = Ends::new([first.client, first.vip, source_port.source(), instance])
            .map_err(|_| UnboundReason::Family)?;
        let towards = self.table.next_hops().towards(instance.ip()).map_err(|_| UnboundReason::NoRoute)?;
        let next_hop = self.table.next_hops().entry(towards);
        if next_hop.resolved.get() == 0 {
            return Err(UnboundReason::NextHopUnresolved);
        }
        let segments: Vec<&[u8]> = to_instance.chunks(longest(next_hop, instance)).collect();
        if segments.len() > MAX_STASHES {
            return Err(UnboundReason::HeadTooLong);
        }
        let chain = self.stashes.take(segments.len()).ok_or(UnboundReason::NoStash)?;
        let Some(&index) = chain.first() else { return Err(UnboundReason::NoStash) };
        let now = monotonic_ns();
        let timestamp = self.clock(now);
        let seq = self.first_sequence_number(&ends, now);
        let stash = self.stashes.get(index);
        let chain: Vec<_> = chain.iter().map(|index| self.stashes.get(*index)).collect();
        fill::stashes(&chain, first, &segments, seq.wrapping_add(1), timestamp);
        let claimed = self.table.claim(&ends, |flow, next_hops| {
            fill::flow(flow, &ends, first, stash, index, next_hops, now);
        });
        let slot = match claimed {
            Ok(slot) => slot,
            Err(reason) => {
                self.stashes.give_back(index);
                return Err(reason.into());
            }
        };
        self.table.hold(slot, Holding::unbound(session, source_port, rule));
        before(Step::SendSyn);
        // Where it fails, it is sent again.
        self.send_syn(slot);
        Ok(slot)
    }

    /// How a flow stands that was bound and not released.
    pub fn progress(&self, slot: u32) -> Progress {
        let flow = self.table.flow(slot);
        let traits = flow.translation(Side::Client).traits.get();
        if traits & FLAG_LIVE == 0 {
            return match flow.progress(Side::Client).rst_seen.get() {
                0 => Progress::Waiting,
                _ => Progress::ClientGone,
            };
        }
        let all = flow.translation(Side::Instance).ack_cut.get().wrapping_add(1);
        let ended = flow.progress.iter().any(|progress| progress.rst_seen.get() != 0);
        if ended || seq_before_eq(all, flow.progress(Side::Instance).max_ack.get()) {
            Progress::Acknowledged
        } else {
            Progress::Bound
        }
    }

    /// Sends the instance of a waiting flow another SYN.
    pub fn send_syn(&self, slot: u32) {
        let flow = self.table.flow(slot);
        let Some(stash) = self.stash_of(slot) else { return };
        let next_hop = self.table.next_hops().entry(flow.translation(Side::Client).next_hop.get());
        let stash = self.stashes.get(stash);
        if let Err(error) = self.frames.send(next_hop.interface.get(), &syn::frame(flow, stash, next_hop)) {
            tracing::debug!(%error, "a SYN cannot be sent now");
        }
    }

    /// Gives up a flow whose instance has not answered; its session ends and its port is free. False if the instance has answered in this moment.
    pub fn retract(&self, slot: u32) -> bool {
        before(Step::Retract);
        let stash = self.stash_of(slot);
        if !self.table.retract(slot) {
            return false;
        }
        if let Some(stash) = stash {
            self.stashes.give_back(stash);
        }
        true
    }

    /// The instance has all that was stashed for it: from now on the flow is like any other.
    pub fn release(&self, slot: u32) {
        before(Step::Release);
        let stash = self.stash_of(slot);
        let flow = self.table.flow(slot);
        for translation in &flow.translations {
            translation.traits.set(translation.traits.get() & !FLAG_STASH | FLAG_DIRECT);
        }
        flow.progress(Side::Client).stash.set(0);
        self.table.release_bound(slot);
        if let Some(stash) = stash {
            self.stashes.give_back(stash);
        }
    }

    /// Notes that the client of a waiting flow has sent more, so that [`Event::Bound`] follows.
    pub fn expect_more(&self, slot: u32) {
        if let Some(stash) = self.stash_of(slot) {
            self.stashes.get(stash).early.set(1);
        }
    }

    /// Sends the instance of a bound flow what its client has sent behind its head.
    pub fn send_on(&self, slot: u32, segment: &Segment) {
        let flow = self.table.flow(slot);
        let Some(stash) = self.stash_of(slot).map(|index| self.stashes.get(index)) else { return };
        let next_hop = self.table.next_hops().entry(flow.translation(Side::Client).next_hop.get());
        let taken = (stash.instance_segment.get() as usize).saturating_sub(TIMESTAMPS);
        let longest = longest(next_hop, Ends::of(flow).instance).min(taken);
        for frame in early::frames(flow, stash, next_hop, segment, longest) {
            if let Err(error) = self.frames.send(next_hop.interface.get(), &frame) {
                tracing::debug!(%error, "what a client has sent early is left to it to send again");
                return;
            }
        }
    }

    /// The tuple of the packets of a flow's client.
    pub fn client_key(&self, slot: u32) -> FlowKey {
        Ends::of(self.table.flow(slot)).client_key()
    }

    /// Whether somebody else has taken this connection over already, or its client is gone, or has begun another one on its tuple.
    pub fn is_over(&self, client: FlowKey, embryo: &Embryo) -> bool {
        self.maps.is_over(client, embryo)
    }

    /// Makes a socket of a connection that is not bound. What the client has sent first can be read from it.
    pub fn revive(&self, first: &First) -> io::Result<OwnedFd> {
        revive::revive(first, self.clock(monotonic_ns()), || {
            let embryo = Embryo { state: EMBRYO_DONE, ..first.embryo };
            self.maps.note(first.client_key(), embryo).map_err(io::Error::other)
        })
    }

    /// Forgets a client: it will be told that there is no such connection.
    pub fn disown(&self, first: &First) {
        let embryo = Embryo { state: EMBRYO_DONE, ..first.embryo };
        // Where it fails, its packets are held back until it gives up.
        let _ = self.maps.note(first.client_key(), embryo);
    }

    /// Lets the programs tell anew what a client sends.
    fn give_back(&self, embryo: &Embryo, client: Option<FlowKey>) {
        let Some(client) = client else { return };
        let embryo = Embryo { state: EMBRYO_OPEN, told: embryo.seq, ..*embryo };
        let _ = self.maps.note(client, embryo);
    }

    fn stash_of(&self, slot: u32) -> Option<u32> {
        self.table.flow(slot).progress(Side::Client).stash.get().checked_sub(1)
    }

    /// Our timestamp clock, in ms.
    fn clock(&self, monotonic: u64) -> u32 {
        ((monotonic / 1_000_000) as u32).wrapping_add(self.clock_offset)
    }

    /// Grows by one every 64 ns, so that the numbers of a tuple's earlier connection lie behind (RFC 9293 §3.4.1).
    fn first_sequence_number(&self, ends: &Ends, monotonic: u64) -> u32 {
        let tuple = self.secret.hash_one((ends.source, ends.instance)) as u32;
        tuple.wrapping_add((monotonic >> 6) as u32)
    }
}

impl Drop for Binder {
    /// The stack gets new connections, and tells the others that there is nobody.
    fn drop(&mut self) {
        self.maps.settings[0].attended_until.set(0);
    }
}

/// Bytes that an instance may get in one segment; at least 1.
fn longest(next_hop: &NextHop, instance: SocketAddr) -> usize {
    let mtu = match next_hop.mtu.get() {
        0 => USUAL_MTU,
        mtu => mtu.min(USUAL_MTU),
    };
    let headers = if instance.is_ipv6() { HEADERS6 } else { HEADERS };
    ((mtu.saturating_sub(headers)) as usize).saturating_sub(TIMESTAMPS).clamp(1, STASH_BYTES)
}
