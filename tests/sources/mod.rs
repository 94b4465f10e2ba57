//! Reading the project's own sources, for the tests of its layout and style.

// Each test uses a part of it.
#![allow(dead_code)]

use std::path::Path;

/// One source file.
pub struct Source {
    /// Path from the project's root.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl Source {
    /// Lines of code with their numbers, comments cut off, up to the first `#[cfg(test)]`.
    pub fn code_before_tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let in_tests = self.path.contains("/tests/") || self.path.ends_with("/tests.rs");
        let lines = self.text.lines().enumerate();
        lines
            .take_while(move |(_, line)| !in_tests && line.trim() != "#[cfg(test)]")
            .map(|(number, line)| (number + 1, line.split("//").next().unwrap_or_default()))
    }
}

/// Every `.rs` file below a folder of the project, sorted by path.
pub fn rust_files(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the project") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a readable source");
                let path = path.strip_prefix(root).expect("below the root").display().to_string();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}
