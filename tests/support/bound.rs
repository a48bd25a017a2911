//! What stories of connections without a socket ask of a [`Scene`] that has [`Entry::Bind`].

use std::time::Duration;

use crate::{Curl, Entry, Scene};

const PATIENCE: Duration = Duration::from_secs(10);

impl Scene {
    /// Connections that were bound since the daemon began.
    pub fn bound(&self) -> u64 {
        self.metric("router_bound_total")
    }

    /// Waits until so many more are, and no more: the daemon counts a connection when it looks after it next, which may be after the client has its answer.
    pub fn become_bound(&self, before: u64, count: u64) {
        let all = format!("{count} connections are counted as bound");
        self.router.eventually(PATIENCE, &all, |_| self.bound() - before >= count);
        assert_eq!(self.bound() - before, count);
    }

    /// Connections that were given a socket for this reason.
    pub fn unbound(&self, reason: &str) -> u64 {
        self.metric(&format!("router_unbound_total{{reason=\"{reason}\"}}"))
    }

    /// Asks until the way to the instance is known: until then connections are given sockets.
    pub fn warm_up(&self) {
        let before = self.bound();
        let mut number = 0;
        self.router.eventually(PATIENCE, "a connection is bound", |_| {
            number += 1;
            let reply = Curl::new(&self.lab).get(self.url(Entry::Bind, &format!("/warm-up/{number}")));
            assert_ne!(reply.status, 0, "{reply:?}");
            self.bound() > before
        });
        self.comes_to_rest();
    }
}
