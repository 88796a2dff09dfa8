#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (tailrope_fuzz::target("task").run)(bytes));
