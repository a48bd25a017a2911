//! How many half-read heads the router holds, in all and from one client, and how much memory they may take.
//!
//! Only heads that are not there whole at the first look are counted, so an ordinary request pays nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bounds over all listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Heads that may be half read at a time.
    pub heads: usize,
    /// Of these, from one client: an IPv4 address or an IPv6 /64.
    pub heads_per_client: usize,
    /// Bytes of all half-read heads together.
    pub memory: usize,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self { heads: 16 * 1024, heads_per_client: 1024, memory: 64 * 1024 * 1024 }
    }
}

/// Grants the right to go on reading a head.
#[derive(Debug)]
pub struct HeadBudget {
    limits: BudgetLimits,
    heads: AtomicUsize,
    memory: AtomicUsize,
    clients: Mutex<HashMap<IpAddr, usize>>,
}

/// One half-read head and its bytes. Dropping it gives everything back.
#[derive(Debug)]
pub struct HalfReadHead<'a> {
    place: Place<'a>,
    client: IpAddr,
    bytes: Vec<u8>,
}

/// One of the places for half-read heads. Dropping it gives it back.
#[derive(Debug)]
pub struct Place<'a>(&'a HeadBudget);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.heads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HeadBudget {
    pub fn new(limits: BudgetLimits) -> Self {
        Self { limits, heads: AtomicUsize::new(0), memory: AtomicUsize::new(0), clients: Mutex::default() }
    }

    /// `None` if there are too many half-read heads already.
    pub fn admit(&self, client: IpAddr) -> Option<HalfReadHead<'_>> {
        let place = self.admit_trusted()?;
        let client = client_network(client);
        let mut clients = self.clients();
        let from_client = clients.entry(client).or_default();
        if *from_client >= self.limits.heads_per_client {
            return None;
        }
        *from_client += 1;
        drop(clients);
        Some(HalfReadHead { place, client, bytes: Vec::new() })
    }

    /// A place for somebody who may have any number of them, as long as there are any.
    pub fn admit_trusted(&self) -> Option<Place<'_>> {
        let before = self.heads.fetch_add(1, Ordering::Relaxed);
        let place = Place(self);
        (before < self.limits.heads).then_some(place)
    }

    /// Heads that are half read now.
    pub fn heads(&self) -> usize {
        self.heads.load(Ordering::Relaxed)
    }

    /// Bytes set aside for them.
    pub fn memory(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HalfReadHead<'_> {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Stores more of the head. `false` if the memory of all heads together would exceed its bound; nothing is
    /// allocated then.
    pub fn append(&mut self, more: &[u8]) -> bool {
        let needed = self.bytes.len() + more.len();
        if needed > self.bytes.capacity() {
            let capacity = needed.next_power_of_two().max(1024);
            let growth = capacity - self.bytes.capacity();
            let budget = self.place.0;
            if budget.memory.fetch_add(growth, Ordering::Relaxed) + growth > budget.limits.memory {
                budget.memory.fetch_sub(growth, Ordering::Relaxed);
                return false;
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        true
    }
}

impl Drop for HalfReadHead<'_> {
    fn drop(&mut self) {
        let budget = self.place.0;
        budget.memory.fetch_sub(self.bytes.capacity(), Ordering::Relaxed);
        if let Entry::Occupied(mut from_client) = budget.clients().entry(self.client) {
            *from_client.get_mut() -= 1;
            if *from_client.get() == 0 {
                from_client.remove();
            }
        }
    }
}

/// What counts as one client: whoever has an IPv6 address has its whole /64.
fn client_network(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BudgetLimits = BudgetLimits { heads: 3, heads_per_client: 2, memory: 4096 };

    fn client(last: u16) -> IpAddr {
        Ipv6Addr::new(0xfd77, 1, 0, last, 0, 0, 0, 9).into()
    }

    #[test]
    fn one_client_cannot_use_up_the_places_of_all() {
        let budget = HeadBudget::new(LIMITS);
        let first = budget.admit(client(1)).unwrap();
        let _second = budget.admit(client(1)).unwrap();
        assert!(budget.admit(client(1)).is_none(), "its third");
        let third = budget.admit(client(2)).unwrap();
        assert!(budget.admit(client(3)).is_none(), "the fourth in all");
        drop(first);
        drop(third);
        assert_eq!(budget.heads(), 1);
        assert!(budget.admit(client(1)).is_some());
        assert_eq!(budget.clients().len(), 1, "clients that have none are forgotten");
    }

    #[test]
    fn who_is_trusted_may_have_all_places_and_no_more() {
        let budget = HeadBudget::new(LIMITS);
        let places: Vec<_> = (0..3).map(|_| budget.admit_trusted().unwrap()).collect();
        assert!(budget.admit_trusted().is_none() && budget.admit(client(1)).is_none());
        drop(places);
        assert_eq!(budget.heads(), 0);
    }

    #[test]
    fn memory_is_bounded_before_it_is_taken_and_given_back() {
        let budget = HeadBudget::new(LIMITS);
        let (mut one, mut other) = (budget.admit(client(1)).unwrap(), budget.admit(client(2)).unwrap());
        assert!(one.append(&[1; 1500]));
        assert_eq!(budget.memory(), 2048);
        assert!(other.append(&[2; 2048]));
        assert!(!other.append(&[2; 1]));
        assert_eq!((other.bytes().len(), other.bytes.capacity(), budget.memory()), (2048, 2048, 4096));
        drop(other);
        drop(one);
        assert_eq!((budget.memory(), budget.heads()), (0, 0));
    }
}
