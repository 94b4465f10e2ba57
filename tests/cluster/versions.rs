//! The cluster's version: what the members have in common, with members of older etcds beside ringd's and in their
//! place.

use std::time::{Duration, Instant};

use ringd::proto::etcdserverpb as pb;

use crate::counted::series;
use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    etcd::{PUT, RANGE, get_prefix, put},
    grpc::Channel,
    http,
    server::Program,
};

/// Members are exchanged faster than they are connected for five seconds.
const LOOSE: &str = "--strict-reconfig-check=false";

fn versions(cluster: &Cluster) -> Vec<String> {
    let running = cluster.members.iter().filter(|member| member.is_started());
    // A member that has just begun may end the connection: it says nothing yet.
    let told = running.map(|member| member.http_body("/version").unwrap_or_default());
    let cluster = told.map(|told| serde_json::from_str::<serde_json::Value>(&told).unwrap_or_default());
    cluster
        .map(|told| told["etcdcluster"].as_str().unwrap_or_default().to_string())
        .collect()
}

/// Waits until all members say this version.
pub(super) fn expect(cluster: &Cluster, version: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = versions(cluster);
        if told.iter().all(|told| told == version) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "the cluster is of {told:?} and not of {version}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn write(cluster: &Cluster, member: usize, key: &str) {
    block_on(async {
        let channel = Channel::connect(&cluster.members[member].address())
            .await
            .expect("a connection");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let written: Result<pb::PutResponse, _> = channel.call(PUT, &put(key, key)).await;
            if written.is_ok() {
                return;
            }
            assert!(Instant::now() < deadline, "{key} is not written: {written:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// All that was written is at every member.
fn expect_keys(cluster: &Cluster, keys: &[String]) {
    block_on(async {
        for member in &cluster.members {
            let channel = Channel::connect(&member.address()).await.expect("a connection");
            let found: pb::RangeResponse = channel.call(RANGE, &get_prefix("key/")).await.expect("a read");
            let found = found
                .kvs
                .iter()
                .map(|row| String::from_utf8_lossy(&row.key).into_owned());
            assert_eq!(found.collect::<Vec<_>>(), keys, "at {}", member.name());
        }
    });
}

/// Puts a member of `program` in the place of member `old`.
fn replace(cluster: &mut Cluster, old: usize, program: Program, name: &str, further: &[&str]) {
    let others: Vec<usize> = (0..cluster.members.len()).filter(|other| *other != old).collect();
    let id = block_on(cluster.id(old));
    // A leader that is removed takes with it what was proposed through it.
    block_on(cluster.lead(others[others.len() - 1]));
    let removed = cluster.etcdctl(&others[..1], &["member", "remove", &format!("{id:x}")]);
    assert_eq!(removed.code, Some(0), "{removed:?}");
    drop(cluster.members.remove(old));
    let new = cluster.prepare_with(program, name, &[&[LOOSE], further].concat());
    let url = format!("--peer-urls=http://{}", cluster.members[new].peer_address());
    let others: Vec<usize> = (0..new).collect();
    let added = cluster.etcdctl(&others, &["member", "add", name, &url]);
    assert_eq!(added.code, Some(0), "{added:?}");
    cluster.members[new].spawn().expect("a member starts");
    cluster.wait();
}

#[test]
fn members_of_3_6_are_replaced_by_ringd_and_back() {
    let mut cluster = Cluster::unfounded(&[Program::Etcd36; 3], &[LOOSE]);
    cluster.found();
    cluster.wait();
    expect(&cluster, "3.6.0");
    let mut keys = vec!["key/0".to_string()];
    write(&cluster, 0, "key/0");
    // To and fro: the last one of 3.6 keeps the version where it is.
    let steps = [
        (0, Program::Ringd, "four", "3.6.0"),
        (0, Program::Ringd, "five", "3.6.0"),
        (1, Program::Etcd36, "six", "3.6.0"),
        (0, Program::Ringd, "seven", "3.6.0"),
        (1, Program::Ringd, "eight", "3.7.0"),
    ];
    for (step, (old, program, name, version)) in steps.into_iter().enumerate() {
        if program == Program::Etcd36 {
            // ringd's state goes to it as a snapshot: a start has no log from before its last checkpoint.
            for member in 1..3 {
                cluster.members[member].stop();
                cluster.members[member].restart();
            }
            block_on(cluster.lead(2));
            write(&cluster, 2, "other");
        }
        replace(&mut cluster, old, program, name, &snapshots(program));
        if program == Program::Etcd36 {
            let sent = series(&cluster, 1, "etcd_network_snapshot_send_success");
            assert!(
                sent.iter().any(|line| line.ends_with(" 1")),
                "no snapshot was sent: {sent:?}"
            );
        }
        expect(&cluster, version);
        block_on(cluster.lead(2));
        let key = format!("key/{}", step + 1);
        write(&cluster, step % 3, &key);
        keys.push(key);
        expect_keys(&cluster, &keys);
        block_on(cluster.settle());
        assert!(
            versions(&cluster).iter().all(|told| told == version),
            "it changed by itself"
        );
    }
}

/// Who starts keeps little of the log for those that lag behind.
fn snapshots(program: Program) -> Vec<&'static str> {
    match program {
        Program::Ringd => vec!["--snapshot-catchup-entries=1"],
        _ => Vec::new(),
    }
}

/// A member of 3.5 tells of itself by requests of etcd's second API, which 3.7 can't read any more and ringd can.
#[test]
fn members_of_3_5_are_members() {
    let mut cluster = Cluster::start(&[Program::Etcd351, Program::Ringd, Program::Ringd]);
    expect(&cluster, "3.5.0");
    for leader in [1, 0, 2] {
        block_on(cluster.lead(leader));
        write(&cluster, leader, &format!("key/{leader}"));
        block_on(cluster.settle());
    }
    let listed = cluster.etcdctl(&[1], &["member", "list"]);
    let started = listed.out.lines().filter(|line| line.contains("started"));
    assert_eq!(started.count(), 3, "{listed:?}");
    cluster.members[0].kill();
    cluster.members[0].restart();
    write(&cluster, 1, "key/3");
    block_on(cluster.settle());
    expect(&cluster, "3.5.0");
}

/// As long as one founder is not there, nobody knows of which version it is.
#[test]
fn the_version_waits_for_all_members() {
    let mut cluster = Cluster::unfounded(&[Program::subject(); 3], &[]);
    cluster.name_founders();
    for member in &mut cluster.members[..2] {
        member.spawn().expect("a member starts");
    }
    cluster.wait();
    expect(&cluster, "3.0.0");
    let storage = cluster.members[0].http_body("/version").expect("an answer");
    assert!(storage.contains(r#""storage":"3.5.0""#), "{storage}");
    cluster.members[2].spawn().expect("a member starts");
    cluster.wait();
    expect(&cluster, "3.7.0");
}

/// A downgrade lowers the version, and its end lets it rise again.
#[test]
fn a_downgrade_goes_through_the_leader() {
    let cluster = Cluster::of_three(Program::subject());
    expect(&cluster, "3.7.0");
    let said = |arguments: &[&str]| cluster.etcdctl(&[], arguments);
    assert_eq!(said(&["downgrade", "validate", "3.5"]).code, Some(1));
    assert_eq!(
        said(&["downgrade", "validate", "3.6"]).out,
        "Downgrade validate success, cluster version 3.7\n"
    );
    let enabled = said(&["downgrade", "enable", "3.6"]);
    assert_eq!(
        enabled.out, "Downgrade enable success, cluster version 3.7\n",
        "{enabled:?}"
    );
    expect(&cluster, "3.6.0");
    let peer = cluster.members[1].peer_address();
    assert_eq!(http::request(&peer, "GET", "/downgrade/enabled").body, "true");
    let status = block_on(cluster.status(1)).expect("a status");
    let info = status.downgrade_info.expect("a downgrade");
    assert_eq!((info.enabled, &*info.target_version), (true, "3.6.0"));
    assert_eq!(said(&["downgrade", "enable", "3.5"]).code, Some(1));
    let cancelled = said(&["downgrade", "cancel"]);
    assert_eq!(
        cancelled.out, "Downgrade cancel success, cluster version 3.6\n",
        "{cancelled:?}"
    );
    expect(&cluster, "3.7.0");
}
