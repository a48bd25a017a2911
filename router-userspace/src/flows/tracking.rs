//! Tells whether this host tracks connections.
//!
//! Every host can, but does so only once a firewall or address translation asks for it, at any time. Rules that exempt the router's packets cost each of
//! them a look-up, so they are installed only where something is tracked. Kernels do not say, so it is seen from what
//! tracking does: entries appear in the table of this network namespace.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{fs, io};

/// How many entries this network namespace has.
const ENTRIES: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// Old entries may expire just when a new one appears.
const TRIES: usize = 3;

/// What has been seen so far. Once tracking has been seen it counts as active to the end of the daemon.
#[derive(Debug)]
pub struct Tracking {
    entries: PathBuf,
    last: AtomicU64,
    active: AtomicBool,
}

impl Tracking {
    /// Sends a few datagrams on the loopback interface, and looks whether they leave entries.
    pub fn probe() -> Self {
        let tracking = Self::reading(Path::new(ENTRIES));
        for _ in 0..TRIES {
            // Without a loopback interface, the first connections will show it.
            if tracking.look() || send_a_datagram().is_err() {
                break;
            }
        }
        tracking.look();
        tracking
    }

    fn reading(entries: &Path) -> Self {
        let entries = entries.to_owned();
        let tracking = Self { entries, last: AtomicU64::new(0), active: AtomicBool::new(false) };
        tracking.last.store(tracking.count(), Ordering::Relaxed);
        tracking
    }

    /// What an earlier daemon has seen.
    pub fn presume(&self) {
        self.active.store(true, Ordering::Relaxed);
    }

    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Looks once more. An entry that was there before says nothing: it may be left of rules that have gone.
    pub fn look(&self) -> bool {
        let now = self.count();
        if now > self.last.swap(now, Ordering::Relaxed) {
            self.presume();
        }
        self.is_active()
    }

    /// None where the kernel cannot track connections.
    fn count(&self) -> u64 {
        fs::read_to_string(&self.entries).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

fn send_a_datagram() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.send_to(&[0], socket.local_addr()?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_entry_that_appears_shows_that_connections_are_tracked() {
        let entries = std::env::temp_dir().join(format!("router-tracking-{}", std::process::id()));
        let write = |count: &str| fs::write(&entries, count).unwrap();
        write("7\n");
        let tracking = Tracking::reading(&entries);
        assert!(!tracking.look(), "left from before");
        write("5\n");
        assert!(!tracking.look(), "they expire");
        write("6\n");
        assert!(tracking.look());
        write("0\n");
        assert!(tracking.look() && tracking.is_active(), "it counts as active from then on");
        fs::remove_file(entries).unwrap();
    }

    #[test]
    fn a_kernel_that_cannot_track_connections_does_not() {
        let tracking = Tracking::reading(Path::new("/nonexistent"));
        assert!(!tracking.look() && !tracking.is_active());
    }
}
