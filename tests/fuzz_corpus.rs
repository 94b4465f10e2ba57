//! Replays the fuzzers' corpus, with what they have found, without libFuzzer: every input through its entry.

#[path = "../fuzz/src/entries.rs"]
mod entries;

use entries::{CANARY, ENTRIES};
use std::collections::BTreeSet;
use std::path::Path;

fn corpus() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

#[test]
fn every_input_is_taken() {
    for entry in ENTRIES {
        let folder = corpus().join(entry.name);
        let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut count = 0;
        for file in files {
            let path = file.expect("an input").path();
            let input = std::fs::read(&path).expect("a readable input");
            assert!(
                input.len() <= entry.length_max,
                "{}: the fuzzer would cut it",
                path.display()
            );
            // Shown if the entry panics.
            println!("{}", path.display());
            (entry.run)(&input);
            count += 1;
        }
        assert!(count > 0, "{} has no input", folder.display());
    }
}

#[test]
fn every_input_has_a_fuzzer() {
    let known: BTreeSet<_> = ENTRIES.iter().map(|entry| entry.name).collect();
    for folder in std::fs::read_dir(corpus()).expect("the corpus") {
        let name = folder.expect("a folder").file_name();
        let name = name.to_str().expect("a plain name");
        assert!(known.contains(name), "fuzz/corpus/{name} belongs to no fuzzer");
    }
}

#[test]
#[should_panic(expected = "the canary is found")]
fn the_canary_crashes() {
    (CANARY.run)(b"cana");
    (CANARY.run)(b"canary");
}
