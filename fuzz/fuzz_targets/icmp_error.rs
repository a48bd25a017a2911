#![no_main]

#[path = "../../router-common/tests/bench/mod.rs"]
mod bench;
#[path = "../bodies/icmp_error.rs"]
mod icmp_error;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| icmp_error::check(bytes));
