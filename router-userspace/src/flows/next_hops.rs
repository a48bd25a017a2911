//! Next hops: where flows leave the host, kept correct from netlink.
//!
//! Flows name a next hop by index into an array that the kernel programs read. One write here thus corrects every flow
//! at once when a neighbour's link-layer address changes. An entry without a known address is marked unresolved, and the kernel then resolves it with
//! the first packet; nothing is lost.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use router_common::abi::balance;
use router_common::abi::key::{address_of, words_of};
use router_common::abi::next_hop::{AF_INET, AF_INET6, NextHop};
use router_common::abi::reason::RelayReason;

use super::mapped::Mapped;
use super::netlink::{Changes, Event, Link, Mac, Netlink, Route};

/// Entry 0 is never used, so that an empty flow cannot point to a real one.
const FIRST: u32 = 1;
/// How long an answer about a route is believed without asking again; changes that the kernel tells of end it at once.
const ROUTE_LIFETIME: Duration = Duration::from_secs(30);
/// Routes remembered; beyond, all are forgotten and asked again.
const MAX_ROUTES: usize = 65_536;
/// Routes change in bursts; flows follow once it has been quiet for so long. Also how often the watcher looks whether it is still wanted.
const QUIET: Duration = Duration::from_millis(200);

/// The table of next hops.
#[derive(Debug)]
pub struct NextHopTable {
    entries: Mapped<NextHop>,
    /// What the kernel programs know of interfaces, by index.
    interfaces: Mapped<balance::Link>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    netlink: Netlink,
    /// Indexes of the interfaces where the kernel programs meet packets.
    attached: Vec<u32>,
    indexes: HashMap<(u32, IpAddr), u32>,
    used: u32,
    routes: HashMap<IpAddr, (Route, Instant)>,
    neighbours: HashMap<(u32, IpAddr), Mac>,
    links: HashMap<u32, Link>,
}

impl NextHopTable {
    /// Takes over the arrays, entries of an earlier daemon included. `attached` are the indexes of the interfaces that the kernel programs are attached to.
    pub fn adopt(
        entries: Mapped<NextHop>,
        interfaces: Mapped<balance::Link>,
        attached: Vec<u32>,
    ) -> io::Result<Self> {
        let mut indexes = HashMap::new();
        let mut used = FIRST;
        for (index, entry) in (0..).zip(entries.iter()).skip(FIRST as usize) {
            if entry.interface.get() == 0 {
                break;
            }
            indexes.insert((entry.interface.get(), address(entry)), index);
            used = index + 1;
        }
        let inner = Inner {
            netlink: Netlink::open()?,
            attached,
            indexes,
            used,
            routes: HashMap::new(),
            neighbours: HashMap::new(),
            links: HashMap::new(),
        };
        let table = Self { entries, interfaces, inner: Mutex::new(inner) };
        table.refresh()?;
        Ok(table)
    }

    /// What is known of a next hop, by an index that [`NextHopTable::towards`] gave.
    pub fn entry(&self, index: u32) -> &NextHop {
        &self.entries[index as usize]
    }

    /// The index of the next hop towards `destination`. `NoRoute` also where the array is full. `NotAttached` where packets from there would come in by an
    /// interface without our programs: they would meet the stack, which knows nothing of the connection and resets it.
    pub fn towards(&self, destination: IpAddr) -> Result<u32, RelayReason> {
        let mut inner = self.lock();
        let route = inner.route(destination).ok_or(RelayReason::NoRoute)?;
        if !inner.attached.contains(&route.interface) {
            return Err(RelayReason::NotAttached);
        }
        self.index(&mut inner, route)
    }

    /// The same, whatever interface it is behind: for packets that nothing has to come back for.
    pub fn towards_any(&self, destination: IpAddr) -> Result<u32, RelayReason> {
        let mut inner = self.lock();
        let route = inner.route(destination).ok_or(RelayReason::NoRoute)?;
        self.index(&mut inner, route)
    }

    /// This host's Ethernet address on an interface.
    pub fn own_address(&self, interface: u32) -> Option<Mac> {
        self.lock().links.get(&interface).and_then(|link| link.mac)
    }

    fn index(&self, inner: &mut Inner, route: Route) -> Result<u32, RelayReason> {
        let key = (route.interface, route.gateway);
        if let Some(index) = inner.indexes.get(&key) {
            return Ok(*index);
        }
        let index = inner.used;
        let entry = self.entries.get(index as usize).ok_or(RelayReason::NoRoute)?;
        inner.used += 1;
        inner.indexes.insert(key, index);
        inner.resolve(entry, key);
        entry.family.set(if route.gateway.is_ipv4() { AF_INET } else { AF_INET6 });
        for (place, word) in entry.address.iter().zip(words_of(route.gateway)) {
            place.set(word);
        }
        // Last, since an entry with an interface is complete to whoever adopts it.
        entry.interface.set(route.interface);
        Ok(index)
    }

