//! How a session begins: for real, or only as it would, for `explain`.

use std::time::Instant;

use super::choose::{Choice, Terms};
use super::identity::Identity;
use super::memory::AFFINITY_TIMEOUT;
use super::memory::places::PlaceKey;
use super::memory::resources::Opened;
use super::pool::{InstanceId, Method};
use super::session::{Attached, InstanceKey, Session};
use super::table::RoutingTable;

/// Begins sessions. `seen` is the instance on which the request's session was found to live.
pub(super) trait Begin {
    type Session;
    /// Another connection of a session that lives on this instance; `None` if it has moved meanwhile.
    fn resume(&self, id: InstanceId, seen: Option<InstanceKey>) -> Option<Self::Session>;
    /// A session on the instance that the request's cookie names; `None` if its session key has moved elsewhere meanwhile.
    fn come_back(&self, id: InstanceId, seen: Option<InstanceKey>) -> Option<Self::Session>;
    /// A new session on the chosen instance; `None` if what the choice rested on has changed since.
    fn claim(&self, choice: &Choice, terms: &Terms<'_>, seen: Option<InstanceKey>) -> Option<Self::Session>;
}

/// Begins nothing.
pub(super) struct Pretend;

impl Begin for Pretend {
    type Session = ();

    fn resume(&self, _id: InstanceId, _seen: Option<InstanceKey>) -> Option<()> {
        Some(())
    }

    fn come_back(&self, _id: InstanceId, _seen: Option<InstanceKey>) -> Option<()> {
        Some(())
    }

    fn claim(&self, _choice: &Choice, _terms: &Terms<'_>, _seen: Option<InstanceKey>) -> Option<()> {
        Some(())
    }
}

/// Begins the session, and remembers it.
pub(super) struct Real<'a> {
    pub table: &'a RoutingTable,
    pub listener: &'a str,
    pub identity: &'a Identity<'a>,
    pub now: Instant,
}

impl Begin for Real<'_> {
    type Session = Session;

    fn resume(&self, id: InstanceId, seen: Option<InstanceKey>) -> Option<Session> {
        let session = self.come_back(id, seen)?;
        self.table.memory().counts.sessions_resumed.add(1);
        Some(session)
    }

    fn come_back(&self, id: InstanceId, seen: Option<InstanceKey>) -> Option<Session> {
        let counters = self.table.instance(id).status.sessions();
        let opened = self
            .identity
            .resource
            .as_deref()
            .and_then(|resource| self.table.memory().resources.open(resource, counters, None));
        self.remember(counters.begin(), id, opened, seen)
    }

    fn claim(&self, choice: &Choice, terms: &Terms<'_>, seen: Option<InstanceKey>) -> Option<Session> {
        let session = self.table.claim(choice)?;
        let counters = self.table.instance(choice.id).status.sessions();
        let memory = self.table.memory();
        // Where `None` is returned from here on, the session that was just claimed ends.
        let opened = match terms.resource {
            Some(resource) => Some(memory.resources.open(resource, counters, Some(terms.holders))?),
            None => None,
        };
        let session = self.remember(session, choice.id, opened, seen)?;
        let counts = &memory.counts;
        counts.fallbacks(terms.method).add(choice.fell_back.into());
        counts.by_affinity.add((terms.last == Some(choice.id)).into());
        counts.sessions_moved.add(seen.is_some_and(|seen| seen != counters.key()).into());
        Some(session)
    }
}

impl RoutingTable {
    /// A session on the chosen instance; `None` if another worker's choice has come before.
    pub(super) fn claim(&self, choice: &Choice) -> Option<Session> {
        let instance = self.instance(choice.id);
        let (counters, standing) = (instance.status.sessions(), &choice.standing);
        if choice.method == Method::RoundRobin {
            let max = instance.status.max_sessions(instance.max_sessions);
            counters.claim_turn(standing.turn_start, standing.next_turn(), max, choice.turn)
        } else {
            counters.claim(standing.tally(), choice.turn)
        }
    }
}

impl Real<'_> {
    /// Ties the session to what its end must end too, and remembers where the session key and the user were served.
    fn remember(
        &self,
        mut session: Session,
        id: InstanceId,
        opened: Option<Opened>,
        seen: Option<InstanceKey>,
    ) -> Option<Session> {
        let (memory, counters) = (self.table.memory(), self.table.instance(id).status.sessions());
        if let Some(user) = self.identity.user.as_deref() {
            let key = PlaceKey { scope: "", key: user.as_bytes() };
            memory.users.put(key, counters, AFFINITY_TIMEOUT, self.now);
        }
        let attached = match self.identity.session.as_deref() {
            Some(key) => {
                let key = PlaceKey { scope: self.listener, key };
                let timeout = self.identity.idle_timeout;
                let presence = memory.sessions.bind(key, seen, counters, timeout, self.now)?;
                if let Some(opened) = opened {
                    memory.sessions.keep_open(key, opened);
                }
                Attached { _presence: Some(presence), _opened: None }
            }
            None if opened.is_some() => Attached { _presence: None, _opened: opened },
            None => return Some(session),
        };
        session.attach(attached);
        Some(session)
    }
}
