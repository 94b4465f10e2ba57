//! A member that holds something else than the others: found before it serves, by the leader in intervals, and by what
//! compactions hash. It is made so by an entry of its own in its log, where the others have another one.

use std::path::Path;
use std::time::{Duration, Instant};

use prost::Message;
use ringd::io::disk::{Completion, Disk};
use ringd::proto::etcdserverpb as pb;
use ringd::reactor::Doorbell;
use ringd::reactor::disk::{DiskOptions, ThreadDisk};
use ringd::wal::{self, Entry, HardState};

use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    etcd::{ALARM, COMPACT, PUT, hash_at, put},
    grpc::{Channel, Status},
    http,
    server::Program,
};

/// Appends a committed entry to the log of a member of ringd that does not run.
fn append(log: &Path, index: u64, term: u64, request: &pb::InternalRaftRequest) {
    let bell = Doorbell::new("test").expect("a doorbell");
    let mut disk = ThreadDisk::new(DiskOptions::default(), &bell).expect("a disk");
    let options = wal::Options::new(1, 0..wal::TOKENS);
    let recovered = wal::recover(&mut disk, log, options, index - 1, 0).expect("a log");
    let (mut writer, state) = (recovered.writer, recovered.hard_state);
    assert_eq!((writer.last_index(), state.term), (index - 1, term));
    let entry = Entry {
        kind: 0,
        term,
        index,
        data: request.encode_to_vec().into(),
    };
    let state = HardState { commit: index, ..state };
    writer.append(&[entry], Some(&state));
    let mut completions = Vec::new();
    while !writer.is_idle() {
        writer.submit(&mut disk, Duration::ZERO);
        disk.wait(&mut completions);
        for Completion { token, result } in completions.drain(..) {
            writer.completed(token, result).expect("a write");
        }
    }
}

async fn write(cluster: &Cluster, member: usize, key: &str, value: &str) -> Result<pb::PutResponse, Status> {
    let channel = Channel::connect(&cluster.members[member].address())
        .await
        .expect("a connection");
    channel.call(PUT, &put(key, value)).await
}

/// Stops member 2, which is of ringd and does not lead, and has its log say of the next entry something else than the
/// others say. It is not started again.
fn diverge(cluster: &mut Cluster, leader: usize) {
    block_on(async {
        cluster.lead(leader).await;
        write(cluster, leader, "key", "value").await.expect("a write");
    });
    // What the leader writes by itself is written then.
    super::versions::expect(cluster, "3.7.0");
    block_on(cluster.settle());
    let before = block_on(cluster.status(leader)).expect("a status");
    cluster.members[2].stop();
    block_on(write(cluster, leader, "other", "right")).expect("a write");
    let after = block_on(cluster.status(leader)).expect("a status");
    let (index, term) = (after.raft_index, after.raft_term);
    assert_eq!((index, term), (before.raft_index + 1, before.raft_term), "it was alone");
    let request = pb::InternalRaftRequest {
        header: Some(pb::RequestHeader {
            id: 1,
            ..Default::default()
        }),
        put: Some(put("other", "wrong")),
        ..Default::default()
    };
    append(
        &cluster.members[2].data_directory().join("member/wal"),
        index,
        term,
        &request,
    );
}

