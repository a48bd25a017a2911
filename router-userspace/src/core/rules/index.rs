//! Finds the first rule that matches without looking at most of them.
//!
//! Each enabled rule is listed under the keys of its [`cover`](super::cover); one without a cover is always a candidate.
//! A request's own keys are looked up, and the lists found are merged, so candidates come in the order of the rules
//! and the first whose condition holds is the one that a walk over all rules would find.

use std::collections::HashMap;
use std::net::IpAddr;

use super::cover::{self, Frequencies, Key, MAX_FOLDED};
use super::predicate::{View, bare_host};
use super::prefixes::Prefixes;
use super::{Match, fields};

/// Lists that are merged without allocating. Requests with more are rare.
const INLINE_LISTS: usize = 32;

/// Rules that share a key, ascending.
type List = Box<[u32]>;

type Exact = HashMap<Box<[u8]>, List>;

/// Fields of which a request may have many, each a name with a value.
#[derive(Clone, Debug, Default)]
struct Named(HashMap<Box<[u8]>, Values>);

#[derive(Clone, Debug, Default)]
struct Values {
    /// Rules for which the name is enough.
    any: List,
    exact: Exact,
}

/// Names of hosts, whole and by their ends.
#[derive(Clone, Debug)]
struct Names {
    whole: Exact,
    /// Reversed.
    suffixes: Prefixes<List>,
}

/// An index over the rules of one routing table.
#[derive(Clone, Debug)]
pub struct Index {
    always: List,
    hosts: Names,
    server_names: Names,
    paths: Exact,
    path_prefixes: Prefixes<List>,
    methods: Exact,
    listeners: Exact,
    headers: Named,
    /// Bit n: an indexed header name has n bytes, or n and more for the last bit.
    header_lengths: u64,
    cookies: Named,
    queries: Named,
    v4_networks: Prefixes<List>,
    v6_networks: Prefixes<List>,
}

impl Index {
    /// `conditions` are those of the enabled rules, each with its rule's place, in ascending order.
    pub fn new<'m>(conditions: impl Iterator<Item = (usize, &'m Match)> + Clone) -> Self {
        let mut frequencies = Frequencies::new();
        for (_, condition) in conditions.clone() {
            cover::count(condition, &mut frequencies);
        }
        let mut always = Vec::new();
        let mut lists: HashMap<Key, Vec<u32>> = HashMap::new();
        for (place, condition) in conditions {
            let place = place as u32;
            let Some(keys) = cover::cover(condition, &frequencies) else {
                always.push(place);
                continue;
            };
            for key in keys {
                let list = lists.entry(key).or_default();
                // One condition may name a key twice.
                if list.last() != Some(&place) {
                    list.push(place);
                }
            }
        }
        let mut index = Self {
            always: always.into(),
            hosts: Names::default(),
            server_names: Names::default(),
            paths: Exact::new(),
            path_prefixes: Prefixes::new([]),
            methods: Exact::new(),
            listeners: Exact::new(),
            headers: Named::default(),
            header_lengths: 0,
            cookies: Named::default(),
            queries: Named::default(),
            v4_networks: Prefixes::new([]),
            v6_networks: Prefixes::new([]),
        };
        let (mut suffixes, mut server_name_suffixes) = (Vec::new(), Vec::new());
        let mut prefixes = Vec::new();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (key, list) in lists {
            let list: List = list.into();
            match key {
                Key::Host(host) => drop(index.hosts.whole.insert(host, list)),
                Key::HostSuffix(suffix) => suffixes.push((suffix, list)),
                Key::ServerName(name) => drop(index.server_names.whole.insert(name, list)),
                Key::ServerNameSuffix(suffix) => server_name_suffixes.push((suffix, list)),
                Key::Path(path) => drop(index.paths.insert(path, list)),
                Key::PathPrefix(prefix) => prefixes.push((prefix, list)),
                Key::Method(method) => drop(index.methods.insert(method, list)),
                Key::Listener(name) => drop(index.listeners.insert(name, list)),
                Key::Header(name, value) => {
                    index.header_lengths |= length_bit(&name);
                    index.headers.insert(name, value, list);
                }
                Key::Cookie(name, value) => index.cookies.insert(name, value, list),
                Key::Query(name, value) => index.queries.insert(name, value, list),
                Key::Network(network) => {
                    let family = if network.addr().is_ipv4() { &mut v4 } else { &mut v6 };
                    family.push((bits(network.addr(), network.prefix_len().into()), list));
                }
            }
        }
        index.hosts.suffixes = Prefixes::new(suffixes);
        index.server_names.suffixes = Prefixes::new(server_name_suffixes);
        index.path_prefixes = Prefixes::new(prefixes);
        let boxed = |networks: Vec<(Bits, List)>| {
            Prefixes::new(networks.into_iter().map(|(bits, list)| (bits.as_slice().into(), list)))
        };
        (index.v4_networks, index.v6_networks) = (boxed(v4), boxed(v6));
        index
    }

    /// The first place for which `holds`, among the rules whose conditions may hold for the request.
    ///
    /// Allocates only if a query value is escaped and rules ask for query values, or if the request has very many keys.
    pub fn first(&self, view: &View<'_>, mut holds: impl FnMut(usize) -> bool) -> Option<usize> {
        let mut candidates = Candidates::default();
        candidates.add(&self.always);
        self.look_up(view, &mut candidates);
        while let Some(place) = candidates.next() {
            if holds(place as usize) {
                return Some(place as usize);
            }
        }
        None
    }

    fn look_up<'i>(&'i self, view: &View<'_>, found: &mut Candidates<'i>) {
        let request = view.request();
        found.add_exact(&self.listeners, request.listener.as_bytes());
        let (networks, width) = match request.client {
            IpAddr::V4(_) => (&self.v4_networks, 32),
            IpAddr::V6(_) => (&self.v6_networks, 128),
        };
        if !networks.is_empty() {
            networks.of(bits(request.client, width).as_slice()).for_each(|list| found.add(list));
        }
        if let Some(name) = request.tls.as_ref().and_then(|hello| hello.server_name) {
            self.server_names.look_up(name.as_bytes(), found);
        }
        let Some(http) = &request.http else { return };
        found.add_exact(&self.methods, http.method.as_bytes());
        if let Some(path) = view.path() {
            found.add_exact(&self.paths, path.as_bytes());
            self.path_prefixes.of(path.as_bytes()).for_each(|list| found.add(list));
        }
        if let Some(host) = http.host.map(|host| bare_host(host).as_bytes()) {
            self.hosts.look_up(host, found);
        }
        if self.header_lengths != 0 {
            let mut buffer = [0; MAX_FOLDED];
            let indexed = |header: &&crate::core::request::Header<'_>| {
                self.header_lengths & length_bit(header.name.as_bytes()) != 0
            };
            for header in http.headers.iter().filter(indexed) {
                if let Some(name) = folded(header.name.as_bytes(), &mut buffer) {
                    self.headers.look_up(name, header.value, found);
                }
            }
        }
        if !self.cookies.0.is_empty() {
            for header in http.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("cookie")) {
                for (name, value) in fields::cookies(header.value) {
                    self.cookies.look_up(name, value, found);
                }
            }
        }
        if !self.queries.0.is_empty() {
            for (name, value) in fields::parameters(http.query.unwrap_or_default()) {
                self.queries.look_up(&name, &value, found);
            }
        }
    }
}

