#![no_main]

#[path = "../bodies/http_head.rs"]
mod http_head;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| http_head::check(bytes));
