//! Where a new flow goes: `rules → affinity → ring → guard → store`.
//!
//! An instance is chosen for every new flow; whether the choice is stored is another question. A flow that is not stored finds the same instance again as long
//! as the ring does not change, so a flood costs no memory. Where answers are translated here, a flow cannot be carried
//! without being stored, and its first packet is dropped instead: an honest client sends it again.

use super::Outcome;
use super::datagram::Datagram;
use super::hash;
use super::sequence;
use super::source_port;
use super::table::{self, Key};
use super::tables::Tables;
use crate::abi::balance::{
    AFFINITY, Affinity, AffinityKey, DENY, ENDED, ESTABLISHED, FlowId, Mode, NO_RING, NOBODY, RING_CHUNK,
    RuleKey, SILENT, Service, Settings, TAKES_FLOWS, TAKES_RETURNING_CLIENTS, TICK_SHIFT,
};
use crate::abi::reason::PacketReason;
use crate::wire::tcp::{FIN, RST, SYN};

/// Ticks in a second, rounded.
const SECOND: u32 = ((1_000_000_000u64 + (1 << (TICK_SHIFT - 1))) >> TICK_SHIFT) as u32;

/// A packet that belongs to no flow, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    pub settings: &'a Settings,
    pub datagram: &'a Datagram,
    pub service: &'a Service,
    pub mode: Mode,
    /// The service's index.
    pub index: u32,
    /// That of its flow's key.
    pub hash: u64,
}

impl Arrival<'_> {
    #[inline(always)]
    fn client(&self) -> AffinityKey {
        AffinityKey { service: self.index, client: self.datagram.source }
    }
}

/// Where a packet goes. Numbers, not references: the verifier does not follow references through what a function returns in memory.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    pub instance: u32,
    /// `None` if the flow is not stored.
    pub flow: Option<FlowId>,
    pub reason: PacketReason,
}

/// A placement, or what becomes of a packet without one, in a register: global functions of the kernel programs return nothing else.
#[inline(always)]
pub const fn pack(placed: &Result<Placement, Outcome>) -> u64 {
    match placed {
        Ok(Placement { instance, flow, reason }) => {
            let flow = match flow {
                Some(id) => id.pack(),
                None => 0,
            };
            PLACED << 56 | (*reason as u64) << 40 | (*instance as u64 & 0xffff) << 24 | flow as u64
        }
        Err(outcome) => {
            let kind = if outcome.is_dropped() { DROPPED } else { PASSED };
            kind << 56 | (outcome.reason as u64) << 40
        }
    }
}

const PLACED: u64 = 1;
const PASSED: u64 = 2;
const DROPPED: u64 = 3;

#[inline(always)]
pub fn unpack(word: u64) -> Result<Placement, Outcome> {
    let reason = PacketReason::of((word >> 40) as u32 & 0xffff);
    match word >> 56 {
        PLACED => {
            let flow = match word as u32 & 0x00ff_ffff {
                0 => None,
                id => Some(FlowId::unpack(id)),
            };
            Ok(Placement { instance: (word >> 24) as u32 & 0xffff, flow, reason })
        }
        PASSED => Err(Outcome::pass(reason)),
        _ => Err(Outcome::drop(reason)),
    }
}

/// [`begin`] with a stack frame of its own.
#[inline(never)]
pub fn begin_apart<T: Tables>(tables: &T, datagram: &Datagram, index: u32) -> Result<Placement, Outcome> {
    begin(tables, datagram, index)
}

