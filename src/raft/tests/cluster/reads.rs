//! Read indexes, and leases under a leader who may not be one any more.

use super::*;

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

fn grant(cluster: &mut Cluster, leader: u64, id: i64) {
    let grant = InternalRaftRequest {
        lease_grant: Some(LeaseGrantRequest { ttl: 2, id }),
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
}

/// A renewal that waits for a revocation is answered when leadership ends, to be asked of the next leader: its entry
/// may never be applied.
#[test]
fn a_renewal_that_waits_for_a_revocation_is_given_up_with_leadership() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    grant(&mut cluster, leader, 77);
    // Nothing is committed any more, but the leader is known to lead: the lease runs out and is not revoked.
    cluster.lost.push(MessageType::MsgAppendResponse);
    for _ in 0..60 {
        cluster.tick();
    }
    assert_eq!(cluster.leaders(), [leader]);
    let renewal = cluster.ask(leader, |token| Request::Renew { token, id: 77 });
    cluster.settle();
    assert!(cluster.take_reply(renewal).is_none(), "it waits for the revocation");
    cluster.isolate(leader);
    cluster.wait("the renewal is given up", |cluster| {
        matches!(cluster.take_reply(renewal), Some(Reply::Renewed { ttl_s: None, .. }))
    });
}

/// DESIGN 12 (20): who leads without knowing it expires nothing and renews nothing.
#[test]
fn rule_20_a_leader_alone_neither_expires_nor_renews() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    grant(&mut cluster, leader, 77);
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
