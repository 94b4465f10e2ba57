//! The real etcdctl, 3.5.1 and 3.7.1, against the program under test and against the reference: what it prints, and
//! how it ends, has to be the same.
//!
//! Masked: the endpoint, times, lease ids that the server chose, raft's term and index, sizes.

mod support;

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use support::server::{Program, Server, tool};

/// How long a watch may take to print what it is expected to print, on a loaded machine.
const WATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// etcdctl's own time-outs: by itself it gives up after 2 and 5 seconds, which a loaded machine may take.
const PATIENT: [&str; 3] = ["--dial-timeout=60s", "--command-timeout=60s", "--keepalive-timeout=60s"];
/// Numbers in JSON or in the `fields` format that differ from member to member.
const MEMBERS_OWN: [&str; 12] = [
    "\"raft_term\":",
    "\"raftTerm\":",
    "\"raftIndex\":",
    "\"raftAppliedIndex\":",
    "\"dbSize\":",
    "\"dbSizeInUse\":",
    "\"DBSize\" : ",
    "\"DBSizeInUse\" : ",
    "\"RaftTerm\" : ",
    "\"RaftIndex\" : ",
    "\"RaftAppliedIndex\" : ",
    "remaining(",
];

/// What a command printed and how it ended.
#[derive(Debug, PartialEq)]
struct Printed {
    out: String,
    error: String,
    code: Option<i32>,
}

/// etcdctl of one version with one server.
struct Ctl {
    program: PathBuf,
    server: Server,
    lease: String,
}