/// Places a packet that belongs to no stored flow of the service of this index.
#[inline(always)]
pub fn begin<T: Tables>(tables: &T, datagram: &Datagram, index: u32) -> Result<Placement, Outcome> {
    let (Some(settings), Some(service)) = (tables.settings(), tables.service(index)) else {
        return Err(Outcome::pass(PacketReason::L4NoService));
    };
    let Some(mode) = Mode::of(service.mode.get()) else {
        return Err(Outcome::pass(PacketReason::L4NoService));
    };
    let hash = Key::new(datagram.source, datagram.source_port, index).hash(settings);
    let arrival = &Arrival { settings, datagram, service, mode, index, hash };
    if service.flags.get() & ENDED != 0 {
        return Err(Outcome::pass(PacketReason::L4NoService));
    }
    if mode.sees_answers() && datagram.is_tcp() && !datagram.opens() {
        return Err(Outcome::pass(PacketReason::L4NoFlow));
    }
    let now = tables.ticks();
    let instance = choose(tables, arrival, now)?;
    if !tables.reaches(instance) {
        return Err(Outcome::drop(PacketReason::L4NoRoute));
    }

    let unstored = |reason| Ok(Placement { instance, flow: None, reason });
    if datagram.flags & (RST | FIN) != 0 {
        return unstored(PacketReason::L4Unstored);
    }
    if !within_limit(tables, settings, now) {
        return match mode.sees_answers() {
            true => Err(Outcome::drop(PacketReason::L4FloodDropped)),
            false => unstored(PacketReason::L4Flood),
        };
    }
    let Some(id) = tables.claim(hash) else {
        return match mode.sees_answers() {
            true => Err(Outcome::drop(PacketReason::L4TableFullDropped)),
            false => unstored(PacketReason::L4TableFull),
        };
    };
    match store(tables, arrival, id, instance, now) {
        Some(()) => {
            remember(tables, arrival, instance, now);
            Ok(Placement { instance, flow: Some(id), reason: PacketReason::L4Placed })
        }
        None => {
            table::give_up(tables, settings.buckets.get(), id, hash);
            Err(Outcome::drop(PacketReason::L4NoSourcePort))
        }
    }
}

/// The instance of a flow that is not stored, if one would be chosen.
#[inline(always)]
pub fn unstored<T: Tables>(tables: &T, datagram: &Datagram, index: u32) -> Option<u32> {
    let (settings, service) = (tables.settings()?, tables.service(index)?);
    let mode = Mode::of(service.mode.get())?;
    choose(tables, &Arrival { settings, datagram, service, mode, index, hash: 0 }, tables.ticks()).ok()
}

/// The instance for a new flow.
#[inline(never)]
fn choose<T: Tables>(tables: &T, arrival: &Arrival<'_>, now: u32) -> Result<u32, Outcome> {
    let &Arrival { datagram, service, .. } = arrival;
    let group = select(tables, service, &datagram.source)?;
    if service.flags.get() & AFFINITY != 0
        && let Some(last) = tables.affinity(&arrival.client())
        && now.wrapping_sub(last.seen) <= service.affinity_idle.get()
        && takes(tables, last.instance)
    {
        return Ok(last.instance);
    }
    by_ring(tables, arrival, group)
}

/// Notes where a client is served, if its service wants that.
#[inline(never)]
fn remember<T: Tables>(tables: &T, arrival: &Arrival<'_>, instance: u32, seen: u32) {
    if arrival.service.flags.get() & AFFINITY != 0 {
        tables.remember(&arrival.client(), Affinity { instance, seen });
    }
}

/// The group that serves this client.
#[inline(always)]
fn select<T: Tables>(tables: &T, service: &Service, client: &[u32; 4]) -> Result<u32, Outcome> {
    let set = service.rules.get();
    let chosen = match set {
        0 => None,
        set => tables.rule(&RuleKey { set, client: *client }),
    };
    let group = chosen.unwrap_or(service.group.get());
    if group & DENY == 0 {
        return Ok(group);
    }
    Err(match group & SILENT {
        0 => Outcome::pass(PacketReason::L4Denied),
        _ => Outcome::drop(PacketReason::L4Denied),
    })
}

/// Whether a client that was served there may be served there again.
#[inline(always)]
fn takes<T: Tables>(tables: &T, instance: u32) -> bool {
    let wanted = TAKES_FLOWS | TAKES_RETURNING_CLIENTS;
    tables.instance(instance).is_some_and(|instance| instance.flags.get() & wanted != 0)
}

