//! A member whose log was lost, and one of which that is only said.

use super::*;
use crate::limits::LOG_LOST_HEARTBEATS;
use crate::raft::core::Fatal;

/// A cluster of which member 3, who does not lead, has lost its disk.
fn one_lost_its_disk() -> (Cluster, u64) {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    assert_ne!(leader, 3, "the first ids campaign first");
    cluster.put(leader, "a");
    cluster.tick();
    cluster.stop(3);
    cluster.down.insert(3, MemoryDisk::new());
    cluster.founders.clear();
    cluster.start(3);
    (cluster, leader)
}

/// The leader's heartbeat to member 3 in the next tick.
fn heartbeat(cluster: &mut Cluster, leader: u64) -> RaftMessage {
    let bench = cluster.up.get_mut(&leader).unwrap();
    bench.now += TICK;
    bench.settle();
    let messages = bench.core.take_to_peers().filter_map(|order| match order {
        ToPeers::Messages(messages) => Some(messages),
        _ => None,
    });
    let is_meant = |message: &RaftMessage| message.get_msg_type() == MessageType::MsgHeartbeat && message.to == 3;
    messages.flatten().find(is_meant).expect("a leader's heartbeat")
}

/// Member 3 takes a message after `wait`.
fn hear(cluster: &mut Cluster, message: RaftMessage, wait: Duration) -> Result<(), Fatal> {
    let bench = cluster.up.get_mut(&3).unwrap();
    bench.now += wait;
    let message = FromPeers::Message(Box::new(message));
    bench.core.handle_peer(message, bench.now);
    bench.core.turn(&mut bench.disk, bench.now).map(|_| ())
}

/// As many heartbeats of the leader as it takes, and one more; how that ends.
pub(super) fn hear_a_row(cluster: &mut Cluster, message: &RaftMessage) -> Result<(), Fatal> {
    (0..=LOG_LOST_HEARTBEATS).try_for_each(|_| hear(cluster, message.clone(), TICK))
}

/// A heartbeat as the leader sends it to member 3, that speaks of an entry beyond its log.
pub(super) fn forged(cluster: &mut Cluster, leader: u64) -> RaftMessage {
    let node = cluster.up.get_mut(&3).unwrap().core.node();
    let mut message = RaftMessage {
        from: leader,
        to: 3,
        term: node.term(),
        commit: node.last_index() + 1,
        ..RaftMessage::default()
    };
    message.set_msg_type(MessageType::MsgHeartbeat);
    message
}

/// It has forgotten what it acknowledged and whom it voted for: another leader could be made with its vote, without
/// what it was counted for.
#[test]
fn a_member_whose_log_was_lost_ends_when_its_leader_speaks_of_it() {
    let (mut cluster, leader) = one_lost_its_disk();
    for number in 1..LOG_LOST_HEARTBEATS {
        let real = heartbeat(&mut cluster, leader);
        assert!(real.commit > 0, "{real:?}");
        hear(&mut cluster, real, TICK).unwrap_or_else(|end| panic!("by {number}: {end}"));
    }
    let last = heartbeat(&mut cluster, leader);
    let committed = last.commit;
    let end = hear(&mut cluster, last, TICK).unwrap_err();
    assert!(matches!(end, Fatal::LogLost(_)), "{end:?}");
    let expected = format!("the log ends at 0, and the leader {leader:x} knows that entry {committed} was in it");
    assert!(end.to_string().contains(&expected), "{end}");
}

/// What a leader asks for that the log does not have, it asks of every member that lags: it shows nothing, either way.
#[test]
fn appends_beyond_the_log_do_not_hide_that_it_was_lost() {
    let (mut cluster, leader) = one_lost_its_disk();
    let real = heartbeat(&mut cluster, leader);
    let mut beyond = RaftMessage {
        index: real.commit,
        log_term: real.term,
        ..real.clone()
    };
    beyond.set_msg_type(MessageType::MsgAppend);
    for _ in 1..LOG_LOST_HEARTBEATS {
        hear(&mut cluster, real.clone(), TICK).unwrap();
        hear(&mut cluster, beyond.clone(), TICK).unwrap();
    }
    let node = cluster.up.get_mut(&3).unwrap().core.node();
    assert_eq!(
        (node.leader(), node.last_index()),
        (leader, 0),
        "it follows the leader by now"
    );
    let end = hear(&mut cluster, real, TICK).unwrap_err();
    assert!(matches!(end, Fatal::LogLost(_)), "{end:?}");
}

/// A leader that was elected after the accident knows nothing of it.
#[test]
fn a_new_leader_lets_a_member_begin_from_nothing() {
    let (mut cluster, leader) = one_lost_its_disk();
    let mut of_a_new_leader = heartbeat(&mut cluster, leader);
    of_a_new_leader.commit = 0;
    hear_a_row(&mut cluster, &of_a_new_leader).unwrap();
}

#[test]
fn forged_heartbeats_between_real_ones_end_nobody() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    let one = forged(&mut cluster, leader);
    hear(&mut cluster, one, Duration::ZERO).unwrap();
    for _ in 0..10 {
        cluster.tick();
        // However many come before the next real one.
        for wait_ms in [0, 0, 1, 2, 60, 0, 1, 2] {
            let forged = forged(&mut cluster, leader);
            hear(&mut cluster, forged, Duration::from_millis(wait_ms)).unwrap();
        }
    }
    assert_eq!(cluster.leaders(), [leader]);
    assert_eq!(cluster.put(leader, "a"), 2);
    cluster.tick();
    cluster.assert_equal();
}

/// Appends come as often as a leader has something to write.
#[test]
fn an_append_that_follows_on_the_log_begins_the_row_anew() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    cluster.lost = vec![MessageType::MsgHeartbeat];
    for number in 0..2 * LOG_LOST_HEARTBEATS {
        let forged = forged(&mut cluster, leader);
        hear(&mut cluster, forged, TICK).unwrap();
        cluster.put(leader, &format!("key {number}"));
    }
}

#[test]
fn only_the_leader_of_this_term_or_of_a_later_one_is_believed() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    let leader = cluster.elect();
    let of_the_leader = forged(&mut cluster, leader);
    let of_another = RaftMessage {
        from: 3 - leader,
        ..of_the_leader.clone()
    };
    hear_a_row(&mut cluster, &of_another).unwrap();
    let fits = RaftMessage {
        commit: 0,
        ..of_the_leader.clone()
    };
    hear(&mut cluster, fits, TICK).unwrap();
    // In turns they make no row.
    let of_a_later_term = RaftMessage {
        term: of_another.term + 1,
        ..of_another
    };
    for _ in 0..LOG_LOST_HEARTBEATS {
        hear(&mut cluster, of_the_leader.clone(), TICK).unwrap();
        hear(&mut cluster, of_a_later_term.clone(), TICK).unwrap();
    }
    let follows_another = RaftMessage {
        commit: 0,
        ..of_a_later_term.clone()
    };
    hear(&mut cluster, follows_another, TICK).unwrap();
    // What was sent in an earlier term may come at any time, and shows nothing, either way.
    hear_a_row(&mut cluster, &of_the_leader).unwrap();
    for _ in 1..LOG_LOST_HEARTBEATS {
        hear(&mut cluster, of_a_later_term.clone(), TICK).unwrap();
        hear(&mut cluster, of_the_leader.clone(), TICK).unwrap();
    }
    let end = hear(&mut cluster, of_a_later_term, TICK).unwrap_err();
    assert!(matches!(end, Fatal::LogLost(_)), "{end:?}");
}
