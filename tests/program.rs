//! What README says of the program as such: its flags, what `--version` prints, the CPUs it uses, and the calls it does
//! not answer.

mod support;

use bytes::Bytes;
use ringd::api::method::Method;
use ringd::config::flags::FLAGS;
use ringd::reactor::roles::CpuSet;
use std::collections::BTreeMap;
use std::process::Command;
use support::block_on;
use support::ending::Ended;
use support::grpc::Channel;
use support::server::{Program, Server};

const UNIMPLEMENTED: i32 = 12;
/// Flags whose default only looks different: ringd makes it of another's, or it has no effect.
const DERIVED: [&str; 2] = ["initial-cluster", "log-rotation-config-json"];

/// The flags of etcd 3.7.1's own flag set with their defaults, by the help text that Go prints of it.
fn flags_of_etcd() -> BTreeMap<String, String> {
    let mut command = Command::new(Program::Reference.path());
    command.arg("--help");
    let help = Ended::of(command).output;
    let mut flags = BTreeMap::new();
    let mut name = String::new();
    for line in help.lines() {
        if let Some(flag) = line.strip_prefix("  -") {
            name = flag.split(' ').next().unwrap_or_default().to_string();
            flags.insert(name.clone(), String::new());
        }
        if let Some((_, default)) = line.rsplit_once("(default ") {
            let default = default.trim_end_matches(')').trim_matches('"');
            flags.insert(name.clone(), default.to_string());
        }
    }
    flags
}

/// A default as Go prints it: durations down to the second.
fn as_go_prints(default: &str) -> &str {
    match default {
        "2h" => "2h0m0s",
        "1m" => "1m0s",
        _ => default,
    }
}

#[test]
fn every_flag_of_etcd_is_known_with_its_default() {
    let etcds = flags_of_etcd();
    assert!(etcds.len() > 100, "the reference does not list its flags: {etcds:?}");
    for (name, default) in &etcds {
        let flag = FLAGS.iter().find(|flag| flag.name == name);
        let flag = flag.unwrap_or_else(|| panic!("--{name} is not known"));
        // Go prints no default that is empty or zero.
        if !default.is_empty() && !DERIVED.contains(&flag.name) {
            assert_eq!(as_go_prints(flag.default), default, "--{name}");
        }
    }
}

#[test]
fn version_is_told_in_etcds_four_lines() {
    let told = |program: Program| {
        let mut command = Command::new(program.path());
        command.arg("--version");
        let ended = Ended::of(command);
        ended.expect(0, &[]);
        let lines = ended.output.lines().map(|line| line.split_once(": ").expect("a name"));
        let lines = lines.map(|(name, value)| (name.to_string(), value.to_string()));
        lines.collect::<Vec<_>>()
    };
    let (ours, etcds) = (told(Program::Ringd), told(Program::Etcd351));
    let names = |lines: &[(String, String)]| lines.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&etcds));
    assert_eq!(ours[0].1, "3.7.1");
    assert_eq!(ours[1].1, format!("ringd-{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(ours[3], etcds[3]);
}

#[test]
fn the_start_tells_cores_and_memory() {
    let server = Server::start(
        Program::Ringd,
        &["--log-level=info", "--cores=1", "--memory-budget=64MiB"],
    );
    let log = server.log();
    let line = log.lines().find(|line| line.contains("cores and memory to use"));
    let told: serde_json::Value = serde_json::from_str(line.expect("the line")).expect("JSON");
    assert_eq!((&told["level"], &told["cores"]), (&"info".into(), &1.into()));
    assert_eq!(
        told["serve-cpus"],
        format!("[{}]", told["log-cpus"].as_str().expect("a list"))
    );
    for (name, parts) in [
        ("memory-budget", 32),
        ("event-window", 7),
        ("not-stored-yet", 6),
        ("index", 7),
        ("page-caches", 3),
        ("log-core-page-caches", 1),
        ("proposals", 1),
        ("answers", 2),
        ("requests", 1),
        ("long-reads", 4),
    ] {
        assert_eq!(told[name].as_u64(), Some(parts << 21), "{name} in {told}");
    }
}

#[test]
fn a_memory_budget_beyond_the_machine_is_warned_of() {
    let budget = format!("--memory-budget={}", 1u64 << 50);
    let server = Server::start(Program::Ringd, &["--cores=1", &budget]);
    let log = server.log();
    assert!(
        log.contains("--memory-budget=1125899906842624 is more than the"),
        "{log}"
    );
    let server = Server::start(Program::Ringd, &["--cores=1", "--memory-budget=64MiB"]);
    assert!(!server.log().contains("is more than the"), "{}", server.log());
}

/// As under `taskset`: the mask is inherited.
#[test]
fn no_thread_leaves_the_mask_of_the_process() {
    let allowed = CpuSet::of_this_thread().expect("a mask").cpus();
    let last = *allowed.last().expect("a CPU");
    CpuSet::of(&[last]).pin_this_thread();
    let server = Server::start(Program::Ringd, &[]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.process_id())).expect("the process runs");
    let masks: Vec<String> = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter_map(|status| {
            Some(
                status
                    .split_once("Cpus_allowed_list:")?
                    .1
                    .lines()
                    .next()?
                    .trim()
                    .to_string(),
            )
        })
        .collect();
    assert!(masks.len() > 3, "log core, serve core and their helpers: {masks:?}");
    assert!(
        masks.iter().all(|mask| *mask == last.to_string()),
        "CPU {last}: {masks:?}"
    );
}

#[test]
fn calls_that_are_not_built_are_unimplemented() {
    let server = Server::start(Program::Ringd, &[]);
    let known = Method::ALL.iter().filter(|method| !method.is_built());
    let mut paths: Vec<String> = known
        .map(|method| format!("/{}/{}", method.path().0, method.path().1))
        .collect();
    assert!(paths.len() > 15, "{paths:?}");
    paths.extend(
        [
            "/v3lockpb.Lock/Lock",
            "/v3electionpb.Election/Campaign",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ]
        .map(str::to_string),
    );
    block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        for path in paths {
            let reply = channel.unary(&path, Bytes::new(), &[]).await;
            assert_eq!(reply.status.code, UNIMPLEMENTED, "{path}: {:?}", reply.status);
            assert!(
                !reply.status.message.is_empty() && reply.messages.is_empty(),
                "{path}: {reply:?}"
            );
        }
    });
}
