//! What changes about an instance while the daemon runs. One [`InstanceStatus`] is shared by every snapshot of
//! the routing table that contains the instance, so that a reload neither forgets nor resets anything.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use super::adjust::Adjustment;
use super::agent::AgentReport;
use super::counters::Count;
use super::health::{CheckSpec, Failure, Health, Observation, Reachability, Transition};
use super::load::{Gauges, LoadMonitor, LoadPolicy, LoadStatus, Reading, Report, Thresholds};
use super::session::InstanceCounters;

/// What the operator, or the instance's agent, wants of an instance. The stricter state is the greater one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdminState {
    /// Serves.
    #[default]
    Enabled,
    /// Keeps its sessions, gets new ones only when no other instance of the pool can serve.
    Drain,
    /// Gets nothing.
    Maintenance,
}

impl AdminState {
    pub const ALL: [AdminState; 3] = [Self::Enabled, Self::Drain, Self::Maintenance];

    pub fn name(self) -> &'static str {
        match self {
            Self::Enabled => "enabled",
            Self::Drain => "drain",
            Self::Maintenance => "maintenance",
        }
    }
}

/// What was seen of an instance's health since the daemon started.
#[derive(Debug, Default)]
pub struct HealthCounts {
    pub checks_passed: Count,
    pub checks_failed: Count,
    /// Times that it came up.
    pub came_up: Count,
    /// Times that checks, traffic or its agent took it down.
    pub went_down: Count,
    /// Times that it fell silent.
    pub lost_contact: Count,
    /// Reports taken in, pushed or pulled.
    pub reports: Count,
    /// Words of its agent that mean nothing.
    pub agent_words_ignored: Count,
}

/// What a report, or time, has changed; to be logged by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub reachability: Option<Transition>,
    /// The load status before and after.
    pub load: Option<(LoadStatus, LoadStatus)>,
}

/// What is behind a lock, since only writers and reports for operators need it.
#[derive(Debug)]
struct Vitals {
    health: Health,
    load: LoadMonitor,
    /// When the instance last reported.
    reported: Option<Instant>,
    /// Since when its reports are waited for.
    awaited: Option<Instant>,
    agent_text: String,
}

/// The resources that an instance has reported as loaded.
#[derive(Debug)]
struct Loaded {
    resources: HashSet<String>,
    taken: Instant,
}

/// Counters, admin state, health and load of one instance. Deciding reads atomics only, and by most methods only those of
/// the first cache line: therefore the order of the fields.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct InstanceStatus {
    sessions: Arc<InstanceCounters>,
    adjustment: Adjustment,
    admin: AtomicU8,
    /// Mirrors `vitals.health`, so that a decision need not lock: see [`REACHABLE`] and the others.
    reach: AtomicU8,
    /// The latest [`LoadStatus`].
    load: AtomicU8,
    /// Whether `loaded` lists any resource, so that a decision need not look there in vain.
    lists_resources: AtomicBool,
    gauges: Gauges,
    loaded: ArcSwapOption<Loaded>,
    vitals: Mutex<Vitals>,
    health_counts: HealthCounts,
}

/// The lowest two bits of `reach` are the [`Reachability`]; the next two the same if checks are not believed.
const REACHABLE: u8 = 0b11;
const WITHOUT_CHECKS: u32 = 2;
/// Set if checks say that it is down.
const FAILS_CHECKS: u8 = 1 << 4;

fn pack(health: &Health) -> u8 {
    let failing = if health.fails_checks() { FAILS_CHECKS } else { 0 };
    health.reachability() as u8 | (health.reachability_without_checks() as u8) << WITHOUT_CHECKS | failing
}

fn unpack(bits: u8) -> Reachability {
    match bits & REACHABLE {
        up if up == Reachability::Up as u8 => Reachability::Up,
        silent if silent == Reachability::OutOfContact as u8 => Reachability::OutOfContact,
        _ => Reachability::Down,
    }
}

impl InstanceStatus {
    /// The status of an instance at the start of the daemon. Without a check an instance is taken to be up.
    pub fn new(admin: AdminState, check: Option<&CheckSpec>) -> Arc<Self> {
        Self::counting(admin, check, Arc::default())
    }

    /// The same for an address at which sessions live already.
    pub fn counting(
        admin: AdminState,
        check: Option<&CheckSpec>,
        sessions: Arc<InstanceCounters>,
    ) -> Arc<Self> {
        let health = Health::new(check.map_or(Reachability::Up, |check| check.initial));
        Arc::new(Self {
            sessions,
            admin: AtomicU8::new(admin as u8),
            reach: AtomicU8::new(pack(&health)),
            load: AtomicU8::new(LoadStatus::Available as u8),
            lists_resources: AtomicBool::new(false),
            gauges: Gauges::default(),
            adjustment: Adjustment::default(),
            loaded: ArcSwapOption::empty(),
            vitals: Mutex::new(Vitals {
                health,
                load: LoadMonitor::default(),
                reported: None,
                awaited: None,
                agent_text: String::new(),
            }),
            health_counts: HealthCounts::default(),
        })
    }

