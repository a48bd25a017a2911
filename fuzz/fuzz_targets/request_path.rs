#![no_main]

#[path = "../bodies/request_path.rs"]
mod request_path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| request_path::check(bytes));
