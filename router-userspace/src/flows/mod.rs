//! Connections that packets take through the kernel: the flow table, its sweep, and the source ports.
//!
//! `table` is the interface that the proxy and the control socket see; `kernel` is the only file that names aya.

pub mod ports;
pub mod table;
