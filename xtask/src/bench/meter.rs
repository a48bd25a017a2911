//! CPU time: of the contender's processes, and of the whole machine.

use std::fs;
use std::ops::Sub;
use std::time::Instant;

use anyhow::{Context, Result};

/// Reads the clocks of some processes and of the machine.
#[derive(Clone, Debug)]
pub struct Meter {
    processes: Vec<u32>,
}

/// The clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    at: Instant,
    /// Seconds of CPU time that the processes have used.
    processes: f64,
    /// Seconds in which the machine's processors were busy.
    machine: f64,
}

/// What happened between two readings, all in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub elapsed: f64,
    pub processes: f64,
    pub machine: f64,
}

impl Meter {
    pub fn new(processes: Vec<u32>) -> Self {
        Self { processes }
    }

    pub fn read(&self) -> Result<Reading> {
        let mut processes = 0.0;
        for pid in &self.processes {
            processes += of_process(*pid).with_context(|| format!("process {pid} has ended"))?;
        }
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let machine = busy(&stat).context("/proc/stat has no line of all processors")?;
        Ok(Reading { at: Instant::now(), processes, machine })
    }
}

impl Sub for Reading {
    type Output = Usage;

    fn sub(self, earlier: Self) -> Usage {
        Usage {
            elapsed: (self.at - earlier.at).as_secs_f64(),
            processes: self.processes - earlier.processes,
            machine: self.machine - earlier.machine,
        }
    }
}

/// The scheduler's own clocks of all threads; they do not depend on when the timer ticks.
fn of_process(pid: u32) -> Option<f64> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread may end meanwhile.
        if let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) {
            nanoseconds += text.split_whitespace().next()?.parse::<u64>().ok()?;
        }
    }
    Some(nanoseconds as f64 / 1e9)
}

/// user + nice + system + irq + softirq, from clock ticks.
fn busy(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6].iter().map(|field| ticks.get(*field)).sum::<Option<u64>>()?;
    // SAFETY: sysconf only reads.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(busy as f64 / per_second as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_not_work() {
        let stat = "cpu  100 10 50 9000 800 3 7 20 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\n";
        assert_eq!(busy(stat), Some(1.70));
        assert_eq!(busy("intr 1 2 3\n"), None);
    }

    #[test]
    fn work_is_seen_on_the_clock_of_its_process() {
        let meter = Meter::new(vec![std::process::id()]);
        let before = meter.read().unwrap();
        let began = Instant::now();
        while began.elapsed().as_millis() < 50 {
            std::hint::spin_loop();
        }
        let usage = meter.read().unwrap() - before;
        assert!(usage.processes > 0.005, "{usage:?}");
        assert!(usage.elapsed >= 0.05);
    }

    #[test]
    fn a_process_that_has_ended_is_an_error() {
        let gone = Meter::new(vec![u32::MAX >> 1]);
        assert!(gone.read().is_err());
    }
}
