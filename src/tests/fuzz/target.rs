//! Every fuzz target: the property of its name.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::check(env!("CARGO_BIN_NAME"), input));
