//! The plan of all preloads: which instances have which resource, and what is to be requested next.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Zoned;

pub use super::place::Verdict;
use super::place::{Place, State};
use super::{LoadFailure, Preload, PreloadCounts, Wanted};
use crate::core::health::first_turn;
use crate::core::pool::InstanceId;
use crate::core::session::{InstanceCounters, Session};
use crate::core::table::{Action, RoutingTable, RuleRef};

/// Requests that are under way at a time, over all rules.
pub const CONCURRENT: usize = 8;
/// The first requests after a start spread over a tenth of this, or of the interval if that is shorter.
const SPREAD: Duration = Duration::from_secs(10);

/// A request to send now.
#[derive(Debug)]
pub struct Task {
    /// To be given back to [`Planner::finish`].
    pub ticket: u64,
    pub rule: String,
    pub resource: String,
    pub pool: String,
    pub instance: String,
    pub address: SocketAddr,
    pub preload: Arc<Preload>,
    /// The request is a session on the instance while it lasts.
    pub session: Session,
}

/// What happened without a request, to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The instance went away (down, removed, draining), and with it the resource.
    InstanceGone { rule: String, resource: String, instance: String },
    /// Fewer instances than the rule wants can be picked.
    NoInstance { rule: String, resource: String, has: usize },
}

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
    at: RuleRef,
}

/// The plan. Start with [`Planner::default`].
#[derive(Debug, Default)]
pub struct Planner {
    items: Vec<Item>,
    /// The table that `items` were last compared with.
    table: Option<Arc<RoutingTable>>,
    tickets: u64,
    /// Requests that have begun and not ended, also those whose instance went away meanwhile.
    under_way: usize,
    /// Where the search for work goes on, so that no item is always last.
    hand: usize,
    pub counts: PreloadCounts,
}

/// A resource that an instance is not to be known for any more.
type Unmarked = (String, Arc<InstanceCounters>);

impl Planner {
    pub(super) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Whether nothing is to be done, now or later, until the table changes.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// What is to be done at `now`, when clocks show `wall`.
    pub fn step(
        &mut self,
        table: &Arc<RoutingTable>,
        now: Instant,
        wall: &Zoned,
        random: &mut impl FnMut() -> u32,
    ) -> (Vec<Task>, Vec<Event>) {
        let mut events = Vec::new();
        let mut unmarked = Vec::new();
        if self.table.as_ref().is_none_or(|known| !Arc::ptr_eq(known, table)) {
            unmarked.extend(self.adopt(table, now, random));
            self.table = Some(Arc::clone(table));
        }
        for item in &mut self.items {
            item.let_go(table, now, &mut events, &mut unmarked);
        }
        for (resource, instance) in unmarked {
            self.unmark(table, &resource, &instance);
        }
        let mut tasks = Vec::new();
        let mut room = CONCURRENT.saturating_sub(self.under_way);
        for _ in 0..self.items.len() {
            if room == 0 {
                break;
            }
            self.hand = (self.hand + 1) % self.items.len();
            let item = &mut self.items[self.hand];
            if item.begins <= now && item.preload.schedule.is_open(wall) {
                let begun = item.begin(table, now, room, &mut self.tickets, &mut events);
                room -= begun.len();
                tasks.extend(begun);
            }
        }
        self.under_way += tasks.len();
        (tasks, events)
    }

    /// Takes in how a request went; to be called once for each.
    pub fn finish(
        &mut self,
        table: &RoutingTable,
        ticket: u64,
        result: Result<u16, LoadFailure>,
        now: Instant,
        random: u32,
    ) -> Verdict {
        self.under_way = self.under_way.saturating_sub(1);
        match &result {
            Ok(_) => self.counts.succeeded.add(1),
            Err(failure) => self.counts.failed.add(failure.reason()),
        }
        let running = self.items.iter_mut().find_map(|item| {
            let found = item.places.iter_mut().find_map(|place| match place.state {
                State::Running { ticket: own, started } if own == ticket => Some((place, started)),
                _ => None,
            });
            found.map(|(place, started)| (&item.resource, &item.preload, place, started))
        });
        let Some((resource, preload, place, started)) = running else { return Verdict::GivenUp };
        let was_loaded = place.loaded;
        let verdict = place.finish(preload, result, started, now, random);
        if place.loaded {
            table.memory().resources.mark_preloaded(resource, &place.instance, true);
        } else if was_loaded {
            let (resource, instance) = (resource.clone(), Arc::clone(&place.instance));
            self.unmark(table, &resource, &instance);
        }
        verdict
    }

    /// Begins at once with what has stopped after repeated failures: the configuration was read anew.
    pub fn begin_stopped_anew(&mut self, now: Instant) {
        for place in self.items.iter_mut().flat_map(|item| &mut item.places) {
            if place.state == State::Stopped {
                place.due = now;
            }
        }
    }

    /// Takes the preloads of a table over: what has not changed goes on.
    fn adopt(
        &mut self,
        table: &RoutingTable,
        now: Instant,
        random: &mut impl FnMut() -> u32,
    ) -> Vec<Unmarked> {
        let before = std::mem::take(&mut self.items);
        let mut before: HashMap<_, _> =
            before.into_iter().map(|item| ((item.rule.clone(), item.resource.clone()), item)).collect();
        let mut unmarked = Vec::new();
        for (index, rule) in table.rules().iter().enumerate() {
            let (true, Some(preload), Action::Pool(pool)) = (rule.enabled, &rule.preload, rule.action) else {
                continue;
            };
            let at = RuleRef::Rule(index);
            let pool = &table.pool(pool).name;
            for resource in &preload.resources {
                let mut item = Item {
                    rule: rule.name.clone(),
                    resource: resource.clone(),
                    pool: pool.clone(),
                    preload: Arc::clone(preload),
                    places: Vec::new(),
                    begins: now,
                    lacks_instances: false,
                    at,
                };
                match before.remove(&(rule.name.clone(), resource.clone())) {
                    Some(old) if old.preload == *preload && old.pool == *pool => {
                        item = Item { at, ..old };
                    }
                    old => {
                        item.begins += first_turn(preload.every.min(SPREAD), random());
                        unmarked.extend(old.into_iter().flat_map(Item::into_marks));
                    }
                }
                self.items.push(item);
            }
        }
        unmarked.extend(before.into_values().flat_map(Item::into_marks));
        unmarked
    }

    /// Unless another rule has opened the same resource there.
    fn unmark(&self, table: &RoutingTable, resource: &str, instance: &Arc<InstanceCounters>) {
        let others = self.items.iter().filter(|item| item.resource == resource);
        let still = others
            .flat_map(|item| &item.places)
            .any(|place| place.loaded && place.instance.key() == instance.key());
        if !still {
            table.memory().resources.mark_preloaded(resource, instance, false);
        }
    }
}

impl Item {
    /// The instances that are known for the resource because of this.
    fn into_marks(self) -> impl Iterator<Item = Unmarked> {
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
    fn let_go(
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
    fn begin(
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
            preload: Arc::clone(&self.preload),
            session,
        }
    }
}
