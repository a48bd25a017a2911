//! What changed about an instance, in the words of the log.

use std::fmt;
use std::net::SocketAddr;

use tracing::{info, warn};

use crate::core::health::{Reachability, Transition};
use crate::core::status::Changes;

/// An instance's name within its pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub pool: String,
    pub instance: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.instance)
    }
}

/// Says what a report or the lack of one has changed.
pub fn changes(Name { pool, instance }: &Name, address: SocketAddr, changes: Changes) {
    if let Some((from, to)) = changes.load {
        let (from, to) = (from.name(), to.name());
        info!(%pool, %instance, %address, from, "instance is {to}");
    }
    if let Some(Transition { to, failure }) = changes.reachability {
        match to {
            Reachability::Up => info!(%pool, %instance, %address, "instance is up"),
            Reachability::OutOfContact => {
                warn!(%pool, %instance, %address, "instance is out of contact: it does not report");
            }
            Reachability::Down => {
                let reason = failure.map(|failure| failure.to_string()).unwrap_or_default();
                warn!(%pool, %instance, %address, %reason, "instance is down");
            }
        }
    }
}