/// The instance that the ring has for this client.
#[inline(always)]
fn by_ring<T: Tables>(tables: &T, arrival: &Arrival<'_>, group: u32) -> Result<u32, Outcome> {
    let &Arrival { settings, datagram, service, .. } = arrival;
    let Some(group) = tables.group(group) else { return Err(Outcome::pass(PacketReason::L4Unavailable)) };
    let ring = group.ring.get();
    if ring != NO_RING {
        // With affinity all flows of a client belong together even where none could be remembered.
        let port = if service.flags.get() & AFFINITY != 0 { 0 } else { datagram.source_port };
        let word = port as u32 | (datagram.destination_port as u32) << 16;
        let hash = hash::of(hash::RING_SEED, &datagram.source, word);
        let place = hash::scale((hash >> 32) as u32, settings.ring_size.get());
        let chunk = ring.wrapping_mul(settings.ring_chunks.get()).wrapping_add(place / RING_CHUNK as u32);
        if let Some(chunk) = tables.ring(chunk) {
            let instance = chunk.0[place as usize % RING_CHUNK].get();
            if instance != NOBODY {
                return Ok(instance as u32);
            }
        }
    }
    Err(match group.otherwise.get() & SILENT {
        0 => Outcome::pass(PacketReason::L4Unavailable),
        _ => Outcome::drop(PacketReason::L4Unavailable),
    })
}

/// Counts a new flow of this CPU; false if this second has had as many as are stored.
#[inline(always)]
fn within_limit<T: Tables>(tables: &T, settings: &Settings, now: u32) -> bool {
    let limit = settings.new_flow_limit.get();
    if limit == 0 {
        return true;
    }
    let Some(counter) = tables.new_flows() else { return true };
    if now.wrapping_sub(counter.began.get()) >= SECOND {
        counter.began.set(now);
        counter.count.set(0);
    }
    let count = counter.count.get().wrapping_add(1);
    counter.count.set(count);
    count <= limit
}

/// Fills the claimed place and puts it in force. `None` if no port is free for its answers.
#[inline(always)]
fn store<T: Tables>(tables: &T, arrival: &Arrival<'_>, id: FlowId, instance: u32, now: u32) -> Option<()> {
    let &Arrival { datagram, mode, index, hash, .. } = arrival;
    let key = Key::new(datagram.source, datagram.source_port, index);
    let bucket = tables.flows(id.bucket)?;
    let flow = bucket.flows.get(id.place as usize)?;
    for (word, value) in flow.client.iter().zip(key.client) {
        word.set(value);
    }
    flow.origin.set(key.origin);
    flow.target.set(instance);
    flow.last_seen.set(now);
    flow.born.set(now);
    flow.bytes_to_instance.set(datagram.length as u64);
    flow.bytes_to_client.set(0);
    flow.state.set(0);
    flow.client_next.set(sequence::piece(datagram.next));
    if mode.sees_answers() {
        let port = if mode == Mode::Snat {
            source_port::take(tables, arrival, instance, id)?
        } else {
            source_port::keep(tables, arrival, instance, id).then_some(0)?
        };
        flow.target.set(instance | (port as u32) << 16);
    }
    if datagram.is_tcp() && datagram.flags & SYN == 0 {
        flow.state.set(ESTABLISHED);
    }
    table::publish(tables, bucket, id.place, hash);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        for flow in [None, Some(FlowId { bucket: 0, place: 0 }), Some(FlowId { bucket: 0xf_ffff, place: 14 })]
        {
            for (instance, reason) in [(1, PacketReason::L4Placed), (8_191, PacketReason::L4Flood)] {
                let unpacked = unpack(pack(&Ok(Placement { instance, flow, reason }))).unwrap();
                assert_eq!((unpacked.instance, unpacked.flow, unpacked.reason), (instance, flow, reason));
            }
        }
        for outcome in [Outcome::pass(PacketReason::L4Denied), Outcome::drop(PacketReason::L4NoSourcePort)] {
            assert_eq!(unpack(pack(&Err(outcome))).unwrap_err(), outcome);
        }
    }
}
