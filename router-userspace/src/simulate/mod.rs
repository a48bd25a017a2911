//! `simulate`: what configurations would do with many requests, offline. The decision core decides, exactly as in the
//! daemon; time is simulated, randomness is seeded, and nothing is listened to or connected to.
//!
//! The route: `synthetic` or `log` makes an [`Arrival`](arrival::Arrival) → each configuration's `world` lets time pass
//! up to it, decides, and lets the session live for a while → `tally` counts → [`Report`].
//!
//! Not simulated: failing instances, persistence cookies, and the wait in a queue (a request that would wait is counted
//! as `unavailable: queue`).

mod arrival;
mod load_model;
mod log;
mod log_line;
mod report;
mod synthetic;
mod tally;
#[cfg(test)]
mod tests;
mod world;

use std::collections::HashMap;
use std::io::{self, BufRead};
use std::time::{Duration, Instant};

use crate::config::Plan;
use arrival::Reader;
pub use load_model::LoadModel;
use log::Log;
pub use log::LogReport;
pub use report::{ConfigurationReport, Imbalance, InstanceReport, PoolReport, Report, RuleReport};
pub use synthetic::Workload;
use synthetic::{Synthetic, Timing};
use tally::Resource;
use world::World;

/// How often somebody is told how far it is, in requests.
const TELL_EVERY: u64 = 1_000;

/// Where requests come from.
pub enum Requests<'a> {
    /// So many, made up as the workload says.
    Synthetic { count: u64 },
    /// Those of an access log, at most so many. They come when the log says, or with `own_pace` as the workload says.
    Log { reader: Box<dyn BufRead + 'a>, count: u64, own_pace: bool },
}

impl std::fmt::Debug for Requests<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Synthetic { count } => formatter.debug_struct("Synthetic").field("count", count).finish(),
            Self::Log { count, .. } => {
                formatter.debug_struct("Log").field("count", count).finish_non_exhaustive()
            }
        }
    }
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The listener that requests come to; the first one if `None`.
    pub listener: Option<String>,
    pub workload: Workload,
    pub load_model: Option<LoadModel>,
    pub seed: u64,
}

/// How far a simulation is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub requests: u64,
    /// Bytes read of the log; 0 for synthetic requests.
    pub bytes: u64,
}

/// Why nothing can be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    #[error("{file} has no listener {name:?}; it has {known}")]
    NoListener { file: String, name: String, known: String },
    #[error(
        "listener {listener:?} of {file} finds no resource in requests for {target:?}: give a --path with {{resource}} where its expression looks"
    )]
    ResourceNotFound { file: String, listener: String, target: String },
    #[error(
        "listener {listener:?} of {file} does not trust {client} to say who the user is: give --clients a trusted network"
    )]
    UserNotTrusted { file: String, listener: String, client: std::net::IpAddr },
    #[error("the access log cannot be read: {0}")]
    Log(#[from] io::Error),
}

enum Source<'a> {
    Synthetic(Synthetic),
    Log(Log<Box<dyn BufRead + 'a>>),
}

/// Gives the same requests to each configuration. `go_on` is told how far it is, and ends it by `false`: then the report
/// is of what there is.
pub fn simulate(
    plans: Vec<(String, Plan)>,
    settings: &Settings,
    requests: Requests<'_>,
    mut go_on: impl FnMut(Progress) -> bool,
) -> Result<Report, SimulateError> {
    let start = Instant::now();
    let mut files = Vec::new();
    let mut worlds = Vec::new();
    for (file, plan) in plans {
        let reader = reader(&file, &plan, settings)?;
        worlds.push(World::new(plan.table, reader, settings.load_model, start));
        files.push(file);
    }
    let workload = &settings.workload;
    let (mut source, count) = match requests {
        Requests::Synthetic { count } => {
            check(&files, &worlds, settings)?;
            (Source::Synthetic(Synthetic::new(workload.clone(), settings.seed)), count)
        }
        Requests::Log { reader, count, own_pace } => {
            let timing = Timing::new(workload.rate, workload.stay, settings.seed);
            (Source::Log(Log::new(reader, timing, own_pace, workload.host.clone())), count)
        }
    };
    let mut names: HashMap<String, Resource> = HashMap::new();
    let mut progress = Progress { requests: 0, bytes: 0 };
    let mut seconds = Duration::ZERO;
    let mut interrupted = false;
    while progress.requests < count {
        if progress.requests.is_multiple_of(TELL_EVERY) && !go_on(progress) {
            interrupted = true;
            break;
        }
        let arrival = match &mut source {
            Source::Synthetic(synthetic) => synthetic.next(),
            Source::Log(log) => {
                let next = log.next()?;
                progress.bytes = log.bytes;
                let Some(mut arrival) = next else { break };
                // A log does not say; the first configuration that knows where resources are does.
                arrival.resource = worlds.iter().find_map(|world| world.identity_of(&arrival).1);
                arrival
            }
        };
        let resource = arrival.resource.as_ref().map(|name| match names.get(name) {
            Some(&known) => known,
            None => {
                let new = Resource(names.len() as u32);
                names.insert(name.clone(), new);
                new
            }
        });
        for world in &mut worlds {
            world.serve(&arrival, resource);
        }
        (progress.requests, seconds) = (progress.requests + 1, arrival.at);
    }
    Ok(Report {
        requests: progress.requests,
        seconds: seconds.as_secs_f64(),
        seed: settings.seed,
        interrupted,
        log: match source {
            Source::Log(log) => Some(log.report),
            Source::Synthetic(_) => None,
        },
        configurations: files
            .iter()
            .zip(&worlds)
            .map(|(file, world)| ConfigurationReport::of(file, world))
            .collect(),
    })
}

fn reader(file: &str, plan: &Plan, settings: &Settings) -> Result<Reader, SimulateError> {
    let mut listeners = plan.listeners.iter();
    let found = match &settings.listener {
        Some(name) => listeners.find(|listener| listener.name == *name),
        None => listeners.next(),
    };
    let listener = found.ok_or_else(|| SimulateError::NoListener {
        file: file.to_owned(),
        name: settings.listener.clone().unwrap_or_default(),
        known: plan.listeners.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", "),
    })?;
    Ok(Reader {
        listener: listener.name.clone(),
        protocol: listener.protocol,
        spec: plan.table.identities().of_listener(&listener.name).cloned().unwrap_or_default(),
    })
}

/// Whether each configuration finds in the requests what is put there: otherwise the simulation would be of something else.
fn check(files: &[String], worlds: &[World], settings: &Settings) -> Result<(), SimulateError> {
    for (file, world) in files.iter().zip(worlds) {
        let arrival = Synthetic::new(settings.workload.clone(), settings.seed).next();
        let listener = || world.reader.listener.clone();
        let spec = &world.reader.spec;
        let (user, resource) = world.identity_of(&arrival);
        if spec.resource.is_some() && arrival.resource != resource && arrival.resource.is_some() {
            let target = arrival.target;
            return Err(SimulateError::ResourceNotFound { file: file.clone(), listener: listener(), target });
        }
        if spec.user.is_some() && arrival.user.is_some() && arrival.user != user {
            let client = arrival.client;
            return Err(SimulateError::UserNotTrusted { file: file.clone(), listener: listener(), client });
        }
    }
    Ok(())
}
