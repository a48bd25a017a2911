//! The source ports that the router owns towards instances.
//!
//! The kernel reuses an ephemeral port at once after a silent close, which would put two live flows on one tuple. So
//! the router binds explicitly, from a range that it alone uses. Per source address and instance the free
//! ports form a queue: taken at the front, returned at the back. A port thus rests as long as possible
//! before the same tuple is seen again, and the instance's TIME_WAIT has run out by then.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::{fmt, fs, io};

use super::claims::Claims;

/// Where the kernel keeps the ports that it must not use as ephemeral ones. One list per network namespace, for both
/// address families.
const RESERVED_PORTS: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
/// Where the kernel keeps the range from which it takes ephemeral ports.
const EPHEMERAL_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// All source ports of the router. Cheap to share: one short lock per queue, no allocation per connection once a
/// queue exists.
#[derive(Debug)]
pub struct PortAllocator {
    range: RangeInclusive<u16>,
    queues: RwLock<HashMap<Leg, Arc<PortQueue>>>,
}

/// The ports of sockets, and those of connections that are bound: two clocks, which must not meet on one port (PAWS, RFC 7323 §5).
#[derive(Clone, Debug)]
pub struct SourcePorts {
    pub sockets: Arc<PortAllocator>,
    /// Those of sockets as well if no connection is bound.
    pub bound: Arc<PortAllocator>,
}

impl SourcePorts {
    /// All of `range`; half of it each if connections are bound.
    pub fn new(range: RangeInclusive<u16>, binds: bool) -> Self {
        let allocator = |range| Arc::new(PortAllocator::new(range));
        if !binds {
            let sockets = allocator(range);
            return Self { bound: Arc::clone(&sockets), sockets };
        }
        let middle = range.start() + (range.end() - range.start()) / 2;
        Self { sockets: allocator(*range.start()..=middle), bound: allocator(middle + 1..=*range.end()) }
    }

    /// Takes one particular port, as [`PortAllocator::reserve`].
    pub fn reserve(&self, source: SocketAddr, instance: SocketAddr) -> Option<PortLease> {
        [&self.sockets, &self.bound].into_iter().find_map(|ports| ports.reserve(source, instance))
    }
}

/// Tuples that differ only in the source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Leg {
    source: IpAddr,
    instance: SocketAddr,
}

struct PortQueue {
    free: Mutex<VecDeque<u16>>,
    /// How many ports there are.
    size: usize,
}

impl PortQueue {
    fn free(&self) -> MutexGuard<'_, VecDeque<u16>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PortQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortQueue").field("free", &self.free().len()).finish()
    }
}

/// One source port in use. Dropping it puts the port last in its queue.
#[derive(Debug)]
pub struct PortLease {
    origin: Origin,
    source: SocketAddr,
}

#[derive(Debug)]
enum Origin {
    Queue(Arc<PortQueue>),
    /// In a client's name, towards this instance.
    Claims(Arc<Claims>, SocketAddr),
}

impl PortLease {
    /// A port on a client's address.
    pub(super) fn claimed(claims: Arc<Claims>, source: SocketAddr, instance: SocketAddr) -> Self {
        Self { origin: Origin::Claims(claims, instance), source }
    }

    /// The address and port to bind to.
    pub fn source(&self) -> SocketAddr {
        self.source
    }

    /// Whether most ports towards this instance are in use.
    pub fn is_wanted(&self) -> bool {
        match &self.origin {
            Origin::Queue(queue) => queue.free().len() < queue.size / 4,
            Origin::Claims(..) => false,
        }
    }
}

impl Drop for PortLease {
    fn drop(&mut self) {
        match &self.origin {
            Origin::Queue(queue) => queue.free().push_back(self.source.port()),
            Origin::Claims(claims, instance) => claims.end(self.source, *instance),
        }
    }
}

impl PortAllocator {
    /// Owns the ports of `range` on every source address.
    pub fn new(range: RangeInclusive<u16>) -> Self {
        Self { range, queues: RwLock::default() }
    }

    /// The ports that this allocator hands out.
    pub fn range(&self) -> RangeInclusive<u16> {
        self.range.clone()
    }

