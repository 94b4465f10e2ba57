//! Several log cores that pass each other messages: elections, replication, forwarding, read indexes, membership.

mod elections;
mod lost;
mod membership;
mod reads;
mod replication;
mod snapshots;

use super::*;
use crate::raft::messages::{FromPeers, MemberChange, MemberError, ToPeers};
use raft::eraftpb::{Message as RaftMessage, MessageType};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Time for an election, with those that come to nothing.
const ELECTION_TICKS: usize = 100;

fn boot_of(id: u64, founders: &[u64]) -> Boot {
    let mut boot = boot();
    boot.replica.identity = Some(Identity {
        cluster_id: 0xc,
        member_id: id,
    });
    boot.options.first_id = id << 48;
    boot.member = member(id);
    boot.founders = founders.iter().copied().map(member).collect();
    boot
}

/// Members by id; one that is down has its disk only.
struct Cluster {
    up: BTreeMap<u64, Bench>,
    down: BTreeMap<u64, MemoryDisk>,
    founders: Vec<u64>,
    /// Links that lose everything, from and to.
    cut: BTreeSet<(u64, u64)>,
    /// Kinds of messages that are lost.
    lost: Vec<MessageType>,
    /// And those of a kind to one member.
    lost_to: Option<(u64, MessageType)>,
    on_the_way: VecDeque<RaftMessage>,
    replies: Vec<(u64, Reply)>,
    /// Snapshots that were sent and went nowhere.
    snapshots: Vec<(RaftMessage, crate::pages::Root)>,
    next_token: u64,
}

impl Cluster {
    fn new(ids: &[u64]) -> Cluster {
        let mut cluster = Cluster {
            up: BTreeMap::new(),
            down: ids.iter().map(|id| (*id, MemoryDisk::new())).collect(),
            founders: ids.to_vec(),
            cut: BTreeSet::new(),
            lost: Vec::new(),
            lost_to: None,
            on_the_way: VecDeque::new(),
            replies: Vec::new(),
            snapshots: Vec::new(),
            next_token: 100,
        };
        for id in ids {
            cluster.start(*id);
        }
        cluster
    }

    fn start(&mut self, id: u64) {
        let disk = self.down.remove(&id).unwrap_or_default();
        let now = self.up.values().next().map_or(Duration::ZERO, |bench| bench.now);
        let founders: &[u64] = if self.founders.contains(&id) {
            &self.founders
        } else {
            &[]
        };
        let mut bench = Bench::start(disk, boot_of(id, founders));
        bench.now = now;
        // The earlier the id, the sooner it campaigns: elections have one winner.
        bench.core.set_election_timeout(10 + (2 * id as usize).min(9));
        self.up.insert(id, bench);
    }

    fn stop(&mut self, id: u64) {
        let bench = self.up.remove(&id).unwrap();
        self.down.insert(id, bench.disk);
    }

    fn isolate(&mut self, id: u64) {
        for other in self.up.keys().copied().filter(|other| *other != id) {
            self.cut.extend([(id, other), (other, id)]);
        }
    }

    /// Lets everybody work and messages arrive until nothing more happens at this time.
    fn settle(&mut self) {
        loop {
            for (id, bench) in &mut self.up {
                self.replies
                    .extend(bench.settle().into_iter().map(|reply| (*id, reply)));
                for order in bench.core.take_to_peers() {
                    match order {
                        ToPeers::Messages(messages) => self.on_the_way.extend(messages),
                        ToPeers::Snapshot { message, root } => self.snapshots.push((*message, root)),
                        ToPeers::SnapshotTaken(_) | ToPeers::Members { .. } => {}
                    }
                }
            }
            if self.on_the_way.is_empty() {
                return;
            }
            while let Some(message) = self.on_the_way.pop_front() {
                let kind = message.get_msg_type();
                let is_lost = self.cut.contains(&(message.from, message.to))
                    || self.lost.contains(&kind)
                    || self.lost_to == Some((message.to, kind));
                if let Some(bench) = self.up.get_mut(&message.to).filter(|_| !is_lost) {
                    let event = FromPeers::Message(Box::new(message));
                    bench.core.handle_peer(event, bench.now);
                }
            }
        }
    }

