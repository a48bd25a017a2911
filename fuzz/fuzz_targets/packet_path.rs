#![no_main]

#[path = "../../router-common/tests/bench/mod.rs"]
mod bench;
#[path = "../bodies/packet_path.rs"]
mod packet_path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| packet_path::check(bytes));
