//! A request that waits until an instance of its pool frees.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use router_common::abi::reason::RefuseReason;
use tokio::time::{Instant, sleep_until};

use super::sockopt;
use crate::core::memory::queue::{Queues, Ticket};
use crate::core::pool::Pool;

/// How often a waiting request looks around by itself: whether its client is still there and, if it is the first of its line,
/// whether an instance has come up or become less loaded.
const LOOK: Duration = Duration::from_millis(100);

/// A place in a pool's line, until an instance serves or patience ends.
#[derive(Debug)]
pub(super) struct Line {
    queues: Arc<Queues>,
    ticket: Ticket,
    until: Instant,
}

impl Line {
    /// Takes the last place, if there is room.
    pub fn enter(queues: &Arc<Queues>, pool: &Pool, patience: Duration) -> Result<Self, RefuseReason> {
        let ticket = queues.enter(&pool.name, pool.queue_limit).ok_or(RefuseReason::QueueFull)?;
        Ok(Self { queues: Arc::clone(queues), ticket, until: Instant::now() + patience })
    }

    /// Whether everybody who came before has gone.
    pub fn is_first(&self) -> bool {
        self.ticket.is_first()
    }

    /// Returns when it is worth deciding again, or why there is nothing more to wait for.
    pub async fn turn(&self, client: BorrowedFd<'_>) -> Result<(), RefuseReason> {
        loop {
            let now = Instant::now();
            if now >= self.until {
                self.queues.counts.timed_out.add(1);
                return Err(RefuseReason::QueueTimeout);
            }
            tokio::select! {
                () = self.ticket.called() => {}
                () = sleep_until(self.until.min(now + LOOK)) => {}
            }
            // A client that has closed its direction will hardly wait for an answer.
            if !sockopt::tcp_info(client).is_ok_and(sockopt::TcpInfo::is_open) {
                self.queues.counts.left.add(1);
                return Err(RefuseReason::ClientGone);
            }
            if self.is_first() {
                return Ok(());
            }
        }
    }

    /// An instance serves the request; the next in line is called.
    pub fn served(self) {
        self.queues.counts.served.add(1);
    }
}
