//! What the kernel programs and the daemon exchange. The only list of numbers and names.

pub mod reason;