impl Default for Names {
    fn default() -> Self {
        Self { whole: Exact::new(), suffixes: Prefixes::new([]) }
    }
}

impl Names {
    fn look_up<'i>(&'i self, name: &[u8], found: &mut Candidates<'i>) {
        if self.whole.is_empty() && self.suffixes.is_empty() {
            return;
        }
        let mut buffer = [0; MAX_FOLDED];
        // What is longer than every suffix matters by its end only.
        let end = &name[name.len().saturating_sub(MAX_FOLDED)..];
        let Some(end) = folded(end, &mut buffer) else { return };
        if name.len() <= MAX_FOLDED {
            found.add_exact(&self.whole, end);
        }
        end.reverse();
        self.suffixes.of(end).for_each(|list| found.add(list));
    }
}

impl Named {
    fn insert(&mut self, name: Box<[u8]>, value: Option<Box<[u8]>>, list: List) {
        let values = self.0.entry(name).or_default();
        match value {
            Some(value) => drop(values.exact.insert(value, list)),
            None => values.any = list,
        }
    }

    fn look_up<'i>(&'i self, name: &[u8], value: &[u8], found: &mut Candidates<'i>) {
        let Some(values) = self.0.get(name) else { return };
        found.add(&values.any);
        found.add_exact(&values.exact, value);
    }
}

/// Lists whose union is walked in ascending order.
#[derive(Default)]
struct Candidates<'i> {
    lists: [&'i [u32]; INLINE_LISTS],
    used: usize,
    more: Vec<&'i [u32]>,
}

impl<'i> Candidates<'i> {
    fn add(&mut self, list: &'i [u32]) {
        if list.is_empty() {
            return;
        }
        match self.lists.get_mut(self.used) {
            Some(free) => {
                *free = list;
                self.used += 1;
            }
            None => self.more.push(list),
        }
    }

    fn add_exact(&mut self, map: &'i Exact, key: &[u8]) {
        if !map.is_empty()
            && let Some(list) = map.get(key)
        {
            self.add(list);
        }
    }

    fn next(&mut self) -> Option<u32> {
        let lists = || self.lists[..self.used].iter().chain(&self.more);
        let smallest = lists().filter_map(|list| list.first()).min().copied()?;
        for list in self.lists[..self.used].iter_mut().chain(&mut self.more) {
            if list.first() == Some(&smallest) {
                *list = &list[1..];
            }
        }
        Some(smallest)
    }
}

/// `text` in lower case; `None` if it is longer than the buffer.
fn folded<'b>(text: &[u8], buffer: &'b mut [u8; MAX_FOLDED]) -> Option<&'b mut [u8]> {
    let folded = buffer.get_mut(..text.len())?;
    folded.copy_from_slice(text);
    folded.make_ascii_lowercase();
    Some(folded)
}

fn length_bit(name: &[u8]) -> u64 {
    1 << name.len().min(63)
}

/// The first bits of an address, one a byte, so that networks are prefixes of addresses.
struct Bits {
    bits: [u8; 128],
    length: usize,
}

impl Bits {
    fn as_slice(&self) -> &[u8] {
        &self.bits[..self.length]
    }
}

fn bits(address: IpAddr, length: usize) -> Bits {
    let word = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    Bits { bits: std::array::from_fn(|bit| (word >> (127 - bit) & 1) as u8), length }
}
