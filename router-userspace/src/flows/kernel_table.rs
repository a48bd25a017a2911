//! The flow table whose flows are carried by the kernel programs. Composes the files around it; read [`KernelFlowTable::hand_off`] first.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use router_common::abi::flow::{FLAG_DIRECT, FLAG_LIVE, Flow};
use router_common::abi::key::{FlowKey, FlowRef, Side};
use router_common::abi::reason::{PacketReason, RelayReason};
use router_common::path::syn_options::{ERASE_SACK, ERASE_TIMESTAMPS};
use socket2::SockRef;

use super::custody::{Outlook, Ward, Wards};
use super::expiry::{self, Fate};
use super::kernel::{InsertError, Kernel, KernelError, KernelSettings, Opened};
use super::mapped::Mapped;
use super::next_hops::NextHopTable;
use super::ports::PortAllocator;
use super::slots::{Holding, Slots};
use super::sockets::{Repair, SocketState, StateError, monotonic_ns};
use super::splice::{self, Ends, NextHops, Pending};
use super::table::{FlowInfo, FlowState, FlowTable, Handoff, TcpOptions};
use crate::core::session::Session;

/// How often flows are judged.
const SWEEP: Duration = Duration::from_millis(200);
/// How long an idle keeper sleeps before it looks whether it is still wanted.
const KEEPER_PATIENCE: Duration = Duration::from_millis(500);

/// A running kernel data path with its flows.
#[derive(Debug)]
pub struct KernelFlowTable {
    kernel: Kernel,
    flows: Mapped<Flow>,
    next_hops: Arc<NextHopTable>,
    slots: Mutex<Slots>,
    wards: Wards,
    idle_timeout: Duration,
}

/// What a start has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Flows of an earlier daemon that go on.
    pub flows: usize,
    /// Those among them whose instance is still configured, and whose sessions are counted.
    pub sessions: usize,
}

impl KernelFlowTable {
    /// Loads or adopts the kernel side. `session` begins a session on the configured instance with an address, if there is one.
    pub fn open(
        settings: &KernelSettings,
        idle_timeout: Duration,
        ports: &PortAllocator,
        session: impl Fn(SocketAddr) -> Option<Session>,
    ) -> Result<(Arc<Self>, Adopted), KernelError> {
        let Opened { kernel, flows, next_hops, adopted } = Kernel::open(settings)?;
        let io_error = |doing: &str| {
            let doing = doing.to_owned();
            move |source| KernelError::Io { doing, source }
        };
        let next_hops = NextHopTable::adopt(next_hops).map_err(io_error("cannot read neighbours"))?;
        let live = |slot: u32| adopted && is_live(&flows[slot as usize]);
        let slots = Slots::new(flows.len() as u32, live);
        let table = Arc::new(Self {
            kernel,
            flows,
            next_hops: Arc::new(next_hops),
            slots: Mutex::new(slots),
            wards: Wards::default(),
            idle_timeout,
        });
        let adopted = table.adopt(ports, session);
        table.start_threads().map_err(io_error("cannot start the flow table's threads"))?;
        Ok((table, adopted))
    }

    /// Interfaces that the kernel programs are attached to.
    pub fn interfaces(&self) -> &[String] {
        self.kernel.interfaces()
    }

    /// Takes over what an earlier daemon has left. Its sockets are gone, so nothing is in custody any more.
    fn adopt(&self, ports: &PortAllocator, session: impl Fn(SocketAddr) -> Option<Session>) -> Adopted {
        let mut slots = self.lock();
        let mut adopted = Adopted { flows: 0, sessions: 0 };
        for (slot, flow) in (0..).zip(self.flows.iter()).filter(|(_, flow)| is_live(flow)) {
            for translation in &flow.translations {
                translation.traits.set(translation.traits.get() | FLAG_DIRECT);
            }
            let ends = Ends::of(flow);
            let session = session(ends.instance.into());
            adopted.flows += 1;
            adopted.sessions += usize::from(session.is_some());
            let source_port = ports.reserve(ends.source.into(), ends.instance.into());
            slots.hold(slot, Holding { session, source_port, rule: String::new(), ended: None });
        }
        adopted
    }

    fn start_threads(self: &Arc<Self>) -> io::Result<()> {
        let table = Arc::downgrade(self);
        std::thread::Builder::new().name("custody".into()).spawn(move || {
            while let Some(table) = table.upgrade() {
                table.wards.look_after(KEEPER_PATIENCE, &table.flows);
            }
        })?;
        let table = Arc::downgrade(self);
        std::thread::Builder::new().name("sweep".into()).spawn(move || {
            while let Some(table) = table.upgrade() {
                table.sweep();
                table.kernel.flush_log();
                drop(table);
                std::thread::sleep(SWEEP);
            }
        })?;
        let table: Weak<Self> = Arc::downgrade(self);
        self.next_hops.watch(move || {
            if let Some(table) = table.upgrade() {
                table.reroute();
            }
        })
    }

