//! What operators see of a running daemon: the control socket and its protocol, and the metrics.
//!
//! `protocol` is shared with `routerctl`. The route of a question: `server` accepts, `routes` finds the answer's function,
//! and that reads the live snapshot, counters and flows from `state`. Only `configuration` changes anything, and only by asking the
//! daemon's composition root.

mod capture;
pub mod configuration;
mod connections;
mod explain;
mod flows;
mod metrics;
mod preloads;
pub mod protocol;
pub mod reports;
mod routes;
pub mod server;
mod sessions;
pub mod socket;
pub mod state;
mod tcp;
mod view;
mod whereabouts;

pub use server::{Opened, Server, Settings, StartError, Timeouts};
pub use state::State;
