//! The one place where the daemon's configuration is exchanged while it runs: reloads and run-time changes end here.
//!
//! What can fail comes first (reading, checking, opening new listeners, storing the changes); what follows cannot fail, and
//! each part is exchanged whole. A request sees the routing table of before or of after. Live state (sessions, health,
//! counts) is carried over from one table to the next.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use socket2::Socket;

use super::balance::Balance;
use super::datapath;
use super::exemption::Exemption;
use super::heads::Heads;
use super::listeners;
use super::reports::Registry;
use crate::config::{Difference, ListenerPlan, Next, Refused, Running};
use crate::control::configuration::Configurator;
use crate::control::protocol::{
    self, Applied, ChangeRequest, Changes, DropRequest, LastReload, ReloadRequest, WriteRequest,
};
use crate::control::reports::Tokens;
use crate::core::pool::PoolId;
use crate::core::preload::Planner;
use crate::core::registry::RegistrationError;
use crate::core::table::RoutingTable;
use crate::flows::kernel_table::KernelFlowTable;
use crate::probe::Prober;
use crate::proxy::listener::{self, ListenError, Workers};
use crate::proxy::settings::{Context, Listener, ListenerSettings};

/// What a new configuration is installed in.
pub struct Parts {
    pub table: Arc<ArcSwap<RoutingTable>>,
    pub prober: Arc<Prober>,
    pub preloads: Arc<Mutex<Planner>>,
    pub workers: Arc<Workers>,
    pub context: Arc<Context>,
    pub heads: Arc<Heads>,
    /// With which instances report.
    pub tokens: Arc<Tokens>,
    pub balance: Arc<Balance>,
    /// `None` without a packet path.
    pub kernel: Option<Arc<KernelFlowTable>>,
    /// As the control socket shows them.
    pub listeners: Arc<ArcSwap<Vec<protocol::Listener>>>,
    /// `None` without a packet path.
    pub exemption: Option<Arc<Exemption>>,
}

impl Parts {
    fn exempt_from_tracking(&self, listeners: &[ListenerPlan], table: &RoutingTable) {
        if let Some(exemption) = &self.exemption {
            exemption.install(listeners, table);
        }
    }
}

/// The daemon's configuration, exchangeable.
pub struct Configuration {
    parts: Parts,
    /// `None` once the daemon ends.
    held: Mutex<Option<Held>>,
    /// For those who only look: they need not wait for a reload.
    status: ArcSwap<protocol::Configuration>,
}

struct Held {
    running: Running,
    listeners: Vec<ListenerPlan>,
    reloads: u64,
    refused: u64,
    last_reload: Option<LastReload>,
}

