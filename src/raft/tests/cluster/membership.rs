//! Changes of the membership and of who leads.

use super::*;
use crate::raft::messages::MoveError;

fn add(id: u64) -> MemberChange {
    MemberChange::Add(Member {
        id,
        name: String::new(),
        is_learner: true,
        ..member(id)
    })
}

#[test]
fn members_come_as_learners_are_promoted_and_go() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.put(leader, "a");
    let follower = if leader == 1 { 2 } else { 1 };
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
    assert_eq!(cluster.change(leader, add(4)), Err(MemberError::IdExists));
    assert_eq!(
        cluster.change(leader, MemberChange::Promote(4)),
        Err(MemberError::LearnerNotReady)
    );
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
    remove(&mut cluster, leader, follower);
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

fn remove(cluster: &mut Cluster, leader: u64, follower: u64) {
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
}

/// Clients may name member 0, and an etcd that leads appends such a change like any other.
#[test]
fn a_change_of_member_0_finds_nobody_and_holds_up_nothing() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.connect_all();
    for asked in [leader, if leader == 1 { 2 } else { 1 }] {
        let update = MemberChange::Update {
            id: 0,
            peer_urls: vec!["http://127.0.0.1:1".to_string()],
        };
        for change in [MemberChange::Remove(0), update, MemberChange::Promote(0)] {
            let expected = match change {
                MemberChange::Promote(_) if asked != leader => MemberError::NotLeader,
                _ => MemberError::NotFound,
            };
            assert_eq!(cluster.change(asked, change.clone()), Err(expected), "{change:?}");
        }
    }
    cluster.put(leader, "after");
    cluster.assert_equal();
}

/// A change of a member says nothing of the connection to it.
#[test]
fn a_member_whose_urls_change_stays_connected() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.connect_all();
    let (updated, gone) = match leader {
        1 => (2, 3),
        2 => (1, 3),
        _ => (1, 2),
    };
    let update = MemberChange::Update {
        id: updated,
        peer_urls: vec!["http://127.0.0.1:1".to_string()],
    };
    cluster.change(leader, update).unwrap();
    let members = cluster.change(leader, MemberChange::Remove(gone)).unwrap();
    assert_eq!(members.len(), 2, "a majority of those left is connected");
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
