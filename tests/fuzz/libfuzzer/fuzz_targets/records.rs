#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (tailrope_fuzz::target("records").run)(bytes));