    /// The session counters.
    pub fn sessions(&self) -> &Arc<InstanceCounters> {
        &self.sessions
    }

    /// The admin state: the stricter of what the operator and the instance's agent want.
    #[inline]
    pub fn admin(&self) -> AdminState {
        self.operator_admin().max(self.adjustment.admin())
    }

    /// What the operator alone wants.
    pub fn operator_admin(&self) -> AdminState {
        AdminState::ALL[usize::from(self.admin.load(Ordering::Relaxed))]
    }

    /// Sets what the operator wants.
    pub fn set_admin(&self, state: AdminState) {
        self.admin.store(state as u8, Ordering::Relaxed);
    }

    #[inline]
    pub fn reachability(&self) -> Reachability {
        unpack(self.reach.load(Ordering::Acquire))
    }

    /// The reachability as it would be if active checks were not believed. See [`Pool::fails_open`].
    ///
    /// [`Pool::fails_open`]: super::pool::Pool::fails_open
    pub fn reachability_without_checks(&self) -> Reachability {
        unpack(self.reach.load(Ordering::Acquire) >> WITHOUT_CHECKS)
    }

    /// Whether its checks say that it is down; not while it has not been checked yet.
    pub fn fails_checks(&self) -> bool {
        self.reach.load(Ordering::Acquire) & FAILS_CHECKS != 0
    }

    /// How busy it is, as its reports say.
    pub fn load_status(&self) -> LoadStatus {
        LoadStatus::ALL[usize::from(self.load.load(Ordering::Acquire))]
    }

    /// What methods compare; each value is known only while its report is at most the pool's `report_ttl` old.
    pub fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    /// Whether the instance reports, at most `ttl` ago, that it has this resource loaded.
    #[inline]
    pub fn reports_loaded(&self, resource: &str, ttl: Duration, now: Instant) -> bool {
        let listed = || {
            self.loaded.load().as_ref().is_some_and(|loaded| {
                now.saturating_duration_since(loaded.taken) <= ttl && loaded.resources.contains(resource)
            })
        };
        self.lists_resources.load(Ordering::Acquire) && listed()
    }

    /// The resources that it reported last, sorted, for reports.
    pub fn loaded_resources(&self) -> Vec<String> {
        let loaded = self.loaded.load();
        let mut list: Vec<_> = loaded.iter().flat_map(|loaded| loaded.resources.iter().cloned()).collect();
        list.sort_unstable();
        list
    }

    /// The weight that counts at `now`: the configured one as the agent has changed it, ramped for `slow_start` after
    /// the instance came back. It is 0 only if that asked for is 0.
    #[inline]
    pub fn effective_weight(&self, configured: u32, slow_start: Duration, now: Instant) -> u32 {
        self.adjustment.weight(configured, slow_start, now)
    }

    /// The limit of sessions that counts: the configured one, or the agent's if that is lower.
    #[inline]
    pub fn max_sessions(&self, configured: Option<u32>) -> Option<u32> {
        [configured, self.adjustment.max_sessions()].into_iter().flatten().min()
    }

    /// What the agent asks for.
    pub fn adjustment(&self) -> &Adjustment {
        &self.adjustment
    }

    /// A copy of the health state, for reports.
    pub fn health(&self) -> Health {
        self.vitals().health.clone()
    }

    /// The averages that the load status follows from, for reports.
    pub fn readings(&self, policy: &LoadPolicy, now: Instant) -> Vec<Reading> {
        self.vitals().load.readings(policy, now)
    }

    /// When it last reported.
    pub fn reported(&self) -> Option<Instant> {
        self.vitals().reported
    }

    /// What its agent last said after a `#`; empty if nothing.
    pub fn agent_text(&self) -> String {
        self.vitals().agent_text.clone()
    }

    pub fn health_counts(&self) -> &HealthCounts {
        &self.health_counts
    }

    /// Takes checks and traffic to be well, because no check is left that could bring the instance back.
    pub fn trust(&self) {
        let mut vitals = self.vitals();
        vitals.health.trust();
        self.reach.store(pack(&vitals.health), Ordering::Release);
    }

    /// Forgets what an agent said, because nobody asks it any more.
    pub fn forget_agent(&self) {
        let mut vitals = self.vitals();
        vitals.health.forget_agent();
        self.reach.store(pack(&vitals.health), Ordering::Release);
        self.adjustment.reset();
        vitals.agent_text.clear();
    }

    /// Begins a slow start, for an instance that was not there before.
    pub fn begin_slow_start(&self, now: Instant) {
        self.adjustment.begin_slow_start(now);
    }

