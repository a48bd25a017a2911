//! The table of endpoints: written whole into the half that is not in force, which is then named by one word.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use router_common::abi::balance::{ENDPOINT_BUCKETS, Endpoint, EndpointBucket, Mode, Target};
use router_common::abi::key::words_of;
use router_common::path::balance::hash;
use router_common::wire::ipv4::PROTOCOL_IPIP;
use router_common::wire::ipv6::PROTOCOL_IPV6;
use router_common::wire::{PROTOCOL_ICMP, PROTOCOL_ICMPV6};

use super::instances::Instances;
use super::services::Services;
use super::{ApplyError, EndpointKey, Maps, pack_port};

/// As for rings: a program may still look at the half that was in force.
const REST: Duration = Duration::from_millis(20);
/// Seeds that are tried before the endpoints are too many.
const SEEDS: u32 = 64;
const ROOM: usize = 4;

#[derive(Debug, Default)]
pub struct Endpoints {
    in_force: BTreeMap<(u32, [u32; 4]), u32>,
    exchanged: Option<Instant>,
}

impl Endpoints {
    /// Brings the table up to date. A change that comes right behind another waits for the next call.
    pub fn apply(
        &mut self,
        maps: &Maps,
        services: &Services,
        instances: &Instances,
        vips: &BTreeMap<IpAddr, bool>,
        now: Instant,
    ) -> Result<(), ApplyError> {
        let mut wanted = BTreeMap::new();
        for (key, place) in instances.answering() {
            wanted.insert(entry(key), Target::Instance(place).pack());
        }
        if services.iter().any(|(_, place)| maps.services[place as usize].mode.get() == Mode::DsrIpip as u32)
        {
            for (address, place) in instances.tunnels() {
                let protocol = if address.is_ipv4() { PROTOCOL_IPIP } else { PROTOCOL_IPV6 };
                let key = EndpointKey { address: SocketAddr::new(address, 0), protocol };
                wanted.insert(entry(key), Target::Instance(place).pack());
            }
        }
        for (key, place) in services.iter() {
            let (port, address) = entry(key);
            wanted.insert((port, address), Target::Service(place).pack());
            // Later fragments have no port.
            let any = pack_port(EndpointKey { address: SocketAddr::new(key.address.ip(), 0), ..key });
            wanted.insert((any | Endpoint::ANY_PORT, address), Target::Service(place).pack());
        }
        for (&address, &echo) in vips {
            let protocol = if address.is_ipv4() { PROTOCOL_ICMP } else { PROTOCOL_ICMPV6 };
            let key = EndpointKey { address: SocketAddr::new(address, 0), protocol };
            wanted.insert(entry(key), Target::Vip { echo }.pack());
        }
        let resting = self.exchanged.is_some_and(|at| now.saturating_duration_since(at) < REST);
        if wanted == self.in_force && self.exchanged.is_some() || resting {
            return Ok(());
        }
        let settings = &maps.settings[0];
        let half = if settings.endpoints.get() == 1 { 2 } else { 1 };
        let (seed, buckets) =
            (0..SEEDS).find_map(|seed| Some((seed, spread(&wanted, seed)?))).ok_or(ApplyError::TooMany {
                what: "endpoints of Layer-4 listeners",
                most: ENDPOINT_BUCKETS as usize,
            })?;
        let start = (half - 1) as usize * ENDPOINT_BUCKETS as usize;
        for (number, bucket) in maps.endpoints[start..].iter().take(ENDPOINT_BUCKETS as usize).enumerate() {
            write(bucket, buckets.get(&(number as u32)).map_or(&[], Vec::as_slice));
        }
        settings.endpoint_seeds[half as usize - 1].set(seed);
        settings.endpoints.publish(if wanted.is_empty() { 0 } else { half });
        self.in_force = wanted;
        self.exchanged = Some(now);
        Ok(())
    }
}

type Entry = ((u32, [u32; 4]), u32);

fn entry(key: EndpointKey) -> (u32, [u32; 4]) {
    (pack_port(key), words_of(key.address.ip()))
}

/// Each bucket's entries by this seed; `None` if one overflows.
fn spread(wanted: &BTreeMap<(u32, [u32; 4]), u32>, seed: u32) -> Option<BTreeMap<u32, Vec<Entry>>> {
    let mut buckets: BTreeMap<u32, Vec<Entry>> = BTreeMap::new();
    for (&(port, address), &target) in wanted {
        let hash = hash::of(seed, &address, port);
        let bucket = buckets.entry(hash::scale((hash >> 32) as u32, ENDPOINT_BUCKETS)).or_default();
        if bucket.len() == ROOM {
            return None;
        }
        bucket.push(((port, address), target));
    }
    Some(buckets)
}

fn write(bucket: &EndpointBucket, entries: &[Entry]) {
    for (number, place) in bucket.endpoints.iter().enumerate() {
        match entries.get(number) {
            None => {
                if place.port.get() != 0 {
                    place.port.set(0);
                }
            }
            Some(((port, address), target)) => {
                for (word, value) in place.address.iter().zip(address) {
                    word.set(*value);
                }
                place.target.set(*target);
                place.port.set(*port);
            }
        }
    }
}
