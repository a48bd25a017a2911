//! Which instances have which resource loaded because a session that is still alive has opened it there, or because it was
//! preloaded. What instances report themselves is part of their status.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::core::counters::Count;
use crate::core::session::{InstanceCounters, InstanceKey};

const SHARDS: usize = 64;

/// The instances that have a resource loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders(SmallVec<[InstanceKey; 8]>);

impl Holders {
    pub fn contains(&self, instance: &Arc<InstanceCounters>) -> bool {
        self.0.contains(&instance.key())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Debug)]
struct Holder {
    instance: Arc<InstanceCounters>,
    /// Sessions that have it open.
    sessions: u32,
    preloaded: bool,
}

type Shard = HashMap<Arc<str>, SmallVec<[Holder; 2]>>;

/// The table. It holds at most `limit` resources; further ones are not remembered, and counted.
#[derive(Debug)]
pub struct Resources {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    shard_limit: AtomicUsize,
    /// Resources that were not remembered because the table was full.
    pub overflowed: Count,
}

impl Default for Resources {
    fn default() -> Self {
        let limit = super::MemoryLimits::default().resources;
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            shard_limit: AtomicUsize::new(per_shard(limit)),
            overflowed: Count::default(),
        }
    }
}

fn per_shard(limit: usize) -> usize {
    limit.div_ceil(SHARDS).max(1)
}

/// A resource that is open on an instance, until this is dropped.
#[derive(Debug)]
pub struct Opened {
    resources: Arc<Resources>,
    resource: Arc<str>,
    instance: Arc<InstanceCounters>,
}

impl Opened {
    pub fn resource(&self) -> &str {
        &self.resource
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.resources.change(&self.resource, &self.instance, |holder| {
            holder.sessions = holder.sessions.saturating_sub(1)
        });
    }
}

impl Resources {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { shard_limit: AtomicUsize::new(per_shard(limit)), ..Self::default() })
    }

    /// How many resources there may be.
    pub fn limit(&self) -> usize {
        self.shard_limit.load(Ordering::Relaxed) * SHARDS
    }

    /// Changes how many resources there may be. What is loaded now stays known until it no longer is.
    pub fn set_limit(&self, limit: usize) {
        self.shard_limit.store(per_shard(limit), Ordering::Relaxed);
    }

    fn shard(&self, resource: &str) -> MutexGuard<'_, Shard> {
        let shard = self.hasher.hash_one(resource) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn holders(&self, resource: &str) -> Holders {
        holders(self.shard(resource).get(resource))
    }

    /// Opens a resource on an instance. With `seen`, only if its holders are still those; `None` if another worker has
    /// opened it meanwhile, so that a choice made without knowing that is made again.
    pub fn open(
        self: &Arc<Self>,
        resource: &str,
        instance: &Arc<InstanceCounters>,
        seen: Option<&Holders>,
    ) -> Option<Opened> {
        let mut shard = self.shard(resource);
        let known = shard.get_key_value(resource);
        if seen.is_some_and(|seen| holders(known.map(|(_, list)| list)) != *seen) {
            return None;
        }
        let resource = known.map_or_else(|| Arc::from(resource), |(name, _)| Arc::clone(name));
        if self.has_room(&shard, &resource) {
            add(&mut shard, &resource, instance).sessions += 1;
        }
        drop(shard);
        Some(Opened { resources: Arc::clone(self), resource, instance: Arc::clone(instance) })
    }

    /// Says that an instance has a resource loaded ahead of users, or no longer has.
    pub fn mark_preloaded(&self, resource: &str, instance: &Arc<InstanceCounters>, preloaded: bool) {
        if preloaded {
            let mut shard = self.shard(resource);
            if self.has_room(&shard, resource) {
                add(&mut shard, &Arc::from(resource), instance).preloaded = true;
            }
        } else {
            self.change(resource, instance, |holder| holder.preloaded = false);
        }
    }

    fn has_room(&self, shard: &Shard, resource: &str) -> bool {
        let room = shard.len() < self.shard_limit.load(Ordering::Relaxed) || shard.contains_key(resource);
        if !room {
            self.overflowed.add(1);
        }
        room
    }

    fn change(&self, resource: &str, instance: &Arc<InstanceCounters>, change: impl Fn(&mut Holder)) {
        let mut shard = self.shard(resource);
        let Some(list) = shard.get_mut(resource) else { return };
        // A resource that the table had no room for has no holder to change.
        if let Some(holder) = list.iter_mut().find(|holder| holder.instance.key() == instance.key()) {
            change(holder);
        }
        list.retain(|holder| holder.sessions > 0 || holder.preloaded);
        if list.is_empty() {
            shard.remove(resource);
        }
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn holders(list: Option<&SmallVec<[Holder; 2]>>) -> Holders {
    Holders(list.into_iter().flatten().map(|holder| holder.instance.key()).collect())
}

fn add<'s>(shard: &'s mut Shard, resource: &Arc<str>, instance: &Arc<InstanceCounters>) -> &'s mut Holder {
    let list = shard.entry(Arc::clone(resource)).or_default();
    let place = list.iter().position(|holder| holder.instance.key() == instance.key()).unwrap_or_else(|| {
        list.push(Holder { instance: Arc::clone(instance), sessions: 0, preloaded: false });
        list.len() - 1
    });
    &mut list[place]
}
