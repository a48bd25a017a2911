//! The metrics that every program has, under the names that Prometheus' own libraries use.

use std::fmt;
use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{one, signed};

/// What this process uses. A number that the kernel does not tell is left out.
#[derive(Debug)]
pub(super) struct Usage;

impl Collector for Usage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        if let Some(seconds) = cpu_seconds() {
            let help = "User and system CPU time spent, in seconds";
            one(encoder, "process_cpu_seconds", help, &ConstCounter::new(seconds))?;
        }
        if let Some(bytes) = resident_bytes() {
            one(
                encoder,
                "process_resident_memory_bytes",
                "Resident memory size in bytes",
                &ConstGauge::new(bytes),
            )?;
        }
        if let Some(count) = open_files() {
            one(encoder, "process_open_fds", "Open file descriptors", &ConstGauge::new(count))?;
        }
        if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
            let help = "Greatest number of open file descriptors";
            one(encoder, "process_max_fds", help, &ConstGauge::new(signed(soft)))?;
        }
        Ok(())
    }
}

fn cpu_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Some(seconds(usage.user_time()) + seconds(usage.system_time()))
}

fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Linux 6.2 and later say it as the directory's size; before, it is 0, and listing the directory would cost too much.
fn open_files() -> Option<i64> {
    let count = fs::metadata("/proc/self/fd").ok()?.len();
    (count > 0).then_some(signed(count))
}
