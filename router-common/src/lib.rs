//! One source for the kernel programs, the daemon and the host tests.
//!
//! - [`abi`]: what the kernel programs and the daemon exchange: keys, flows, counters, settings, reasons.

#![cfg_attr(not(feature = "user"), no_std)]

pub mod abi;
