//! The life of stored flows after the kernel programs have made them: their sessions, and their end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use router_common::abi::balance::{
    AFFINITY, Affinity, AffinityKey, Flow, FlowBucket, FlowId, Mode, TAG_DEAD, TAG_LIVE, TAG_STATE, closed,
};
use router_common::abi::key::address_of;
use router_common::abi::shared::Shared32;
use router_common::path::balance::table::{Key, ReplyKey, places};
use router_common::wire::PROTOCOL_TCP;

use super::lifetime::{Fate, Limits, fate};
use super::{Balancer, Maps, from_ticks, instances, services, ticks};
use crate::core::session::Session;
use crate::flows::table::{FlowInfo, FlowState, Layer4Flows};

/// How often flows are looked at.
pub const INTERVAL: Duration = Duration::from_millis(500);
/// A program that has just found a flow may still look at it. Programs run for microseconds.
const REST_TICKS: u32 = 1;

/// What the daemon keeps for stored flows.
#[derive(Debug, Default)]
pub struct Held {
    flows: HashMap<FlowId, HeldFlow>,
    /// When clients were last noted as present, in ticks.
    present: HashMap<AffinityKey, u32>,
    by_instance: HashMap<u32, u32>,
    by_service: HashMap<u32, u32>,
}

#[derive(Debug)]
struct HeldFlow {
    born: u32,
    /// `None` once the flow has ended and only lingers.
    session: Option<Session>,
    /// Since when nobody finds it any more, in ticks.
    dead: Option<u32>,
}

/// How many flows there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub flows: usize,
    pub capacity: usize,
}

/// A flow as it is shown.
#[derive(Clone, Copy, Debug)]
pub struct FlowView {
    pub id: FlowId,
    pub client: SocketAddr,
    pub vip: SocketAddr,
    /// Our own address and port towards the instance; with other modes than `snat` the client's.
    pub source: SocketAddr,
    pub instance: SocketAddr,
    pub protocol: u8,
    pub age: Duration,
    pub idle: Duration,
    pub bytes_to_instance: u64,
    pub bytes_to_client: u64,
    pub closing: bool,
}

impl Balancer {
    /// Flows that were active while no daemon told them the time are taken to have been active until now.
    pub(super) fn sweep_adopted(&self, frozen: u32) {
        let now = ticks();
        self.maps.settings[0].now.set(now);
        for (_, flow) in live(&self.maps) {
            if frozen.wrapping_sub(flow.last_seen.get()) as i32 <= 1 {
                flow.last_seen.set(now);
            }
        }
        self.sweep();
    }

    /// Looks at every flow once.
    pub fn sweep(&self) {
        let now = ticks();
        let maps = &self.maps;
        maps.settings[0].now.set(now);
        if !self.has_tables() {
            return;
        }
        let mut held = self.held();
        let pressure = held.flows.len() > self.capacity() / 2;
        let most_ports = self.settings.ports.len() as u32 / 2;
        let short_of_ports = |held: &Held, instance: u32| {
            held.by_instance.get(&instance).is_some_and(|flows| *flows > most_ports)
        };
        let mut count = Counts::default();
        for (bucket, content) in (0..).zip(maps.flows.iter()) {
            for (place, tag) in (0..).zip(&content.tags) {
                let id = FlowId { bucket, place };
                match tag.get() {
                    0 => {}
                    word if word & TAG_STATE == TAG_LIVE => {
                        let flow = &content.flows[place as usize];
                        count.add(flow);
                        let pressure = pressure || short_of_ports(&held, flow.instance());
                        if self.look_at(&mut held, id, flow, now, pressure) {
                            tag.swap_if(word, word & !TAG_STATE | TAG_DEAD);
                        }
                    }
                    word if word & TAG_STATE == TAG_DEAD => {
                        let flow = &content.flows[place as usize];
                        count.add(flow);
                        let entry =
                            held.flows.entry(id).or_insert(HeldFlow { born: 0, session: None, dead: None });
                        entry.session = None;
                        let since = *entry.dead.get_or_insert(now);
                        if now.wrapping_sub(since) > REST_TICKS {
                            free(maps, id, content, flow);
                            held.flows.remove(&id);
                        }
                    }
                    // Being filled.
                    _ => {}
                }
            }
        }
        held.by_instance = count.by_instance;
        held.by_service = count.by_service;
        held.present.retain(|key, seen| {
            let idle = maps.services[key.service as usize].affinity_idle.get();
            now.wrapping_sub(*seen) <= idle.saturating_mul(2)
        });
        let named = (held.by_instance.clone(), held.by_service.clone());
        drop(held);
        let mut state = self.state();
        let super::State { services, instances, rules, .. } = &mut *state;
        instances.release(maps, |place| named.0.contains_key(&place));
        services.release(maps, rules, |place| named.1.contains_key(&place));
    }

