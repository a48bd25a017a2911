//! Which stashes are free, and chains of them: one for each segment that an instance gets first.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use router_common::abi::binding::{MAX_STASHES, Stash};

use crate::flows::mapped::Mapped;

/// A stash that was given back is left alone for so long: a program on another processor may be sending what is in it, and must not
/// find another client's bytes there.
const REST: Duration = Duration::from_millis(5);

/// The stashes, and who has none.
#[derive(Debug)]
pub struct Stashes {
    all: Arc<Mapped<Stash>>,
    /// With the time from which it can be taken, the earliest first.
    free: Mutex<VecDeque<(u32, Instant)>>,
}

impl Stashes {
    /// `used` are the first ones of chains that flows have.
    pub fn new(all: Arc<Mapped<Stash>>, used: impl IntoIterator<Item = u32>) -> Self {
        let used: HashSet<u32> = used.into_iter().flat_map(|first| chain(&all, first)).collect();
        let now = Instant::now();
        let unused = (0..all.len() as u32).filter(|index| !used.contains(index));
        let free = unused.map(|index| (index, now)).collect();
        Self { all, free: Mutex::new(free) }
    }

    pub fn get(&self, index: u32) -> &Stash {
        &self.all[index as usize]
    }

    /// Takes a chain of so many, or none.
    pub fn take(&self, count: usize) -> Option<Vec<u32>> {
        let mut free = self.free();
        let (_, last) = free.get(count.checked_sub(1)?)?;
        if *last > Instant::now() {
            return None;
        }
        let taken: Vec<u32> = free.drain(..count).map(|(index, _)| index).collect();
        for (at, index) in taken.iter().enumerate() {
            self.get(*index).next.set(taken.get(at + 1).map_or(0, |next| next + 1));
        }
        Some(taken)
    }

    /// Gives a chain back.
    pub fn give_back(&self, first: u32) {
        let (chain, rested) = (chain(&self.all, first), Instant::now() + REST);
        self.free().extend(chain.into_iter().map(|index| (index, rested)));
    }

    fn free(&self) -> MutexGuard<'_, VecDeque<(u32, Instant)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stashes of a chain.
fn chain(all: &[Stash], first: u32) -> Vec<u32> {
    let following = |index: &u32| all.get(*index as usize)?.next.get().checked_sub(1);
    std::iter::successors(Some(first), following).take(MAX_STASHES).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, FromRawFd};

    use super::*;

    fn stashes(count: usize) -> Stashes {
        // SAFETY: a terminated name; the descriptor is new, and nobody else's.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"stashes".as_ptr(), 0)) };
        file.set_len((count * size_of::<Stash>()) as u64).unwrap();
        Stashes::new(Arc::new(Mapped::new(file.as_fd(), count).unwrap()), [])
    }

    #[test]
    fn a_chain_is_taken_and_given_back_as_a_whole_or_not_at_all() {
        let stashes = stashes(3);
        assert_eq!(stashes.take(4), None);
        assert_eq!(stashes.take(0), None);
        let taken = stashes.take(3).unwrap();
        assert_eq!(chain(&stashes.all, taken[0]), taken);
        assert_eq!(stashes.take(1), None);
    }

    #[test]
    fn what_was_given_back_rests_before_another_client_gets_it() {
        let stashes = stashes(3);
        let first = stashes.take(2).unwrap()[0];
        let given_back = Instant::now();
        stashes.give_back(first);
        assert_eq!(stashes.take(1).unwrap(), [2], "what has rested longest comes first");
        while stashes.take(2).is_none() {
            std::thread::yield_now();
        }
        assert!(given_back.elapsed() >= REST);
    }
}
