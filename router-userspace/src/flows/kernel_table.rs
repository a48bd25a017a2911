//! The flow table whose flows are carried by the kernel programs. Composes the files around it; read [`KernelFlowTable::hand_off`] first.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use router_common::abi::flow::{FLAG_BINDING, FLAG_DIRECT, FLAG_LIVE, Flow};
use router_common::abi::key::{FlowKey, FlowRef, Side};
use router_common::abi::reason::{PacketReason, RelayReason, XdpReason};
use router_common::path::syn_options::{ERASE_SACK, ERASE_TIMESTAMPS};
use socket2::SockRef;

use super::balance;
use super::capture::KernelCaptures;
use super::claims::Claims;
use super::custody::{self, Outlook, Ward, Wards};
use super::expiry::{self, Fate};
use super::kernel::{BindingMaps, InsertError, Kernel, KernelError, KernelSettings, Opened};
use super::mapped::Mapped;
use super::next_hops::NextHopTable;
use super::ports::{PortLease, SourcePorts};
use super::raw_reset;
use super::slots::{Holding, Slots};
use super::sockets::{self, SocketState, StateError, monotonic_ns};
use super::splice::{self, Ends, NextHops, Pending};
use super::steps::{Step, before};
use super::table::{FlowInfo, FlowState, FlowTable, Handoff, TcpOptions};
use super::xdp::{Attachment, Wishes};
use crate::core::session::Session;

/// How often flows are judged.
const SWEEP: Duration = Duration::from_millis(200);
/// How often XDP is told of the host's interfaces.
const INTERFACES: Duration = Duration::from_secs(1);
/// How long an idle keeper sleeps before it looks whether it is still wanted.
const KEEPER_PATIENCE: Duration = Duration::from_millis(500);
/// A program that has found a key just before its removal is done after so long.
const ANSWER_PATIENCE: Duration = Duration::from_micros(50);
/// What was in custody when a daemon was killed is acknowledged within this time, or it is lost. The kernel sends again what it had been
/// given: after about 0.2, 0.6, 1.4 and 3 s.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(4);

/// A running kernel data path with its flows.
#[derive(Debug)]
pub struct KernelFlowTable {
    kernel: Kernel,
    flows: Mapped<Flow>,
    next_hops: Arc<NextHopTable>,
    slots: Mutex<Slots>,
    wards: Wards,
    captures: Arc<KernelCaptures>,
    claims: Arc<Claims>,
    idle_timeout: Duration,
}