    /// Ends sessions, and removes flows that are over.
    fn sweep(&self) {
        let (now, monotonic) = (Instant::now(), monotonic_ns());
        let mut over = Vec::new();
        let mut slots = self.lock();
        for (slot, holding) in slots.held_mut() {
            match expiry::fate(&self.flows[slot as usize], monotonic, self.idle_timeout) {
                Fate::Live => {}
                Fate::Expired => over.push(slot),
                Fate::Ended(linger) => {
                    holding.session = None;
                    if now.duration_since(*holding.ended.get_or_insert(now)) >= linger {
                        over.push(slot);
                    }
                }
            }
        }
        for slot in over {
            let flow = &self.flows[slot as usize];
            self.remove_keys(slot, &Ends::of(flow));
            clear(flow);
            slots.release(slot, now);
        }
    }

    /// Points every flow to the next hop that the routes name now. Asking the kernel takes a while for many clients, and
    /// workers must not wait for it.
    fn reroute(&self) {
        let all: Vec<_> =
            self.lock().held().map(|(slot, _)| (slot, Ends::of(&self.flows[slot as usize]))).collect();
        for (slot, ends) in all {
            let to_instance = self.next_hops.towards(*ends.instance.ip());
            let to_client = self.next_hops.towards(*ends.client.ip());
            let slots = self.lock();
            let flow = &self.flows[slot as usize];
            if !slots.holds(slot) || Ends::of(flow) != ends {
                continue;
            }
            for (side, index) in [(Side::Client, to_instance), (Side::Instance, to_client)] {
                // Without a route the old way is as good as any.
                if let Some(index) = index {
                    flow.translation(side).next_hop.set(index);
                }
            }
        }
    }

    fn remove_keys(&self, slot: u32, ends: &Ends) {
        self.kernel.remove(ends.client_key(), FlowRef::new(slot, Side::Client));
        self.kernel.remove(ends.instance_key(), FlowRef::new(slot, Side::Instance));
    }

    /// Makes the flow reachable. Nothing has been sent yet; on refusal the sockets are as they were.
    fn begin(
        &self,
        ends: &Ends,
        client: OwnedFd,
        instance: OwnedFd,
        pending: Pending,
    ) -> Result<(u32, Repair, Repair), (RelayReason, OwnedFd, OwnedFd)> {
        let client = match Repair::enter(client) {
            Ok(client) => client,
            Err((_, client)) => return Err((RelayReason::SocketState, client, instance)),
        };
        let instance = match Repair::enter(instance) {
            Ok(instance) => instance,
            Err((_, instance)) => return Err((RelayReason::SocketState, client.leave(), instance)),
        };
        match states(&client, &instance).and_then(|states| self.claim(ends, states, pending)) {
            Ok(slot) => Ok((slot, client, instance)),
            Err(reason) => Err((reason, client.leave(), instance.leave())),
        }
    }

    /// Claims a slot, fills it, and inserts its keys.
    fn claim(
        &self,
        ends: &Ends,
        (client, instance): (SocketState, SocketState),
        pending: Pending,
    ) -> Result<u32, RelayReason> {
        splice::compatible(&client, &instance)?;
        let towards = |end: SocketAddrV4| self.next_hops.towards(*end.ip()).ok_or(RelayReason::NoRoute);
        let next_hops = NextHops { to_client: towards(ends.client)?, to_instance: towards(ends.instance)? };
        let slot = self.lock().take(Instant::now()).ok_or(RelayReason::TableFull)?;
        let flow = &self.flows[slot as usize];
        splice::fill(flow, ends, &client, &instance, pending, next_hops, monotonic_ns());

        // The instance's key first: its answer must not meet a flow of which only half exists.
        let inserted = self
            .kernel
            .insert(ends.instance_key(), FlowRef::new(slot, Side::Instance))
            .and_then(|()| self.kernel.insert(ends.client_key(), FlowRef::new(slot, Side::Client)));
        inserted.map(|()| slot).map_err(|error| {
            self.remove_keys(slot, ends);
            clear(flow);
            self.lock().release(slot, Instant::now());
            match error {
                InsertError::Exists => RelayReason::DuplicateKey,
                InsertError::Failed => RelayReason::MapUpdate,
            }
        })
    }

