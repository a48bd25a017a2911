//! Ends a story that hangs, so that a run fails with a reason instead of never ending.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::lab::{Host, Lab};

/// No story takes longer. `ROUTER_STORY_LIMIT`, in seconds, is another limit.
const LIMIT: Duration = Duration::from_secs(300);

/// Lines of routerd's log that are shown.
const LOG_LINES: usize = 60;

/// While this lives, the calling thread's story may take its time. When that is over, it is named with what it waits for, and
/// the whole test process ends: a thread that is stuck in the kernel cannot be ended alone.
#[derive(Debug)]
pub struct Watchdog {
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    pub fn over(lab: &Lab) -> Self {
        let seconds = std::env::var("ROUTER_STORY_LIMIT").ok().and_then(|text| text.parse().ok());
        let limit = seconds.map_or(LIMIT, Duration::from_secs);
        let story = thread::current().name().unwrap_or("a story").to_owned();
        let (alive, ended) = mpsc::channel();
        let lab = lab.clone();
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Not by a macro, whose output the test runner would keep to itself.
                let _ = io::stderr().write_all(report(&story, limit, &lab).as_bytes());
                let _ = Lab::down(lab.name());
                std::process::exit(101);
            }
        });
        Self { _alive: alive }
    }
}

/// Which story hangs, where it and the lab's daemons wait, and what routerd said last.
fn report(story: &str, limit: Duration, lab: &Lab) -> String {
    let mut text = format!("\n{story} hangs: it has not ended after {limit:?}, so this test process ends.\n");
    let _ = writeln!(text, "Threads of the tests, and where in the kernel they wait:\n{}", waits("self"));
    for pid in lab.processes(Host::Gateway) {
        let _ = writeln!(text, "Threads of the gateway's process {pid}:\n{}", waits(&pid.to_string()));
    }
    let log = fs::read_to_string(lab.host_dir(Host::Gateway).join("routerd.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    let _ = writeln!(text, "The end of routerd's log:\n{}", last.join("\n"));
    text
}

/// A line for each thread of a process: name, state and the kernel's functions that it is in, innermost first.
fn waits(pid: &str) -> String {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let line = |task: PathBuf| {
        let read = |file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
        let state =
            read("status").lines().find_map(|line| Some(line.strip_prefix("State:")?.trim().to_owned()));
        let stack = read("stack");
        let calls: Vec<&str> = stack.lines().filter_map(|line| line.split([' ', '+']).nth(1)).collect();
        format!("  {}: {}: {}", read("comm").trim(), state.unwrap_or_default(), calls.join(" < "))
    };
    threads.map(|thread| line(thread.path())).collect::<Vec<_>>().join("\n")
}