    /// Keeps the session of a flow. True: the flow is over.
    fn look_at(&self, held: &mut Held, id: FlowId, flow: &Flow, now: u32, pressure: bool) -> bool {
        let maps = &self.maps;
        let service = &maps.services[flow.service() as usize];
        let (Some(mode), Some(vip)) = (Mode::of(service.mode.get()), services::key_of(service)) else {
            return true;
        };
        let limits = Limits { tcp_idle: self.settings.tcp_idle, udp_idle: self.settings.udp_idle, pressure };
        // A packet may have come after `now` was read.
        let idle = from_ticks(now.wrapping_sub(flow.last_seen.get()).cast_signed().max(0).cast_unsigned());
        let fate = fate(flow.state.get(), mode, vip.protocol, idle, &limits);
        let born = flow.born.get();
        let entry = held.flows.entry(id).or_insert_with(|| HeldFlow {
            born: born.wrapping_sub(1),
            session: None,
            dead: None,
        });
        if entry.born != born || entry.dead.is_some() {
            *entry = HeldFlow { born, session: None, dead: None };
        }
        match fate {
            Fate::Live if entry.session.is_none() => {
                let instance = instances::key_of(&maps.instances[flow.instance() as usize]);
                entry.session = instance.and_then(|key| (self.session)(key.address));
            }
            Fate::Live => {}
            Fate::Ended | Fate::Over => entry.session = None,
        }
        if service.flags.get() & AFFINITY != 0 {
            let key =
                AffinityKey { service: flow.service(), client: flow.client.each_ref().map(Shared32::get) };
            let idle = service.affinity_idle.get();
            let noted = held.present.get(&key).copied();
            if noted.is_none_or(|noted| now.wrapping_sub(noted) > idle / 4) || fate == Fate::Over {
                let seen =
                    if closed(flow.state.get()) || fate != Fate::Live { flow.last_seen.get() } else { now };
                maps.clients.note(key, Affinity { instance: flow.instance(), seen });
                held.present.insert(key, now);
            }
        }
        fate == Fate::Over
    }

    /// Stored flows, and how many there can be.
    pub fn totals(&self) -> Totals {
        Totals { flows: self.held().flows.len(), capacity: self.capacity() }
    }

    /// Flows at a time that the table is made for.
    fn capacity(&self) -> usize {
        if self.has_tables() { self.maps.flows.len() * super::FLOWS_PER_BUCKET } else { 0 }
    }

