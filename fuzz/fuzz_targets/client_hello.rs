#![no_main]

#[path = "../bodies/client_hello.rs"]
mod client_hello;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| client_hello::check(bytes));
