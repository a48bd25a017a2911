//! Slots of the flow array: which are free, and what the daemon keeps for each that is not.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::core::session::Session;
use crate::flows::ports::PortLease;

/// A kernel program that found a key just before its removal may still look at the slot. Programs run for microseconds.
const REST: Duration = Duration::from_millis(10);

/// What lives and dies with a flow.
#[derive(Debug)]
pub struct Holding {
    /// `None` once the flow has ended and only lingers, and for an adopted flow of an unknown instance.
    pub session: Option<Session>,
    pub source_port: Option<PortLease>,
    /// Empty for an adopted flow.
    pub rule: String,
    /// When both sides were seen to have finished.
    pub ended: Option<Instant>,
    /// When a flow was adopted of which some bytes were in custody: the sockets that held them are gone.
    pub orphaned: Option<Instant>,
    /// The flow waits for its instance, or for that to acknowledge what was stashed: whoever bound it looks after it.
    pub unbound: bool,
}

impl Holding {
    /// Of a flow whose instance has not answered yet.
    pub fn unbound(session: Session, source_port: PortLease, rule: String) -> Self {
        let (session, source_port) = (Some(session), Some(source_port));
        Self { session, source_port, rule, ended: None, orphaned: None, unbound: true }
    }
}

#[derive(Debug)]
pub struct Slots {
    /// The slot that has rested longest is first.
    free: VecDeque<(u32, Option<Instant>)>,
    held: HashMap<u32, Holding>,
}

impl Slots {
    /// `live` tells which slots hold a flow of an earlier daemon.
    pub fn new(count: u32, live: impl Fn(u32) -> bool) -> Self {
        Self {
            free: (0..count).filter(|slot| !live(*slot)).map(|slot| (slot, None)).collect(),
            held: HashMap::new(),
        }
    }

    /// A free slot, or `None` if the table is full.
    pub fn take(&mut self, now: Instant) -> Option<u32> {
        match self.free.front() {
            Some((_, Some(freed))) if now.duration_since(*freed) < REST => None,
            Some(_) => self.free.pop_front().map(|(slot, _)| slot),
            None => None,
        }
    }

    pub fn hold(&mut self, slot: u32, holding: Holding) {
        self.held.insert(slot, holding);
    }

    /// Gives a slot back together with everything that was held for it.
    pub fn release(&mut self, slot: u32, now: Instant) -> Option<Holding> {
        self.free.push_back((slot, Some(now)));
        self.held.remove(&slot)
    }

    pub fn holds(&self, slot: u32) -> bool {
        self.held.contains_key(&slot)
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Holding> {
        self.held.get_mut(&slot)
    }

    pub fn held(&self) -> impl Iterator<Item = (u32, &Holding)> {
        self.held.iter().map(|(slot, holding)| (*slot, holding))
    }

    pub fn held_mut(&mut self) -> impl Iterator<Item = (u32, &mut Holding)> {
        self.held.iter_mut().map(|(slot, holding)| (*slot, holding))
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding() -> Holding {
        Holding {
            session: None,
            source_port: None,
            rule: String::new(),
            ended: None,
            orphaned: None,
            unbound: false,
        }
    }

    #[test]
    fn a_full_table_refuses_and_a_freed_slot_rests_before_it_serves_again() {
        let mut slots = Slots::new(1, |_| false);
        let now = Instant::now();
        let slot = slots.take(now).unwrap();
        slots.hold(slot, holding());
        assert_eq!(slots.take(now), None);
        assert!(slots.release(slot, now).is_some());
        assert_eq!(slots.take(now), None);
        assert_eq!(slots.take(now + REST), Some(slot));
    }

    #[test]
    fn slots_of_an_earlier_daemon_are_not_handed_out() {
        let mut slots = Slots::new(3, |slot| slot == 1);
        let now = Instant::now();
        assert_eq!([slots.take(now), slots.take(now), slots.take(now)], [Some(0), Some(2), None]);
    }
}
