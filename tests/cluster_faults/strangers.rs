//! Peers that keep to no protocol, and peers that fall silent in one direction, while clients go on: nobody is harmed,
//! the log says who it was and what was wrong, and what was silent comes back by itself.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use tokio::{
    task::{LocalSet, spawn_blocking},
    time::{Instant, sleep},
};

use super::stage::Stage;
use crate::support::{
    block_on,
    cluster::{Cluster, PATIENCE},
    proxy::Proxies,
    server::Program,
};

/// How often everything is sent to each member.
const ROUNDS: usize = 20;
/// What clients may open in between; what is sent takes ten times as many.
const CLIENTS_DESCRIPTORS: u64 = 60;
/// Longer than a member waits for a sign of life from a peer.
const SILENCE: Duration = Duration::from_secs(8);
/// A member of a small budget takes no more, whatever is announced to it.
const RESIDENT_MAX: u64 = 400 << 20;

pub fn run() {
    let mut cluster = Cluster::unfounded(&[Program::Ringd; 3], &[]);
    let proxies = Proxies::between(&mut cluster);
    cluster.found();
    proxies.know(&cluster);
    cluster.wait();
    block_on(LocalSet::new().run_until(async {
        let leader = cluster.leader().await;
        let mut stage = Stage::new(cluster, &[0, 1, 2]);
        stage.written_by(&[0, 1, 2]).await;
        harass(&mut stage).await;
        fall_silent(&mut stage, &proxies, leader).await;
        stage.finish().await;
    }));
}

/// Sends members what no peer would, all at once.
async fn harass(stage: &mut Stage) {
    let addresses: Vec<String> = stage
        .cluster
        .members
        .iter()
        .map(|member| member.peer_address())
        .collect();
    let before = descriptors(stage);
    let sent = addresses.into_iter().flat_map(|address| {
        let bytes = nonsense().into_iter();
        bytes.map(move |bytes| (address.clone(), bytes))
    });
    let sending = sent.map(|(address, bytes)| spawn_blocking(move || send(&address, &bytes)));
    for sending in sending.collect::<Vec<_>>() {
        sending.await.expect("it was sent");
    }
    for member in 0..3 {
        stage.written_by(&[member]).await;
        let log = stage.cluster.members[member].log();
        for (peer, reason) in [("77", "cluster `c2`"), ("78", "version is `2.3.0`")] {
            let is_said =
                |line: &str| line.contains(&format!("\"remote-peer-id\":\"{peer}\"")) && line.contains(reason);
            assert!(
                log.lines().any(is_said),
                "{peer} and {reason} are not in the log: {log}"
            );
        }
        let resident = stage.cluster.members[member].usage().peak_resident_bytes;
        assert!(resident < RESIDENT_MAX, "{resident} bytes");
    }
    let deadline = Instant::now() + PATIENCE;
    while descriptors(stage) > before + CLIENTS_DESCRIPTORS {
        assert!(
            Instant::now() < deadline,
            "connections stay: {before} descriptors before"
        );
        sleep(Duration::from_millis(100)).await;
    }
    stage.look_at_clients().await;
}

/// Descriptors that all members have open.
fn descriptors(stage: &Stage) -> u64 {
    let members = stage.cluster.members.iter();
    members.map(|member| member.usage().descriptors).sum()
}

/// Sends the same again and again; what comes back, or that nothing does, is of no interest.
fn send(address: &str, bytes: &[u8]) {
    for _ in 0..ROUNDS {
        let Ok(mut stream) = TcpStream::connect(address) else {
            continue;
        };
        let wait = Some(Duration::from_millis(200));
        stream.set_read_timeout(wait).expect("a time-out");
        stream.set_write_timeout(wait).expect("a time-out");
        let _ = stream.write_all(bytes);
        let _ = stream.read(&mut [0; 1000]);
        thread::sleep(Duration::from_millis(5));
    }
}

fn request(line: &str, from: &str, cluster: &str, version: &str, rest: &str) -> Vec<u8> {
    let head = format!(
        "{line} HTTP/1.1\r\nHost: peer\r\nX-Etcd-Cluster-ID: {cluster}\r\nX-Server-From: {from}\r\n\
         X-Server-Version: {version}\r\nX-Min-Cluster-Version: 3.0.0\r\n{rest}"
    );
    head.into_bytes()
}

fn nonsense() -> Vec<Vec<u8>> {
    let huge = "Content-Length: 100000000000\r\n\r\n";
    let snapshot = [&u64::MAX.to_be_bytes()[..], &[0xff; 5000]].concat();
    let snapshot_head = format!("Content-Length: {}\r\n\r\n", snapshot.len());
    vec![
        Vec::new(),
        vec![0xff; 100_000],
        b"GET / HTTP/1.1\r\nX: ".to_vec(),
        [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 1_000_000]].concat(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        request("GET /raft/stream/message/1", "77", "c2", "3.7.1", "\r\n"),
        request("POST /raft", "78", "c2", "2.3.0", "\r\n"),
        request("POST /raft", "79", "c2", "3.7.1", huge),
        request("POST /raft/snapshot", "79", "c2", "3.7.1", huge),
        [
            request("POST /raft/snapshot", "79", "c2", "3.7.1", &snapshot_head),
            snapshot,
        ]
        .concat(),
    ]
}

/// Nothing comes from one follower any more, and then it does again.
async fn fall_silent(stage: &mut Stage, proxies: &Proxies, leader: usize) {
    let (silent, hearing) = ((leader + 1) % 3, (leader + 2) % 3);
    let name = format!("{:x}", stage.cluster.id(silent).await);
    let lines = |stage: &Stage, name: &str| {
        let log = stage.cluster.members[hearing].log();
        let about = |line: &&str| line.contains(&format!("\"peer-id\":\"{name}\"")) && line.contains("nothing came");
        log.lines().filter(about).count()
    };
    let before = lines(stage, &name);
    proxies.cut(silent, hearing);
    sleep(SILENCE).await;
    stage.written_by(&[leader]).await;
    assert!(
        lines(stage, &name) > before,
        "the log of {hearing} does not name {name}"
    );
    proxies.mend();
    let deadline = Instant::now() + PATIENCE;
    let active = format!("Remote=\"{name}\"}} 1");
    loop {
        let metrics = stage.cluster.members[hearing].http_body("/metrics").expect("metrics");
        let mut lines = metrics
            .lines()
            .filter(|line| line.starts_with("etcd_network_active_peers{"));
        if lines.any(|line| line.ends_with(&active)) {
            break;
        }
        assert!(Instant::now() < deadline, "{name} does not come back: {metrics}");
        sleep(Duration::from_millis(200)).await;
    }
    stage.written_by(&[silent]).await;
    stage.written_by(&[hearing]).await;
    stage.look_at_clients().await;
}
