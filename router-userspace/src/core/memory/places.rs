//! Who was served where: a bounded table from a key to an instance, in shards that workers lock for a moment.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indexmap::{Equivalent, IndexMap};

use super::resources::Opened;
use crate::core::counters::Count;
use crate::core::session::{InstanceCounters, InstanceKey};

const SHARDS: usize = 64;
/// How many entries of a full shard are looked at to find one to evict.
const SAMPLE: usize = 16;
/// A session keeps so many resources loaded; the earliest are given up first.
const MAX_OPENED: usize = 32;

/// A key as it is asked for: the scope (a listener, say) and the key within it.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct PlaceKey<'a> {
    pub scope: &'a str,
    pub key: &'a [u8],
}

#[derive(Debug, PartialEq, Eq)]
struct OwnedKey {
    scope: Box<str>,
    key: Box<[u8]>,
}

impl Hash for OwnedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        PlaceKey { scope: &self.scope, key: &self.key }.hash(state);
    }
}

impl Equivalent<OwnedKey> for PlaceKey<'_> {
    fn equivalent(&self, key: &OwnedKey) -> bool {
        *self.scope == *key.scope && *self.key == *key.key
    }
}

#[derive(Debug)]
struct Place {
    instance: Arc<InstanceCounters>,
    /// When a request last came, or a connection was last seen alive.
    used: Instant,
    idle_timeout: Duration,
    connections: Arc<AtomicU32>,
    opened: Vec<Opened>,
}

impl Place {
    fn is_live(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > 0
    }

    fn has_expired(&self, now: Instant) -> bool {
        !self.is_live() && now.saturating_duration_since(self.used) > self.idle_timeout
    }
}

/// One connection of a session or user; the entry does not go idle as long as this lives.
#[derive(Debug)]
pub struct Presence(Arc<AtomicU32>);

impl Presence {
    fn of(place: &Place) -> Self {
        place.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&place.connections))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An entry, for lists and snapshots.
#[derive(Clone, Debug)]
pub struct PlaceView {
    pub scope: String,
    pub key: Vec<u8>,
    pub instance: InstanceKey,
    /// Connections that are open now.
    pub connections: u32,
    pub idle: Duration,
    pub idle_timeout: Duration,
    pub resources: Vec<String>,
}

#[derive(Debug, Default)]
struct Shard {
    places: IndexMap<OwnedKey, Place>,
    /// Where the search for an entry to evict goes on.
    hand: usize,
}

/// The table.
#[derive(Debug)]
pub struct Places {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    shard_limit: AtomicUsize,
    /// Entries that had to go because the table was full.
    pub evicted: Count,
    /// Entries that had been idle for too long.
    pub expired: Count,
}

impl Default for Places {
    fn default() -> Self {
        Self::new(super::MemoryLimits::default().sessions)
    }
}

