//! Several log cores that pass each other messages: elections, replication, forwarding, read indexes, membership.

use super::*;
use crate::raft::messages::{FromPeers, MemberChange, MemberError, MoveError, ToPeers};
use raft::eraftpb::{Message as RaftMessage, MessageType};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Time for an election, with those that come to nothing.
const ELECTION_TICKS: usize = 100;

fn boot_of(id: u64, founders: &[u64]) -> Boot {
    let mut boot = boot();
    boot.replica.identity.member_id = id;
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
    on_the_way: VecDeque<RaftMessage>,
    replies: Vec<(u64, Reply)>,
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
            on_the_way: VecDeque::new(),
            replies: Vec::new(),
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
        bench.core.set_election_timeout(10 + 2 * id as usize);
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
                    if let ToPeers::Messages(messages) = order {
                        self.on_the_way.extend(messages);
                    }
                }
            }
            if self.on_the_way.is_empty() {
                return;
            }
            while let Some(message) = self.on_the_way.pop_front() {
                let is_lost =
                    self.cut.contains(&(message.from, message.to)) || self.lost.contains(&message.get_msg_type());
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

#[test]
fn three_members_elect_replicate_and_answer_where_they_were_asked() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    let follower = if leader == 1 { 2 } else { 1 };
    assert_eq!(cluster.put(leader, "a"), 2);
    assert_eq!(
        cluster.put(follower, "b"),
        3,
        "a follower's proposal goes through the leader"
    );
    cluster.tick();
    cluster.assert_equal();
    cluster.wait("all have said who they are", |cluster| {
        cluster.up.values().all(|bench| bench.core.is_published())
    });
    for bench in cluster.up.values() {
        assert_eq!(bench.core.state().members().iter().count(), 3);
        assert!(bench.core.state().members().iter().all(|member| member.name == "m"));
    }
}

#[test]
fn what_was_acknowledged_survives_the_leader_and_restarts_of_all() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    assert_eq!(cluster.put(leader, "a"), 2);
    cluster.stop(leader);
    let second = cluster.elect();
    assert_eq!(cluster.put(second, "b"), 3);
    cluster.start(leader);
    cluster.elect();
    cluster.tick();
    cluster.assert_equal();
    for id in [1, 2, 3] {
        cluster.stop(id);
    }
    for id in [1, 2, 3] {
        cluster.start(id);
    }
    let third = cluster.elect();
    assert_eq!(cluster.put(third, "c"), 4);
    assert_eq!(cluster.up[&third].revision_of("a"), Some(2));
    cluster.tick();
    cluster.assert_equal();
}

#[test]
fn a_leader_alone_acknowledges_nothing_and_its_proposals_are_replaced() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.isolate(leader);
    let lost = cluster.begin_put(leader, "lost");
    cluster.tick();
    assert!(cluster.take_reply(lost).is_none());
    cluster.wait("another leads and the first has stepped down", |cluster| {
        let leaders = cluster.leaders();
        leaders.len() == 1 && leaders[0] != leader
    });
    let second = cluster.leaders()[0];
    let held = cluster.begin_put(leader, "held");
    cluster.settle();
    assert!(
        cluster.take_reply(held).is_none(),
        "a proposal waits while there is no leader"
    );
    assert_eq!(cluster.put(second, "won"), 2);
    cluster.cut.clear();
    cluster.elect();
    cluster.wait("the replaced one is told", |cluster| {
        cluster.tick();
        matches!(
            cluster.take_reply(lost),
            Some(Reply::Dropped {
                reason: Dropped::NoLeader,
                ..
            })
        )
    });
    cluster.wait("what was held goes through the new leader", |cluster| {
        matches!(cluster.take_reply(held), Some(Reply::Applied { .. }))
    });
    cluster.tick();
    cluster.assert_equal();
    assert_eq!(cluster.up[&leader].revision_of("lost"), None);
}

#[test]
fn proposals_without_a_leader_are_given_up_in_time() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    for id in [1, 2, 3] {
        if id != leader {
            cluster.stop(id);
        }
    }
    cluster.wait("it steps down", |cluster| cluster.leaders().is_empty());
    let token = cluster.begin_put(leader, "a");
    let read = cluster.ask(leader, |token| Request::ReadIndex { token });
    for _ in 0..60 {
        cluster.tick();
        assert!(cluster.take_reply(token).is_none() && cluster.take_reply(read).is_none());
    }
    for _ in 0..15 {
        cluster.tick();
    }
    for asked in [token, read] {
        let reply = cluster.take_reply(asked);
        assert!(matches!(reply, Some(Reply::Dropped { .. })), "{reply:?}");
    }
    assert_eq!(cluster.up[&leader].core.pending(), 0);
}

