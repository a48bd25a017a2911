//! One resource of one rule: the instances that it is on, and which requests it needs now.

use std::sync::Arc;
use std::time::Instant;

use super::place::{Place, State};
use super::planner::{Event, Task};
use super::{Preload, Wanted};
use crate::core::pool::InstanceId;
use crate::core::session::{InstanceCounters, Session};
use crate::core::table::{RoutingTable, RuleRef};

/// One resource of one rule.
#[derive(Debug)]
pub(super) struct Item {
    pub rule: String,
    pub resource: String,
    pub pool: String,
    pub preload: Arc<Preload>,
    pub places: Vec<Place>,
    /// When the first instances are picked.
    pub begins: Instant,
    /// Whether the latest search for an instance found none.
    pub lacks_instances: bool,
    pub at: RuleRef,
}

/// A resource that an instance is not to be known for any more.
pub(super) type Unmarked = (String, Arc<InstanceCounters>);

impl Item {
    /// The instances that are known for the resource because of this.
    pub fn into_marks(self) -> impl Iterator<Item = Unmarked> {
        let resource = self.resource;
        let loaded = self.places.into_iter().filter(|place| place.loaded);
        loaded.map(move |place| (resource.clone(), place.instance))
    }

    /// The instance of a place, if it is still one of the rule's.
    fn id_of(&self, place: &Place, table: &RoutingTable) -> Option<InstanceId> {
        let id = table.id_of(place.instance.key())?;
        table.pools_of(self.at).contains(&id.pool).then_some(id)
    }

    /// Forgets instances that went away, and those on which the resource cannot be opened any more before it ever was.
    pub fn let_go(
        &mut self,
        table: &RoutingTable,
        now: Instant,
        events: &mut Vec<Event>,
        unmarked: &mut Vec<Unmarked>,
    ) {
        for mut place in std::mem::take(&mut self.places) {
            let id = self.id_of(&place, table).filter(|&id| table.keeps_preloads(id, now));
            if let Some(id) = id {
                let idle = place.state == State::Waiting && !place.loaded;
                if !idle || table.has_room_for(id, &self.preload, false) {
                    table.instance(id).name.clone_into(&mut place.name);
                    self.places.push(place);
                }
                continue;
            }
            let (rule, resource) = (self.rule.clone(), self.resource.clone());
            events.push(Event::InstanceGone { rule, resource, instance: place.name });
            if place.loaded {
                unmarked.push((self.resource.clone(), place.instance));
            }
        }
    }

    /// Begins what is due, at most `room` requests.
    pub fn begin(
        &mut self,
        table: &RoutingTable,
        now: Instant,
        room: usize,
        tickets: &mut u64,
        events: &mut Vec<Event>,
    ) -> Vec<Task> {
        let mut tasks = Vec::new();
        let mut ticket = || {
            *tickets += 1;
            *tickets
        };
        let avoid = self.give_up_stopped(table, now, room);
        let mut lacks = false;
        while tasks.len() < room && self.places.len() < self.preload.instances.number() {
            let Some((id, session)) = self.pick(table, &avoid, now) else {
                lacks = true;
                break;
            };
            let instance = table.instance(id);
            let mut place = Place::new(Arc::clone(session.counters()), instance.name.clone(), now);
            let ticket = ticket();
            place.begin(ticket, now);
            self.places.push(place);
            tasks.push(self.task(table, id, ticket, session));
        }
        if lacks && !self.lacks_instances && (self.preload.instances != Wanted::All || self.places.is_empty())
        {
            let (rule, resource) = (self.rule.clone(), self.resource.clone());
            events.push(Event::NoInstance { rule, resource, has: self.places.len() });
        }
        self.lacks_instances = lacks;
        for index in 0..self.places.len() {
            let place = &self.places[index];
            let Some(id) = self.id_of(place, table).filter(|_| place.is_due(now)) else { continue };
            if tasks.len() < room && table.has_room_for(id, &self.preload, place.loaded) {
                let (ticket, session) = (ticket(), place.instance.begin());
                self.places[index].begin(ticket, now);
                tasks.push(self.task(table, id, ticket, session));
            }
        }
        tasks
    }

    /// Takes leave of instances on which every try failed, so that others can be picked. At most `room`.
    fn give_up_stopped(&mut self, table: &RoutingTable, now: Instant, room: usize) -> Vec<InstanceId> {
        let mut given_up = Vec::new();
        for place in std::mem::take(&mut self.places) {
            let due = place.state == State::Stopped && place.due <= now && given_up.len() < room;
            match self.id_of(&place, table) {
                Some(id) if due => given_up.push(id),
                _ => self.places.push(place),
            }
        }
        given_up
    }

    /// Another instance, one of `avoid` only if there is no other.
    fn pick(
        &self,
        table: &RoutingTable,
        avoid: &[InstanceId],
        now: Instant,
    ) -> Option<(InstanceId, Session)> {
        let pick = |taken: &[InstanceId]| {
            table.pick_for_preload(self.at, &self.resource, self.preload.load_on_exhausted, taken, now)
        };
        let mut taken: Vec<_> = self.places.iter().filter_map(|place| self.id_of(place, table)).collect();
        if avoid.is_empty() {
            return pick(&taken);
        }
        let own = taken.len();
        taken.extend(avoid);
        pick(&taken).or_else(|| pick(&taken[..own]))
    }

    fn task(&self, table: &RoutingTable, id: InstanceId, ticket: u64, session: Session) -> Task {
        let instance = table.instance(id);
        Task {
            ticket,
            rule: self.rule.clone(),
            resource: self.resource.clone(),
            pool: self.pool.clone(),
            instance: instance.name.clone(),
            address: instance.address,
            proxy_protocol: table.pool(id.pool).proxy_protocol,
            preload: Arc::clone(&self.preload),
            session,
        }
    }
}
