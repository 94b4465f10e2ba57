//! The layout of the house as a test: which room may use which (DESIGN 2), where `unsafe` may stand, where glommio may
//! be named. Reads the sources; fails with file and line.

mod sources;

use sources::{Source, rust_files};

/// The rooms, uppermost first: a room may use those above it.
const ROOMS: &[&str] = &[
    "limits", "config", "proto", "metrics", "io", "reactor", "wal", "pages", "bbolt", "mvcc", "state", "http", "grpc",
    "net", "raft", "api", "client", "server", "sim",
];

/// Edges that the order would allow and the design forbids.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("wal", &["pages", "bbolt", "reactor", "proto"]),
    ("pages", &["wal", "bbolt", "reactor", "proto"]),
    ("bbolt", &["wal", "pages", "reactor"]),
    ("mvcc", &["reactor"]),
    ("state", &["reactor"]),
    (
        "http",
        &["reactor", "proto", "config", "wal", "pages", "bbolt", "mvcc", "state"],
    ),
    (
        "grpc",
        &["reactor", "proto", "config", "wal", "pages", "bbolt", "mvcc", "state"],
    ),
    ("raft", &["reactor", "http", "grpc", "net"]),
    ("net", &["pages", "wal", "mvcc", "state"]),
];

/// Folders that may use what the rest of their room may not.
const EXEMPT: &[(&str, &[&str])] = &[("src/raft/transport/driver/", &["reactor", "http"])];

/// Where `unsafe` may stand.
const UNSAFE_ROOMS: &[&str] = &["src/reactor/", "src/wal/", "src/pages/", "src/mvcc/index/"];

fn room(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("src/")?;
    let name = rest.split(['/', '.']).next()?;
    ROOMS.iter().copied().find(|room| *room == name)
}

/// The rooms that a line of code names through `crate::`.
fn used_rooms(line: &str) -> Vec<&str> {
    let mut used = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let rest = &line[at + "crate::".len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let end = list.find('}').unwrap_or(list.len());
            used.extend(
                list[..end]
                    .split(',')
                    .map(|part| part.trim().split("::").next().unwrap_or_default()),
            );
        } else {
            used.push(
                rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .next()
                    .unwrap_or_default(),
            );
        }
    }
    used.into_iter().filter(|name| ROOMS.contains(name)).collect()
}

fn violations(files: &[Source]) -> Vec<String> {
    let position = |name: &str| ROOMS.iter().position(|room| *room == name).expect("a room");
    let mut found = Vec::new();
    for file in files {
        let Some(own) = room(&file.path) else { continue };
        for (number, line) in file.code_before_tests() {
            for used in used_rooms(line) {
                let is_exempt = |(folder, may): &(&str, &[&str])| file.path.starts_with(folder) && may.contains(&used);
                let forbidden = FORBIDDEN.iter().any(|(room, not)| *room == own && not.contains(&used))
                    && !EXEMPT.iter().any(is_exempt);
                if used != own && (forbidden || position(used) > position(own)) {
                    found.push(format!("{}:{number}: `{own}` must not use `{used}`", file.path));
                }
            }
            if line.contains("glommio::") && own != "reactor" {
                found.push(format!("{}:{number}: glommio is named in `reactor` only", file.path));
            }
            let is_unsafe = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                .iter()
                .any(|form| line.contains(form));
            if is_unsafe && !UNSAFE_ROOMS.iter().any(|room| file.path.starts_with(room)) {
                found.push(format!(
                    "{}:{number}: `unsafe` outside {}",
                    file.path,
                    UNSAFE_ROOMS.join(", ")
                ));
            }
        }
    }
    found
}

#[test]
fn rooms_use_only_rooms_above_them() {
    let files = rust_files("src");
    assert!(files.len() > 20, "the sources were not found");
    let found = violations(&files);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_room_of_the_library_is_in_the_order() {
    let lib = rust_files("src")
        .into_iter()
        .find(|file| file.path == "src/lib.rs")
        .expect("src/lib.rs");
    let mut declared: Vec<_> = lib
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    let mut ordered = ROOMS.to_vec();
    declared.sort_unstable();
    ordered.sort_unstable();
    assert_eq!(declared, ordered);
}

/// The test must be able to fail.
#[test]
fn violations_are_found() {
    let file = |path: &str, text: &str| Source {
        path: path.to_string(),
        text: text.to_string(),
    };
    let bad = [
        file("src/wal/x.rs", "use crate::pages::Root;\n"),
        file("src/http/x.rs", "let x = crate::state::X;\n"),
        file("src/mvcc/view.rs", "use crate::{limits, raft::node};\nunsafe { }\n"),
        file("src/net/x.rs", "use glommio::Task;\n"),
        file("src/raft/transport/gate.rs", "use crate::reactor::serve;\n"),
        file("src/raft/transport/driver/x.rs", "use crate::net::Net;\n"),
    ];
    let found = violations(&bad);
    assert_eq!(found.len(), 7, "{found:?}");
    let good = [
        file(
            "src/mvcc/index/x.rs",
            "use crate::{limits, io::disk};\nunsafe { }\n// unsafe raft\n",
        ),
        file("src/raft/transport/driver/x.rs", "use crate::reactor::serve;\n"),
    ];
    assert!(violations(&good).is_empty());
}
