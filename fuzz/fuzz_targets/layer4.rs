#![no_main]

#[path = "../../router-common/tests/balance/bench/mod.rs"]
mod bench;
#[path = "../bodies/layer4.rs"]
mod layer4;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| layer4::check(bytes));