    /// The port that has rested longest, or `None` if every port from `source` to `instance` is in use.
    pub fn take(&self, source: IpAddr, instance: SocketAddr) -> Option<PortLease> {
        let queue = self.queue(Leg { source, instance });
        let port = queue.free().pop_front()?;
        Some(PortLease { origin: Origin::Queue(queue), source: SocketAddr::new(source, port) })
    }

    /// Takes one particular port, for a flow that outlived the daemon which opened it. `None` if the port lies outside
    /// the range or is in use already.
    pub fn reserve(&self, source: SocketAddr, instance: SocketAddr) -> Option<PortLease> {
        let queue = self.queue(Leg { source: source.ip(), instance });
        {
            let mut free = queue.free();
            let place = free.iter().position(|port| *port == source.port())?;
            free.remove(place);
        }
        Some(PortLease { origin: Origin::Queue(queue), source })
    }

    /// How many ports from `source` to `instance` are free.
    pub fn free(&self, source: IpAddr, instance: SocketAddr) -> usize {
        self.queue(Leg { source, instance }).free().len()
    }

    /// How many ports are in use between each source address and instance that have had a connection; in their order.
    pub fn used(&self) -> Vec<(IpAddr, SocketAddr, usize)> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let used = |(leg, queue): (&Leg, &Arc<PortQueue>)| {
            (leg.source, leg.instance, self.range.len() - queue.free().len())
        };
        let mut all: Vec<_> = queues.iter().map(used).collect();
        all.sort_unstable();
        all
    }

    fn queue(&self, leg: Leg) -> Arc<PortQueue> {
        if let Some(queue) = self.queues.read().unwrap_or_else(PoisonError::into_inner).get(&leg) {
            return Arc::clone(queue);
        }
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(leg).or_insert_with(|| {
            let mut free: VecDeque<u16> = self.range.clone().collect();
            // A restarted daemon must not begin with the ports that its predecessor has just used.
            if !free.is_empty() {
                let start = RandomState::new().hash_one(leg) as usize % free.len();
                free.rotate_left(start);
            }
            Arc::new(PortQueue { size: free.len(), free: Mutex::new(free) })
        }))
    }
}

/// What became of the attempt to keep the kernel from using the router's ports as ephemeral ones.
#[derive(Debug)]
pub enum KernelReservation {
    /// The kernel never hands these ports out: reserved already, or outside its ephemeral range.
    NotNeeded,
    /// The ports have been added to `ip_local_reserved_ports`.
    Added,
    /// They could not be added; `wanted` is the value that an operator should set.
    Failed { wanted: String, error: io::Error },
}

/// Adds `range` to this network namespace's `ip_local_reserved_ports`, keeping what is reserved already.
pub fn reserve_in_kernel(range: &RangeInclusive<u16>) -> KernelReservation {
    reserve_in_files(range, Path::new(RESERVED_PORTS), Path::new(EPHEMERAL_RANGE))
}

fn reserve_in_files(range: &RangeInclusive<u16>, reserved: &Path, ephemeral: &Path) -> KernelReservation {
    let list = match fs::read_to_string(reserved) {
        Ok(list) => list,
        Err(error) => {
            return KernelReservation::Failed { wanted: format_ports(std::slice::from_ref(range)), error };
        }
    };
    let mut ports = parse_ports(&list);
    let used_by_kernel = fs::read_to_string(ephemeral).ok().and_then(|text| {
        let mut bounds = text.split_whitespace().map(str::parse);
        Some(bounds.next()?.ok()?..=bounds.next()?.ok()?)
    });
    let apart = used_by_kernel
        .is_some_and(|used: RangeInclusive<u16>| used.end() < range.start() || range.end() < used.start());
    let covered = ports.iter().any(|have| have.contains(range.start()) && have.contains(range.end()));
    if apart || covered {
        return KernelReservation::NotNeeded;
    }
    ports.push(range.clone());
    let wanted = format_ports(&merge_ports(ports));
    match fs::write(reserved, &wanted) {
        Ok(()) => KernelReservation::Added,
        Err(error) => KernelReservation::Failed { wanted, error },
    }
}

