//! The plan of all preloads: which instances have which resource, and what is to be requested next.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Zoned;

use super::item::{Item, Unmarked};
use super::place::State;
pub use super::place::Verdict;
use super::{LoadFailure, Preload, PreloadCounts};
use crate::core::health::first_turn;
use crate::core::proxy_protocol::ProxyProtocol;
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
    /// As the pool says.
    pub proxy_protocol: Option<ProxyProtocol>,
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
