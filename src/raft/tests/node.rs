//! The node alone: what it promises about persistence, and what it makes of raft-rs's messages.

use crate::limits::RAFT_UNCOMMITTED_BYTES_MAX;
use crate::raft::node::{Node, Options, Proposed};
use crate::raft::storage::{LogStorage, Position};
use raft::eraftpb::{ConfState, Entry, HardState, Message, MessageType};

/// A node with nothing in its log.
fn node(voters: &[u64]) -> Node {
    let conf_state = ConfState {
        voters: voters.to_vec(),
        ..Default::default()
    };
    let storage = LogStorage::new(Position::default(), [], HardState::default(), conf_state);
    let options = Options {
        id: 7,
        election_ticks: 10,
        heartbeat_ticks: 1,
        applied: 0,
        pre_vote: false,
    };
    Node::new(options, storage).unwrap()
}

fn drain(node: &mut Node) -> Vec<u64> {
    let mut batches = Vec::new();
    while let Some(batch) = node.next_batch() {
        batches.extend(batch.entries.iter().map(|entry| entry.index));
        node.persisted();
    }
    batches
}

#[test]
fn a_sole_voter_leads_and_commits_only_what_is_persisted() {
    let mut node = node(&[7]);
    node.campaign().unwrap();
    assert_eq!(drain(&mut node), [1]);
    assert!(node.is_leader());
    let expected = Position {
        index: 2,
        term: node.term(),
    };
    assert_eq!(node.propose(vec!["a".into(), "b".into()]), Proposed::Appended(expected));
    while node.next_committed().is_some() {}
    let batch = node.next_batch().unwrap();
    assert!(batch.must_sync);
    assert_eq!(batch.entries.len(), 2);
    while let Some(batch) = node.next_batch() {
        assert!(batch.entries.is_empty());
    }
    assert!(!node.has_committed(), "committed before it was persisted");
    node.persisted();
    drain(&mut node);
    let applied: Vec<_> = std::iter::from_fn(|| node.next_committed())
        .map(|entry| entry.data)
        .collect();
    assert_eq!(applied, ["a", "b"]);
    node.applied(3);
    node.checkpointed(Position { index: 2, term: 1 }, ConfState::default(), 0, 0);
    assert_eq!(node.term_at(2), Some(node.term()));
}

/// The way there: what is behind a follower's last entry is thought to be on its way, is said to be committed, and
/// then turns out to be lost, all before messages are taken.
#[test]
fn appends_begin_where_their_entries_do() {
    let mut node = node(&[7, 8]);
    node.campaign().unwrap();
    drain(&mut node);
    let answer = |kind, index| {
        let mut message = Message {
            from: 8,
            to: 7,
            term: 1,
            index,
            ..Default::default()
        };
        message.set_msg_type(kind);
        message
    };
    node.step(answer(MessageType::MsgRequestVoteResponse, 0));
    drain(&mut node);
    node.step(answer(MessageType::MsgAppendResponse, 1));
    node.propose(vec!["a".into(), "b".into(), "c".into()]);
    drain(&mut node);
    node.take_messages();
    node.step(answer(MessageType::MsgAppendResponse, 2));
    let refusal = Message {
        reject: true,
        reject_hint: 2,
        ..answer(MessageType::MsgAppendResponse, 4)
    };
    node.step(refusal);
    drain(&mut node);
    let messages = node.take_messages();
    let appends = messages.iter().filter(|message| !message.entries.is_empty());
    let begins: Vec<_> = appends
        .map(|message| (message.index, message.entries[0].index))
        .collect();
    assert_eq!(begins, [(2, 3)], "{messages:?}");
}

/// What members pass on to a leader that commits nothing, again and again, is bounded.
#[test]
fn a_leader_holds_so_much_that_is_not_committed() {
    let mut node = node(&[7, 8]);
    node.campaign().unwrap();
    drain(&mut node);
    let mut vote = Message {
        from: 8,
        to: 7,
        term: 1,
        ..Default::default()
    };
    vote.set_msg_type(MessageType::MsgRequestVoteResponse);
    node.step(vote);
    drain(&mut node);
    // All share these bytes.
    let entry = Entry {
        data: vec![b'v'; 1 << 20].into(),
        ..Default::default()
    };
    for _ in 0..2 * (RAFT_UNCOMMITTED_BYTES_MAX >> 20) {
        let mut proposal = Message {
            from: 8,
            to: 7,
            entries: vec![entry.clone()],
            ..Default::default()
        };
        proposal.set_msg_type(MessageType::MsgPropose);
        node.step(proposal);
        drain(&mut node);
    }
    assert!(node.is_leader());
    assert!(node.last_index() << 20 <= RAFT_UNCOMMITTED_BYTES_MAX + (2 << 20));
}

#[test]
fn proposals_without_a_leader_are_dropped() {
    let mut node = node(&[7]);
    assert_eq!(node.propose(vec!["a".into()]), Proposed::Dropped);
    assert_eq!(node.last_index(), 0);
}