/// Reads the kernel's list form: `8080,9000-9010`. The kernel wrote it, so a part that is no port is left out.
fn parse_ports(list: &str) -> Vec<RangeInclusive<u16>> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    merge_ports(list.split(',').filter_map(part).collect())
}

/// Sorted, with overlapping and adjacent ranges joined.
fn merge_ports(mut ports: Vec<RangeInclusive<u16>>) -> Vec<RangeInclusive<u16>> {
    ports.retain(|range| !range.is_empty());
    ports.sort_by_key(|range| *range.start());
    let mut merged: Vec<RangeInclusive<u16>> = Vec::with_capacity(ports.len());
    for range in ports {
        match merged.last_mut() {
            Some(last) if u32::from(*range.start()) <= u32::from(*last.end()) + 1 => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => merged.push(range),
        }
    }
    merged
}

fn format_ports(ports: &[RangeInclusive<u16>]) -> String {
    let part = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    ports.iter().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::HashSet;

    use super::*;

    const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 1));

    fn instance(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 2, last], 80))
    }

    #[test]
    fn a_returned_port_rests_until_all_others_have_been_used() {
        let ports = PortAllocator::new(20_000..=20_009);
        let first = ports.take(SOURCE, instance(1)).unwrap().source().port();
        let others: HashSet<u16> =
            (0..9).map(|_| ports.take(SOURCE, instance(1)).unwrap().source().port()).collect();
        assert_eq!(others.len(), 9);
        assert!(!others.contains(&first));
        assert_eq!(ports.take(SOURCE, instance(1)).unwrap().source().port(), first);
    }

    #[test]
    fn when_every_port_is_in_use_there_is_none_until_one_returns() {
        let ports = PortAllocator::new(20_000..=20_002);
        let leases: Vec<_> = (0..3).map(|_| ports.take(SOURCE, instance(1)).unwrap()).collect();
        assert!(ports.take(SOURCE, instance(1)).is_none());
        assert!(ports.take(SOURCE, instance(2)).is_some(), "another instance has its own ports");
        assert_eq!(ports.used(), [(SOURCE, instance(1), 3), (SOURCE, instance(2), 0)]);
        drop(leases);
        assert_eq!(ports.free(SOURCE, instance(1)), 3);
        assert_eq!(ports.used()[0], (SOURCE, instance(1), 0));
    }

    #[test]
    fn ports_are_wanted_once_less_than_a_quarter_is_free() {
        let ports = PortAllocator::new(20_000..=20_007);
        let mut leases: Vec<_> = (0..6).map(|_| ports.take(SOURCE, instance(1)).unwrap()).collect();
        assert!(!leases[0].is_wanted());
        leases.push(ports.take(SOURCE, instance(1)).unwrap());
        assert!(leases[0].is_wanted());
        assert!(!ports.take(SOURCE, instance(2)).unwrap().is_wanted(), "another instance has its own ports");
    }

    #[test]
    fn a_port_of_a_flow_that_outlived_the_daemon_is_not_handed_out() {
        let ports = PortAllocator::new(20_000..=20_002);
        let lease = ports.reserve(SocketAddr::new(SOURCE, 20_001), instance(1)).unwrap();
        assert!(ports.reserve(SocketAddr::new(SOURCE, 20_001), instance(1)).is_none(), "in use already");
        assert!(ports.reserve(SocketAddr::new(SOURCE, 4), instance(1)).is_none(), "not ours");
        let rest: Vec<_> = std::iter::from_fn(|| ports.take(SOURCE, instance(1))).collect();
        assert!(rest.iter().all(|lease| lease.source().port() != 20_001));
        assert_eq!(rest.len(), 2);
        drop(lease);
        assert_eq!(ports.take(SOURCE, instance(1)).unwrap().source().port(), 20_001);
    }

    #[test]
    fn sockets_and_bound_connections_share_no_port() {
        let ports = SourcePorts::new(20_000..=20_004, true);
        let all = |ports: &PortAllocator| {
            std::iter::from_fn(|| ports.take(SOURCE, instance(1)).map(|lease| (lease.source().port(), lease)))
                .collect::<Vec<_>>()
        };
        let (sockets, bound) = (all(&ports.sockets), all(&ports.bound));
        let used: HashSet<u16> = sockets.iter().chain(&bound).map(|(port, _)| *port).collect();
        assert_eq!((sockets.len(), bound.len(), used.len()), (3, 2, 5));
        drop((sockets, bound));
        assert!(ports.reserve(SocketAddr::new(SOURCE, 20_004), instance(1)).is_some());
        let alone = SourcePorts::new(20_000..=20_004, false);
        assert!(Arc::ptr_eq(&alone.sockets, &alone.bound));
    }

    fn with_files(reserved: &str, ephemeral: &str, check: impl FnOnce(&Path, &Path)) {
        let directory = std::env::temp_dir().join(format!(
            "router-ports-{}-{}",
            std::process::id(),
            RandomState::new().hash_one(reserved)
        ));
        fs::create_dir_all(&directory).unwrap();
        let (reserved_file, ephemeral_file) = (directory.join("reserved"), directory.join("range"));
        fs::write(&reserved_file, reserved).unwrap();
        fs::write(&ephemeral_file, ephemeral).unwrap();
        check(&reserved_file, &ephemeral_file);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn reserving_keeps_what_others_have_reserved() {
        with_files("8080,59000-61000\n", "32768\t60999\n", |reserved, ephemeral| {
            assert!(matches!(
                reserve_in_files(&(20_000..=59_999), reserved, ephemeral),
                KernelReservation::Added
            ));
            assert_eq!(fs::read_to_string(reserved).unwrap(), "8080,20000-61000");
            assert!(matches!(
                reserve_in_files(&(20_000..=59_999), reserved, ephemeral),
                KernelReservation::NotNeeded
            ));
        });
    }

    #[test]
    fn a_range_that_the_kernel_never_uses_needs_no_reservation() {
        with_files("\n", "32768\t60999\n", |reserved, ephemeral| {
            assert!(matches!(
                reserve_in_files(&(10_000..=20_000), reserved, ephemeral),
                KernelReservation::NotNeeded
            ));
            assert_eq!(fs::read_to_string(reserved).unwrap(), "\n");
        });
    }

    #[test]
    fn a_reservation_that_fails_says_what_to_set() {
        with_files("8080\n", "32768\t60999\n", |_, ephemeral| {
            let missing = Path::new("/nonexistent/reserved");
            let KernelReservation::Failed { wanted, .. } =
                reserve_in_files(&(40_000..=41_000), missing, ephemeral)
            else {
                panic!("there is no such file");
            };
            assert_eq!(wanted, "40000-41000");
        });
    }

    proptest! {
        #[test]
        fn merging_keeps_exactly_the_ports_it_was_given(
            ranges in prop::collection::vec((0u16..2000, 0u16..40), 0..20),
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(first, length)| first..=first + length).collect();
            let before: HashSet<u16> = ranges.iter().cloned().flatten().collect();
            let merged = merge_ports(ranges);
            let after: HashSet<u16> = merged.iter().cloned().flatten().collect();
            prop_assert_eq!(&before, &after);
            prop_assert!(merged.windows(2).all(|pair| pair[0].end() + 1 < *pair[1].start()));
            prop_assert_eq!(parse_ports(&format_ports(&merged)), merged);
        }

        #[test]
        fn no_port_is_ever_leased_twice(steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..200)) {
            let ports = PortAllocator::new(30_000..=30_019);
            let mut held: Vec<PortLease> = Vec::new();
            for (take, which) in steps {
                if take {
                    held.extend(ports.take(SOURCE, instance(1)));
                } else if !held.is_empty() {
                    held.swap_remove(which.index(held.len()));
                }
                let distinct: HashSet<u16> = held.iter().map(|lease| lease.source().port()).collect();
                prop_assert_eq!(distinct.len(), held.len());
                prop_assert_eq!(ports.free(SOURCE, instance(1)) + held.len(), 20);
            }
        }
    }
}
