#![no_main]

#[path = "../bodies/response_head.rs"]
mod response_head;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| response_head::check(bytes));
