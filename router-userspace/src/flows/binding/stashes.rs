//! Which stashes are free, and chains of them: one for each segment that an instance gets first.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use router_common::abi::binding::{MAX_STASHES, Stash};

use crate::flows::mapped::Mapped;

/// The stashes, and who has none.
#[derive(Debug)]
pub struct Stashes {
    all: Arc<Mapped<Stash>>,
    free: Mutex<Vec<u32>>,
}

impl Stashes {
    /// `used` are the first ones of chains that flows have.
    pub fn new(all: Arc<Mapped<Stash>>, used: impl IntoIterator<Item = u32>) -> Self {
        let used: HashSet<u32> = used.into_iter().flat_map(|first| chain(&all, first)).collect();
        let free = (0..all.len() as u32).filter(|index| !used.contains(index)).collect();
        Self { all, free: Mutex::new(free) }
    }

    pub fn get(&self, index: u32) -> &Stash {
        &self.all[index as usize]
    }

    /// Takes a chain of so many, or none.
    pub fn take(&self, count: usize) -> Option<Vec<u32>> {
        let mut free = self.free();
        let rest = free.len().checked_sub(count)?;
        let taken = free.split_off(rest);
        for (at, index) in taken.iter().enumerate() {
            self.get(*index).next.set(taken.get(at + 1).map_or(0, |next| next + 1));
        }
        Some(taken)
    }

    /// Gives a chain back.
    pub fn give_back(&self, first: u32) {
        let chain = chain(&self.all, first);
        self.free().extend(chain);
    }

    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stashes of a chain.
fn chain(all: &[Stash], first: u32) -> Vec<u32> {
    let following = |index: &u32| all.get(*index as usize)?.next.get().checked_sub(1);
    std::iter::successors(Some(first), following).take(MAX_STASHES).collect()
}
