//! What etcdctl prints of a cluster of ours is what it prints of etcd's: status, members and every refusal.
//!
//! Masked: addresses, ids, raft's term and index, sizes, times. Lines are compared in one order, since members are
//! listed by ids, which are others.

use std::{collections::BTreeMap, thread, time::Duration};

use crate::support::{
    block_on,
    cluster::{Cluster, Printed},
    server::Program,
};

/// What has to have passed before a member counts as connected where a change is checked.
const CONNECTED: Duration = Duration::from_secs(7);
/// Names in JSON whose numbers differ.
const OWN: [&str; 6] = [
    "\"raft_term\":",
    "\"raftTerm\":",
    "\"raftIndex\":",
    "\"raftAppliedIndex\":",
    "\"dbSize\":",
    "\"dbSizeInUse\":",
];

/// The first member leads.
const LEADER: &[usize] = &[0];
/// This one does not.
const FOLLOWER: &[usize] = &[1];

/// A cluster, and what things of it are called in what is compared.
struct Named {
    cluster: Cluster,
    ids: BTreeMap<String, String>,
}

impl Named {
    fn start(program: Program) -> Self {
        let cluster = Cluster::of_three(program);
        let mut ids = BTreeMap::new();
        block_on(async {
            cluster.lead(0).await;
            for member in 0..3 {
                let name = cluster.members[member].name().to_string();
                ids.insert(name, format!("{:x}", cluster.id(member).await));
            }
            let status = cluster.status(0).await.and_then(|status| status.header);
            ids.insert(
                "cluster".to_string(),
                format!("{:x}", status.expect("a header").cluster_id),
            );
        });
        thread::sleep(CONNECTED);
        Self { cluster, ids }
    }

