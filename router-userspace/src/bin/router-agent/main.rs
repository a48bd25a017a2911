//! `router-agent`: tells routers how busy this host is.
//!
//! Runs beside an instance, reads /proc every few seconds and posts what it finds to each router. Needs nothing but a
//! file with the pool's token. A router that is away is tried again with the next report.

mod post;
mod proc;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use router::config::parse_duration;
use router::control::reports::Body;

use post::{PostError, post};
use proc::{Load, Sample};

/// How long a router may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reports this host's load to routers.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where a router takes reports: address or host name, and port. May be given several times
    #[arg(long, required = true, value_name = "HOST:PORT")]
    router: Vec<String>,
    /// File that holds the pool's token in its first line
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// The instance's name, as in the routers' configuration. Give it several times for several instances on this host
    #[arg(long, required = true, value_name = "NAME")]
    instance: Vec<String>,
    /// Where the instance listens, if it is to join its pool by itself; one for each --instance
    #[arg(long, value_name = "ADDRESS:PORT")]
    address: Vec<std::net::SocketAddr>,
    /// Processing power compared with other hosts; 100 for each processor unless given
    #[arg(long, value_name = "NUMBER")]
    capacity: Option<f64>,
    /// Time between reports
    #[arg(long, default_value = "2s", value_parser = interval, value_name = "DURATION")]
    interval: Duration,
    /// Report once and end; fails if a router does not take the report
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .filter(|duration| (Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(duration))
        .ok_or_else(|| "write a duration from 100ms to 1h, such as 2s".to_owned())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !arguments.address.is_empty() && arguments.address.len() != arguments.instance.len() {
        eprintln!("router-agent: give --address once for each --instance, or not at all");
        return ExitCode::from(2);
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("router-agent: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let sample = || Sample::take().map_err(|error| format!("cannot read /proc: {error}"));
    let mut before = sample()?;
    let mut failing = vec![false; arguments.router.len()];
    loop {
        std::thread::sleep(arguments.interval);
        let now = sample()?;
        let load = now.since(&before);
        before = now;
        for (router, failing) in arguments.router.iter().zip(&mut failing) {
            match report(arguments, router, &load) {
                Ok(()) if *failing => eprintln!("router-agent: {router} takes reports again"),
                Err(error) if arguments.once => return Err(format!("{router}: {error}")),
                Err(error) if !*failing => eprintln!("router-agent: {router}: {error}; trying again"),
                _ => continue,
            }
            *failing = !*failing;
        }
        if arguments.once {
            return Ok(());
        }
    }
}

/// Reports for every instance on this host.
fn report(arguments: &Arguments, router: &str, load: &Load) -> Result<(), PostError> {
    // Read each time, so that a changed token needs no restart.
    let path = &arguments.token_file;
    let file =
        std::fs::read_to_string(path).map_err(|source| PostError::Token { path: path.clone(), source })?;
    let token = file.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    for (number, instance) in arguments.instance.iter().enumerate() {
        let body = Body {
            instance: instance.clone(),
            address: arguments.address.get(number).copied(),
            time: Some(time),
            cpu_capacity: Some(arguments.capacity.unwrap_or(100.0 * load.processors as f64)),
            cpu_idle_percent: Some(load.idle_percent),
            memory_total_bytes: Some(load.memory_total),
            memory_free_bytes: Some(load.memory_free),
            virtual_memory_free_bytes: Some(load.virtual_free),
            pages_per_second: Some(load.pages_per_second),
            ..Body::default()
        };
        post(router, token, &body, PATIENCE)?;
    }
    Ok(())
}
