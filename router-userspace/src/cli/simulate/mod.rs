//! `simulate`: runs configurations against many requests on this host, without a daemon.

mod arguments;
mod print;
mod progress;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;

pub(super) use arguments::Simulation;
use arguments::Source;
use progress::Bar;

use super::{Exit, Failure};
use crate::config;
use crate::simulate::{Report, Requests, simulate};

pub(super) fn run(
    asked: &Simulation,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<Exit, Failure> {
    let mut plans = Vec::new();
    let mut valid = true;
    for file in [Some(&asked.config), asked.against.as_ref()].into_iter().flatten() {
        match config::load(file) {
            Ok(plan) => plans.push((file.display().to_string(), plan)),
            Err(errors) => {
                valid = false;
                write!(err, "{}", errors.graphical(true))?;
            }
        }
    }
    if !valid {
        return Ok(Exit::Negative);
    }
    let (requests, bar) = match open(asked) {
        Ok(source) => source,
        Err(error) => {
            writeln!(err, "routerctl: {}: {error}", asked.requests)?;
            return Ok(Exit::Usage);
        }
    };
    let interrupted = Interrupt::watch()?;
    let report = simulate(plans, &asked.settings(), requests, |progress| {
        bar.at(progress);
        !interrupted.came()
    });
    let took = bar.done();
    match report {
        Ok(report) if json => print_json(&report, out)?,
        Ok(report) => print::report(&report, asked.instances, took, out)?,
        Err(error) => {
            writeln!(err, "routerctl: {error}")?;
            return Ok(Exit::Usage);
        }
    }
    Ok(Exit::Ok)
}

fn print_json(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report)?;
    writeln!(out)
}

fn open(asked: &Simulation) -> io::Result<(Requests<'static>, Bar)> {
    let count = asked.count.unwrap_or(u64::MAX);
    let (reader, bar): (Box<dyn BufRead>, Bar) = match &asked.requests {
        Source::Synthetic => {
            let count = asked.count.unwrap_or(arguments::DEFAULT_COUNT);
            return Ok((Requests::Synthetic { count }, Bar::of_requests(count)));
        }
        Source::StandardInput => (Box::new(BufReader::new(io::stdin())), Bar::endless()),
        Source::File(path) => {
            let (file, size) = opened(path)?;
            (Box::new(BufReader::with_capacity(1 << 16, file)), Bar::of_bytes(size))
        }
    };
    Ok((Requests::Log { reader, count, own_pace: asked.rate.is_some() }, bar))
}

fn opened(path: &Path) -> io::Result<(File, u64)> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// Ctrl-C, which ends the simulation and prints what there is; a second one ends the program.
struct Interrupt(Arc<AtomicBool>, [signal_hook::SigId; 2]);

impl Interrupt {
    fn watch() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        // In this order: the first one only sets the flag.
        let second = signal_hook::flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&flag))?;
        let first = signal_hook::flag::register(SIGINT, Arc::clone(&flag))?;
        Ok(Self(flag, [second, first]))
    }

    fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for id in self.1 {
            signal_hook::low_level::unregister(id);
        }
    }
}