/// Waits for the CORRUPT alarm and says for whom it is raised; writes are refused from then on.
fn alarmed(cluster: &Cluster, ask: usize) -> Vec<u64> {
    block_on(async {
        let channel = Channel::connect(&cluster.members[ask].address())
            .await
            .expect("a connection");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let listed: pb::AlarmResponse = channel.call(ALARM, &pb::AlarmRequest::default()).await.expect("a list");
            let raised = listed
                .alarms
                .iter()
                .filter(|alarm| alarm.alarm == pb::AlarmType::Corrupt as i32);
            let raised: Vec<u64> = raised.map(|alarm| alarm.member_id).collect();
            if !raised.is_empty() {
                let refused = write(cluster, ask, "key", "value").await.expect_err("no writes");
                assert_eq!((refused.code, &*refused.message), (15, "etcdserver: corrupt cluster"));
                return raised;
            }
            assert!(Instant::now() < deadline, "no alarm is raised");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
}

fn prepared(programs: &[Program; 3], flags: &[&str]) -> Cluster {
    let mut cluster = Cluster::unfounded(programs, flags);
    cluster.found();
    cluster.wait();
    cluster
}

const RINGD: Program = Program::Ringd;

#[test]
fn a_member_that_differs_does_not_start() {
    let mut cluster = prepared(
        &[RINGD, Program::Reference, RINGD],
        &["--feature-gates=InitialCorruptCheck=true"],
    );
    block_on(cluster.lead(0));
    block_on(write(&cluster, 0, "key", "value")).expect("a write");
    block_on(cluster.settle());
    // Whoever holds what the others hold starts, ringd's member and etcd's.
    for member in [2, 1] {
        cluster.members[member].stop();
        cluster.members[member].restart();
    }
    diverge(&mut cluster, 0);
    cluster.members[2].spawn().expect("a process");
    let problem = cluster.members[2].wait_until_healthy().expect_err("it must not serve");
    assert!(problem.contains("exit status: 1"), "{problem}");
    let log = cluster.members[2].log();
    assert!(log.contains("found data inconsistency with peers"), "{log}");
    block_on(write(&cluster, 0, "key", "value")).expect("the others go on");
}

/// The leader, of ringd or etcd, finds the member that differs, and nobody else.
fn the_leader_finds_who_differs(leader: usize, flags: &[&str], act: impl Fn(&Cluster)) {
    let mut cluster = prepared(&[RINGD, Program::Reference, RINGD], flags);
    let id = block_on(cluster.id(2));
    diverge(&mut cluster, leader);
    cluster.members[2].spawn().expect("a member starts");
    act(&cluster);
    assert_eq!(alarmed(&cluster, leader), [id]);
    for member in &cluster.members[..2] {
        let metrics = member.http_body("/metrics").expect("metrics");
        let alarm = |labels: String| metrics.contains(&format!("etcd_debugging_server_alarms{{{labels}}} 1\n"));
        let id = format!(r#"server_id="{id:x}""#);
        let kind = r#"alarm_type="CORRUPT""#;
        assert!(
            alarm(format!("{kind},{id}")) || alarm(format!("{id},{kind}")),
            "{metrics}"
        );
    }
}

#[test]
fn the_leader_compares_whole_histories() {
    for leader in [0, 1] {
        the_leader_finds_who_differs(leader, &["--corrupt-check-time=1s"], |_| {});
    }
}

#[test]
fn the_leader_compares_compactions() {
    let flags = ["--feature-gates=CompactHashCheck=true", "--compact-hash-check-time=1s"];
    for leader in [0, 1] {
        the_leader_finds_who_differs(leader, &flags, |cluster| {
            block_on(async {
                let channel = Channel::connect(&cluster.members[0].address())
                    .await
                    .expect("a connection");
                let request = pb::CompactionRequest {
                    revision: 3,
                    physical: false,
                };
                let _: pb::CompactionResponse = channel.call(COMPACT, &request).await.expect("a compaction");
            });
        });
    }
}

/// Nobody is suspected while all hold the same, whatever is compacted and whoever leads.
#[test]
fn equal_members_are_not_suspected() {
    let flags = [
        "--feature-gates=CompactHashCheck=true",
        "--compact-hash-check-time=500ms",
        "--corrupt-check-time=500ms",
    ];
    let cluster = prepared(&[RINGD, Program::Reference, RINGD], &flags);
    block_on(async {
        let channel = Channel::connect(&cluster.members[0].address())
            .await
            .expect("a connection");
        for leader in [0, 1] {
            cluster.lead(leader).await;
            for round in 0..6 {
                let mut revision = 0;
                for key in ["a", "b", "c"] {
                    let written = write(&cluster, leader, key, &format!("{round}"))
                        .await
                        .expect("a write");
                    revision = written.header.expect("a header").revision;
                }
                let revision = revision - round % 2;
                let request = pb::CompactionRequest {
                    revision,
                    physical: true,
                };
                let _: pb::CompactionResponse = channel.call(COMPACT, &request).await.expect("a compaction");
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        }
        let listed: pb::AlarmResponse = channel.call(ALARM, &pb::AlarmRequest::default()).await.expect("a list");
        assert!(listed.alarms.is_empty(), "{listed:?}");
    });
}

/// What other members are told of the history, as etcd tells it.
#[test]
fn hashes_are_told_to_members_as_etcd_does() {
    let mut cluster = prepared(
        &[RINGD, Program::Reference, RINGD],
        &["--feature-gates=CompactHashCheck=true"],
    );
    let addresses: Vec<String> = cluster.members.iter().map(|member| member.peer_address()).collect();
    let told = |member: usize, method: &str, fields: &str, body: &str| {
        let address = &addresses[member];
        let length = body.len();
        let request = format!(
            "{method} /members/hashkv HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{fields}Content-Length: \
             {length}\r\n\r\n{body}"
        );
        http::answer_to(address, method, request.as_bytes()).comparable()
    };
    let same = |fields: &str, body: &str, status: u16| {
        let ours = told(0, "GET", fields, body);
        assert_eq!(ours, told(1, "GET", fields, body), "{fields}{body}");
        assert_eq!(ours.status, status, "{ours:?}");
        ours
    };
    block_on(async {
        cluster.lead(0).await;
        for key in ["a", "b", "a", "c"] {
            write(&cluster, 0, key, "value").await.expect("a write");
        }
        cluster.settle().await;
    });
    let newest = same("", "{}", 200);
    assert_eq!(same("", r#"{"revision":0}"#, 200), newest);
    assert_eq!(same("", r#"{"revision":5}"#, 200).body, newest.body);
    assert_ne!(same("", r#"{"revision":3}"#, 200).body, newest.body);
    let cluster_id = newest.field("x-etcd-cluster-id").expect("a cluster").to_string();
    same(&format!("X-Etcd-Cluster-ID: {cluster_id}\r\n"), "{}", 200);
    same("X-Etcd-Cluster-ID: 1\r\n", "{}", 412);
    same("", r#"{"revision":6}"#, 400);
    same("", "", 400);
    same("", r#"{"revision":"3"}"#, 400);
    assert_eq!(told(0, "POST", "", "{}"), told(1, "POST", "", "{}"));
    block_on(async {
        let channel = Channel::connect(&cluster.members[0].address())
            .await
            .expect("a connection");
        for revision in [3, 4] {
            let physical = true;
            let request = pb::CompactionRequest { revision, physical };
            let _: pb::CompactionResponse = channel.call(COMPACT, &request).await.expect("a compaction");
            // The other members compact on their own.
            let deadline = Instant::now() + PATIENCE;
            while hash_compacted(&cluster, revision).await.is_none() {
                assert!(
                    Instant::now() < deadline,
                    "revision {revision} is not compacted everywhere"
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    });
    same("", r#"{"revision":1}"#, 400);
    same("", r#"{"revision":2}"#, 400);
    // What compactions hashed is kept.
    let kept = same("", r#"{"revision":3}"#, 200);
    assert!(kept.body.contains(r#""compact_revision":-1"#), "{kept:?}");
    let kept = same("", r#"{"revision":4}"#, 200);
    assert!(kept.body.contains(r#""compact_revision":3"#), "{kept:?}");
    same("", "{}", 200);
}

/// Whether the first two members say what a compaction at this revision hashed.
async fn hash_compacted(cluster: &Cluster, revision: i64) -> Option<()> {
    for member in 0..2 {
        let address = cluster.members[member].peer_address();
        let body = format!(r#"{{"revision":{revision}}}"#);
        let length = body.len();
        let request = format!(
            "GET /members/hashkv HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: \
             {length}\r\n\r\n{body}"
        );
        let answer = http::answer_to(&address, "GET", request.as_bytes());
        let is_kept = !answer.body.contains(&format!(r#""compact_revision":{revision},"#));
        (answer.status == 200 && is_kept).then_some(())?;
        let channel = Channel::connect(&cluster.members[member].address()).await.ok()?;
        let now = hash_at(&channel, 0).await.ok()?;
        (now.compact_revision == revision).then_some(())?;
    }
    Some(())
}
