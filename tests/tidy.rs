//! The house style as a test: file and function sizes, headers, no leftovers, no `unwrap` on a production path.
//!
//! Limits are ratchets: what is over a limit today is named here and may only shrink.

mod sources;

use sources::{Source, rust_files};

/// Lines a file may have.
const FILE_LINES_MAX: usize = 600;
/// Lines a function may have.
const FUNCTION_LINES_MAX: usize = 70;
/// Columns a line may have.
const COLUMNS_MAX: usize = 120;

/// Files over `FILE_LINES_MAX`, with the most lines each may have.
const LONG_FILES: &[(&str, usize)] = &[];

/// Functions over `FUNCTION_LINES_MAX`, as `path name`, with the most lines each may have.
const LONG_FUNCTIONS: &[(&str, usize)] = &[];

/// Left in a source, these say that something is not finished.
const LEFTOVERS: &[&str] = &[
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("TO", "DO"),
];

fn all_sources() -> Vec<Source> {
    ["src", "bench", "benches", "fuzz/src", "tests", "proto"]
        .into_iter()
        .flat_map(rust_files)
        .collect()
}

/// Functions of a file: name, first line, number of lines. By matching braces, strings and comments left aside.
fn functions(source: &Source) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    let mut open: Vec<(String, usize, usize)> = Vec::new();
    let mut pending: Option<(String, usize)> = None;
    let mut depth = 0usize;
    for (number, line) in source.text.lines().enumerate() {
        let code = strip(line);
        if let Some(name) = function_name(&code) {
            pending = Some((name, number + 1));
        }
        for character in code.chars() {
            match character {
                '{' => {
                    depth += 1;
                    if let Some((name, start)) = pending.take() {
                        open.push((name, start, depth));
                    }
                }
                '}' => {
                    if open.last().is_some_and(|(_, _, at)| *at == depth) {
                        let (name, start, _) = open.pop().expect("just looked at");
                        found.push((name, start, number + 2 - start));
                    }
                    depth = depth.saturating_sub(1);
                }
                ';' if pending.is_some() && depth == open.last().map_or(0, |(_, _, at)| *at) => pending = None,
                _ => {}
            }
        }
    }
    found
}

/// A line without its comment, its string and its character literals.
fn strip(line: &str) -> String {
    let mut code = String::new();
    let mut characters = line.chars().peekable();
    let mut quoted = false;
    while let Some(character) = characters.next() {
        match character {
            '\\' if quoted => {
                characters.next();
            }
            '"' => quoted = !quoted,
            _ if quoted => {}
            '/' if characters.peek() == Some(&'/') => break,
            '\'' => {
                // A character literal, or a lifetime, which has no closing quote two characters on.
                let rest: String = characters.clone().take(3).collect();
                let escaped = rest.starts_with('\\');
                if escaped || rest.chars().nth(1) == Some('\'') {
                    for _ in 0..if escaped { 3 } else { 2 } {
                        characters.next();
                    }
                }
            }
            _ => code.push(character),
        }
    }
    code
}

fn function_name(code: &str) -> Option<String> {
    let at = code
        .find("fn ")
        .filter(|at| *at == 0 || code.as_bytes()[at - 1] == b' ')?;
    let name: String = code[at + 3..]
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (!name.is_empty()).then_some(name)
}

fn allowed(list: &[(&str, usize)], name: &str, limit: usize) -> usize {
    list.iter()
        .find(|(listed, _)| *listed == name)
        .map_or(limit, |(_, lines)| *lines)
}

#[test]
fn files_and_functions_fit() {
    let mut found = Vec::new();
    for source in all_sources() {
        let lines = source.text.lines().count();
        if lines > allowed(LONG_FILES, &source.path, FILE_LINES_MAX) {
            found.push(format!("{}: {lines} lines; split it", source.path));
        }
        for (name, start, lines) in functions(&source) {
            let limit = allowed(LONG_FUNCTIONS, &format!("{} {name}", source.path), FUNCTION_LINES_MAX);
            if lines > limit {
                found.push(format!("{}:{start}: `{name}` has {lines} lines; split it", source.path));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn exceptions_only_shrink() {
    let sources = all_sources();
    for (path, lines) in LONG_FILES {
        let source = sources.iter().find(|source| source.path == *path);
        let now = source.map_or(0, |source| source.text.lines().count());
        assert_eq!(now, *lines, "{path}: set its exception to {now}, or remove it");
    }
    for (name, lines) in LONG_FUNCTIONS {
        let now = sources.iter().flat_map(|source| {
            functions(source)
                .into_iter()
                .map(|(function, _, lines)| (format!("{} {function}", source.path), lines))
        });
        let now = now
            .filter(|(function, _)| function == name)
            .map(|(_, lines)| lines)
            .max()
            .unwrap_or(0);
        assert_eq!(now, *lines, "{name}: set its exception to {now}, or remove it");
    }
}

#[test]
fn every_file_says_what_it_is() {
    let without: Vec<_> = all_sources()
        .into_iter()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| source.path)
        .collect();
    assert!(without.is_empty(), "no `//!` header: {without:?}");
}

#[test]
fn nothing_is_left_over() {
    let mut found = Vec::new();
    for source in all_sources() {
        for (number, line) in source.text.lines().enumerate() {
            let words = || line.split(|c: char| !c.is_ascii_alphanumeric());
            if LEFTOVERS.iter().any(|leftover| words().any(|word| word == *leftover)) {
                found.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
            }
            if line.chars().count() > COLUMNS_MAX {
                found.push(format!("{}:{}: over {COLUMNS_MAX} columns", source.path, number + 1));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn production_code_does_not_unwrap() {
    let mut found = Vec::new();
    for source in rust_files("src") {
        for (number, line) in source.code_before_tests() {
            if line.contains(".unwrap()") {
                found.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    assert!(
        found.is_empty(),
        "use a typed error, or `expect` with the invariant:\n{}",
        found.join("\n")
    );
}

/// The measure must see what it measures.
#[test]
fn functions_are_measured() {
    let text = "fn a() {\n    let x = '{';\n    let y = \"}\"; // }\n}\nfn b<'a>(x: &'a str) -> &'a str { x }\n";
    let source = Source {
        path: "x".to_string(),
        text: text.to_string(),
    };
    assert_eq!(functions(&source), [("a".to_string(), 1, 4), ("b".to_string(), 5, 1)]);
}
