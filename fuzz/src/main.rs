//! libFuzzer's side of the fuzzers: one program for all of them; `FUZZ_ENTRY` names the one to run.

#![no_main]

mod entries;

use entries::ENTRIES;
use std::sync::LazyLock;

static ENTRY: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_ENTRY").unwrap_or_default();
    match ENTRIES.iter().find(|entry| entry.name == name) {
        Some(entry) => entry.run,
        None if name == "canary" => entries::canary,
        None => panic!("FUZZ_ENTRY is {name:?}, which is no fuzzer; see fuzz/src/entries.rs"),
    }
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| ENTRY(input));
