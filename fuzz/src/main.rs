//! libFuzzer's side of the fuzzers: one program for all of them; `FUZZ_ENTRY` names the one to run.

#![no_main]

mod entries;

use entries::{CANARY, ENTRIES, Entry};
use std::sync::LazyLock;

static ENTRY: LazyLock<&Entry> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_ENTRY").unwrap_or_default();
    let found = ENTRIES.iter().chain([&CANARY]).find(|entry| entry.name == name);
    found.unwrap_or_else(|| panic!("FUZZ_ENTRY is {name:?}, which is no fuzzer; see fuzz/src/entries.rs"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    assert!(input.len() <= ENTRY.length_max, "-max_len is over the entry's bound");
    (ENTRY.run)(input)
});
