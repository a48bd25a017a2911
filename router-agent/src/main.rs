//! `router-agent`: tells routers how busy this host is.
//!
//! Runs beside an instance, looks every few seconds at /proc, the disk of temporary files and what the application says of
//! itself, and posts what it finds to each router. A router that is away is tried again with the next report.

mod application;
mod arguments;
mod host;
mod post;

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use router_report::Report;

use application::Source;
use arguments::Arguments;
use host::{Load, Sample};
use post::{PostError, post};

/// How long a router may take to answer, and a command to end.
const PATIENCE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    match run(&Arguments::read()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("router-agent: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Says once that something fails, and once that it is over.
#[derive(Clone, Default)]
struct Trouble {
    told: bool,
}

impl Trouble {
    fn tell<T, E: Display>(&mut self, who: &str, result: &Result<T, E>) {
        match result {
            Ok(_) if self.told => eprintln!("router-agent: {who}: works again"),
            Err(error) if !self.told => eprintln!("router-agent: {who}: {error}; trying again"),
            _ => {}
        }
        self.told = result.is_err();
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let sample = || Sample::take().map_err(|error| format!("cannot read /proc: {error}"));
    let source = arguments.status();
    let mut before = sample()?;
    let mut routers = vec![Trouble::default(); arguments.router.len()];
    let mut instances = vec![Trouble::default(); arguments.instance.len()];
    let mut disk = Trouble::default();
    loop {
        std::thread::sleep(arguments.interval);
        let now = sample()?;
        let load = now.since(&before);
        before = now;
        let temp_dir = &arguments.temp_dir;
        let used = host::disk_used_percent(temp_dir);
        disk.tell(&format!("the disk of {}", temp_dir.display()), &used);
        let host = of_host(arguments, &load, used.ok());
        let mut reports = Vec::with_capacity(arguments.instance.len());
        for (number, trouble) in instances.iter_mut().enumerate() {
            reports.push(of_instance(arguments, source.as_ref(), number, host.clone(), trouble)?);
        }
        for (router, trouble) in arguments.router.iter().zip(&mut routers) {
            let result = send(&arguments.token_file, router, &reports);
            if let (true, Err(error)) = (arguments.once, &result) {
                return Err(format!("{router}: {error}"));
            }
            trouble.tell(router, &result);
        }
        if arguments.once {
            return Ok(());
        }
    }
}

/// What every instance on this host reports.
fn of_host(arguments: &Arguments, load: &Load, temp_disk_used_percent: Option<f64>) -> Report {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    Report {
        time: Some(time),
        cpu_capacity: Some(arguments.capacity.unwrap_or(100.0 * load.processors as f64)),
        cpu_idle_percent: Some(load.idle_percent),
        memory_total_bytes: Some(load.memory_total),
        memory_free_bytes: Some(load.memory_free),
        virtual_memory_free_bytes: Some(load.virtual_free),
        pages_per_second: Some(load.pages_per_second),
        temp_disk_used_percent,
        ..Report::default()
    }
}

/// Adds what one instance says of itself. Where it cannot be asked, its report goes without.
fn of_instance(
    arguments: &Arguments,
    source: Option<&Source>,
    number: usize,
    host: Report,
    trouble: &mut Trouble,
) -> Result<Report, String> {
    let instance = &arguments.instance[number];
    let address = arguments.address.get(number).copied();
    let mut report = Report { instance: instance.clone(), address, ..host };
    if let Some(source) = source {
        let status = source.ask(instance, PATIENCE);
        if let (true, Err(error)) = (arguments.once, &status) {
            return Err(format!("{instance}: {error}"));
        }
        trouble.tell(instance, &status);
        if let Ok(status) = status {
            status.add_to(&mut report);
        }
    }
    Ok(report)
}

fn send(token_file: &Path, router: &str, reports: &[Report]) -> Result<(), PostError> {
    // Read each time, so that a changed token needs no restart.
    let file = std::fs::read_to_string(token_file)
        .map_err(|source| PostError::Token { path: token_file.to_owned(), source })?;
    let token = file
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .unwrap_or_default();
    reports.iter().try_for_each(|report| post(router, token, report, PATIENCE))
}