/// DESIGN 12 (15): a read is confirmed by a majority, and sees what was acknowledged before.
#[test]
fn rule_15_reads_are_confirmed_by_a_majority() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    let follower = if leader == 1 { 2 } else { 1 };
    let revision = cluster.put(leader, "a");
    for id in [leader, follower] {
        let token = cluster.ask(id, |token| Request::ReadIndex { token });
        cluster.settle();
        let reply = cluster.take_reply(token);
        assert!(matches!(reply, Some(Reply::Readable { .. })), "{reply:?}");
        let index = cluster.up[&id].core.state().index().clone();
        assert!(index.pin().view().revision >= revision);
        assert!(!index.pin().view().sole_voter);
    }
    cluster.isolate(leader);
    let token = cluster.ask(leader, |token| Request::ReadIndex { token });
    for _ in 0..30 {
        cluster.tick();
        assert!(cluster.take_reply(token).is_none(), "confirmed by nobody");
    }
    assert_ne!(cluster.leaders(), [leader]);
    cluster.cut.clear();
    cluster.wait("the read is confirmed by the new leader", |cluster| {
        matches!(cluster.take_reply(token), Some(Reply::Readable { .. }))
    });
}

/// DESIGN 12 (15): a confirmation that was lost is asked for anew.
#[test]
fn rule_15_a_lost_round_is_sent_anew_with_another_context() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.put(leader, "a");
    cluster.lost.push(MessageType::MsgHeartbeatResponse);
    let token = cluster.ask(leader, |token| Request::ReadIndex { token });
    cluster.tick();
    assert!(cluster.take_reply(token).is_none());
    cluster.lost.clear();
    for _ in 0..10 {
        cluster.tick();
    }
    assert!(matches!(cluster.take_reply(token), Some(Reply::Readable { .. })));
}

/// A heartbeat response that was delayed for as long as a leadership lasted elsewhere, and its copies, confirm nothing
/// to a round that began after it.
#[test]
fn rule_15_a_late_or_repeated_confirmation_confirms_no_later_round() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.put(leader, "a");
    // A first round, whose confirmations are caught.
    let first = cluster.ask(leader, |token| Request::ReadIndex { token });
    let mut caught = Vec::new();
    for round in 0..2 {
        for (id, bench) in &mut cluster.up {
            bench.settle();
            for order in bench.core.take_to_peers() {
                let ToPeers::Messages(messages) = order else { continue };
                let (late, other): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| {
                    message.get_msg_type() == MessageType::MsgHeartbeatResponse && !message.context.is_empty()
                });
                assert!(late.is_empty() || (round == 1 && *id != leader));
                caught.extend(late);
                cluster.on_the_way.extend(other);
            }
        }
        while let Some(message) = cluster.on_the_way.pop_front() {
            let bench = cluster.up.get_mut(&message.to).unwrap();
            bench.core.handle_peer(FromPeers::Message(Box::new(message)), bench.now);
        }
    }
    assert_eq!(caught.len(), 2, "both followers confirm");
    // The leader is cut off, another writes.
    cluster.isolate(leader);
    let second = cluster.ask(leader, |token| Request::ReadIndex { token });
    let retry = crate::limits::RAFT_READ_RETRY_TICKS;
    for _ in 0..=retry {
        let bench = cluster.up.get_mut(&leader).unwrap();
        bench.now += TICK;
        bench.settle();
    }
    for message in caught.iter().chain(&caught).cloned() {
        let bench = cluster.up.get_mut(&leader).unwrap();
        bench.core.handle_peer(FromPeers::Message(Box::new(message)), bench.now);
        let replies = bench.settle();
        let is_readable = |reply: &Reply| matches!(reply, Reply::Readable { .. });
        assert!(
            !replies.iter().any(is_readable),
            "confirmed by what was sent before it was asked"
        );
    }
    assert!(cluster.take_reply(first).is_none() && cluster.take_reply(second).is_none());
}

