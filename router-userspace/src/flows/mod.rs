//! Connections that packets take through the kernel: the flow table, its sweep, and the source ports.
//!
//! `table` is the interface that the proxy and the control socket see; `kernel` and `xdp` alone name aya.

pub mod balance;
pub mod binding;
pub mod capture;
mod claims;
mod custody;
mod expiry;
mod generic_netlink;
pub mod kernel;
pub mod kernel_table;
pub mod local_delivery;
mod mapped;
pub mod netlink;
mod next_hops;
pub mod notrack;
pub mod ports;
mod raw_reset;
mod slots;
mod socket_options;
mod sockets;
mod splice;
mod steps;
pub mod table;
pub mod trace;
pub mod tracking;
pub mod xdp;
