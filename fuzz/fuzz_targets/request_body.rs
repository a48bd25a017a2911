#![no_main]

#[path = "../bodies/request_body.rs"]
mod request_body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| request_body::check(bytes));