    /// Takes in what was seen of the instance at `now`. Without a check nothing changes by checks and traffic: an
    /// instance that no check could bring back is never taken down.
    pub fn observe(&self, check: Option<&CheckSpec>, seen: Observation, now: Instant) -> Option<Transition> {
        self.see(&mut self.vitals(), check, seen, now)
    }

    /// Takes in a report at `now`.
    pub fn report(
        &self,
        report: &Report,
        policy: &LoadPolicy,
        thresholds: &Thresholds,
        now: Instant,
    ) -> Changes {
        let mut vitals = self.vitals();
        self.health_counts.reports.add(1);
        self.gauges.publish(report, now);
        if let Some(resources) = &report.resources {
            let resources: HashSet<_> = resources.iter().cloned().collect();
            let any = !resources.is_empty();
            self.loaded.store(Some(Arc::new(Loaded { resources, taken: now })));
            self.lists_resources.store(any, Ordering::Release);
        }
        vitals.reported = Some(now);
        vitals.awaited.get_or_insert(now);
        vitals.load.report(report, policy, now);
        let reachability = self.see(&mut vitals, None, Observation::Reported, now);
        Changes { reachability, load: self.judge(&mut vitals, policy, thresholds, now) }
    }

    /// Takes in what the instance's agent said at `now`: its value is a report, its words are orders.
    pub fn agent(
        &self,
        said: &AgentReport,
        policy: &LoadPolicy,
        thresholds: &Thresholds,
        now: Instant,
    ) -> Changes {
        self.health_counts.agent_words_ignored.add(said.ignored.into());
        if said.is_empty() {
            return Changes::default();
        }
        self.adjustment.apply(said);
        let report = Report { agent_value: said.value, ..Report::default() };
        let mut changes = self.report(&report, policy, thresholds, now);
        let mut vitals = self.vitals();
        vitals.agent_text.clone_from(&said.text);
        let seen = match said.up {
            Some(true) => Observation::AgentUp,
            Some(false) => Observation::AgentDown(Failure::AgentSaysDown),
            None => return changes,
        };
        changes.reachability = self.see(&mut vitals, None, seen, now).or(changes.reachability);
        changes
    }

    /// Takes in at `now` that the agent answers again, whatever it says.
    pub fn agent_answered(&self, now: Instant) -> Option<Transition> {
        let mut vitals = self.vitals();
        match vitals.health.agent_down() {
            Some(Failure::AgentSilent) => self.see(&mut vitals, None, Observation::AgentUp, now),
            _ => None,
        }
    }

    /// Lets time pass: silence, and averages that move without a report.
    pub fn advance(&self, policy: &LoadPolicy, thresholds: &Thresholds, now: Instant) -> Changes {
        let mut vitals = self.vitals();
        let awaited = *vitals.awaited.get_or_insert(now);
        let heard = vitals.reported.map_or(awaited, |reported| reported.max(awaited));
        let seen = match policy.must_report {
            true if now.saturating_duration_since(heard) > policy.report_ttl => Some(Observation::Silent),
            true => None,
            false => {
                vitals.awaited = None;
                Some(Observation::Reported)
            }
        };
        let reachability = seen.and_then(|seen| self.see(&mut vitals, None, seen, now));
        Changes { reachability, load: self.judge(&mut vitals, policy, thresholds, now) }
    }

    fn vitals(&self) -> MutexGuard<'_, Vitals> {
        self.vitals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(
        &self,
        vitals: &mut Vitals,
        check: Option<&CheckSpec>,
        seen: Observation,
        now: Instant,
    ) -> Option<Transition> {
        let counts = &self.health_counts;
        match seen {
            Observation::CheckPassed if check.is_some() => counts.checks_passed.add(1),
            Observation::CheckFailed(_) if check.is_some() => counts.checks_failed.add(1),
            _ => {}
        }
        let was_checked = vitals.health.checked();
        let transition = vitals.health.observe(check, seen, now);
        self.reach.store(pack(&vitals.health), Ordering::Release);
        match transition?.to {
            Reachability::Up => {
                counts.came_up.add(1);
                // What its first check finds up was up before the daemon was.
                if was_checked || seen != Observation::CheckPassed {
                    self.adjustment.begin_slow_start(now);
                }
            }
            Reachability::OutOfContact => counts.lost_contact.add(1),
            Reachability::Down => counts.went_down.add(1),
        }
        transition
    }

    fn judge(
        &self,
        vitals: &mut Vitals,
        policy: &LoadPolicy,
        thresholds: &Thresholds,
        now: Instant,
    ) -> Option<(LoadStatus, LoadStatus)> {
        let status = vitals.load.judge(thresholds, policy, self.sessions.live(), now);
        let before = LoadStatus::ALL[usize::from(self.load.swap(status as u8, Ordering::AcqRel))];
        (before != status).then_some((before, status))
    }
}