impl std::fmt::Debug for Configuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Configuration").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Configuration {
    /// `listeners` are served already, and the plan's table is in force.
    pub fn new(parts: Parts, running: Running, listeners: Vec<ListenerPlan>) -> Self {
        let held = Held { running, listeners, reloads: 0, refused: 0, last_reload: None };
        let status = ArcSwap::from_pointee(held.status());
        Self { parts, held: Mutex::new(Some(held)), status }
    }

    /// Reloads because of a signal: the log is where the operator looks.
    pub fn reload_and_log(&self) {
        match self.reload(&ReloadRequest::default()) {
            Ok(_) => {}
            Err(Refused::Invalid(problems)) => {
                tracing::error!(
                    "the configuration is not valid, and the old one stays in force:\n{problems}"
                );
            }
            Err(refused) => tracing::error!("the configuration is not reloaded: {refused}"),
        }
    }

    /// The host has begun to track connections.
    pub(super) fn exempt_from_tracking(&self) {
        if let Some(held) = &*self.held() {
            self.parts.exempt_from_tracking(&held.listeners, &self.parts.table.load());
        }
    }

    /// Nothing is changed any more.
    pub fn close(&self) {
        self.held().take();
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Composes the next configuration and, unless it is only a rehearsal, installs it.
    fn exchange(
        &self,
        revision: Option<&str>,
        dry_run: bool,
        compose: impl FnOnce(&Running) -> Result<Next, Refused>,
    ) -> Result<Applied, Refused> {
        let mut held = self.held();
        let held = held.as_mut().ok_or_else(ending)?;
        held.running.expect_revision(revision)?;
        let next = compose(&held.running)?;
        let mut applied = Applied {
            dry_run,
            revision: held.running.revision(),
            differences: next.differences.clone(),
            needs_restart: next.needs_restart.clone(),
            not_applied: next.not_applied().cloned().collect(),
            warnings: protocol::located(&next.plan.warnings),
        };
        if !dry_run {
            self.install(held, next)?;
            applied.revision = held.running.revision();
            self.status.store(Arc::new(held.status()));
            log(&applied);
        }
        Ok(applied)
    }

    /// Removes the instances that joined and have been silent for too long.
    pub fn forget_silent(&self, now: Instant) {
        let held = self.held();
        let Some((next, forgotten)) = self.parts.table.load().forget_silent(now) else { return };
        self.put(&held, next);
        for instance in forgotten {
            tracing::info!(%instance, "instance is forgotten: it joined by itself and does not report any more");
        }
    }

    /// Puts a table in force that differs in its instances. `held` keeps reloads away meanwhile.
    fn put(&self, held: &Option<Held>, next: RoutingTable) -> Arc<RoutingTable> {
        let parts = &self.parts;
        let table = Arc::new(next);
        parts.table.store(Arc::clone(&table));
        if let Some(held) = held {
            parts.prober.install(&table);
            parts.exempt_from_tracking(&held.listeners, &table);
        }
        table
    }

    fn install(&self, held: &mut Held, next: Next) -> Result<(), Refused> {
        let parts = &self.parts;
        let (before, after) = (proxied(&held.listeners), proxied(&next.plan.listeners));
        let opened = open_new(&before, &after, parts.workers.count())?;
        let claimed = parts
            .balance
            .may_replace(&held.listeners, &next.plan.listeners)
            .map_err(Refused::NotInstalled)?;
        super::transparent::prepare(&next.plan.listeners, parts.kernel.is_some())
            .map_err(|error| Refused::NotInstalled(format!("{error:#}")))?;
        held.running.store(&next)?;

        let plan = held.running.keep(next);
        let mut table = plan.table;
        let before = parts.table.load_full();
        table.carry_over(&before);
        let table = Arc::new(table);
        parts.table.store(Arc::clone(&table));
        parts.prober.install(&table);
        parts.preloads.lock().unwrap_or_else(PoisonError::into_inner).begin_stopped_anew(Instant::now());

        parts.tokens.replace(plan.reports.map_or_else(Vec::new, |reports| reports.tokens));
        if let Some(kernel) = &parts.kernel {
            kernel.attach_anew(&datapath::wishes(&plan.datapath));
        }
        parts.heads.replace(&plan.listeners);
        parts.listeners.store(Arc::new(plan.listeners.iter().map(Into::into).collect()));
        let serving = |settings| Arc::new(Listener { context: Arc::clone(&parts.context), settings });
        for old in proxied(&held.listeners) {
            let same = |new: &&ListenerPlan| new.address == old.address && !new.protocol.is_layer4();
            match plan.listeners.iter().find(same) {
                None => {
                    tracing::info!(listener = old.name, address = %old.address, "no longer listening");
                    parts.workers.remove(old.address);
                }
                Some(new) if *new != old => parts.workers.update(serving(listeners::settings(new))),
                Some(_) => {}
            }
        }
        for (settings, sockets) in opened {
            tracing::info!(listener = settings.name, address = %settings.address, "listening");
            parts.workers.add(serving(settings), sockets);
        }
        if let Err(error) = parts.balance.replace(&plan.listeners, claimed) {
            tracing::error!("the Layer-4 listeners are not all in force: {error}");
        }
        let moved = held.listeners != plan.listeners;
        held.listeners = plan.listeners;
        if moved || addresses(&before) != addresses(&table) {
            parts.exempt_from_tracking(&held.listeners, &table);
        }
        Ok(())
    }
}

/// The listeners that have sockets.
fn proxied(listeners: &[ListenerPlan]) -> Vec<ListenerPlan> {
    listeners.iter().filter(|listener| !listener.protocol.is_layer4()).cloned().collect()
}

/// Opens what is not listened on yet. If one cannot be opened, all are closed again.
fn open_new(
    old: &[ListenerPlan],
    new: &[ListenerPlan],
    workers: usize,
) -> Result<Vec<(ListenerSettings, Vec<Socket>)>, Refused> {
    let known = |address: SocketAddr| old.iter().any(|listener| listener.address == address);
    let missing = new.iter().filter(|listener| !known(listener.address));
    missing
        .map(|plan| {
            let settings = listeners::settings(plan);
            let sockets = listener::open(&settings, workers).map_err(|error| {
                let ours = old.iter().find(|old| {
                    old.address.port() == plan.address.port()
                        && old.address.is_ipv4() == plan.address.is_ipv4()
                        && (old.address.ip().is_unspecified() || plan.address.ip().is_unspecified())
                });
                Refused::NotInstalled(match (&error, ours) {
                    (ListenError::InUse { .. }, Some(ours)) => format!(
                        "listener {:?} cannot use {} while listener {:?} has {}; remove that one, reload, then add this one",
                        plan.name, plan.address, ours.name, ours.address
                    ),
                    _ => error.to_string(),
                })
            })?;
            Ok((settings, sockets))
        })
        .collect()
}

