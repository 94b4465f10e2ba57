//! Clusters of a real etcd and of a member made of our transport: they elect a leader, either of them, and replicate.

use super::hostile::request;
use super::member::{Command, Member, Setup};
use super::{TICK, listener};
use crate::support;
use crate::support::etcd::{get, put};
use crate::support::grpc::Channel;
use crate::support::http::answer_to;
use crate::support::server::ports::Port;
use crate::support::server::{Program, Server};
use ringd::proto::etcdserverpb as pb;
use sha1::{Digest, Sha1};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long an answer may take, a start included.
const PATIENCE: Duration = Duration::from_secs(60);

fn first_eight(hash: Sha1) -> u64 {
    u64::from_be_bytes(hash.finalize()[..8].try_into().expect("twenty bytes"))
}

/// A member's id as etcd computes it of its URL and the cluster's token.
fn member_id(url: &str) -> u64 {
    first_eight(Sha1::new().chain_update(url).chain_update("mixed"))
}

/// etcd and our member beside it.
struct Mixed {
    etcd: Child,
    etcd_id: u64,
    client: String,
    ours: Member,
    _ports: Vec<Port>,
    _directory: tempfile::TempDir,
}

impl Mixed {
    fn start(program: Program) -> Mixed {
        let ports: Vec<_> = (0..3).map(|_| Port::reserve()).collect();
        let [etcd_peer, client, own_peer] = [0, 1, 2].map(|at| format!("127.0.0.1:{}", ports[at].number()));
        let [etcd_url, own_url] = [&etcd_peer, &own_peer].map(|address| format!("http://{address}"));
        let ids = [&etcd_url, &own_url].map(|url| member_id(url));
        let mut sorted = ids;
        sorted.sort_unstable();
        let cluster = sorted
            .iter()
            .fold(Sha1::new(), |hash, id| hash.chain_update(id.to_be_bytes()));
        let setup = Setup {
            id: ids[1],
            cluster_id: first_eight(cluster),
            members: vec![(ids[0], etcd_url.clone()), (ids[1], own_url.clone())],
            removed: vec![],
            tick: TICK,
        };
        let listener = TcpListener::bind(own_peer).expect("a reserved port");
        let ours = Member::start(setup, listener);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let log = std::fs::File::create(directory.path().join("log")).expect("a log file");
        let mut command = support::server::bound_to_this_thread(program.path());
        command
            .arg("--name=theirs")
            .arg("--data-dir")
            .arg(directory.path().join("data"))
            .arg(format!("--listen-client-urls=http://{client}"))
            .arg(format!("--advertise-client-urls=http://{client}"))
            .arg(format!("--listen-peer-urls={etcd_url}"))
            .arg(format!("--initial-advertise-peer-urls={etcd_url}"))
            .arg(format!("--initial-cluster=theirs={etcd_url},ours={own_url}"))
            .arg("--initial-cluster-token=mixed")
            .arg("--log-level=info")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log);
        Mixed {
            etcd: command.spawn().expect("etcd starts"),
            etcd_id: ids[0],
            client,
            ours,
            _ports: ports,
            _directory: directory,
        }
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self._directory.path().join("log")).unwrap_or_default();
        log.lines().rev().take(30).collect::<Vec<_>>().join("\n")
    }

    /// Calls until it succeeds: a leader may be missing for a while.
    fn call<R: prost::Message + Default>(&self, method: &str, request: &impl prost::Message) -> R {
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = support::block_on(async {
                let channel = Channel::connect(&self.client)
                    .await
                    .map_err(|error| error.to_string())?;
                let called = tokio::time::timeout(Duration::from_secs(10), channel.call::<R>(method, request));
                let answer = called.await.map_err(|_| "no answer in 10 seconds".to_string())?;
                answer.map_err(|status| format!("{status:?}"))
            });
            match answer {
                Ok(answer) => return answer,
                Err(error) if Instant::now() >= until => panic!("{method}: {error}\n{}", self.log()),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Writes and reads through etcd, and waits until our member has applied the write.
    fn replicates(&self, key: &str) {
        self.call::<pb::PutResponse>(support::etcd::PUT, &put(key, "value"));
        let read: pb::RangeResponse = self.call(support::etcd::RANGE, &get(key));
        assert_eq!(
            (&read.kvs[0].key[..], &read.kvs[0].value[..]),
            (key.as_bytes(), &b"value"[..])
        );
        self.ours.wait("for the write", |seen| {
            let holds = |data: &Vec<u8>| data.windows(key.len()).any(|part| part == key.as_bytes());
            seen.applied.iter().any(holds)
        });
    }

    fn give_lead_to_ours(&self) {
        let target_id = self.ours.setup.id;
        let until = Instant::now() + PATIENCE;
        while !self.ours.seen().is_leader {
            assert!(Instant::now() < until, "the lead was not given\n{}", self.log());
            support::block_on(async {
                let request = pb::MoveLeaderRequest { target_id };
                let channel = Channel::connect(&self.client).await.expect("etcd listens");
                let moved = channel.call::<pb::MoveLeaderResponse>("/etcdserverpb.Maintenance/MoveLeader", &request);
                // It may have it already.
                let _ = tokio::time::timeout(Duration::from_secs(10), moved).await;
            });
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn give_lead_to_etcd(&self) {
        let until = Instant::now() + PATIENCE;
        while self.ours.seen().leader != self.etcd_id {
            assert!(Instant::now() < until, "the lead was not taken\n{}", self.log());
            self.ours.tell(Command::Transfer(self.etcd_id));
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Mixed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

fn works_with(program: Program) {
    let mixed = Mixed::start(program);
    mixed.ours.wait("for a leader", |seen| seen.leader != 0);
    mixed.replicates("first");
    mixed.give_lead_to_ours();
    // Proposals and reads are passed on to us now.
    mixed.replicates("under ours");
    for number in 0..100 {
        mixed.call::<pb::PutResponse>(support::etcd::PUT, &put(format!("many {number}"), "x".repeat(10_000)));
    }
    mixed.give_lead_to_etcd();
    mixed.replicates("under etcd");
    for number in 0..100 {
        mixed.call::<pb::PutResponse>(support::etcd::PUT, &put(format!("more {number}"), "x".repeat(10_000)));
    }
    mixed.replicates("last");
    let seen = mixed.ours.seen();
    assert_eq!(seen.refused, [""; 0]);
    assert_eq!(seen.active, 1);
    let status: pb::StatusResponse = mixed.call(support::etcd::STATUS, &pb::StatusRequest::default());
    assert_eq!((status.leader, status.raft_term), (mixed.etcd_id, seen.term));
    let log = mixed.log();
    assert!(
        !log.contains("panic") && !log.contains("failed to process Raft message"),
        "{log}"
    );
}

#[test]
fn etcd_3_7_1_and_our_member_are_a_cluster() {
    works_with(Program::Reference);
}

#[test]
fn etcd_3_5_1_and_our_member_are_a_cluster() {
    works_with(Program::Etcd351);
}

/// A request line, fields, and a body.
type Asked<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u8]);

/// Requests that are refused, and those that need nobody: answer for answer as etcd has it.
#[test]
fn peers_are_answered_as_by_etcd() {
    let etcd = Server::start(Program::Reference, &[]);
    let members = support::http::request(&etcd.peer_address(), "GET", "/members");
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("an id");
    let cluster_id = hex(members.field("x-etcd-cluster-id").expect("the cluster's id"));
    let list: serde_json::Value = serde_json::from_str(&members.body).expect("JSON");
    let id = list[0]["id"].as_u64().expect("an id");
    let (listener, url) = listener();
    let ours = url.replace("http://", "");
    let setup = Setup {
        id,
        cluster_id,
        members: vec![(id, url)],
        removed: vec![],
        tick: TICK,
    };
    let _member = Member::start(setup, listener);
    let wrong = ("X-Etcd-Cluster-ID", "c2");
    let cases: [Asked; 18] = [
        ("GET /raft", &[], b""),
        ("POST /raft", &[wrong], b""),
        ("POST /raft", &[("X-Server-Version", "2.9.0")], b""),
        ("POST /raft", &[("X-Min-Cluster-Version", "3.8.0")], b""),
        ("POST /raft", &[("X-Server-Version", "")], b""),
        ("POST /raft", &[], &[0xff]),
        ("POST /raft", &[], &[8, 8, 16, 5, 24, 7]),
        ("PUT /raft/snapshot", &[], b""),
        ("POST /raft/snapshot", &[wrong], b""),
        ("POST /raft/snapshot", &[], &[0, 0, 0, 0, 0, 0, 0, 2, 8, 8]),
        ("POST /raft/stream/message/77", &[], b""),
        ("GET /raft/stream/message/77", &[wrong], b""),
        ("GET /raft/stream/message/77", &[], b""),
        ("GET /raft/stream/msgapp/77", &[], b""),
        ("GET /raft/stream/msgapp/xyz", &[], b""),
        ("GET /raft/stream/other/77", &[], b""),
        ("GET /raft/other", &[], b""),
        ("DELETE /raft/", &[], b""),
    ];
    for (line, fields, body) in cases {
        let method = line.split(' ').next().expect("a method");
        let asked = request(line, cluster_id, fields, body);
        let [ours, theirs] =
            [&ours, &etcd.peer_address()].map(|address| answer_to(address, method, &asked).comparable());
        assert_eq!(ours, theirs, "{line} {fields:?}");
    }
    let probe = |address: &str| answer_to(address, "GET", &request("GET /raft/probing", cluster_id, &[], b""));
    let [ours, theirs] = [&ours, &etcd.peer_address()].map(|address| probe(address));
    assert_eq!(
        (ours.status, ours.field("content-type")),
        (theirs.status, theirs.field("content-type"))
    );
    let shape = |text: &str| {
        text.chars()
            .filter(|letter| !letter.is_ascii_digit())
            .take(16)
            .collect::<String>()
    };
    assert_eq!(shape(&ours.body), shape(&theirs.body));
}