impl Ctl {
    fn new(version: &str, program: Program) -> Self {
        let server = Server::start(
            program,
            &["--unsafe-no-fsync", "--watch-progress-notify-interval=300ms"],
        );
        let program = match version {
            "3.7.1" => tool("reference/etcdctl"),
            _ => tool("etcd-3.5.1/etcdctl"),
        };
        Self {
            program,
            server,
            lease: String::new(),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", self.server.address()))
            .args(PATIENT);
        command.args(arguments.iter().map(|argument| argument.replace("LEASE", &self.lease)));
        command
    }

    /// Runs a command to its end. Its argument `LEASE` is the lease granted last.
    fn run(&mut self, arguments: &[&str], input: &str) -> Printed {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("etcdctl starts");
        child
            .stdin
            .take()
            .expect("a pipe")
            .write_all(input.as_bytes())
            .expect("etcdctl reads its input");
        let output = child.wait_with_output().expect("etcdctl ends");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        if let Some(granted) = out.strip_prefix("lease ").and_then(|rest| rest.split(' ').next())
            && arguments.starts_with(&["lease", "grant"])
        {
            self.lease = granted.to_string();
        }
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        Printed {
            out: self.mask(&out),
            error: self.mask(&without_log(&error)),
            code: output.status.code(),
        }
    }

    /// Runs a watch until it has printed enough, and returns what it printed.
    fn watch(&self, arguments: &[&str], enough: impl Fn(&str) -> bool) -> String {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let [path, complaints] = ["out", "error"].map(|name| directory.path().join(name));
        let read = |path: &Path| std::fs::read_to_string(path).expect("the output");
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::null())
            .stdout(File::create(&path).expect("a file"))
            .stderr(File::create(&complaints).expect("a file"));
        let mut child = command.spawn().expect("etcdctl starts");
        let deadline = Instant::now() + WATCH_TIMEOUT;
        let printed = loop {
            // Before what it printed is read, so that nothing can come behind.
            let ended = child.try_wait().expect("wait for a child");
            let printed = read(&path);
            if enough(&printed) {
                break printed;
            }
            let problem = match ended {
                Some(status) => format!("ended with {status}"),
                None if Instant::now() > deadline => format!("printed too little in {WATCH_TIMEOUT:?}"),
                None => {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            let _ = child.kill();
            let program = self.server.program();
            panic!(
                "{arguments:?} on {program:?} {problem}:\n{printed}\n{}",
                read(&complaints)
            );
        };
        child.kill().expect("etcdctl is killed");
        child.wait().expect("etcdctl ends");
        self.mask(&printed)
    }

    fn mask(&self, text: &str) -> String {
        let mut masked = text.replace(&self.server.address(), "ENDPOINT");
        if let Ok(lease) = i64::from_str_radix(&self.lease, 16) {
            masked = masked
                .replace(&self.lease, "LEASE")
                .replace(&lease.to_string(), "LEASE");
        }
        for name in MEMBERS_OWN {
            masked = mask_after(&masked, name, |character| character.is_ascii_digit());
        }
        mask_after(&masked, "took = ", |character| !character.is_whitespace())
    }
}

/// Replaces the characters that follow each `name`, as long as they are of a kind.
fn mask_after(text: &str, name: &str, of_kind: impl Fn(char) -> bool + Copy) -> String {
    let mut pieces = text.split(name);
    let mut masked = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        masked = masked + name + "0" + piece.trim_start_matches(of_kind);
    }
    masked
}

/// etcdctl's own log on stderr names addresses and times; what it says in words is what counts.
fn without_log(text: &str) -> String {
    text.lines()
        .filter(|line| !line.starts_with('{'))
        .map(|line| format!("{line}\n"))
        .collect()
}

const FILL: &[&[&str]] = &[
    &["put", "a", "1"],
    &["put", "b", "3"],
    &["put", "c", "2"],
    &["put", "ab", "x"],
    &["put", "a", "4"],
    &["del", "c"],
    &["put", "c", "5"],
    &["put", "with space", "multi\nline"],
];

const READS: &[&[&str]] = &[
    &["get", "a"],
    &["get", "missing"],
    &["get", ""],
    &["get", "--prefix", ""],
    &["get", "--prefix", "a"],
    &["get", "--from-key", "b"],
    &["get", "a", "c"],
    &["get", "--rev=2", "--prefix", ""],
    &["get", "--rev=4", "--prefix", "a"],
    &["get", "--rev=100", "a"],
    &["get", "--prefix", "", "--sort-by=VALUE"],
    &["get", "--prefix", "", "--sort-by=MODIFY", "--order=DESCEND"],
    &["get", "--prefix", "", "--sort-by=CREATE"],
    &["get", "--prefix", "", "--sort-by=KEY", "--order=DESCEND"],
    &["get", "--prefix", "a", "--sort-by=VERSION"],
    &["get", "--prefix", "", "--limit=2"],
    &["get", "--prefix", "", "--limit=2", "-w", "json"],
    &["get", "--prefix", "", "--keys-only"],
    &["get", "--prefix", "", "--count-only"],
    &["get", "--prefix", "", "--count-only", "-w", "fields"],
    &["get", "--prefix", "", "--print-value-only"],
    &["get", "--prefix", "", "--hex"],
    &["get", "--prefix", "", "-w", "json"],
    &["get", "--prefix", "", "-w", "fields"],
    &["get", "--prefix", "", "--consistency=s"],
];

const WRITES: &[&[&str]] = &[
    &["put", "a", "5", "--prev-kv"],
    &["put", "a", "", "--ignore-value"],
    &["put", "missing", "", "--ignore-value"],
    &["put", "a", "6", "--lease=1234"],
    &["put", "a", "7", "-w", "json"],
    &["put", "new", "8", "--prev-kv", "-w", "json"],
    &["del", "missing"],
    &["del", "new", "--prev-kv"],
    &["del", "ab", "--prev-kv", "-w", "json"],
    &["del", "--prefix", "with"],
    &["get", "--prefix", "", "-w", "json"],
];

/// Last: a lease id that the server chose, once attached to a key, makes the hashes differ.
const LEASES: &[&[&str]] = &[
    &["lease", "list"],
    &["lease", "grant", "500"],
    &["put", "leased", "x", "--lease=LEASE"],
    &["put", "leased", "y", "--ignore-lease"],
    &["get", "leased", "-w", "fields"],
    &["lease", "list"],
    &["lease", "timetolive", "LEASE"],
    &["lease", "timetolive", "LEASE", "--keys"],
    &["lease", "keep-alive", "--once", "LEASE"],
    &["lease", "revoke", "LEASE"],
    &["lease", "revoke", "LEASE"],
    &["lease", "timetolive", "LEASE"],
    &["lease", "keep-alive", "--once", "LEASE"],
    &["get", "leased"],
    &["lease", "grant", "0"],
    &["lease", "grant", "9000000001"],
    &["lock", "name", "--", "echo", "locked"],
];

const CLUSTER: &[&[&str]] = &[
    &["endpoint", "health"],
    &["endpoint", "hashkv"],
    &["endpoint", "hashkv", "-w", "json"],
    &["endpoint", "status", "-w", "json"],
    &["endpoint", "status", "-w", "fields"],
    &["member", "list"],
    &["member", "list", "-w", "json"],
    &["member", "list", "-w", "table"],
    &["alarm", "list"],
    &["compaction", "4"],
    &["compaction", "4"],
    &["compaction", "1000"],
    &["compaction", "5", "--physical"],
    &["get", "--rev=3", "a"],
    &["get", "--rev=5", "--prefix", "a"],
    &["endpoint", "hashkv"],
];

/// Transactions as typed: compares, an empty line, operations if they hold, an empty line, operations if not.
const TRANSACTIONS: &[&str] = &[
    "value(\"a\") = \"4\"\n\nput t yes\nget t\n\nput t no\n\n",
    "mod(\"a\") > \"100\"\n\nput t yes\n\nput t no\nget a\ndel b\n\n",
    "create(\"none\") = \"0\"\nversion(\"a\") > \"1\"\n\nget --prefix a\n\n\n\n",
    "\nput d 1\nput d 2\n\n\n\n",
];

fn compare_version(version: &str) {
    let mut subject = Ctl::new(version, Program::subject());
    let mut reference = Ctl::new(version, Program::Reference);
    let mut both = |arguments: &[&str], input: &str| {
        let (ours, theirs) = (subject.run(arguments, input), reference.run(arguments, input));
        assert_eq!(
            ours, theirs,
            "etcdctl {version} {arguments:?} {input:?}: subject, then reference"
        );
        ours
    };
    for arguments in FILL.iter().chain(READS) {
        both(arguments, "");
    }
    for transaction in TRANSACTIONS {
        both(&["txn", "--interactive"], transaction);
        both(&["txn", "-w", "json"], transaction);
    }
    for arguments in WRITES.iter().chain(CLUSTER).chain(LEASES) {
        let printed = both(arguments, "");
        if arguments[..2] == ["endpoint", "health"] {
            assert!(format!("{printed:?}").contains("is healthy"), "{printed:?}");
        }
    }
}

#[test]
fn version_3_7_1_prints_the_same() {
    compare_version("3.7.1");
}

#[test]
fn version_3_5_1_prints_the_same() {
    compare_version("3.5.1");
}

/// Watches of the past, of a prefix, with previous values; what is put while they run arrives as well.
fn compare_watches(version: &str) {
    let mut subject = Ctl::new(version, Program::subject());
    let mut reference = Ctl::new(version, Program::Reference);
    for arguments in FILL {
        assert_eq!(subject.run(arguments, ""), reference.run(arguments, ""));
    }
    let watches: &[(&[&str], usize)] = &[
        (&["watch", "--rev=1", "a"], 6),
        (&["watch", "--rev=3", "--prefix", ""], 22),
        (&["watch", "--rev=1", "--prefix", "a", "--prev-kv"], 11),
        (&["watch", "--rev=2", "b", "d"], 12),
    ];
    for (arguments, lines) in watches {
        let enough = |printed: &str| printed.lines().count() >= *lines;
        let (ours, theirs) = (subject.watch(arguments, enough), reference.watch(arguments, enough));
        assert_eq!(
            theirs.lines().count(),
            *lines,
            "{arguments:?} printed another number of lines: {theirs}"
        );
        assert_eq!(ours, theirs, "etcdctl {version} {arguments:?}");
    }
    // How the past is cut into responses is a matter of time, and shows in JSON: the events are compared.
    let json = ["watch", "--rev=5", "--prefix", "", "--prev-kv", "-w", "json"];
    let enough = |printed: &str| events_of(printed).len() >= 5;
    let (ours, theirs) = (
        events_of(&subject.watch(&json, enough)),
        events_of(&reference.watch(&json, enough)),
    );
    assert_eq!(theirs.len(), 5, "{theirs:#?}");
    assert_eq!(ours, theirs, "etcdctl {version} {json:?}");

    let progress = ["watch", "missing", "--progress-notify"];
    let enough = |printed: &str| printed.ends_with('\n');
    let (ours, theirs) = (subject.watch(&progress, enough), reference.watch(&progress, enough));
    assert_eq!(theirs.lines().next(), Some("progress notify: 9"));
    assert_eq!(ours.lines().next(), theirs.lines().next(), "etcdctl {version}");
}

/// The events of all complete lines of a watch in JSON.
fn events_of(printed: &str) -> Vec<serde_json::Value> {
    let responses = printed
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    responses
        .flat_map(|response| response["Events"].as_array().cloned().unwrap_or_default())
        .collect()
}

#[test]
fn watches_of_3_7_1_print_the_same() {
    compare_watches("3.7.1");
}

#[test]
fn watches_of_3_5_1_print_the_same() {
    compare_watches("3.5.1");
}