fn addresses(table: &RoutingTable) -> Vec<SocketAddr> {
    table.instances().map(|(_, _, instance)| instance.address).collect()
}

fn ending() -> Refused {
    Refused::NotInstalled("the daemon is ending".to_owned())
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn log(applied: &Applied) {
    tracing::info!(revision = applied.revision, "configuration in force");
    for Difference { what, name, how, detail } in &applied.differences {
        tracing::info!("{what} {name}: {} {detail}", how.name());
    }
    for entry in &applied.not_applied {
        let obstacle = entry.obstacle.as_deref().unwrap_or_default();
        tracing::warn!("run-time change {} is not in force ({}): {obstacle}", entry.id, entry.change);
    }
    for setting in &applied.needs_restart {
        tracing::warn!("{setting} waits until the daemon is started again");
    }
}

impl Held {
    fn status(&self) -> protocol::Configuration {
        let changes = self.running.changes();
        protocol::Configuration {
            revision: self.running.revision(),
            changes: changes.len(),
            changes_not_applied: changes.iter().filter(|entry| entry.obstacle.is_some()).count(),
            reloads: self.reloads,
            reloads_refused: self.refused,
            last_reload: self.last_reload.clone(),
            needs_restart: self.running.needs_restart(),
        }
    }

    fn changes(&self, written: Option<usize>) -> Changes {
        Changes {
            revision: self.running.revision(),
            config_file: self.running.file().display().to_string(),
            changes: self.running.changes().to_vec(),
            written,
        }
    }
}

/// An instance that joins a pool does so at once, for every request to come.
impl Registry for Configuration {
    fn register(
        &self,
        pool: PoolId,
        name: &str,
        address: SocketAddr,
        now: Instant,
    ) -> Result<Arc<RoutingTable>, RegistrationError> {
        let held = self.held();
        let listeners = held.iter().flat_map(|held| &held.listeners);
        if listeners.map(|listener| listener.address).any(|own| own == address) {
            return Err(RegistrationError::Unusable);
        }
        let next = self.parts.table.load().register(pool, name, address, now)?;
        Ok(self.put(&held, next))
    }
}

impl Configurator for Configuration {
    fn reload(&self, request: &ReloadRequest) -> Result<Applied, Refused> {
        let result = self.exchange(request.revision.as_deref(), request.dry_run, Running::reload);
        if !request.dry_run
            && let Some(held) = self.held().as_mut()
        {
            let error = result.as_ref().err().map(ToString::to_string);
            *(if error.is_none() { &mut held.reloads } else { &mut held.refused }) += 1;
            held.last_reload = Some(LastReload { at: seconds_now(), error });
            self.status.store(Arc::new(held.status()));
        }
        result
    }

    fn change(&self, request: &ChangeRequest) -> Result<Applied, Refused> {
        let changes = request.changes.clone();
        self.exchange(request.revision.as_deref(), request.dry_run, |running| {
            running.change(changes, seconds_now())
        })
    }

    fn drop_changes(&self, request: &DropRequest) -> Result<Applied, Refused> {
        self.exchange(request.revision.as_deref(), request.dry_run, |running| running.without(request.id))
    }

    fn write_changes(&self, request: &WriteRequest) -> Result<Changes, Refused> {
        let mut held = self.held();
        let held = held.as_mut().ok_or_else(ending)?;
        held.running.expect_revision(request.revision.as_deref())?;
        let written = held.running.write_back()?;
        self.status.store(Arc::new(held.status()));
        tracing::info!(written, file = %held.running.file().display(), "run-time changes written back");
        Ok(held.changes(Some(written)))
    }

    fn changes(&self) -> Changes {
        match &*self.held() {
            Some(held) => held.changes(None),
            None => Changes {
                revision: String::new(),
                config_file: String::new(),
                changes: Vec::new(),
                written: None,
            },
        }
    }

    fn status(&self) -> protocol::Configuration {
        protocol::Configuration::clone(&self.status.load())
    }
}
