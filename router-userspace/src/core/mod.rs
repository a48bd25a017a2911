//! The decision core. Pure: no tokio, no aya, no sockets, no files, no clock and no randomness.
//! Time, random numbers and live counts arrive as arguments, so that `explain`, `simulate` and the
//! tests run exactly what the proxy runs.
//!
//! Read [`decide`] first: it is the route of a request through the rules to an instance.

pub mod adjust;
pub mod agent;
mod begin;
mod candidates;
pub mod choose;
pub mod counters;
pub mod decide;
pub mod explain;
pub mod health;
pub mod identity;
pub mod load;
pub mod memory;
pub mod methods;
pub mod networks;
pub mod path;
pub mod persistence;
pub mod placement;
pub mod pool;
pub mod preload;
pub mod proxy_protocol;
pub mod registry;
pub mod request;
pub mod rules;
pub mod session;
pub mod status;
pub mod table;
