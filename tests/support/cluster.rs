//! Clusters of servers as child processes: of ringd, of etcd, or mixed.

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ringd::proto::etcdserverpb as pb;

use super::{
    etcd::{MOVE_LEADER, STATUS},
    grpc::{Channel, Status},
    server::{Part, Program, Server, tool},
};

/// How long a cluster may take to agree on something, on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// etcdctl's own time-outs: by itself it gives up after 2 and 5 seconds, which a loaded machine may take.
const PATIENT: [&str; 2] = ["--dial-timeout=60s", "--command-timeout=60s"];
/// Names of the members that found a cluster.
const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];

/// What every member of ringd is started with: several share the machine.
const SMALL: [&str; 2] = ["--cores=1", "--memory-budget=128MiB"];

/// A cluster. Its members are killed when it is dropped.
pub struct Cluster {
    pub members: Vec<Server>,
}

/// What a command printed and how it ended.
#[derive(Debug, PartialEq)]
pub struct Printed {
    pub out: String,
    pub error: String,
    pub code: Option<i32>,
}

fn arguments(program: Program) -> &'static [&'static str] {
    if program == Program::Ringd { &SMALL } else { &[] }
}

impl Cluster {
    /// Founds a cluster of one member of each program, and waits until all of them serve.
    pub fn start(programs: &[Program]) -> Self {
        let mut cluster = Self::unfounded(programs, &[]);
        cluster.found();
        cluster.wait();
        cluster
    }

    /// One member of each program, with further flags, and none of them started.
    pub fn unfounded(programs: &[Program], flags: &[&str]) -> Self {
        let prepare = |program: &Program| Server::prepare(*program, &[arguments(*program), flags].concat());
        let members = programs.iter().map(prepare).collect();
        Self { members }
    }

    /// Starts them as the members of a new cluster, and does not wait for them.
    pub fn found(&mut self) {
        self.name_founders();
        for member in &mut self.members {
            member.spawn().expect("a member starts");
        }
    }

    /// Makes them the members of a new cluster, and starts none.
    pub fn name_founders(&mut self) {
        let members = NAMES.iter().zip(&self.members);
        let members = members.map(|(name, member)| format!("{name}=http://{}", member.advertised_peer_address()));
        let list = members.collect::<Vec<_>>().join(",");
        for (member, name) in self.members.iter_mut().zip(NAMES) {
            member.set_part(Part {
                name: name.to_string(),
                members: list.clone(),
                joins: false,
            });
        }
    }

    /// Of three members of one program.
    pub fn of_three(program: Program) -> Self {
        Self::start(&[program; 3])
    }

    /// A further member, prepared and not started: its peer URL is what `member add` is told.
    pub fn prepare(&mut self, program: Program, name: &str) -> usize {
        self.prepare_with(program, name, &[])
    }

    /// As `prepare`, with flags beyond the usual ones.
    pub fn prepare_with(&mut self, program: Program, name: &str, further: &[&str]) -> usize {
        let arguments = [arguments(program), further].concat();
        self.members.push(Server::prepare(program, &arguments));
        let new = self.members.len() - 1;
        let all: Vec<usize> = (0..new).collect();
        self.join(new, name, &all);
        new
    }

    /// A further member that has its addresses and nothing more.
    pub fn reserve(&mut self, program: Program) -> usize {
        self.members.push(Server::prepare(program, arguments(program)));
        self.members.len() - 1
    }

    /// Prepares a member to join these.
    pub fn join(&mut self, new: usize, name: &str, members: &[usize]) {
        let url = |name: &str, member: &Server| format!("{name}=http://{}", member.advertised_peer_address());
        let old = members.iter().map(|member| &self.members[*member]);
        let mut all: Vec<String> = old.map(|member| url(member.name(), member)).collect();
        all.push(url(name, &self.members[new]));
        self.members[new].set_part(Part {
            name: name.to_string(),
            members: all.join(","),
            joins: true,
        });
    }

