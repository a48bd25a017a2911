//! What the stories in `suite` are told with: the lab and its actors.
//!
//! Stories that need the lab carry `#[ignore = "needs root"]`, so that plain `cargo test` works for everyone and says what it
//! left out; `cargo xtask test` runs them.

mod connection;
pub mod counters;
mod curl;
pub mod datapath;
pub mod forger;
pub mod lab;
pub mod link;
pub mod peer;
pub mod router;
pub mod scene;
pub mod tcp;
mod test_lab;
pub mod unix;
mod watchdog;

pub use connection::Connection;
pub use curl::{Curl, Reply};
pub use datapath::Datapath;
pub use link::Link;
pub use peer::Peer;
pub use router::Router;
pub use scene::{Entry, Scene};
pub use test_lab::TestLab;
