//! What the router remembers of earlier decisions: sessions, each user's last instance, and who has which resource loaded.
//!
//! One [`Memory`] is shared by every snapshot of the routing table, so that a reload forgets nothing. It is bounded: when a
//! table is full, the entry that was unused for longest among a few is evicted, and counted.

pub mod places;
pub mod queue;
pub mod resources;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::counters::{Count, CountByReason};
use super::identity::IdentityPart;
use super::pool::Method;
use places::Places;
use queue::Queues;
use resources::Resources;

/// How long a user's last instance is remembered without a request of the user.
pub const AFFINITY_TIMEOUT: Duration = Duration::from_secs(86_400);

/// How many entries each table may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    pub sessions: usize,
    pub users: usize,
    pub resources: usize,
}

impl MemoryLimits {
    /// The same limit for each table.
    pub fn of(limit: usize) -> Self {
        Self { sessions: limit, users: limit, resources: limit }
    }
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self::of(1_000_000)
    }
}

/// How decisions came about, and what could not be remembered.
#[derive(Debug, Default)]
pub struct DecisionCounts {
    /// Requests of a live session, which went to its instance before any rule.
    pub sessions_resumed: Count,
    /// Live sessions whose instance could not serve any more: they got another one.
    pub sessions_moved: Count,
    /// New sessions that went to the user's last instance.
    pub by_affinity: Count,
    /// Decisions in which the method lacked a fresh report of some candidate; the place is [`Method::ALL`]'s.
    fallbacks: [Count; Method::ALL.len()],
    /// Users, groups and the like that came from an address that is not trusted.
    pub untrusted: Count,
    /// Values that were too long to be looked at.
    pub too_long: CountByReason<IdentityPart>,
}

impl DecisionCounts {
    /// Decisions for which `method` was asked and `fewest-sessions` was used.
    pub fn fallbacks(&self, method: Method) -> &Count {
        let place = Method::ALL.iter().position(|&one| one == method);
        &self.fallbacks[place.unwrap_or_default()]
    }
}

/// What the router remembers of earlier decisions.
#[derive(Debug, Default)]
pub struct Memory {
    /// By listener and session key.
    pub sessions: Places,
    /// By user.
    pub users: Places,
    pub resources: Arc<Resources>,
    pub queues: Arc<Queues>,
    pub counts: DecisionCounts,
}

impl Memory {
    pub fn new(limits: MemoryLimits) -> Arc<Self> {
        Arc::new(Self {
            sessions: Places::new(limits.sessions),
            users: Places::new(limits.users),
            resources: Resources::new(limits.resources),
            queues: Arc::default(),
            counts: DecisionCounts::default(),
        })
    }

    pub fn limits(&self) -> MemoryLimits {
        MemoryLimits {
            sessions: self.sessions.limit(),
            users: self.users.limit(),
            resources: self.resources.limit(),
        }
    }

    /// Changes how much is remembered; see [`Places::set_limit`] for what is forgotten if that is less.
    pub fn set_limits(&self, limits: MemoryLimits) {
        self.sessions.set_limit(limits.sessions);
        self.users.set_limit(limits.users);
        self.resources.set_limit(limits.resources);
    }

    /// Forgets what has been idle for too long. To be called every few seconds; an idle time is as exact as that.
    pub fn sweep(&self, now: Instant) {
        self.sessions.sweep(now);
        self.users.sweep(now);
    }
}
