//! One configuration in simulated time: requests arrive, are decided by the decision core, and their connections leave.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::arrival::{Arrival, Reader};
use super::load_model::{Hosts, LoadModel, Work};
use super::tally::{Resource, Tally};
use crate::core::decide::{Attempt, Outcome};
use crate::core::health::Observation;
use crate::core::pool::InstanceId;
use crate::core::request::Request;
use crate::core::session::Session;
use crate::core::table::RoutingTable;

/// How often idle sessions and users are forgotten, in simulated time.
const SWEEP: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct World {
    pub table: RoutingTable,
    pub reader: Reader,
    pub tally: Tally,
    start: Instant,
    connections: BinaryHeap<Reverse<Connection>>,
    /// What each instance does now.
    work: Vec<Work>,
    hosts: Option<Hosts>,
    next_report: Duration,
    next_sweep: Duration,
    /// The place of each pool's first instance.
    first_of_pool: Vec<usize>,
}

/// A connection that will leave.
#[derive(Debug)]
struct Connection {
    leaves: Duration,
    /// Tells apart those that leave at the same moment.
    number: u64,
    instance: usize,
    resource: Option<Resource>,
    _session: Session,
}

impl PartialEq for Connection {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Connection {}

impl PartialOrd for Connection {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Connection {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.leaves, self.number).cmp(&(other.leaves, other.number))
    }
}

impl World {
    /// All instances pass their checks at `start`.
    pub fn new(table: RoutingTable, reader: Reader, model: Option<LoadModel>, start: Instant) -> Self {
        let mut first_of_pool = Vec::new();
        let mut count = 0;
        for pool in table.pools() {
            first_of_pool.push(count);
            count += pool.instances.len();
        }
        for (id, _, _) in table.instances() {
            // Whatever it was before: nothing in the simulation takes an instance down.
            table.observe(id, Observation::CheckPassed, start);
        }
        let hosts = model.map(|model| Hosts::new(model, &table));
        Self {
            tally: Tally::new(table.rules().len(), count),
            table,
            reader,
            start,
            connections: BinaryHeap::new(),
            work: vec![Work::default(); count],
            hosts,
            next_report: Duration::ZERO,
            next_sweep: SWEEP,
            first_of_pool,
        }
    }

    /// The user and the resource that this configuration finds in the request.
    pub fn identity_of(&self, arrival: &Arrival) -> (Option<String>, Option<String>) {
        let find = |request: &Request<'_>| {
            let identity = self.table.identities().identify(request);
            (identity.user.map(Cow::into_owned), identity.resource.map(Cow::into_owned))
        };
        self.reader.read(arrival, find).unwrap_or_default()
    }

    /// Lets time pass up to the arrival, then decides where it goes.
    pub fn serve(&mut self, arrival: &Arrival, resource: Option<Resource>) {
        self.advance(arrival.at);
        let attempt = Attempt::first(self.start + arrival.at);
        let decided = self.reader.read(arrival, |request| self.table.decide(request, &attempt));
        let Some(decision) = decided else {
            return self.tally.refuse_path();
        };
        self.tally.count_rule(decision.rule);
        match decision.outcome {
            Outcome::Instance { id, session } => self.place(id, session, arrival, resource),
            Outcome::Deny { status } => self.tally.count(format!("deny {status}")),
            Outcome::AmbiguousPath => self.tally.count("ambiguous path"),
            Outcome::Unavailable { action, .. } => {
                let action = action.describe(self.table.pools());
                self.tally.count(format!("unavailable: {action}"));
            }
        }
    }

    fn place(&mut self, id: InstanceId, session: Session, arrival: &Arrival, resource: Option<Resource>) {
        let instance = self.first_of_pool[usize::from(id.pool.0)] + usize::from(id.index);
        let work = &mut self.work[instance];
        work.sessions += 1;
        work.resources += u32::from(self.tally.open(instance, resource));
        let live = self.connections.len() as u64 + 1;
        self.tally.place(instance, work.sessions, live);
        self.connections.push(Reverse(Connection {
            leaves: arrival.at + arrival.stay,
            number: self.tally.requests(),
            instance,
            resource,
            _session: session,
        }));
    }

    /// Whatever happens up to this moment, in its order.
    fn advance(&mut self, to: Duration) {
        loop {
            let leaving = self.connections.peek().map_or(Duration::MAX, |Reverse(first)| first.leaves);
            let reporting = if self.hosts.is_some() { self.next_report } else { Duration::MAX };
            let next = leaving.min(reporting).min(self.next_sweep);
            if next > to {
                return;
            }
            let now = self.start + next;
            if next == leaving {
                if let Some(Reverse(gone)) = self.connections.pop() {
                    let work = &mut self.work[gone.instance];
                    work.sessions -= 1;
                    work.resources -= u32::from(self.tally.close(gone.instance, gone.resource));
                }
            } else if next == reporting {
                if let Some(hosts) = &self.hosts {
                    hosts.report(&self.table, &self.work, now);
                    self.next_report += hosts.every();
                }
            } else {
                self.table.memory().sweep(now);
                self.next_sweep += SWEEP;
            }
        }
    }
}
