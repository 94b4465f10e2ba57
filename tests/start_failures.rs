//! Every way in which a start is refused, brought about with the program itself: a message of its own that says what to
//! do, and the exit code, 2 for what the command line can't mean, 1 for what the machine does not offer.

mod support;

use ringd::config::flags::{FLAGS, Handling, Kind};
use socket2::{Domain, Socket, Type};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use support::confined;
use support::ending::Ended;
use support::server::{Program, Server, bound_to_this_thread};

/// ringd on a directory, on ports that the system chooses.
fn ringd(directory: &Path) -> Command {
    let mut command = bound_to_this_thread(Program::Ringd.path());
    command
        .arg("--data-dir")
        .arg(directory.join("data"))
        .arg("--listen-client-urls=http://127.0.0.1:0")
        .arg("--advertise-client-urls=http://127.0.0.1:2379")
        .arg("--listen-peer-urls=http://127.0.0.1:0");
    command
}

/// Runs ringd with these flags to its end, which must come before it makes a directory.
fn refused(flags: &[&str]) -> Ended {
    let directory = tempfile::tempdir().expect("a directory");
    let ended = Ended::of({
        let mut command = ringd(directory.path());
        command.args(flags);
        command
    });
    assert!(!directory.path().join("data").exists(), "{flags:?} left a directory");
    ended
}

#[test]
fn a_flag_nobody_knows_names_the_nearest() {
    refused(&["--data-dri=x"]).expect(
        2,
        &["not defined: --data-dri", "did you mean --data-dir?", "ringd --help"],
    );
    refused(&["--listen-client-url", "x"]).expect(2, &["did you mean --listen-client-urls?"]);
    refused(&["--discovery=http://x"]).expect(2, &["not defined: --discovery"]);
    refused(&["stray"]).expect(2, &["\"stray\" is not a valid flag"]);
}

#[test]
fn what_must_not_be_ignored_is_refused() {
    for (flag, said) in [
        ("--listen-client-urls=https://127.0.0.1:0", "TLS"),
        ("--listen-peer-urls=https://127.0.0.1:0", "TLS"),
        ("--listen-client-http-urls=https://127.0.0.1:0", "TLS"),
        ("--listen-metrics-urls=https://127.0.0.1:0", "TLS"),
        ("--initial-advertise-peer-urls=https://127.0.0.1:1", "TLS"),
        ("--advertise-client-urls=https://127.0.0.1:1", "TLS"),
        ("--initial-cluster=default=https://127.0.0.1:1", "TLS"),
        ("--discovery-user=x", "not built yet"),
        ("--discovery-insecure-transport=false", "not built yet"),
        ("--client-cert-auth=true", "not built yet"),
        ("--peer-auto-tls", "not built yet"),
        ("--auth-token=jwt,pub-key=x", "not built yet"),
    ] {
        let name = flag.split('=').next().expect("a name");
        refused(&[flag]).expect(2, &[name, said]);
    }
}

#[test]
fn what_makes_no_sense_is_named() {
    let endpoints = "--discovery-endpoints=127.0.0.1:1";
    refused(&[endpoints]).expect(2, &["both --discovery-token and --discovery-endpoints must be set"]);
    let both = [endpoints, "--discovery-token=x", "--discovery-srv=example.com"];
    refused(&both).expect(2, &["multiple discovery or bootstrap flags are set"]);
    let gate = "--feature-gates: unrecognized feature gate: Nope";
    refused(&["--feature-gates=Nope=true"]).expect(2, &[gate]);
    refused(&["--feature-gates=LeaseCheckpointPersist=true"])
        .expect(2, &["requires enabling feature gate LeaseCheckpoint"]);
    refused(&["--auto-compaction-retention=soon"]).expect(2, &["--auto-compaction-retention: \"soon\""]);
    refused(&["--cores=1000"]).expect(2, &["--cores 1000: this process may use", "CPUs only"]);
    for name in ["--listen-client-urls", "--listen-metrics-urls"] {
        let host = format!("{name}=http://example.com:1");
        refused(&[&host]).expect(2, &[name, "expected IP in URL for binding (http://example.com:1)"]);
    }
    refused(&["--auto-compaction-mode=size"]).expect(2, &["--auto-compaction-mode", "periodic, revision"]);
}