    fn tick(&mut self) {
        for bench in self.up.values_mut() {
            bench.now += TICK;
        }
        self.settle();
    }

    fn leaders(&mut self) -> Vec<u64> {
        let leading = self
            .up
            .iter_mut()
            .filter_map(|(id, bench)| bench.core.leads().then_some(*id));
        leading.collect()
    }

    /// Ticks until there is one leader that all who are up know of and have heard of themselves from.
    fn elect(&mut self) -> u64 {
        for _ in 0..ELECTION_TICKS {
            self.tick();
            if let [leader] = self.leaders()[..]
                && self.up.values_mut().all(|bench| bench.core.leader() == leader)
            {
                return leader;
            }
        }
        panic!("no leader: {:?}", self.leaders());
    }

    fn wait(&mut self, what: &str, mut done: impl FnMut(&mut Cluster) -> bool) {
        for _ in 0..ELECTION_TICKS {
            if done(self) {
                return;
            }
            self.tick();
        }
        panic!("never: {what}");
    }

    fn ask(&mut self, id: u64, request: impl FnOnce(u64) -> Request) -> u64 {
        self.next_token += 1;
        let bench = self.up.get_mut(&id).unwrap();
        bench.core.handle(0, request(self.next_token), bench.now);
        self.next_token
    }

    fn begin_put(&mut self, id: u64, key: &str) -> u64 {
        let put = PutRequest {
            key: key.to_string().into(),
            value: "v".into(),
            ..Default::default()
        };
        let header_id = self.next_token + 1;
        let request = InternalRaftRequest {
            header: Some(crate::proto::etcdserverpb::RequestHeader {
                id: header_id,
                ..Default::default()
            }),
            put: Some(put),
            ..Default::default()
        };
        self.ask(id, |token| Request::Propose {
            token,
            id: header_id,
            payload: request.encode_to_vec().into(),
            quota_bytes: 1,
        })
    }

    fn take_reply(&mut self, asked: u64) -> Option<Reply> {
        let token_of = |reply: &Reply| match reply {
            Reply::Applied { token, .. }
            | Reply::Dropped { token, .. }
            | Reply::Readable { token }
            | Reply::Members { token, .. }
            | Reply::Renewed { token, .. }
            | Reply::LeaderMoved { token, .. } => Some(*token),
            _ => None,
        };
        let at = self
            .replies
            .iter()
            .position(|(_, reply)| token_of(reply) == Some(asked))?;
        Some(self.replies.remove(at).1)
    }

    fn put(&mut self, id: u64, key: &str) -> i64 {
        let token = self.begin_put(id, key);
        self.settle();
        match self.take_reply(token) {
            Some(Reply::Applied { outcome, .. }) => outcome.revision,
            other => panic!("{other:?}"),
        }
    }

    fn change(&mut self, id: u64, change: MemberChange) -> Result<Vec<Member>, MemberError> {
        let token = self.ask(id, |token| Request::ChangeMembers {
            token,
            id: token,
            change,
        });
        self.settle();
        match self.take_reply(token) {
            Some(Reply::Members { result, .. }) => result,
            other => panic!("{other:?}"),
        }
    }

    fn connect_all(&mut self) {
        let ids: Vec<u64> = self.up.keys().copied().collect();
        for (own, bench) in &mut self.up {
            for id in ids.iter().copied().filter(|id| id != own) {
                let event = FromPeers::Connected { id, is_connected: true };
                bench.core.handle_peer(event, bench.now);
            }
        }
        for _ in 0..60 {
            self.tick();
        }
    }

    fn assert_equal(&self) {
        let mut states = self.up.values().map(|bench| {
            let state = bench.core.state();
            (state.readable().revision, state.applied_index(), state.keys().keys())
        });
        let first = states.next().unwrap();
        assert!(states.all(|state| state == first), "{first:?}");
    }
}
