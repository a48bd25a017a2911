#![no_main]

#[path = "../bodies/rule_expression.rs"]
mod rule_expression;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rule_expression::check(bytes));