    fn info(&self, slot: u32, holding: &Holding, now: u64) -> FlowInfo {
        let flow = &self.flows[slot as usize];
        let ends = Ends::of(flow);
        let [client, instance] = &flow.progress;
        let state = if expiry::closing(flow) {
            FlowState::Closing
        } else if flow.translations[0].traits.get() & FLAG_DIRECT == 0 {
            FlowState::Custody
        } else {
            FlowState::Direct
        };
        FlowInfo {
            id: slot,
            client: ends.client.into(),
            vip: ends.vip.into(),
            source: ends.source.into(),
            instance: ends.instance.into(),
            rule: holding.rule.clone(),
            age: Duration::from_nanos(now.saturating_sub(client.born.get())),
            idle: expiry::idle(flow, now),
            packets_to_instance: client.packets.get(),
            bytes_to_instance: client.bytes.get(),
            packets_to_client: instance.packets.get(),
            bytes_to_client: instance.bytes.get(),
            state,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FlowTable for KernelFlowTable {
    fn hand_off(&self, handoff: Handoff) -> Result<(), (RelayReason, Handoff)> {
        let ends = match ends(&handoff) {
            Ok(ends) => ends,
            Err(reason) => return Err((reason, handoff)),
        };
        let Handoff {
            client,
            instance,
            consumed_head_len,
            to_instance,
            surplus_len,
            source_port,
            session,
            rule,
        } = handoff;
        let pending =
            Pending { new_head: (to_instance.len() - surplus_len) as u32, surplus: surplus_len as u32 };
        let (slot, client, instance) = match self.begin(&ends, client, instance, pending) {
            Ok(begun) => begun,
            Err((reason, client, instance)) => {
                return Err((
                    reason,
                    Handoff {
                        client,
                        instance,
                        consumed_head_len,
                        to_instance,
                        surplus_len,
                        source_port,
                        session,
                        rule,
                    },
                ));
            }
        };
        let holding = Holding { session: Some(session), source_port, rule, ended: None };
        self.lock().hold(slot, holding);

        // Both entries exist, so the answer to this goes directly.
        let flow = &self.flows[slot as usize];
        let mut ward = Ward::new(slot, client, instance, to_instance);
        match ward.look(flow, Instant::now()) {
            Outlook::Lost => ward.abort(flow),
            Outlook::Free => ward.release(flow),
            Outlook::Keep => self.wards.add(ward),
        }
        Ok(())
    }

    fn prepare(&self, client: TcpOptions, source: SocketAddr, instance: SocketAddr) {
        let (SocketAddr::V4(source), SocketAddr::V4(instance)) = (source, instance) else { return };
        let mut erase = 0;
        if !client.timestamps {
            erase |= ERASE_TIMESTAMPS;
        }
        if !client.sack {
            erase |= ERASE_SACK;
        }
        // Where it fails, the legs will differ and the connection is relayed.
        self.kernel.erase_syn_options(FlowKey::tcp(source, instance), erase);
    }

    fn flows(&self) -> Vec<FlowInfo> {
        let now = monotonic_ns();
        self.lock().held().map(|(slot, holding)| self.info(slot, holding, now)).collect()
    }

    fn len(&self) -> usize {
        self.lock().len()
    }

    fn capacity(&self) -> usize {
        self.flows.len()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        PacketReason::ALL.iter().map(|reason| (reason.name(), self.kernel.packets(*reason))).collect()
    }
}

fn is_live(flow: &Flow) -> bool {
    flow.translations[0].traits.get() & FLAG_LIVE != 0
}

fn clear(flow: &Flow) {
    for translation in &flow.translations {
        translation.traits.set(0);
    }
}

fn states(client: &Repair, instance: &Repair) -> Result<(SocketState, SocketState), RelayReason> {
    let reason = |error| match error {
        StateError::HalfClosed => RelayReason::HalfClosed,
        StateError::MicrosecondClock => RelayReason::OptionMismatch,
        StateError::Refused(error) => {
            tracing::debug!(%error, "the kernel refused access to a socket's state");
            RelayReason::SocketState
        }
    };
    Ok((client.state().map_err(reason)?, instance.state().map_err(reason)?))
}

fn ends(handoff: &Handoff) -> Result<Ends, RelayReason> {
    let (client, vip) = addresses(&handoff.client)?;
    let (instance, source) = addresses(&handoff.instance)?;
    Ok(Ends { client, vip, source, instance })
}

/// Peer and own address.
fn addresses(socket: &OwnedFd) -> Result<(SocketAddrV4, SocketAddrV4), RelayReason> {
    let socket = SockRef::from(socket);
    let v4 = |address: io::Result<socket2::SockAddr>| {
        let address = address.map_err(|_| RelayReason::SocketState)?.as_socket();
        match address.map(|address| (address.ip().to_canonical(), address.port())) {
            Some((IpAddr::V4(ip), port)) => Ok(SocketAddrV4::new(ip, port)),
            _ => Err(RelayReason::Family),
        }
    };
    Ok((v4(socket.peer_addr())?, v4(socket.local_addr())?))
}