    /// Every stored flow.
    pub fn views(&self) -> Vec<FlowView> {
        let now = ticks();
        live(&self.maps).filter_map(|(id, flow)| view(&self.maps, id, flow, now)).collect()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.sweep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Counts {
    by_instance: HashMap<u32, u32>,
    by_service: HashMap<u32, u32>,
}

impl Counts {
    fn add(&mut self, flow: &Flow) {
        *self.by_instance.entry(flow.instance()).or_default() += 1;
        *self.by_service.entry(flow.service()).or_default() += 1;
    }
}

fn live(maps: &Maps) -> impl Iterator<Item = (FlowId, &Flow)> {
    (0..).zip(maps.flows.iter()).flat_map(|(bucket, content)| {
        let places = (0..).zip(content.tags.iter().zip(&content.flows));
        places
            .filter(|(_, (tag, _))| tag.get() & TAG_STATE == TAG_LIVE)
            .map(move |(place, (_, flow))| (FlowId { bucket, place }, flow))
    })
}

/// Gives a dead flow's place away, and its port.
fn free(maps: &Maps, id: FlowId, bucket: &FlowBucket, flow: &Flow) {
    let settings = &maps.settings[0];
    if let Some(key) = reply_key(maps, flow) {
        let (replies, tag) = key.place(settings);
        if let Some(replies) = maps.replies.get(replies as usize) {
            for cell in &replies.refs {
                cell.swap_if(tag | id.pack(), 0);
            }
        }
    }
    let (home, _, _) = places(key(flow).hash(settings), settings.buckets.get());
    if home != id.bucket {
        maps.flows[home as usize].overflow.add(u32::MAX);
    }
    bucket.tags[id.place as usize].publish(0);
}

fn key(flow: &Flow) -> Key {
    Key { client: flow.client.each_ref().map(Shared32::get), origin: flow.origin.get() }
}

fn reply_key(maps: &Maps, flow: &Flow) -> Option<ReplyKey> {
    let mode = Mode::of(maps.services.get(flow.service() as usize)?.mode.get())?;
    let index = flow.instance();
    match mode {
        Mode::Snat => Some(ReplyKey { to: [0; 4], port: flow.source_port().into(), instance: index }),
        Mode::Transparent => {
            Some(ReplyKey { to: key(flow).client, port: flow.client_port().into(), instance: index })
        }
        Mode::DsrL2 | Mode::DsrIpip => None,
    }
}

fn view(maps: &Maps, id: FlowId, flow: &Flow, now: u32) -> Option<FlowView> {
    let vip = services::key_of(maps.services.get(flow.service() as usize)?)?;
    let entry = maps.instances.get(flow.instance() as usize)?;
    let instance = instances::key_of(entry)?;
    let client = SocketAddr::new(
        address_of(flow.client.each_ref().map(Shared32::get), vip.address.is_ipv6()),
        u16::from_be(flow.client_port()),
    );
    let source = match flow.source_port() {
        0 => client,
        port => SocketAddr::new(
            address_of(entry.source.each_ref().map(Shared32::get), vip.address.is_ipv6()),
            u16::from_be(port),
        ),
    };
    let since = |tick: u32| from_ticks(now.wrapping_sub(tick).cast_signed().max(0).cast_unsigned());
    Some(FlowView {
        id,
        client,
        vip: vip.address,
        source,
        instance: instance.address,
        protocol: vip.protocol,
        age: since(flow.born.get()),
        idle: since(flow.last_seen.get()),
        bytes_to_instance: flow.bytes_to_instance.get(),
        bytes_to_client: flow.bytes_to_client.get(),
        closing: closed(flow.state.get()) || flow.state.get() & router_common::abi::balance::CLOSED != 0,
    })
}

impl Layer4Flows for Balancer {
    fn flows(&self) -> Vec<FlowInfo> {
        self.views().into_iter().map(FlowInfo::from).collect()
    }

    fn count(&self) -> usize {
        self.totals().flows
    }

    fn capacity(&self) -> usize {
        self.totals().capacity
    }

    fn unroutable(&self) -> Vec<SocketAddr> {
        Balancer::unroutable(self).iter().copied().collect()
    }
}

impl From<FlowView> for FlowInfo {
    fn from(view: FlowView) -> Self {
        Self {
            id: view.id.pack(),
            client: view.client,
            vip: view.vip,
            source: view.source,
            instance: view.instance,
            rule: String::new(),
            age: view.age,
            idle: view.idle,
            protocol: if view.protocol == PROTOCOL_TCP { "tcp" } else { "udp" },
            packets_to_instance: None,
            bytes_to_instance: view.bytes_to_instance,
            packets_to_client: None,
            bytes_to_client: view.bytes_to_client,
            state: if view.closing { FlowState::Closing } else { FlowState::Direct },
        }
    }
}
