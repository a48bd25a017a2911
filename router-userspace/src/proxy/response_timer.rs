//! Measures how long an instance takes to answer, for the methods that compare response times.

use std::sync::Arc;
use std::time::Instant;

use crate::core::session::InstanceCounters;

/// Runs from sending a request to the first byte of its response.
#[derive(Debug)]
pub struct ResponseTimer {
    counters: Arc<InstanceCounters>,
    since: Instant,
}

impl ResponseTimer {
    pub fn start(counters: Arc<InstanceCounters>) -> Self {
        Self { counters, since: Instant::now() }
    }

    /// The first byte is here.
    pub fn stop(self) {
        let now = Instant::now();
        self.counters.response().observe(now.saturating_duration_since(self.since), now);
    }
}
