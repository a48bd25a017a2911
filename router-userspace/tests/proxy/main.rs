//! The proxy over loopback, with real sockets on both sides.

mod actors;
mod announced;
#[path = "../corpus/mod.rs"]
mod corpus;
mod handoff;
mod heads;
mod listening;
mod per_request;
mod refusals;
mod relaying;
mod routing;
mod splicer;
mod tls;