    /// Waits until every member that was started serves.
    pub fn wait(&mut self) {
        for member in &mut self.members {
            if member.is_started()
                && let Err(problem) = member.wait_until_healthy()
            {
                panic!("{problem}\n{}", member.log());
            }
        }
    }

    /// The clients' addresses of all members.
    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(Server::address).collect()
    }

    /// Runs etcdctl of 3.7.1 against members, all of them where none are named.
    pub fn etcdctl(&self, members: &[usize], arguments: &[&str]) -> Printed {
        let all: Vec<usize> = (0..self.members.len()).collect();
        let chosen = if members.is_empty() { &all } else { members };
        let endpoints: Vec<String> = chosen.iter().map(|member| self.members[*member].address()).collect();
        let output = Command::new(tool("reference/etcdctl"))
            .env_clear()
            .arg(format!("--endpoints={}", endpoints.join(",")))
            .args(PATIENT)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("etcdctl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Printed {
            out: text(&output.stdout),
            error: without_log(&text(&output.stderr)),
            code: output.status.code(),
        }
    }

    /// A member's status; `None` when it does not answer.
    pub async fn status(&self, member: usize) -> Option<pb::StatusResponse> {
        let channel = Channel::connect(&self.members[member].address()).await.ok()?;
        let asked = channel.call(STATUS, &pb::StatusRequest {});
        tokio::time::timeout(Duration::from_secs(5), asked).await.ok()?.ok()
    }

    /// The member that leads, once it says so itself and a majority says the same.
    pub async fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut said: BTreeMap<u64, usize> = BTreeMap::new();
            let mut own = Vec::new();
            for member in 0..self.members.len() {
                if let Some(status) = self.status(member).await {
                    *said.entry(status.leader).or_default() += 1;
                    own.push((member, status.header.map_or(0, |header| header.member_id)));
                }
            }
            let majority = self.members.len() / 2 + 1;
            let leader = said.iter().find(|(id, count)| **id != 0 && **count >= majority);
            let leader = leader.and_then(|(leader, _)| own.iter().find(|(_, id)| id == leader));
            if let Some((member, _)) = leader {
                return *member;
            }
            assert!(Instant::now() < deadline, "nobody leads: {said:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Has `member` lead.
    pub async fn lead(&self, member: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let leader = self.leader().await;
            if leader == member {
                return;
            }
            let target = self.id(member).await;
            let channel = Channel::connect(&self.members[leader].address())
                .await
                .expect("a connection");
            let request = pb::MoveLeaderRequest { target_id: target };
            let moved: Result<pb::MoveLeaderResponse, Status> = channel.call(MOVE_LEADER, &request).await;
            assert!(Instant::now() < deadline, "leadership is not moved: {moved:?}");
        }
    }

    /// A member's id.
    pub async fn id(&self, member: usize) -> u64 {
        let status = self.status(member).await.expect("a member that answers");
        status.header.expect("a header").member_id
    }

    /// Waits until all members that run have applied the same, and hold the same. Clients have to be quiet.
    pub async fn settle(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut hashes = Vec::new();
            for member in 0..self.members.len() {
                if !self.members[member].is_running() {
                    continue;
                }
                let Ok(channel) = Channel::connect(&self.members[member].address()).await else {
                    continue;
                };
                let hash = super::etcd::hash_at(&channel, 0).await;
                // 3.5 does not say up to which revision it hashed: up to its newest.
                let revision = |hash: &pb::HashKvResponse| hash.header.as_ref().map(|header| header.revision);
                let told = |hash: pb::HashKvResponse| (hash.hash, hash.compact_revision, revision(&hash));
                hashes.push(hash.map(told).ok());
            }
            if hashes.iter().all(|hash| hash.is_some() && *hash == hashes[0]) {
                return;
            }
            assert!(Instant::now() < deadline, "members differ: {hashes:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// etcdctl's own log on stderr names addresses and times; what it says in words is what counts.
fn without_log(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with('{'));
    lines.map(|line| format!("{line}\n")).collect()
}