/// Tables of the kernel side that others look after.
#[derive(Debug)]
pub struct Tables {
    /// For a [`Balancer`](balance::Balancer).
    pub balance: balance::Maps,
    /// For a [`Binder`](super::binding::Binder); `None` if no listener's connections are bound.
    pub binding: Option<BindingMaps>,
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
        ports: &SourcePorts,
        session: impl Fn(SocketAddr) -> Option<Session>,
    ) -> Result<(Arc<Self>, Tables, Adopted), KernelError> {
        let Opened { kernel, flows, next_hops, links, balance, binding, samples, transparent, adopted } =
            Kernel::open(settings)?;
        let io_error = |doing: &str| {
            let doing = doing.to_owned();
            move |source| KernelError::Io { doing, source }
        };
        let next_hops = NextHopTable::adopt(next_hops, links, kernel.interface_indexes())
            .map_err(io_error("cannot read neighbours"))?;
        let live = |slot: u32| adopted && is_live(&flows[slot as usize]);
        let slots = Slots::new(flows.len() as u32, live);
        let adopted_ends = flows.iter().filter(|flow| adopted && is_live(flow)).map(Ends::of);
        let in_clients_names: Vec<_> =
            adopted_ends.filter(is_in_clients_name).map(|ends| (ends.source, ends.instance)).collect();
        let claims = Arc::new(Claims::adopt(transparent, ports.sockets.range(), &in_clients_names));
        let table = Arc::new(Self {
            kernel,
            flows,
            next_hops: Arc::new(next_hops),
            slots: Mutex::new(slots),
            wards: Wards::default(),
            captures: Arc::new(KernelCaptures::new(samples)),
            claims,
            idle_timeout,
        });
        let adopted = table.adopt(ports, session);
        table.start_threads().map_err(io_error("cannot start the flow table's threads"))?;
        Ok((table, Tables { balance, binding }, adopted))
    }

    /// The next hops that flows name.
    pub fn next_hops(&self) -> &Arc<NextHopTable> {
        &self.next_hops
    }

    /// Samples of packets that are not carried on.
    pub fn captures(&self) -> &Arc<KernelCaptures> {
        &self.captures
    }

    pub(super) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Meets the interfaces' packets where that is wished for now.
    pub fn attach_anew(&self, wishes: &Wishes) {
        self.kernel.attach_anew(wishes);
    }

    /// Interfaces that the kernel programs are attached to.
    pub fn interfaces(&self) -> &[String] {
        self.kernel.interfaces()
    }

    /// Takes over what an earlier daemon has left. If it was killed, bytes may be in custody still, of sockets that
    /// only the kernel knows.
    fn adopt(&self, ports: &SourcePorts, session: impl Fn(SocketAddr) -> Option<Session>) -> Adopted {
        self.drop_unbound();
        let mut slots = self.lock();
        let mut adopted = Adopted { flows: 0, sessions: 0 };
        for (slot, flow) in (0..).zip(self.flows.iter()).filter(|(_, flow)| is_live(flow)) {
            let orphaned = (!custody::all_acknowledged(flow)).then(Instant::now);
            if orphaned.is_none() {
                custody::make_direct(flow);
            }
            let ends = Ends::of(flow);
            let session = session(ends.instance);
            adopted.flows += 1;
            adopted.sessions += usize::from(session.is_some());
            let source_port = match is_in_clients_name(&ends) {
                true => self.claims.keep(ends.source, ends.instance),
                false => ports.reserve(ends.source, ends.instance),
            };
            let rule = String::new();
            slots.hold(slot, Holding { session, source_port, rule, ended: None, orphaned, unbound: false });
        }
        adopted
    }

    /// Flows whose instances have not answered an earlier daemon: their clients still hold what they have sent, and will send it again.
    fn drop_unbound(&self) {
        for (slot, flow) in (0..).zip(self.flows.iter()) {
            if flow.translations[0].traits.get() & FLAG_BINDING != 0 {
                self.remove_keys(slot, &Ends::of(flow));
                clear(flow);
            }
        }
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
            let mut looked_at_interfaces = Instant::now();
            while let Some(table) = table.upgrade() {
                table.sweep();
                table.kernel.flush_log();
                table.captures.end_if_forgotten();
                table.claims.tidy();
                if looked_at_interfaces.elapsed() >= INTERFACES {
                    looked_at_interfaces = Instant::now();
                    table.kernel.xdp().refresh();
                }
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
        for (slot, holding) in slots.held_mut().filter(|(_, holding)| !holding.unbound) {
            look_after_orphan(&self.flows[slot as usize], holding, now);
            match expiry::fate(&self.flows[slot as usize], monotonic, self.idle_timeout) {
                Fate::Live => {}
                Fate::Expired => over.push(slot),
                Fate::Ended(linger) => {
                    holding.session = None;
                    let wanted = holding.source_port.as_ref().is_some_and(PortLease::is_wanted);
                    let linger = expiry::linger(linger, wanted);
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
            let to_instance = self.next_hops.towards(ends.instance.ip());
            let to_client = self.next_hops.towards(ends.client.ip());
            let slots = self.lock();
            let flow = &self.flows[slot as usize];
            if !slots.holds(slot) || Ends::of(flow) != ends {
                continue;
            }
            for (side, index) in [(Side::Client, to_instance), (Side::Instance, to_client)] {
                // Without a route, or with one that leads where no program is, the old way is as good as any.
                if let Ok(index) = index {
                    flow.translation(side).next_hop.set(index);
                }
            }
        }
    }

    fn remove_keys(&self, slot: u32, ends: &Ends) {
        self.kernel.remove(ends.client_key(), FlowRef::new(slot, Side::Client));
        self.kernel.remove(ends.instance_key(), FlowRef::new(slot, Side::Instance));
    }

    /// Claims a slot for two sockets in these states.
    fn claim_spliced(
        &self,
        ends: &Ends,
        (client, instance): (SocketState, SocketState),
        pending: Pending,
    ) -> Result<u32, RelayReason> {
        splice::compatible(&client, &instance, pending).inspect_err(|reason| {
            tracing::debug!(%ends.client, ?client, ?instance, ?pending, reason = reason.name(), "no handoff now");
        })?;
        self.claim(ends, |flow, next_hops| {
            splice::fill(flow, ends, &client, &instance, pending, next_hops, monotonic_ns());
        })
    }

    /// Claims a slot, lets it be filled, and inserts its keys.
    pub(super) fn claim(&self, ends: &Ends, fill: impl FnOnce(&Flow, NextHops)) -> Result<u32, RelayReason> {
        let towards = |end: SocketAddr| self.next_hops.towards(end.ip());
        let next_hops = NextHops { to_client: towards(ends.client)?, to_instance: towards(ends.instance)? };
        let slot = self.lock().take(Instant::now()).ok_or(RelayReason::TableFull)?;
        let flow = &self.flows[slot as usize];
        fill(flow, next_hops);
        before(Step::InsertKeys);

        // The instance's key first: its answer must not meet a flow of which only half exists.
        let inserted = self
            .kernel
            .insert(ends.instance_key(), FlowRef::new(slot, Side::Instance))
            .inspect(|()| before(Step::InsertClientKey))
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

    pub(super) fn flow(&self, slot: u32) -> &Flow {
        &self.flows[slot as usize]
    }

    /// Keeps what lives and dies with a flow.
    pub(super) fn hold(&self, slot: u32, holding: Holding) {
        self.lock().hold(slot, holding);
    }

    /// Stashes of flows that an earlier daemon has bound, and whose instances may not have acknowledged them.
    pub(super) fn stashes_in_use(&self) -> HashSet<u32> {
        let slots = self.lock();
        let stash = |(slot, _): (u32, &Holding)| {
            let flow = self.flow(slot);
            let waits = flow.translation(Side::Client).traits.get() & FLAG_DIRECT == 0;
            flow.progress(Side::Client).stash.get().checked_sub(1).filter(|_| waits)
        };
        slots.held().filter_map(stash).collect()
    }

    /// Removes a flow whose instance has not answered. False, with nothing changed, if it has.
    pub(super) fn retract(&self, slot: u32) -> bool {
        let flow = self.flow(slot);
        let ends = Ends::of(flow);
        // Without the key no answer finds the flow; one that has found it is let finish.
        self.kernel.remove(ends.instance_key(), FlowRef::new(slot, Side::Instance));
        std::thread::sleep(ANSWER_PATIENCE);
        if is_live(flow) {
            let again = self.kernel.insert(ends.instance_key(), FlowRef::new(slot, Side::Instance));
            if again.is_ok() {
                return false;
            }
        }
        before(Step::RemoveKeys);
        self.remove_keys(slot, &ends);
        clear(flow);
        self.lock().release(slot, Instant::now());
        true
    }

    /// From now on the sweep looks after a flow.
    pub(super) fn release_bound(&self, slot: u32) {
        if let Some(holding) = self.lock().get_mut(slot) {
            holding.unbound = false;
        }
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
            client: ends.client,
            vip: ends.vip,
            source: ends.source,
            instance: ends.instance,
            rule: holding.rule.clone(),
            age: Duration::from_nanos(now.saturating_sub(client.born.get())),
            idle: expiry::idle(flow, now),
            protocol: "tcp",
            packets_to_instance: Some(client.packets.get()),
            bytes_to_instance: client.bytes.get(),
            packets_to_client: Some(instance.packets.get()),
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
        let pending = Pending {
            new_head: (handoff.to_instance.len() - handoff.surplus_len) as u32,
            surplus: handoff.surplus_len as u32,
        };
        // Nothing is sent before both entries exist, so the answer goes directly; on refusal the sockets are as they were.
        let claimed = ends(&handoff).and_then(|ends| {
            let (client, instance) = states(&handoff)?;
            if pending.new_head > 0 && pending.surplus + client.unread > 0 {
                // More is on its way from the client, and would overtake the request, which was to complete the instance's handshake. Until that
                // is complete, Linux accepts nothing from beyond its first window, and no answer to what it says about that (RFC 7323 §3.2).
                sockets::acknowledge(&handoff.instance).map_err(|_| RelayReason::SocketState)?;
            }
            self.claim_spliced(&ends, (client, instance), pending)
        });
        let slot = match claimed {
            Ok(slot) => slot,
            Err(reason) => {
                if reason == RelayReason::Window {
                    ask_for_windows(&handoff);
                }
                return Err((reason, handoff));
            }
        };
        let Handoff { client, instance, to_instance, source_port, session, rule, .. } = handoff;
        let holding = Holding {
            session: Some(session),
            source_port,
            rule,
            ended: None,
            orphaned: None,
            unbound: false,
        };
        self.hold(slot, holding);

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
        let Some(key) = FlowKey::tcp(source, instance) else { return };
        let mut erase = 0;
        if !client.timestamps {
            erase |= ERASE_TIMESTAMPS;
        }
        if !client.sack {
            erase |= ERASE_SACK;
        }
        // Where it fails, the legs will differ and the connection is relayed.
        self.kernel.erase_syn_options(key, erase);
    }

    fn claim(&self, client: IpAddr, instance: SocketAddr) -> Option<PortLease> {
        self.claims.take(client, instance)
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

    fn attachments(&self) -> Vec<Attachment> {
        self.kernel.xdp().attachments()
    }

    fn xdp_frames(&self) -> Vec<(&'static str, u64)> {
        XdpReason::ALL.iter().map(|reason| (reason.name(), self.kernel.xdp().frames(*reason))).collect()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        PacketReason::ALL.iter().map(|reason| (reason.name(), self.kernel.packets(*reason))).collect()
    }
}

/// A flow of which a killed daemon had bytes in custody: either they were on their way and are acknowledged, or both sides are reset.
fn look_after_orphan(flow: &Flow, holding: &mut Holding, now: Instant) {
    let Some(since) = holding.orphaned else { return };
    if custody::all_acknowledged(flow) {
        custody::make_direct(flow);
    } else if now.duration_since(since) < ORPHAN_PATIENCE {
        return;
    } else {
        let ends = Ends::of(flow);
        tracing::info!(client = %ends.client, instance = %ends.instance, "bytes were lost with the daemon that was killed; both sides are reset");
        custody::note_reset(flow);
        for (ours, peer, side) in
            [(ends.vip, ends.client, Side::Client), (ends.source, ends.instance, Side::Instance)]
        {
            // What a peer has acknowledged is what it expects next (RFC 5961 §3.2).
            if let Err(error) = raw_reset::send(ours, peer, flow.progress(side).max_ack.get()) {
                tracing::warn!(%peer, %error, "cannot reset a connection");
            }
        }
    }
    holding.orphaned = None;
}

/// Whether the connection to the instance has the client's address (`source = "transparent"`).
fn is_in_clients_name(ends: &Ends) -> bool {
    ends.source.ip() == ends.client.ip()
}

fn is_live(flow: &Flow) -> bool {
    flow.translations[0].traits.get() & FLAG_LIVE != 0
}

fn clear(flow: &Flow) {
    for translation in &flow.translations {
        translation.traits.set(0);
    }
}

/// A peer's window update may have been lost, and while nothing moves no other comes. Asked, it tells its window once more, and the next attempt goes by that.
fn ask_for_windows(handoff: &Handoff) {
    for socket in [&handoff.client, &handoff.instance] {
        // Without an answer the connection is relayed for longer.
        let _ = sockets::probe_window(socket);
    }
}

fn states(handoff: &Handoff) -> Result<(SocketState, SocketState), RelayReason> {
    let reason = |error| match error {
        StateError::HalfClosed => RelayReason::HalfClosed,
        StateError::MicrosecondClock => RelayReason::OptionMismatch,
        StateError::Refused(error) => {
            tracing::debug!(%error, "the kernel refused access to a socket's state");
            RelayReason::SocketState
        }
    };
    Ok((sockets::state(&handoff.client).map_err(reason)?, sockets::state(&handoff.instance).map_err(reason)?))
}

fn ends(handoff: &Handoff) -> Result<Ends, RelayReason> {
    let (client, vip) = addresses(&handoff.client)?;
    let (instance, source) = addresses(&handoff.instance)?;
    Ends::new([client, vip, source, instance])
}

/// Peer and own address.
fn addresses(socket: &OwnedFd) -> Result<(SocketAddr, SocketAddr), RelayReason> {
    let socket = SockRef::from(socket);
    let known = |address: io::Result<socket2::SockAddr>| {
        address.ok().and_then(|address| address.as_socket()).ok_or(RelayReason::SocketState)
    };
    Ok((known(socket.peer_addr())?, known(socket.local_addr())?))
}
