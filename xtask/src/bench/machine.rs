//! Where and with what was measured.

use std::fs;
use std::process::Command;

use serde::Serialize;

use crate::workspace;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub date: String,
    pub commit: String,
    pub processor: String,
    pub processors: usize,
    pub memory_gb: u64,
    pub kernel: String,
    pub haproxy: String,
    pub nginx: String,
    pub wrk: String,
    pub nftables: String,
}

impl Machine {
    /// What cannot be found out is left empty.
    pub fn look() -> Self {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kilobytes: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        let root = workspace::root().display().to_string();
        Self {
            date: first_line("date", &["-u", "+%Y-%m-%d"]),
            commit: first_line("git", &["-C", &root, "describe", "--always", "--dirty"]),
            processor: field("/proc/cpuinfo", "model name"),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gb: kilobytes >> 20,
            kernel: first_line("uname", &["-sr"]),
            haproxy: first_line("haproxy", &["-v"]),
            nginx: first_line("nginx", &["-v"]),
            wrk: first_line("wrk", &["-v"]),
            nftables: first_line("nft", &["-v"]),
        }
    }
}

/// What a program prints first, on whichever output: versions go to either.
fn first_line(program: &str, arguments: &[&str]) -> String {
    let path = workspace::which(program).unwrap_or_else(|| program.into());
    let Ok(output) = Command::new(path).args(arguments).output() else { return String::new() };
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
}
