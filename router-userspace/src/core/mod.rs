//! The decision core. Pure: no tokio, no aya, no sockets, no files, no clock and no randomness.
//! Time, random numbers and live counts arrive as arguments, so that `explain`, `simulate` and the
//! tests run exactly what the proxy runs.

pub mod request;
pub mod session;
