//! A member without a leader, and one that is a learner: what they answer and what they refuse, as etcd's do.

use std::time::{Duration, Instant};

use prost::Message;
use ringd::proto::etcdserverpb as pb;

use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    etcd::{
        ALARM, COMPACT, HASH_KV, LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_LEASES, LEASE_TIME_TO_LIVE, MEMBER_LIST,
        MEMBER_PROMOTE, PUT, RANGE, RANGE_STREAM, STATUS, TXN, WATCH, create_watch, get, put,
    },
    grpc::{Channel, Status, Stream},
    http::request,
    server::Program,
};

const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Metadata of those who want a leader.
const WANTED: &[(&str, &str)] = &[("hasleader", "true")];

/// What a call ended with: its status, and of a success nothing more.
async fn outcome(channel: &Channel, path: &str, message: Vec<u8>, metadata: &[(&str, &str)]) -> String {
    let called = channel.unary(path, message.into(), metadata);
    match tokio::time::timeout(PATIENCE, called).await {
        // Go's protobuf writes a no-break space in some builds, so that nobody relies on its words.
        Ok(reply) => format!("{:?}", reply.status).replace("\\u{a0}", " "),
        Err(_) => "no answer".to_string(),
    }
}

fn serializable() -> pb::RangeRequest {
    pb::RangeRequest {
        serializable: true,
        ..get("a")
    }
}

/// Calls of all kinds, by a name.
fn calls() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    vec![
        ("put", PUT, put("a", "b").encode_to_vec()),
        ("read", RANGE, get("a").encode_to_vec()),
        ("serializable read", RANGE, serializable().encode_to_vec()),
        ("malformed read", RANGE, vec![0xff]),
        ("range stream", RANGE_STREAM, serializable().encode_to_vec()),
        ("transaction", TXN, pb::TxnRequest::default().encode_to_vec()),
        ("compaction", COMPACT, vec![]),
        ("status", STATUS, vec![]),
        ("hash", HASH_KV, vec![]),
        ("alarms", ALARM, vec![]),
        (
            "lease",
            LEASE_GRANT,
            pb::LeaseGrantRequest { ttl: 60, id: 9 }.encode_to_vec(),
        ),
        ("time to live", LEASE_TIME_TO_LIVE, vec![8, 9]),
        ("leases", LEASE_LEASES, vec![]),
        ("members", MEMBER_LIST, vec![]),
        ("linearizable members", MEMBER_LIST, vec![8, 1]),
        ("promotion", MEMBER_PROMOTE, vec![8, 1]),
        ("health", HEALTH_CHECK, vec![]),
    ]
}

/// How a stream begins: the first message's presence, or its status.
async fn first(channel: &Channel, path: &str, message: &[u8], metadata: &[(&str, &str)]) -> (String, Option<Stream>) {
    let begun = async {
        let mut stream = channel.stream(path, metadata).await?;
        stream.send_raw(message)?;
        if path == HEALTH_WATCH {
            stream.finish_sending()?;
        }
        let first = stream.next_raw().await?;
        Ok::<_, Status>((first.is_some(), stream))
    };
    match tokio::time::timeout(PATIENCE, begun).await {
        Ok(Ok((came, stream))) => (format!("begun {came}"), Some(stream)),
        Ok(Err(status)) => (format!("{status:?}"), None),
        Err(_) => ("no answer".to_string(), None),
    }
}

fn streams() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let watch = create_watch(pb::WatchCreateRequest {
        key: b"a".to_vec().into(),
        ..Default::default()
    });
    vec![
        ("watch", WATCH, watch.encode_to_vec()),
        ("health watch", HEALTH_WATCH, vec![]),
    ]
}

/// Health over plain HTTP.
fn health(address: &str) -> Vec<String> {
    let paths = [
        "/health",
        "/health?serializable=true",
        "/livez",
        "/readyz",
        "/readyz?verbose",
    ];
    let told = paths.map(|path| {
        let answer = request(address, "GET", path).comparable();
        format!("{path}: {} {}", answer.status, answer.body.trim())
    });
    told.to_vec()
}

