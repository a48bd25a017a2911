//! The arguments of `simulate`.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use router_report::parse_duration;

use crate::cli::arguments::header;
use crate::control::protocol::Header;
use crate::simulate::{LoadModel, Settings, Workload};

/// Synthetic requests, if nobody says how many.
pub(super) const DEFAULT_COUNT: u64 = 1_000_000;
/// As in the configuration's networks of users: any client of a private network of this size.
const DEFAULT_CLIENTS: &str = "10.0.0.0/8";

#[derive(Debug, Args)]
pub(in crate::cli) struct Simulation {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    pub(super) config: PathBuf,
    /// A second configuration file that is given the same requests
    #[arg(long, value_name = "FILE")]
    pub(super) against: Option<PathBuf>,
    /// `synthetic`, an access log (combined format or HAProxy's), or `-` for a log on standard input
    #[arg(long, value_name = "SOURCE", default_value = "synthetic")]
    pub(super) requests: Source,
    /// At most so many requests; 1000000 synthetic ones or a whole log if not given
    #[arg(long, value_name = "N")]
    pub(super) count: Option<u64>,
    /// The same seed makes the same requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The listener that requests come to; the first one if not given
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Requests per second; 1000 if not given, but those of a log come when it says
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(super) rate: Option<f64>,
    /// Mean time that a connection stays
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    stay: Duration,
    /// Resources that are asked for
    #[arg(long, value_name = "N", default_value_t = 0)]
    resources: u64,
    /// Exponent of Zipf's law for resources; 0 makes all alike
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = number)]
    zipf: f64,
    /// Users that requests come from
    #[arg(long, value_name = "N", default_value_t = 0)]
    users: u64,
    /// Session keys; with 0, each request has its own
    #[arg(long, value_name = "N", default_value_t = 0)]
    sessions: u64,
    /// Network of the clients' addresses
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_CLIENTS)]
    clients: IpNet,
    /// Path and query of the requests; {resource}, {user} and {session} stand for theirs
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = path)]
    path: String,
    /// Host of the requests, and of those of a log that does not say
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// A header field such as 'X-Map: {resource}'; may be given several times
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<Header>,
    /// Percent of an instance's processors (of weight 100) that a session takes: instances report their load
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = number)]
    cpu_per_session: f64,
    /// Percent of an instance's memory (of weight 100) that a loaded resource takes: instances report their load
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = number)]
    memory_per_resource: f64,
    /// How often instances report their load
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    report_every: Duration,
    /// Print so many instances of each pool: those with the most and with the fewest requests
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(super) instances: usize,
}

impl Simulation {
    pub(super) fn settings(&self) -> Settings {
        let models_load = self.cpu_per_session > 0.0 || self.memory_per_resource > 0.0;
        let defaults = Workload::default();
        Settings {
            listener: self.listener.clone(),
            workload: Workload {
                rate: self.rate.unwrap_or(defaults.rate),
                stay: self.stay,
                resources: self.resources,
                exponent: self.zipf,
                users: self.users,
                sessions: self.sessions,
                clients: self.clients,
                host: self.host.clone(),
                target: self.path.clone(),
                fields: self.headers.iter().map(|one| (one.name.clone(), one.value.clone())).collect(),
                ..defaults
            },
            load_model: models_load.then_some(LoadModel {
                cpu_per_session: self.cpu_per_session,
                memory_per_resource: self.memory_per_resource,
                every: self.report_every,
            }),
            seed: self.seed,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Source {
    Synthetic,
    StandardInput,
    File(PathBuf),
}

impl FromStr for Source {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "synthetic" => Self::Synthetic,
            "-" => Self::StandardInput,
            path => Self::File(path.into()),
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic => formatter.write_str("synthetic requests"),
            Self::StandardInput => formatter.write_str("standard input"),
            Self::File(path) => path.display().fmt(formatter),
        }
    }
}

fn number(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=1e9).contains(number));
    number.ok_or_else(|| "give a number from 0 to 1000000000".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let number = number(text).ok().filter(|number| *number >= 0.001);
    number.ok_or_else(|| "give a number from 0.001 to 1000000000".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(1)..=Duration::from_secs(30 * 86_400);
    let duration = parse_duration(text).filter(|duration| range.contains(duration));
    duration.ok_or_else(|| "give a duration from 1ms to 30d, such as 90s".to_owned())
}

fn path(text: &str) -> Result<String, String> {
    if text.starts_with('/') { Ok(text.to_owned()) } else { Err("a path begins with /".to_owned()) }
}
