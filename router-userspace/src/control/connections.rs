//! How many clients may be connected to the control socket at once, and who has to go when it is full.
//!
//! The limit protects the daemon's memory and file descriptors, and an operator must still get in while someone
//! else holds idle connections. So when it is full, the connection that has been idle longest makes room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// A younger connection is not closed in favour of a newcomer: it may be about to send its request.
const GRACE: Duration = Duration::from_secs(1);

/// The connections that are open on one listening socket.
#[derive(Debug)]
pub struct Connections {
    limit: usize,
    open: Mutex<HashMap<u64, Entry>>,
}

#[derive(Debug)]
struct Entry {
    idle_since: Instant,
    busy: bool,
    close: Arc<Notify>,
}

impl Connections {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, open: Mutex::default() })
    }

    /// Makes a place for connection `id`, a number never used before. `None` if every place is taken by a client that
    /// is being answered or has only just connected.
    pub fn admit(self: &Arc<Self>, id: u64, now: Instant) -> Option<Place> {
        let mut open = self.open();
        if open.len() >= self.limit {
            let longest_idle = open
                .iter()
                .filter(|(_, entry)| !entry.busy && now.duration_since(entry.idle_since) >= GRACE)
                .min_by_key(|(_, entry)| entry.idle_since)
                .map(|(&id, _)| id)?;
            let entry = open.remove(&longest_idle)?;
            entry.close.notify_one();
        }
        let close = Arc::new(Notify::new());
        open.insert(id, Entry { idle_since: now, busy: false, close: Arc::clone(&close) });
        Some(Place { id, close, connections: Arc::clone(self) })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's place; dropping it frees the place.
#[derive(Debug)]
pub struct Place {
    id: u64,
    close: Arc<Notify>,
    connections: Arc<Connections>,
}

impl Place {
    /// Resolves when the connection has to make room.
    pub async fn evicted(&self) {
        self.close.notified().await;
    }

    /// Says whether a request is being answered at the moment.
    pub fn set_busy(&self, busy: bool) {
        if let Some(entry) = self.connections.open().get_mut(&self.id) {
            entry.busy = busy;
            entry.idle_since = Instant::now();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.open().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_that_was_idle_longest_makes_room_for_an_operator() {
        let connections = Connections::new(2);
        let start = Instant::now();
        let old = connections.admit(1, start).expect("first");
        let busy = connections.admit(2, start).expect("second");
        busy.set_busy(true);
        assert!(connections.admit(3, start).is_none(), "both connected just now");

        let later = start + Duration::from_secs(2);
        let newcomer = connections.admit(4, later).expect("the idle connection makes room");
        assert!(!connections.open().contains_key(&old.id));
        assert!(connections.open().contains_key(&busy.id));
        drop(old);
        assert_eq!(connections.open().len(), 2, "an evicted connection frees its place only once");
        drop(newcomer);
        drop(busy);
        assert!(connections.open().is_empty());
    }
}
