//! Where a resource is opened: the same choice that a user's request would meet.

use std::time::Instant;

use super::Preload;
use crate::core::candidates::Judge;
use crate::core::choose::Terms;
use crate::core::load::LoadStatus;
use crate::core::methods::consistent_hash::stable_hash;
use crate::core::pool::{InstanceId, Method};
use crate::core::session::Session;
use crate::core::status::AdminState;
use crate::core::table::{RoutingTable, RuleRef};

impl RoutingTable {
    /// An instance for the rule's resource that is none of `taken`, with a session that lasts as long as the request; `None`
    /// if there is none. Draining instances are never picked.
    pub(super) fn pick_for_preload(
        &self,
        rule: RuleRef,
        resource: &str,
        load_on_exhausted: bool,
        taken: &[InstanceId],
        now: Instant,
    ) -> Option<(InstanceId, Session)> {
        let pools = self.pools_of(rule);
        let method = self.method(rule, pools);
        loop {
            let holders = self.memory().resources.holders(resource);
            let terms = Terms {
                pools,
                method,
                allow_exhausted: Some(load_on_exhausted),
                resource: Some(resource),
                holders: &holders,
                last: None,
                ring: (method == Method::ConsistentHash).then(|| self.ring(pools)).flatten(),
                key: stable_hash(resource.as_bytes()),
                tried: taken,
                now,
            };
            let choice = self.choose(&terms, |_, _| ())?;
            // One is chosen only while nobody else can serve.
            if self.instance(choice.id).status.admin() == AdminState::Drain {
                return None;
            }
            if let Some(session) = self.claim(&choice) {
                return Some((choice.id, session));
            }
        }
    }

    /// Whether a resource that was opened on an instance may stay there: it serves, and is not about to leave.
    pub(super) fn keeps_preloads(&self, id: InstanceId, now: Instant) -> bool {
        let judge = Judge::of(self.pool(id.pool), None, now);
        judge.usable(self.instance(id)) == Ok(AdminState::Enabled)
    }

    pub(super) fn is_exhausted(&self, id: InstanceId) -> bool {
        self.instance(id).status.load_status() == LoadStatus::Exhausted
    }

    /// Whether the resource may be requested on the instance now, by how busy that is.
    pub(super) fn has_room_for(&self, id: InstanceId, preload: &Preload, loaded: bool) -> bool {
        let allowed = if loaded { preload.update_exhausted } else { preload.load_on_exhausted };
        allowed || !self.is_exhausted(id)
    }
}
