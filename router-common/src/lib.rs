//! One source for the kernel programs, the daemon and the host tests.
//!
//! - [`abi`]: what the kernel programs and the daemon exchange: keys, flows, next hops, reasons.
//! - [`wire`]: packet headers as they lie in memory, and incremental checksums.
//! - [`path`]: the packet's route, generic over the narrow traits in [`path::ports`]. The kernel programs
//!   and the host tests compile the same functions.

#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![cfg_attr(not(feature = "user"), no_std)]

pub mod abi;
pub mod path;
pub mod wire;
