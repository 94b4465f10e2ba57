//! What members of a cluster count for `/metrics`, under etcd's names.

use std::time::{Duration, Instant};

use ringd::proto::etcdserverpb as pb;
use serde_json::Value;

use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    etcd::{RANGE, get},
    grpc::Channel,
    server::Program,
};

/// The series of a member whose names begin so.
pub fn series(cluster: &Cluster, member: usize, prefix: &str) -> Vec<String> {
    let page = cluster.members[member].http_body("/metrics").expect("a page");
    let lines = page.lines().filter(|line| line.starts_with(prefix));
    let mut lines: Vec<String> = lines.map(str::to_string).collect();
    lines.sort();
    lines
}

fn number(cluster: &Cluster, member: usize, name: &str) -> f64 {
    let found = series(cluster, member, &format!("{name} "));
    let value = found.first().and_then(|line| line.split(' ').nth(1)).expect(name);
    value.parse().expect("a number")
}

fn wait_for(cluster: &Cluster, member: usize, name: &str) {
    let deadline = Instant::now() + PATIENCE;
    while number(cluster, member, name) == 0.0 {
        assert!(Instant::now() < deadline, "{name} stays 0");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What the log of a member says of promotions that were refused: the parts that are etcd's.
fn refusals(cluster: &Cluster, member: usize) -> Vec<String> {
    let log = cluster.members[member].log();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let refused = events.filter(|event| {
        let message = event["msg"].as_str().unwrap_or_default();
        message.starts_with("rejecting promote learner") || message == "failed to promote a member"
    });
    let parts = [
        "level",
        "msg",
        "learner-ready-percent",
        "ready-percent-threshold",
        "error",
    ];
    let told = refused.map(|event| parts.map(|part| event[part].to_string()).join(" "));
    told.collect()
}

/// Promotions as they went, at the leader alone.
fn promotions(program: Program) -> Vec<Vec<String>> {
    let cluster = Cluster::of_three(program);
    block_on(cluster.lead(0));
    let said = |arguments: &[&str]| cluster.etcdctl(&[0], arguments);
    let deadline = Instant::now() + PATIENCE;
    let add = ["member", "add", "four", "--learner", "--peer-urls=http://127.0.0.1:1"];
    let added = loop {
        let added = said(&add);
        if added.code == Some(0) {
            break added.out;
        }
        // Members have to be connected for some seconds.
        assert!(Instant::now() < deadline, "{added:?}");
        std::thread::sleep(Duration::from_millis(200));
    };
    let id = added.split_whitespace().nth(1).expect("an id").to_string();
    assert_eq!(said(&["member", "promote", &id]).code, Some(1));
    assert_eq!(cluster.etcdctl(&[1], &["member", "promote", &id]).code, Some(1));
    assert_eq!(said(&["member", "promote", "1234"]).code, Some(1));
    let counted = (0..2).map(|member| series(&cluster, member, "etcd_server_learner_promote"));
    counted.chain([refusals(&cluster, 0)]).collect()
}

#[test]
fn promotions_are_counted_as_etcd_counts_them() {
    let ours = promotions(Program::Ringd);
    assert_eq!(ours, promotions(Program::Reference));
    assert_eq!(ours[0].len(), 3, "{ours:?}");
    assert_eq!(
        ours[2].len(),
        3,
        "twice it was not ready, once another member had asked: {ours:?}"
    );
}

#[test]
fn late_heartbeats_are_counted() {
    let mut cluster = Cluster::unfounded(&[Program::subject(); 3], &["--election-timeout=10000"]);
    cluster.found();
    cluster.wait();
    let leader = block_on(cluster.leader());
    cluster.members[leader].signal("STOP");
    std::thread::sleep(Duration::from_millis(800));
    cluster.members[leader].signal("CONT");
    wait_for(&cluster, leader, "etcd_server_heartbeat_send_failures_total");
}

#[test]
fn reads_that_lose_their_leader_are_counted() {
    let mut cluster = Cluster::of_three(Program::subject());
    block_on(async {
        cluster.lead(0).await;
        let channel = Channel::connect(&cluster.members[1].address())
            .await
            .expect("a connection");
        cluster.members[0].signal("STOP");
        let get = get("key");
        let read = channel.call::<pb::RangeResponse>(RANGE, &get);
        // It is asked of the leader that is, and answered by the one that comes.
        let _ = tokio::time::timeout(PATIENCE, read).await.expect("an answer");
    });
    cluster.members[0].kill();
    wait_for(&cluster, 1, "etcd_server_read_indexes_failed_total");
}