#[test]
fn members_come_as_learners_are_promoted_and_go() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.put(leader, "a");
    let follower = if leader == 1 { 2 } else { 1 };
    let learner = |id| Member {
        id,
        name: String::new(),
        is_learner: true,
        ..member(id)
    };
    let add = |id| MemberChange::Add(learner(id));
    assert_eq!(
        cluster.change(leader, add(4)),
        Err(MemberError::Unhealthy),
        "nobody is known to be connected"
    );
    cluster.connect_all();
    let members = cluster.change(follower, add(4)).unwrap();
    assert_eq!(members.len(), 4);
    assert!(members.iter().any(|member| member.id == 4 && member.is_learner));
    assert_eq!(cluster.change(leader, add(5)), Err(MemberError::TooManyLearners));
    assert_eq!(
        cluster.change(leader, add(4)),
        Err(MemberError::PeerUrlExists).or(Err(MemberError::IdExists))
    );
    assert!(matches!(
        cluster.change(leader, MemberChange::Promote(4)),
        Err(MemberError::LearnerNotReady { matched: 0, .. })
    ));
    cluster.start(4);
    cluster.wait("the learner has caught up", |cluster| {
        cluster.up[&4].revision_of("a").is_some() && cluster.up[&4].core.is_published()
    });
    assert_eq!(
        cluster.change(follower, MemberChange::Promote(4)),
        Err(MemberError::NotLeader)
    );
    let members = cluster.change(leader, MemberChange::Promote(4)).unwrap();
    assert!(members.iter().all(|member| !member.is_learner));
    assert_eq!(
        cluster.change(leader, MemberChange::Promote(4)),
        Err(MemberError::NotLearner)
    );
    cluster.connect_all();
    let members = cluster.change(leader, MemberChange::Remove(follower)).unwrap();
    assert_eq!(members.len(), 3);
    assert_eq!(
        cluster.change(leader, MemberChange::Remove(follower)),
        Err(MemberError::NotFound)
    );
    assert_eq!(
        cluster.change(leader, add(follower)),
        Err(MemberError::NotFound),
        "an id never comes back"
    );
    cluster.stop(follower);
    cluster.tick();
    cluster.assert_equal();
    cluster.put(4, "b");
    // What was decided is also what a restart finds.
    let ids: Vec<u64> = cluster.up.keys().copied().collect();
    for id in &ids {
        cluster.stop(*id);
    }
    for id in ids {
        cluster.start(id);
    }
    cluster.elect();
    cluster.put(4, "c");
    cluster.tick();
    cluster.assert_equal();
}

#[test]
fn a_removed_member_ends() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.connect_all();
    cluster.put(leader, "a");
    let gone = if leader == 3 { 2 } else { 3 };
    cluster.change(leader, MemberChange::Remove(gone)).unwrap();
    cluster.settle();
    let bench = cluster.up.get_mut(&gone).unwrap();
    assert!(bench.core.state().members().is_removed(gone), "it heard of it");
    bench.now += Duration::from_secs(2);
    let error = bench.core.turn(&mut bench.disk, bench.now).unwrap_err();
    assert!(error.to_string().contains("removed from the cluster"), "{error}");
}

#[test]
fn leadership_moves_when_told() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.put(leader, "a");
    let to = if leader == 3 { 2 } else { 3 };
    let move_to = |cluster: &mut Cluster, asked, to| {
        let token = cluster.ask(asked, |token| Request::MoveLeader { token, to });
        cluster.settle();
        match cluster.take_reply(token) {
            Some(Reply::LeaderMoved { result, .. }) => result,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(move_to(&mut cluster, to, leader), Err(MoveError::NotLeader));
    assert_eq!(move_to(&mut cluster, leader, 9), Err(MoveError::BadTransferee));
    assert_eq!(move_to(&mut cluster, leader, to), Ok(()));
    assert_eq!(cluster.elect(), to);
    cluster.put(leader, "b");
}

/// DESIGN 12 (20): who leads without knowing it expires nothing and renews nothing.
#[test]
fn rule_20_a_leader_alone_neither_expires_nor_renews() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    let grant = InternalRaftRequest {
        lease_grant: Some(LeaseGrantRequest { ttl: 2, id: 77 }),
        ..Default::default()
    };
    let token = cluster.ask(leader, |token| Request::Propose {
        token,
        id: token,
        payload: grant.encode_to_vec().into(),
        quota_bytes: 0,
    });
    cluster.settle();
    assert!(matches!(cluster.take_reply(token), Some(Reply::Applied { .. })));
    let renewed = cluster.ask(leader, |token| Request::Renew { token, id: 77 });
    cluster.settle();
    let reply = cluster.take_reply(renewed);
    assert!(
        matches!(reply, Some(Reply::Renewed { ttl_s: Some(_), .. })),
        "{reply:?}"
    );
    cluster.isolate(leader);
    let in_vain = cluster.ask(leader, |token| Request::Renew { token, id: 77 });
    let bench = cluster.up.get_mut(&leader).unwrap();
    let proposed = bench.core.last_index();
    for _ in 0..9 {
        bench.now += TICK;
        bench.settle();
    }
    // Time passes at once, as after a pause of the process: it still believes to lead in this turn.
    bench.now += Duration::from_secs(60);
    bench.settle();
    assert_eq!(bench.core.last_index(), proposed, "a revocation was proposed");
    cluster.settle();
    assert!(!matches!(
        cluster.take_reply(in_vain),
        Some(Reply::Renewed { ttl_s: Some(_), .. })
    ));
    cluster.cut.clear();
    let second = cluster.elect();
    cluster.wait("the new leader lets it expire", |cluster| {
        cluster.up[&second].core.state().lessor().is_empty()
    });
}
