//! The proxy over loopback, with real sockets on both sides.

mod actors;
mod handoff;
mod heads;
mod listening;
mod refusals;
mod relaying;
mod routing;
mod splicer;
