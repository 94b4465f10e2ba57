//! The documents against the code: what they list exists, what exists and must be listed is, and links lead somewhere.

mod sources;

use ringd::api::method::Method;
use ringd::config::flags::{FLAGS, Handling};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Flags that are read and whose absence from README's list is on purpose.
const ELSEWHERE: &[&str] = &[
    "config-file",
    "cores",
    "memory-budget",
    "initial-cluster-state",
    "wal-pad-batches",
    "wal-writer",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents, by path from the root.
fn documents() -> Vec<String> {
    let in_docs = fs::read_dir(root().join("docs")).expect("the folder docs");
    let in_docs = in_docs.map(|entry| format!("docs/{}", entry.expect("an entry").file_name().display()));
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "PERF.md"]
        .map(str::to_string)
        .into_iter()
        .chain(in_docs.filter(|path| path.ends_with(".md")))
        .collect()
}

/// The part of README from one heading to the next.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let start = text
        .find(heading)
        .unwrap_or_else(|| panic!("README has no {heading:?}"));
    let rest = &text[start + heading.len()..];
    &rest[..rest.find("\n## ").unwrap_or(rest.len())]
}

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn readme_lists_exactly_the_calls_that_are_not_built() {
    let readme = read("README.md");
    let built = section(&readme, "## What is built");
    let (answered, unimplemented) = built.split_once("**UNIMPLEMENTED**").expect("the list");
    let list: Vec<&str> = quoted(unimplemented.split("\n\n").nth(1).unwrap_or_default()).collect();
    for method in Method::ALL {
        let (service, name) = method.path();
        assert!(
            answered.contains(service) || !method.is_built(),
            "README lacks {service}"
        );
        assert_eq!(
            list.contains(&name) || service.ends_with("Health") && name == "Watch",
            !method.is_built() || service.ends_with("Health") && name == "Watch",
            "{service}/{name}: README and `is_built` disagree"
        );
    }
}

#[test]
fn readme_lists_the_flags_that_take_effect() {
    let readme = read("README.md");
    let flags = section(&readme, "## Flags");
    let (used, refused) = flags.split_once("**It is refused**").expect("the second kind");
    let (_, silent) = refused
        .split_once("**It is accepted without effect**")
        .expect("the third kind");
    for flag in FLAGS {
        let name = format!("--{}", flag.name);
        let listed = |text: &str| quoted(text).any(|quote| quote == name);
        let right = match flag.handling {
            Handling::Used => listed(used) || listed(silent) || ELSEWHERE.contains(&flag.name),
            Handling::Refused | Handling::Tuning => !listed(used) || ELSEWHERE.contains(&flag.name),
        };
        assert!(right, "{name} is {:?}, and README says something else", flag.handling);
    }
}

#[test]
fn readme_names_every_script() {
    let readme = read("README.md");
    for entry in fs::read_dir(root().join("scripts")).expect("the folder scripts") {
        let path = format!("scripts/{}", entry.expect("an entry").file_name().display());
        assert!(
            quoted(&readme).any(|quote| quote == path),
            "README does not name {path}"
        );
    }
    for script in quoted(&readme).filter(|quote| quote.starts_with("scripts/")) {
        assert!(
            root().join(script).exists(),
            "README names {script}, which does not exist"
        );
    }
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn links_lead_somewhere() {
    for path in documents() {
        let text = read(&path);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
            let file: PathBuf = match file {
                "" => root().join(&path),
                _ => root().join(&path).parent().expect("a folder").join(file),
            };
            assert!(file.exists(), "{path} links to {target}, which does not exist");
            if !fragment.is_empty() {
                let linked = fs::read_to_string(&file).expect("a document");
                let found = linked
                    .lines()
                    .any(|line| line.starts_with('#') && anchor(line) == fragment);
                assert!(found, "{path} links to {target}, which is no heading");
            }
        }
    }
}

/// Names of tests that the documents cite: quoted, and of several words. Shortened ones end with an ellipsis.
#[test]
fn tests_that_are_cited_exist() {
    let sources: Vec<_> = ["src", "tests"].into_iter().flat_map(sources::rust_files).collect();
    let tables = ["README.md", "ARCHITECTURE.md"].map(read);
    let names = tables.iter().flat_map(|text| quoted(text)).filter(|quote| {
        quote.matches('_').count() >= 2
            && quote
                .chars()
                .all(|c| c.is_ascii_lowercase() || "_…0123456789".contains(c))
    });
    let mut cited = 0;
    for name in names.filter(|name| !name.starts_with("io_uring")) {
        let function = format!("fn {}", name.trim_end_matches('…'));
        let found = sources.iter().any(|source| source.text.contains(&function));
        assert!(found, "the documents cite {name}, which is no function");
        cited += 1;
    }
    assert!(cited > 50, "{cited} tests are cited");
}

/// The form that both Docker and the OCI runtimes read: no key that only one of them knows.
#[test]
fn the_seccomp_profile_is_one_a_container_engine_takes() {
    let profile: Value = serde_json::from_str(&read("docs/seccomp-ringd.json")).expect("JSON");
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let keys = |value: &Value, known: &[&str]| {
        let object = value.as_object().expect("an object");
        object
            .keys()
            .for_each(|key| assert!(known.contains(&key.as_str()), "{key}"));
    };
    keys(
        &profile,
        &["defaultAction", "defaultErrnoRet", "architectures", "syscalls"],
    );
    let mut allowed = Vec::new();
    for rule in profile["syscalls"].as_array().expect("a list") {
        keys(rule, &["names", "action", "args", "errnoRet"]);
        let names = rule["names"].as_array().expect("a list").iter();
        let names: Vec<&str> = names.map(|name| name.as_str().expect("a name")).collect();
        match rule["action"].as_str() {
            Some("SCMP_ACT_ALLOW") if rule["args"].is_null() => allowed.extend(names),
            Some("SCMP_ACT_ALLOW" | "SCMP_ACT_ERRNO") => {}
            action => panic!("{action:?}"),
        }
    }
    assert!(allowed.is_sorted_by(|a, b| a < b), "names are sorted, each once");
    for name in [
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "futex",
        "sched_setaffinity",
    ] {
        assert!(allowed.contains(&name), "{name}");
    }
    for name in ["bpf", "clone", "keyctl", "mount", "ptrace", "setns", "unshare"] {
        assert!(!allowed.contains(&name), "{name}");
    }
}