    /// Follows the kernel's changes on a thread of its own for as long as the table is in use.
    /// `rerouted` is called after routes have changed; what [`NextHopTable::towards`] answers is new at once.
    pub fn watch(self: &Arc<Self>, rerouted: impl Fn() + Send + 'static) -> io::Result<()> {
        let mut changes = Changes::subscribe(QUIET)?;
        // What changed between the first dump and the subscription.
        self.refresh()?;
        let table = Arc::downgrade(self);
        std::thread::Builder::new().name("neighbours".into()).spawn(move || {
            let mut routes_changed = false;
            while let Some(news) = follow(&table, &mut changes) {
                match news {
                    News::Routes => routes_changed = true,
                    News::Quiet if std::mem::take(&mut routes_changed) => rerouted(),
                    News::Quiet | News::Other => {}
                }
            }
        })?;
        Ok(())
    }

    /// Reads all interfaces and neighbours afresh.
    fn refresh(&self) -> io::Result<()> {
        let mut inner = self.lock();
        let mut events = Vec::new();
        inner.netlink.dump(|event| events.push(event))?;
        inner.neighbours.clear();
        inner.routes.clear();
        for event in events {
            inner.remember(event);
            self.show(event);
        }
        for (key, index) in &inner.indexes {
            inner.resolve(&self.entries[*index as usize], *key);
        }
        Ok(())
    }

    fn apply(&self, event: Event) {
        let mut inner = self.lock();
        inner.remember(event);
        self.show(event);
        let affected = |key: &(u32, IpAddr)| match event {
            Event::Neighbour { interface, address, .. } => *key == (interface, address),
            Event::Link { interface, .. } => key.0 == interface,
            Event::Routes | Event::Overrun => false,
        };
        for (key, index) in inner.indexes.iter().filter(|(key, _)| affected(key)) {
            inner.resolve(&self.entries[*index as usize], *key);
        }
    }

    /// Tells the kernel programs how long packets may be that leave by an interface.
    fn show(&self, event: Event) {
        if let Event::Link { interface, link } = event
            && let Some(entry) = self.interfaces.get(interface as usize)
        {
            entry.mtu.set(link.unwrap_or_default().mtu);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The neighbour's address in an entry.
fn address(entry: &NextHop) -> IpAddr {
    let words = [0, 1, 2, 3].map(|word: usize| entry.address[word].get());
    address_of(words, entry.family.get() == AF_INET6)
}

/// What one wait for changes has brought.
enum News {
    Routes,
    Other,
    Quiet,
}

/// One wait for changes. `None` once the table is gone or cannot be followed any more.
fn follow(table: &Weak<NextHopTable>, changes: &mut Changes) -> Option<News> {
    let mut events = Vec::new();
    if let Err(error) = changes.next(|event| events.push(event)) {
        tracing::error!(
            %error,
            "changes of neighbours and routes can no longer be followed; restart routerd"
        );
        return None;
    }
    let table = table.upgrade()?;
    for event in &events {
        match event {
            Event::Overrun => {
                if let Err(error) = table.refresh() {
                    tracing::warn!(%error, "neighbours and interfaces could not be read again");
                }
            }
            event => table.apply(*event),
        }
    }
    Some(match events.as_slice() {
        [] => News::Quiet,
        events if events.iter().any(|event| matches!(event, Event::Routes | Event::Overrun)) => News::Routes,
        _ => News::Other,
    })
}

impl Inner {
    fn route(&mut self, destination: IpAddr) -> Option<Route> {
        if let Some((route, asked)) = self.routes.get(&destination)
            && asked.elapsed() < ROUTE_LIFETIME
        {
            return Some(*route);
        }
        let route = self.netlink.route(destination).ok()?;
        if self.routes.len() >= MAX_ROUTES {
            self.routes.clear();
        }
        self.routes.insert(destination, (route, Instant::now()));
        Some(route)
    }

    fn remember(&mut self, event: Event) {
        match event {
            Event::Neighbour { interface, address, mac: Some(mac) } => {
                self.neighbours.insert((interface, address), mac);
            }
            Event::Neighbour { interface, address, mac: None } => {
                self.neighbours.remove(&(interface, address));
            }
            Event::Link { interface, link: Some(link) } => {
                self.links.insert(interface, link);
            }
            Event::Link { interface, link: None } => {
                self.links.remove(&interface);
            }
            Event::Routes | Event::Overrun => self.routes.clear(),
        }
    }

    /// Writes what is known of a neighbour, and of the interface that leads to it, into its entry.
    fn resolve(&self, entry: &NextHop, key: (u32, IpAddr)) {
        let link = self.links.get(&key.0).copied().unwrap_or_default();
        entry.mtu.set(link.mtu);
        let (Some(neighbour), Some(own)) = (self.neighbours.get(&key), link.mac) else {
            return entry.resolved.set(0);
        };
        let mut addresses = [0; 12];
        addresses[..6].copy_from_slice(neighbour);
        addresses[6..].copy_from_slice(&own);
        let words = [0, 4, 8].map(|at| {
            u32::from_ne_bytes([addresses[at], addresses[at + 1], addresses[at + 2], addresses[at + 3]])
        });
        if entry.ethernet.iter().zip(words).any(|(word, new)| word.get() != new) {
            entry.resolved.set(0);
            for (word, new) in entry.ethernet.iter().zip(words) {
                word.set(new);
            }
        }
        entry.resolved.set(1);
    }
}