    /// Runs a command. `{name}` in it is the id of that member, `{url of name}` its peer URL.
    fn run(&mut self, members: &[usize], arguments: &[&str]) -> Printed {
        let mut arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
        for argument in &mut arguments {
            for (name, id) in &self.ids {
                *argument = argument.replace(&format!("{{{name}}}"), id);
            }
            for member in &self.cluster.members {
                let url = format!("http://{}", member.peer_address());
                *argument = argument.replace(&format!("{{url of {}}}", member.name()), &url);
            }
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let printed = self.cluster.etcdctl(members, &arguments);
        if let ["member", "add", name, ..] = arguments[..]
            && let Some(id) = printed
                .out
                .strip_prefix("Member")
                .and_then(|rest| rest.split_whitespace().next())
        {
            self.ids.insert(name.to_string(), id.to_string());
        }
        Printed {
            out: self.mask(&printed.out),
            error: self.mask(&printed.error),
            code: printed.code,
        }
    }

    fn mask(&self, text: &str) -> String {
        let mut masked = text.to_string();
        for member in &self.cluster.members {
            masked = masked
                .replace(&member.address(), &format!("CLIENT_{}", member.name()))
                .replace(&member.peer_address(), &format!("PEER_{}", member.name()));
        }
        for (name, id) in &self.ids {
            let number = u64::from_str_radix(id, 16).expect("an id");
            masked = masked
                .replace(id, &format!("ID_{name}"))
                .replace(&number.to_string(), &format!("ID_{name}"));
        }
        for name in OWN {
            masked = mask_after(&masked, name, |character| character.is_ascii_digit());
        }
        masked = mask_after(&masked, "took = ", |character| !character.is_whitespace());
        // In some places an id of fewer digits is filled up with spaces.
        while masked.contains("  ") {
            masked = masked.replace("  ", " ");
        }
        let mut lines: Vec<String> = masked.lines().map(in_order).collect();
        lines.sort();
        lines.join("\n")
    }
}

/// A line with the members in it in one order.
fn in_order(line: &str) -> String {
    match line.split_once("=\"") {
        Some(("ETCD_INITIAL_CLUSTER", list)) => {
            let mut members: Vec<&str> = list.trim_end_matches('"').split(',').collect();
            members.sort_unstable();
            members.join(",")
        }
        _ => line.to_string(),
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

const STEPS: &[(&[usize], &[&str])] = &[
    (LEADER, &["put", "a", "1"]),
    (FOLLOWER, &["put", "b", "2"]),
    (LEADER, &["endpoint", "status", "-w", "json"]),
    (FOLLOWER, &["endpoint", "status", "-w", "json"]),
    (&[], &["endpoint", "health"]),
    (&[], &["endpoint", "hashkv"]),
    (FOLLOWER, &["endpoint", "health", "--cluster"]),
    (LEADER, &["member", "list"]),
    (FOLLOWER, &["member", "list", "--consistency=s"]),
    // Refusals.
    (LEADER, &["member", "add", "four", "--peer-urls=127.0.0.1:1"]),
    (LEADER, &["member", "add", "four", "--peer-urls=http://127.0.0.1"]),
    (
        LEADER,
        &["member", "add", "four", "--peer-urls=http://127.0.0.1:1/path"],
    ),
    (LEADER, &["member", "add", "four", "--peer-urls={url of one}"]),
    (
        FOLLOWER,
        &["member", "add", "four", "--learner", "--peer-urls={url of two}"],
    ),
    (LEADER, &["member", "remove", "1234"]),
    (FOLLOWER, &["member", "remove", "1234"]),
    (LEADER, &["member", "remove", "0"]),
    (FOLLOWER, &["member", "remove", "0"]),
    (LEADER, &["member", "update", "0", "--peer-urls=http://127.0.0.1:1"]),
    (LEADER, &["member", "update", "1234", "--peer-urls=http://127.0.0.1:1"]),
    (
        FOLLOWER,
        &["member", "update", "1234", "--peer-urls=http://127.0.0.1:1"],
    ),
    (LEADER, &["member", "update", "{two}", "--peer-urls={url of three}"]),
    (LEADER, &["member", "promote", "1234"]),
    (FOLLOWER, &["member", "promote", "1234"]),
    (LEADER, &["member", "promote", "{two}"]),
    (FOLLOWER, &["member", "promote", "{two}"]),
    (FOLLOWER, &["member", "promote", "{three}"]),
    (LEADER, &["move-leader", "1234"]),
    (FOLLOWER, &["move-leader", "{two}"]),
    (LEADER, &["move-leader", "{one}"]),
    // A voter that does not start.
    (FOLLOWER, &["member", "add", "four", "--peer-urls=http://127.0.0.1:1"]),
    (LEADER, &["member", "add", "five", "--peer-urls=http://127.0.0.1:2"]),
    (LEADER, &["member", "promote", "{four}"]),
    (
        FOLLOWER,
        &["member", "update", "{four}", "--peer-urls=http://127.0.0.1:3"],
    ),
    (LEADER, &["member", "list"]),
    (LEADER, &["member", "remove", "{four}"]),
    (LEADER, &["member", "remove", "{four}"]),
    (
        LEADER,
        &["member", "update", "{four}", "--peer-urls=http://127.0.0.1:4"],
    ),
    (LEADER, &["member", "promote", "{four}"]),
    // A learner that does not start.
    (
        FOLLOWER,
        &["member", "add", "six", "--learner", "--peer-urls=http://127.0.0.1:5"],
    ),
    (
        LEADER,
        &["member", "add", "seven", "--learner", "--peer-urls=http://127.0.0.1:6"],
    ),
    (LEADER, &["member", "list"]),
    (LEADER, &["member", "promote", "{six}"]),
    (FOLLOWER, &["member", "promote", "{six}"]),
    (LEADER, &["move-leader", "{six}"]),
    (FOLLOWER, &["member", "remove", "{six}"]),
    (FOLLOWER, &["member", "list"]),
    (&[], &["move-leader", "{two}"]),
    (&[], &["endpoint", "hashkv"]),
];

#[test]
fn etcdctl_prints_the_same() {
    let [mut ours, mut theirs] = [Program::subject(), Program::Reference].map(Named::start);
    let mut differences = Vec::new();
    for (members, arguments) in STEPS {
        let [ours, theirs] = [&mut ours, &mut theirs].map(|named| named.run(members, arguments));
        if ours != theirs {
            differences.push(format!(
                "{members:?} {arguments:?}:\n ours   {ours:?}\n theirs {theirs:?}"
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
