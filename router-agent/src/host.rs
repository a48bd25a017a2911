//! How busy this host is: what /proc and the file system of temporary files say.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

/// Counters of one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    taken: Instant,
    ticks: Ticks,
    memory: Memory,
    /// Pages swapped in and out since the host started.
    pages: u64,
}

/// Processor time since the host started, in clock ticks of all processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    total: u64,
    processors: usize,
}

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    total: u64,
    available: u64,
    swap_free: u64,
}

/// How busy the host was between two samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub processors: usize,
    pub idle_percent: f64,
    pub memory_total: u64,
    pub memory_free: u64,
    pub virtual_free: u64,
    pub pages_per_second: f64,
}

impl Sample {
    pub fn take() -> io::Result<Self> {
        let odd = |name: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{name} looks odd"));
        let stat = fs::read_to_string("/proc/stat")?;
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        // Kernels without swap have no such counters.
        let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        Ok(Self {
            taken: Instant::now(),
            ticks: ticks(&stat).ok_or_else(|| odd("/proc/stat"))?,
            memory: memory(&meminfo).ok_or_else(|| odd("/proc/meminfo"))?,
            pages: pages(&vmstat),
        })
    }

    /// What happened since `before`.
    pub fn since(&self, before: &Sample) -> Load {
        let total = self.ticks.total.saturating_sub(before.ticks.total);
        // The kernel's count of idle time may run back a little.
        let idle = self.ticks.idle.saturating_sub(before.ticks.idle).min(total);
        let seconds = self.taken.duration_since(before.taken).as_secs_f64();
        let pages = self.pages.saturating_sub(before.pages) as f64;
        Load {
            processors: self.ticks.processors,
            idle_percent: if total > 0 { 100.0 * idle as f64 / total as f64 } else { 100.0 },
            memory_total: self.memory.total,
            memory_free: self.memory.available.min(self.memory.total),
            virtual_free: self.memory.available.saturating_add(self.memory.swap_free),
            pages_per_second: if seconds > 0.0 { pages / seconds } else { 0.0 },
        }
    }
}

/// How full the file system of `directory` is for users other than root, in percent as `df` shows it.
pub fn disk_used_percent(directory: &Path) -> io::Result<f64> {
    let found = rustix::fs::statvfs(directory)?;
    Ok(used_percent(found.f_blocks, found.f_bfree, found.f_bavail))
}

/// What is reserved for root counts neither as used nor as free.
fn used_percent(blocks: u64, free: u64, available: u64) -> f64 {
    let used = blocks.saturating_sub(free);
    match used.saturating_add(available) {
        // File systems without blocks, such as /proc.
        0 => 0.0,
        usable => 100.0 * used as f64 / usable as f64,
    }
}

/// Idle time is what the kernel calls idle and waiting for disks. Time of guests is part of user time already.
fn ticks(stat: &str) -> Option<Ticks> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> =
        all.split_whitespace().take(8).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let &[_, _, _, idle, waiting, ..] = fields.as_slice() else { return None };
    let numbered = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let processors = stat.lines().filter(numbered).count().max(1);
    Some(Ticks { idle: idle + waiting, total: fields.iter().sum(), processors })
}

fn memory(meminfo: &str) -> Option<Memory> {
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
    };
    Some(Memory {
        total: bytes("MemTotal")?,
        available: bytes("MemAvailable")?,
        swap_free: bytes("SwapFree").unwrap_or(0),
    })
}

fn pages(vmstat: &str) -> u64 {
    let count = |name: &str| {
        vmstat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    count("pswpin ").saturating_add(count("pswpout "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 50 0 25 400 25 0 0 0 0 0\ncpu1 50 0 25 400 25 0 0 0 0 0\nintr 1 2\n";

    #[test]
    fn idle_is_idle_and_waiting_over_all_processors() {
        assert_eq!(ticks(STAT), Some(Ticks { idle: 850, total: 1_000, processors: 2 }));
        assert_eq!(ticks("cpu  1 2\n"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn memory_is_what_could_be_used_without_swapping() {
        let text =
            "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    4096 kB\nSwapFree:   1024 kB\n";
        let expected = Memory { total: 16_777_216, available: 4_194_304, swap_free: 1_048_576 };
        assert_eq!(memory(text), Some(expected));
        assert_eq!(memory("MemTotal: 5 kB\n"), None);
    }

    #[test]
    fn load_is_what_happened_between_two_moments() {
        let before = Sample {
            taken: Instant::now(),
            ticks: ticks(STAT).unwrap(),
            memory: Memory { total: 100, available: 40, swap_free: 5 },
            pages: pages("pswpin 10\npswpout 20\n"),
        };
        let mut after = before.clone();
        after.taken += std::time::Duration::from_secs(2);
        after.ticks = Ticks { idle: 900, total: 1_200, processors: 2 };
        after.pages += 8;
        let load = after.since(&before);
        assert_eq!((load.idle_percent, load.pages_per_second), (25.0, 4.0));
        assert_eq!((load.memory_free, load.virtual_free), (40, 45));
        assert_eq!(before.since(&before).idle_percent, 100.0);
    }

    #[test]
    fn a_disk_is_as_full_as_df_shows_it() {
        assert_eq!(used_percent(1_000, 600, 400), 50.0, "200 of 1000 blocks are kept for root");
        assert_eq!(used_percent(1_000, 100, 0), 100.0, "nobody but root can write");
        assert_eq!(used_percent(0, 0, 0), 0.0);
    }

    #[test]
    fn this_host_can_be_read() {
        let load = Sample::take().unwrap().since(&Sample::take().unwrap());
        assert!((0.0..=100.0).contains(&load.idle_percent) && load.memory_free <= load.memory_total);
        assert!((0.0..=100.0).contains(&disk_used_percent(Path::new("/")).unwrap()));
        assert!(disk_used_percent(Path::new("/nonexistent")).is_err());
    }
}
