//! Invented requests: Poisson arrivals, exponential stays, users alike, resources by Zipf's law. The same seed gives
//! the same requests on every host.

use std::time::Duration;

use ipnet::IpNet;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1, Zipf};

use super::arrival::Arrival;

/// What the requests are like.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Requests per second; above 0.
    pub rate: f64,
    /// Mean time that a connection stays.
    pub stay: Duration,
    /// Resources there are; 0 for none.
    pub resources: u64,
    /// The n-th resource is asked for in proportion to 1 / nˢ; 0 makes all alike.
    pub exponent: f64,
    /// Users there are; 0 for none.
    pub users: u64,
    /// Session keys there are; with 0, each request has its own.
    pub sessions: u64,
    /// Clients' addresses are of this network.
    pub clients: IpNet,
    pub method: String,
    pub host: Option<String>,
    /// Path and query. `{user}`, `{session}` and `{resource}` stand for those of the request, here and in `fields`.
    pub target: String,
    pub fields: Vec<(String, String)>,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            rate: 1_000.0,
            stay: Duration::from_secs(10),
            resources: 0,
            exponent: 1.0,
            users: 0,
            sessions: 0,
            clients: IpNet::V4(ipnet::Ipv4Net::new_assert([10, 0, 0, 0].into(), 8)),
            method: "GET".to_owned(),
            host: None,
            target: "/".to_owned(),
            fields: Vec::new(),
        }
    }
}

/// When requests come and how long they stay.
#[derive(Debug)]
pub(super) struct Timing {
    random: Xoshiro256PlusPlus,
    /// Seconds.
    mean_gap: f64,
    mean_stay: f64,
    at: f64,
}

impl Timing {
    pub fn new(rate: f64, stay: Duration, seed: u64) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        Self { random, mean_gap: 1.0 / rate, mean_stay: stay.as_secs_f64(), at: 0.0 }
    }

    fn exponential(&mut self) -> f64 {
        Exp1.sample(&mut self.random)
    }

    /// The next moment of a Poisson process.
    pub fn arrive(&mut self) -> Duration {
        self.at += self.exponential() * self.mean_gap;
        Duration::from_secs_f64(self.at)
    }

    pub fn stay(&mut self) -> Duration {
        Duration::from_secs_f64(self.exponential() * self.mean_stay)
    }
}

/// Makes up requests without end.
#[derive(Debug)]
pub(super) struct Synthetic {
    workload: Workload,
    timing: Timing,
    popularity: Option<Zipf<f64>>,
    made: u64,
}

impl Synthetic {
    pub fn new(workload: Workload, seed: u64) -> Self {
        // Zipf's law over no resource, or with a negative exponent, is none.
        let popularity = Zipf::new(workload.resources as f64, workload.exponent).ok();
        let timing = Timing::new(workload.rate, workload.stay, seed);
        Self { workload, timing, popularity, made: 0 }
    }

    pub fn next(&mut self) -> Arrival {
        self.made += 1;
        let (at, stay) = (self.timing.arrive(), self.timing.stay());
        let random = &mut self.timing.random;
        let one_of = |random: &mut Xoshiro256PlusPlus, many: u64| random.random_range(1..=many);
        let resource = self.popularity.as_ref().map(|zipf| format!("r{}", zipf.sample(random) as u64));
        let user = (self.workload.users > 0).then(|| format!("u{}", one_of(random, self.workload.users)));
        let session = match self.workload.sessions {
            0 => self.made,
            many => one_of(random, many),
        };
        let client = address(self.workload.clients, random.random());
        let arrival = Arrival { user, session: Some(format!("s{session}")), resource, ..Arrival::default() };
        let filled = |(name, value): &(String, String)| (name.clone(), fill(value, &arrival));
        Arrival {
            at,
            stay,
            client,
            method: self.workload.method.clone(),
            host: self.workload.host.clone(),
            target: fill(&self.workload.target, &arrival),
            fields: self.workload.fields.iter().map(filled).collect(),
            ..arrival
        }
    }
}

fn fill(template: &str, arrival: &Arrival) -> String {
    if !template.contains('{') {
        return template.to_owned();
    }
    let known =
        [("{user}", &arrival.user), ("{session}", &arrival.session), ("{resource}", &arrival.resource)];
    known.into_iter().fold(template.to_owned(), |text, (name, value)| {
        text.replace(name, value.as_deref().unwrap_or_default())
    })
}

/// An address of the network, whose host bits are those of `random`.
fn address(network: IpNet, random: u128) -> std::net::IpAddr {
    match network {
        IpNet::V4(network) => {
            let host = !u32::from(network.netmask());
            std::net::Ipv4Addr::from(u32::from(network.network()) | random as u32 & host).into()
        }
        IpNet::V6(network) => {
            let host = !u128::from(network.netmask());
            std::net::Ipv6Addr::from(u128::from(network.network()) | random & host).into()
        }
    }
}
