//! Active checks and agents: a task for each instance whose pool has a `check` or an `agent`, and what it sees goes to the
//! instance's status.
//!
//! The route: [`Prober::install`] starts and stops tasks → `check` looks at an instance once → the core's health
//! machine judges → a change of reachability is counted there and logged here. [`watch`] notices what nobody sees: silence. [`preload`] opens resources
//! ahead of users, as the core's planner says. The proxy is not involved: it marks instances
//! through the same status.

mod agent;
mod check;
mod exchange;
mod jitter;
mod log;
mod origin;
mod preload;
mod prober;
mod tasks;
mod tls;
mod watch;

#[cfg(test)]
mod tests;

pub use log::{Name, changes as log_changes};
pub use origin::Origin;
pub use preload::preload;
pub use prober::Prober;
pub use watch::watch;
