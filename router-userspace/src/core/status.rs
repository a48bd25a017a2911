//! What changes about an instance while the daemon runs. One [`InstanceStatus`] is shared by every snapshot of
//! the routing table that contains the instance, so that a reload neither forgets nor resets anything.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::counters::Count;
use super::health::{CheckSpec, Health, Observation, Reachability, Transition};
use super::session::InstanceCounters;

/// What the operator wants of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Times that checks or traffic took it down.
    pub went_down: Count,
}

/// Counters, admin state and health of one instance. Deciding reads atomics only.
#[derive(Debug)]
pub struct InstanceStatus {
    sessions: Arc<InstanceCounters>,
    admin: AtomicU8,
    /// Mirrors `health`, so that a decision need not lock.
    up: AtomicU8,
    health: Mutex<Health>,
    health_counts: HealthCounts,
}

impl InstanceStatus {
    /// The status of an instance at the start of the daemon. Without a check an instance is taken to be up.
    pub fn new(admin: AdminState, check: Option<&CheckSpec>) -> Arc<Self> {
        let initial = check.map_or(Reachability::Up, |check| check.initial);
        Arc::new(Self {
            sessions: Arc::default(),
            admin: AtomicU8::new(admin as u8),
            up: AtomicU8::new((initial == Reachability::Up).into()),
            health: Mutex::new(Health::new(initial)),
            health_counts: HealthCounts::default(),
        })
    }

    /// The session counters.
    pub fn sessions(&self) -> &Arc<InstanceCounters> {
        &self.sessions
    }

    pub fn admin(&self) -> AdminState {
        AdminState::ALL[usize::from(self.admin.load(Ordering::Relaxed))]
    }

    pub fn set_admin(&self, state: AdminState) {
        self.admin.store(state as u8, Ordering::Relaxed);
    }

    pub fn reachability(&self) -> Reachability {
        if self.up.load(Ordering::Acquire) == 1 { Reachability::Up } else { Reachability::Down }
    }

    /// A copy of the health state, for reports.
    pub fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn health_counts(&self) -> &HealthCounts {
        &self.health_counts
    }

    /// Takes the instance to be up, because no check is left that could bring it back.
    pub fn trust(&self) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = Health::new(Reachability::Up);
        self.up.store(1, Ordering::Release);
    }

    /// Takes in what was seen of the instance at `now`. Without a check nothing changes: an instance that no
    /// check could bring back is never taken down.
    pub fn observe(&self, check: Option<&CheckSpec>, seen: Observation, now: Instant) -> Option<Transition> {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let check = check?;
        let counts = &self.health_counts;
        match seen {
            Observation::CheckPassed => counts.checks_passed.add(1),
            Observation::CheckFailed(_) => counts.checks_failed.add(1),
            Observation::TrafficFailed(_) => {}
        }
        let transition = health.observe(check, seen, now)?;
        match transition.to {
            Reachability::Up => counts.came_up.add(1),
            Reachability::Down => counts.went_down.add(1),
        }
        self.up.store((transition.to == Reachability::Up).into(), Ordering::Release);
        Some(transition)
    }
}