impl Places {
    /// At most `limit` entries, rounded up to the number of shards.
    pub fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            shard_limit: AtomicUsize::new(per_shard(limit)),
            evicted: Count::default(),
            expired: Count::default(),
        }
    }

    /// How many entries there may be.
    pub fn limit(&self) -> usize {
        self.shard_limit.load(Ordering::Relaxed) * SHARDS
    }

    /// Changes how many entries there may be. Of those that are too many now, the ones unused for longest go, and are counted; those
    /// with open connections only if there are no others.
    pub fn set_limit(&self, limit: usize) {
        let limit = per_shard(limit);
        self.shard_limit.store(limit, Ordering::Relaxed);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let surplus = shard.places.len().saturating_sub(limit);
            if surplus > 0 {
                shard.forget(surplus);
                self.evicted.add(surplus as u64);
            }
        }
    }

    fn shard(&self, key: PlaceKey<'_>) -> MutexGuard<'_, Shard> {
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the key was served last, unless that was too long ago.
    pub fn find(&self, key: PlaceKey<'_>, now: Instant) -> Option<InstanceKey> {
        let shard = self.shard(key);
        let place = shard.places.get(&key).filter(|place| !place.has_expired(now))?;
        Some(place.instance.key())
    }

    /// Remembers that the key is served by `instance`. `seen` is what [`Places::find`] said: if another worker has placed
    /// the key elsewhere meanwhile, nothing changes and `None` is returned.
    pub fn bind(
        &self,
        key: PlaceKey<'_>,
        seen: Option<InstanceKey>,
        instance: &Arc<InstanceCounters>,
        idle_timeout: Duration,
        now: Instant,
    ) -> Option<Presence> {
        let mut shard = self.shard(key);
        let current =
            shard.places.get(&key).filter(|place| !place.has_expired(now)).map(|place| place.instance.key());
        // An entry that has gone since was evicted, and nobody else has placed the key.
        if current.is_some() && current != seen && current != Some(instance.key()) {
            return None;
        }
        Some(self.insert(&mut shard, key, instance, idle_timeout, now))
    }

    /// Remembers that the key is served by `instance`, whoever served it before.
    pub fn put(
        &self,
        key: PlaceKey<'_>,
        instance: &Arc<InstanceCounters>,
        idle_timeout: Duration,
        now: Instant,
    ) {
        let mut shard = self.shard(key);
        drop(self.insert(&mut shard, key, instance, idle_timeout, now));
    }

    fn insert(
        &self,
        shard: &mut Shard,
        key: PlaceKey<'_>,
        instance: &Arc<InstanceCounters>,
        idle_timeout: Duration,
        now: Instant,
    ) -> Presence {
        if let Some(place) = shard.places.get_mut(&key) {
            if place.instance.key() != instance.key() {
                place.instance = Arc::clone(instance);
                place.opened.clear();
            }
            (place.used, place.idle_timeout) = (now, idle_timeout);
            return Presence::of(place);
        }
        if shard.places.len() >= self.shard_limit.load(Ordering::Relaxed) {
            shard.evict();
            self.evicted.add(1);
        }
        let place = Place {
            instance: Arc::clone(instance),
            used: now,
            idle_timeout,
            connections: Arc::default(),
            opened: Vec::new(),
        };
        let presence = Presence::of(&place);
        shard.places.insert(OwnedKey { scope: key.scope.into(), key: key.key.into() }, place);
        presence
    }

    /// Keeps a resource loaded for as long as the entry lives.
    pub fn keep_open(&self, key: PlaceKey<'_>, opened: Opened) {
        let mut shard = self.shard(key);
        let Some(place) = shard.places.get_mut(&key) else { return };
        if place.opened.iter().any(|known| known.resource() == opened.resource()) {
            return;
        }
        if place.opened.len() == MAX_OPENED {
            place.opened.remove(0);
        }
        place.opened.push(opened);
    }

    /// Puts back an entry of a snapshot, unless the key is known already.
    pub fn restore(
        &self,
        key: PlaceKey<'_>,
        instance: &Arc<InstanceCounters>,
        idle_timeout: Duration,
        used: Instant,
    ) {
        if self.find(key, used).is_none() {
            drop(self.bind(key, None, instance, idle_timeout, used));
        }
    }

    /// Removes what has been idle for too long, and notes which entries have open connections.
    pub fn sweep(&self, now: Instant) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let before = shard.places.len();
            shard.places.retain(|_, place| {
                if place.is_live() {
                    place.used = now;
                }
                !place.has_expired(now)
            });
            self.expired.add((before - shard.places.len()) as u64);
        }
    }

    pub fn len(&self) -> usize {
        let lock = |shard: &Mutex<Shard>| shard.lock().unwrap_or_else(PoisonError::into_inner).places.len();
        self.shards.iter().map(lock).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every live entry, at most `limit`.
    pub fn list(&self, now: Instant, limit: usize) -> Vec<PlaceView> {
        let mut list = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let live = shard.places.iter().filter(|(_, place)| !place.has_expired(now));
            list.extend(live.take(limit - list.len()).map(|(key, place)| PlaceView {
                scope: key.scope.to_string(),
                key: key.key.to_vec(),
                instance: place.instance.key(),
                connections: place.connections.load(Ordering::Relaxed),
                idle: if place.is_live() {
                    Duration::ZERO
                } else {
                    now.saturating_duration_since(place.used)
                },
                idle_timeout: place.idle_timeout,
                resources: place.opened.iter().map(|opened| opened.resource().to_owned()).collect(),
            }));
        }
        list
    }
}

fn per_shard(limit: usize) -> usize {
    limit.div_ceil(SHARDS).max(1)
}

impl Shard {
    /// Removes the `count` entries that are unused for longest. There must be as many.
    fn forget(&mut self, count: usize) {
        let mut order: Vec<_> = (0..self.places.len()).collect();
        let age = |&index: &usize| (self.places[index].is_live(), self.places[index].used);
        order.select_nth_unstable_by_key(count - 1, age);
        let mut kept = vec![true; self.places.len()];
        order[..count].iter().for_each(|&index| kept[index] = false);
        let mut kept = kept.into_iter();
        self.places.retain(|_, _| kept.next().unwrap_or(true));
        self.places.shrink_to_fit();
        self.hand = 0;
    }

    /// Makes room: of the next few entries, the one that is idle for longest goes; one with open connections only if there is
    /// no other.
    fn evict(&mut self) {
        let count = self.places.len();
        let sample = (0..SAMPLE.min(count)).map(|offset| (self.hand + offset) % count);
        let victim = sample.min_by_key(|&index| (self.places[index].is_live(), self.places[index].used));
        self.hand = (self.hand + SAMPLE) % count.max(1);
        if let Some(victim) = victim {
            self.places.swap_remove_index(victim);
        }
    }
}