/// The rest of them, without a process each.
#[test]
fn every_refused_flag_names_itself() {
    use ringd::config::parse;
    for flag in FLAGS.iter().filter(|flag| flag.handling == Handling::Refused) {
        let value = match flag.kind {
            Kind::Boolean if flag.default == "true" => "false",
            Kind::Boolean => "true",
            Kind::Integer => "7",
            Kind::Duration => "7s",
            Kind::Text | Kind::List => "something",
        };
        let refused = |result: Result<parse::Request, ringd::config::ConfigError>| {
            let error = result.expect_err(flag.name).to_string();
            assert!(error.contains(&format!("--{}", flag.name)), "{error}");
            assert!(error.contains("remove the flag"), "{error}");
        };
        refused(parse::read([format!("--{}={value}", flag.name)], []));
        let variable = format!("ETCD_{}", flag.name.to_uppercase().replace('-', "_"));
        refused(parse::read([], [(variable, value.to_string())]));
    }
}

#[test]
fn a_machine_without_io_uring_is_told_apart() {
    for (errno, said) in [
        (libc::ENOSYS, "no io_uring (ENOSYS): run Linux 5.17 or newer"),
        (libc::EPERM, "seccomp profile"),
        (libc::EPERM, "docs/seccomp-ringd.json"),
    ] {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
        // Where the machine forbids it as well, that is what is said; `reactor::start` has the mapping's own test.
        let said = match (errno, disabled.trim()) {
            (libc::EPERM, "1" | "2") => "sysctl kernel.io_uring_disabled=0",
            _ => said,
        };
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = ringd(directory.path());
        confined::without_io_uring(&mut command, errno);
        Ended::of(command).expect(1, &[said]);
    }
}

#[test]
fn too_little_locked_memory_is_named_with_the_amount() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = ringd(directory.path());
    confined::with_locked_memory(&mut command, 65536);
    Ended::of(command).expect(1, &["65536 bytes, 524288 are needed", "ulimit -l", "LimitMEMLOCK"]);
}

#[test]
fn a_port_in_use_is_found_whoever_shares_it() {
    let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let holder = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    holder.set_reuse_port(true).expect("a shared port");
    holder.bind(&address.into()).expect("a free port");
    holder.listen(1).expect("a listener");
    let port = TcpListener::from(holder);
    let taken = port.local_addr().expect("its address");
    for flag in [
        "listen-client-urls",
        "listen-peer-urls",
        "listen-client-http-urls",
        "listen-metrics-urls",
    ] {
        let ended = refused(&[&format!("--{flag}=http://{taken}")]);
        ended.expect(1, &[&format!("--{flag}: {taken}: address already in use"), "ss -ltnp"]);
    }
    // With the flag the port is shared, and the start goes on to the next thing that is wrong.
    let shared = format!("--listen-client-urls=http://{taken}");
    let ended = refused(&["--socket-reuse-port", &shared, "--listen-peer-urls=http://192.0.2.1:1"]);
    ended.expect(
        1,
        &[
            "--listen-peer-urls: 192.0.2.1:1",
            "it must be an address of this machine",
        ],
    );
}

#[test]
fn a_directory_in_use_is_left_alone() {
    let logs = tempfile::tempdir().expect("a directory");
    let log = format!("--wal-dir={}", logs.path().join("wal").display());
    let server = Server::start(Program::Ringd, &[&log]);
    let second = |directory: &Path, log: &str| {
        let mut command = ringd(directory);
        command.args(["--initial-advertise-peer-urls=http://127.0.0.1:2380", log]);
        Ended::of(command)
    };
    let data = server.data_directory();
    let locked = "it is locked: another ringd is running on it";
    let ended = second(data.parent().expect("a parent"), "--wal-dir=");
    ended.expect(1, &[&format!("--data-dir: {}", data.display()), locked]);
    let other = tempfile::tempdir().expect("a directory");
    second(other.path(), &log).expect(1, &["--wal-dir: ", locked]);
}

#[test]
fn a_cluster_that_is_not_there_cannot_be_joined() {
    let existing = "--initial-cluster-state=existing";
    refused(&[existing]).expect(1, &[existing, "names no other member to ask"]);
    let members = "--initial-cluster=default=http://localhost:2380,other=http://127.0.0.1:1";
    refused(&[existing, members]).expect(1, &[existing, "no member answered", "http://127.0.0.1:1: "]);
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("data"), "a file").expect("a file");
    Ended::of(ringd(directory.path())).expect(1, &["--data-dir: ", "it can't be made"]);
}
