//! Layer 4 by itself: what a packet costs, and how much gets through.

mod contender;
pub mod cost;
mod gateway;
mod iperf;
mod report;
pub mod throughput;
