//! Elections, replication, forwarding, and what becomes of proposals whose leader is gone.

use super::*;

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

/// Heartbeats go on while a leader's disk stalls, so it has to notice by itself that it is of no use.
#[test]
fn a_leader_whose_log_stands_still_hands_leadership_over() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    assert_eq!(cluster.put(leader, "a"), 2);
    let stall = |cluster: &mut Cluster, id: u64, stalled| cluster.up.get_mut(&id).unwrap().is_stalled = stalled;
    stall(&mut cluster, leader, true);
    for _ in 0..30 {
        cluster.tick();
    }
    assert_eq!(cluster.leaders(), [leader], "without writes nothing is missing");
    let waits = cluster.begin_put(leader, "b");
    cluster.wait(
        "another leads",
        |cluster| matches!(cluster.leaders()[..], [other] if other != leader),
    );
    assert!(cluster.take_reply(waits).is_none());
    let second = cluster.elect();
    assert_eq!(cluster.put(second, "c"), 4, "the others do without its disk");
    stall(&mut cluster, leader, false);
    cluster.tick();
    assert!(
        matches!(cluster.take_reply(waits), Some(Reply::Applied { .. })),
        "what was written is told"
    );
    cluster.tick();
    cluster.assert_equal();
}

#[test]
fn a_leader_without_room_to_apply_hands_leadership_over() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    assert_eq!(cluster.put(leader, "a"), 2);
    cluster.wait("another leads", |cluster| {
        let core = &mut cluster.up.get_mut(&leader).unwrap().core;
        // Until the turn's checkpoint, which finds room here.
        core.applier.no_space = true;
        core.dirty_bytes = 1 << 40;
        matches!(cluster.leaders()[..], [other] if other != leader)
    });
    let second = cluster.elect();
    assert_eq!(cluster.put(second, "b"), 3);
}

#[test]
fn a_leader_leads_on_when_all_disks_stall() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    assert_eq!(cluster.put(leader, "a"), 2);
    cluster.up.values_mut().for_each(|bench| bench.is_stalled = true);
    let waits = cluster.begin_put(leader, "b");
    for _ in 0..50 {
        cluster.tick();
    }
    assert_eq!(cluster.leaders(), [leader]);
    cluster.up.values_mut().for_each(|bench| bench.is_stalled = false);
    cluster.tick();
    assert!(matches!(cluster.take_reply(waits), Some(Reply::Applied { .. })));
    assert_eq!(cluster.put(leader, "c"), 4);
}

/// Those that hear a leader wait for it. When it steps down for it hears none of them, they need not wait again.
#[test]
fn a_leader_that_hears_nobody_says_that_it_steps_down() {
    for phase in 0..10 {
        let mut cluster = Cluster::new(&[1, 2, 3]);
        let leader = cluster.elect();
        assert_eq!(cluster.put(leader, "a"), 2);
        for _ in 0..phase {
            cluster.tick();
        }
        for other in [1, 2, 3].into_iter().filter(|other| *other != leader) {
            cluster.cut.insert((other, leader));
        }
        let mut ticks = 0;
        while cluster.leaders().iter().all(|other| *other == leader) {
            cluster.tick();
            ticks += 1;
            assert!(ticks <= 20, "more than two election time-outs, phase {phase}");
        }
        cluster.cut.clear();
        let second = cluster.elect();
        assert_ne!(second, leader);
        assert_eq!(cluster.put(leader, "b"), 3);
    }
}