/// What the only one of three members that is left says.
async fn of_the_last(program: Program) -> Vec<String> {
    let mut told = Vec::new();
    let mut cluster = Cluster::of_three(program);
    cluster.lead(1).await;
    let address = cluster.members[0].address();
    let channel = Channel::connect(&address).await.expect("a connection");
    let (_, path, watch) = streams().swap_remove(0);
    let (began, wanting) = first(&channel, path, &watch, WANTED).await;
    told.push(format!("a watch that wants a leader: {began}"));
    let (began, careless) = first(&channel, path, &watch, &[]).await;
    told.push(format!("one that does not: {began}"));
    cluster.members[1].kill();
    cluster.members[2].kill();
    while cluster.status(0).await.is_none_or(|status| status.leader != 0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let lost = Instant::now();
    // etcd looks at a message before it looks for a leader.
    for (name, path, message) in calls().into_iter().filter(|(name, ..)| *name != "malformed read") {
        told.push(format!(
            "{name} wants a leader: {}",
            outcome(&channel, path, message, WANTED).await
        ));
    }
    for (name, path, message) in streams() {
        told.push(format!(
            "{name} wants a leader: {}",
            first(&channel, path, &message, WANTED).await.0
        ));
    }
    // What takes long runs beside the rest.
    let slow = calls().into_iter().map(|(name, path, message)| {
        let channel = &channel;
        async move { format!("{name}: {}", outcome(channel, path, message, &[]).await) }
    });
    told.extend(futures::future::join_all(slow).await);
    let end = tokio::time::timeout(PATIENCE, wanting.expect("it began").next_raw()).await;
    told.push(format!(
        "the watch that wants a leader: {:?}",
        end.map(|end| end.map(|message| message.is_some()))
    ));
    assert!(lost.elapsed() > Duration::from_secs(2), "too early: {told:?}");
    let still = tokio::time::timeout(Duration::from_secs(1), careless.expect("it began").next_raw()).await;
    told.push(format!("the other: {}", still.is_err()));
    let status = cluster.status(0).await.expect("an answer");
    told.push(format!("{:?}", status.errors));
    told.extend(
        tokio::task::spawn_blocking(move || health(&address))
            .await
            .expect("answers"),
    );
    told
}

/// What a learner says.
async fn of_a_learner(program: Program) -> Vec<String> {
    let mut cluster = Cluster::of_three(program);
    cluster.lead(0).await;
    let new = cluster.prepare(program, "four");
    let url = format!("--peer-urls=http://{}", cluster.members[new].peer_address());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let added = cluster.etcdctl(&[0], &["member", "add", "four", "--learner", &url]);
        if added.code == Some(0) {
            break;
        }
        // Members count as connected after some seconds.
        assert!(Instant::now() < deadline, "{added:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    cluster.members[new].spawn().expect("it starts");
    let leader = Channel::connect(&cluster.members[0].address())
        .await
        .expect("a connection");
    let _: pb::PutResponse = leader.call(PUT, &put("a", "1")).await.expect("a write");
    let address = cluster.members[new].address();
    let channel = loop {
        assert!(Instant::now() < deadline, "the learner does not catch up");
        if let Ok(channel) = Channel::connect(&address).await {
            let read: Result<pb::RangeResponse, Status> = channel.call(RANGE, &serializable()).await;
            if read.is_ok_and(|read| read.count == 1) {
                break channel;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let mut told = Vec::new();
    for (name, path, message) in calls() {
        told.push(format!("{name}: {}", outcome(&channel, path, message, &[]).await));
    }
    for (name, path, message) in streams() {
        told.push(format!("{name}: {}", first(&channel, path, &message, &[]).await.0));
    }
    let keep_alive = pb::LeaseKeepAliveRequest { id: 1 }.encode_to_vec();
    let kept = first(&channel, LEASE_KEEP_ALIVE, &keep_alive, &[]).await.0;
    told.push(format!("keep-alive: {kept}"));
    let status = cluster.status(new).await.expect("an answer");
    told.push(format!("learner {}, {:?}", status.is_learner, status.errors));
    let asked = address.clone();
    told.extend(
        tokio::task::spawn_blocking(move || health(&asked))
            .await
            .expect("answers"),
    );
    promoted(&mut cluster, new, told).await
}

/// Promotes the learner through a follower; then it answers all that members do.
async fn promoted(cluster: &mut Cluster, new: usize, mut told: Vec<String>) -> Vec<String> {
    let id = format!("{:x}", cluster.id(new).await);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let printed = cluster.etcdctl(&[1], &["member", "promote", &id]);
        if printed.code == Some(0) {
            break;
        }
        assert!(Instant::now() < deadline, "{printed:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let channel = Channel::connect(&cluster.members[new].address())
        .await
        .expect("a connection");
    let deadline = Instant::now() + PATIENCE;
    while outcome(&channel, PUT, put("b", "2").encode_to_vec(), &[]).await != "status 0 \"\"" {
        assert!(Instant::now() < deadline, "it does not take writes");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (name, path, message) in calls() {
        told.push(format!(
            "promoted, {name}: {}",
            outcome(&channel, path, message, &[]).await
        ));
    }
    told
}

fn same(ours: Vec<String>, theirs: Vec<String>) {
    let pairs = ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs);
    let differences: Vec<String> = pairs
        .map(|(ours, theirs)| format!(" ours   {ours}\n theirs {theirs}"))
        .collect();
    assert!(
        differences.is_empty() && ours.len() == theirs.len(),
        "{}",
        differences.join("\n")
    );
}

#[test]
fn a_member_without_a_leader_answers_as_etcds() {
    let theirs = std::thread::spawn(|| block_on(of_the_last(Program::Reference)));
    let ours = block_on(of_the_last(Program::subject()));
    same(ours, theirs.join().expect("etcd's answers"));
}

#[test]
fn a_learner_answers_as_etcds() {
    let theirs = std::thread::spawn(|| block_on(of_a_learner(Program::Reference)));
    let ours = block_on(of_a_learner(Program::subject()));
    same(ours, theirs.join().expect("etcd's answers"));
}
