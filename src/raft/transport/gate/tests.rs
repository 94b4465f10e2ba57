//! Each rule: raft panics without it, and nothing comes of the message with it. And no drawn life of a member panics.

use super::*;
use crate::raft::transport::fuzz;
use crate::raft::transport::fuzz::member::Member;
use proptest::prelude::*;
use raft::eraftpb::{Entry, Snapshot};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn entry(term: u64, index: u64) -> Entry {
    Entry {
        term,
        index,
        data: "data".into(),
        ..Entry::default()
    }
}

fn message(kind: MessageType, term: u64) -> Message {
    let mut message = Message {
        to: 1,
        from: 2,
        term,
        ..Message::default()
    };
    message.set_msg_type(kind);
    message
}

fn append(term: u64, log_term: u64, index: u64, entries: Vec<Entry>) -> Message {
    Message {
        log_term,
        index,
        entries,
        ..message(MessageType::MsgAppend, term)
    }
}

/// Entries 1 to 5 of term 1, of which 3 are committed and applied.
fn follower() -> Member {
    let mut member = Member::new(1, &[1, 2, 3], &[4]);
    let entries = (1..=5).map(|index| entry(1, index)).collect();
    let mut first = append(1, 0, 0, entries);
    first.commit = 3;
    member.receive(first).unwrap();
    member.persist_all();
    member.apply();
    assert_eq!((member.last_index(), member.committed()), (5, 3));
    member
}

fn leader() -> Member {
    let mut member = follower();
    member.elect();
    member.persist_all();
    assert_eq!(member.role(), StateRole::Leader);
    assert_eq!((member.term(), member.last_index()), (2, 6));
    member
}

fn committed_leader() -> Member {
    let mut member = leader();
    let response = Message {
        index: 6,
        ..message(MessageType::MsgAppendResponse, 2)
    };
    member.receive(response).unwrap();
    member.persist_all();
    assert_eq!(member.committed(), 6);
    member
}

/// A voter that stands for election with something unpersisted: its own word that it may not is all that helps.
fn hasty_candidate() -> Member {
    let mut member = follower();
    member.receive(append(1, 1, 5, vec![entry(1, 6)])).unwrap();
    member.raw.campaign().unwrap();
    member
        .raw
        .step(message(MessageType::MsgRequestPreVoteResponse, 2))
        .unwrap();
    assert!(member.role() == StateRole::Candidate && !member.may_campaign());
    member
}

fn snapshot(term: u64, metadata_term: u64, index: u64, voters: &[u64], learners: &[u64]) -> Message {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (index, metadata_term);
    *metadata.mut_conf_state() = (voters.to_vec(), learners.to_vec()).into();
    Message {
        snapshot: Some(snapshot),
        ..message(MessageType::MsgSnapshot, term)
    }
}

/// Messages that end raft 0.7, or leave it in a state that will.
type Poison = (&'static str, Member, Message);

fn poisonous_snapshots() -> Vec<Poison> {
    let mut odd = snapshot(1, 1, 9, &[1], &[]);
    odd.mut_snapshot().mut_metadata().mut_conf_state().auto_leave = true;
    vec![
        ("a snapshot of nobody", follower(), snapshot(1, 1, 9, &[0, 1], &[])),
        ("a snapshot without voters", follower(), snapshot(1, 1, 9, &[], &[1])),
        (
            "a snapshot with a voter that learns",
            follower(),
            snapshot(1, 1, 9, &[1, 2], &[2]),
        ),
        ("a snapshot between configurations", follower(), odd),
        ("a snapshot of term 0", follower(), snapshot(1, 0, 9, &[1, 2], &[])),
    ]
}

fn poisonous() -> Vec<Poison> {
    use MessageType::*;
    let heartbeat = Message {
        commit: 6,
        ..message(MsgHeartbeat, 1)
    };
    let transfer = message(MsgTransferLeader, 1);
    let index = |kind, index| Message {
        index,
        ..message(kind, 2)
    };
    vec![
        ("a gap", follower(), append(1, 1, 5, vec![entry(1, 8)])),
        (
            "beyond the log, of term 0",
            follower(),
            append(1, 0, 9, vec![entry(1, 10)]),
        ),
        ("an entry of term 0", follower(), {
            let mut append = append(1, 1, 5, vec![entry(0, 6)]);
            append.commit = 6;
            append
        }),
        ("an index that overflows", follower(), {
            let mut append = append(1, 1, 5, vec![entry(1, u64::MAX)]);
            append.commit = 6;
            append
        }),
        (
            "entries before what they follow",
            follower(),
            append(1, 1, 5, vec![entry(2, 2)]),
        ),
        ("a commit index beyond the log", follower(), heartbeat),
        ("a term for a proposal", follower(), {
            let mut proposal = message(MsgPropose, 1);
            proposal.entries.push(entry(0, 0));
            proposal
        }),
        ("a term for a read", follower(), {
            let mut read = message(MsgReadIndex, 1);
            read.entries.push(entry(0, 0));
            read
        }),
        ("a transfer to pass on", follower(), transfer),
        (
            "a vote in no term",
            Member::new(1, &[1, 2], &[]),
            message(MsgRequestVote, 0),
        ),
        ("an append in no term", hasty_candidate(), append(0, 0, 0, vec![])),
        ("an election with something unpersisted", hasty_candidate(), {
            message(MsgRequestVoteResponse, 2)
        }),
        ("nothing proposed", leader(), message(MsgPropose, 0)),
        ("a read without a name", committed_leader(), message(MsgReadIndex, 0)),
        (
            "an acknowledgement that overflows",
            leader(),
            index(MsgAppendResponse, u64::MAX),
        ),
    ]
}

#[test]
fn what_ends_raft_does_not_come_through() {
    for (what, mut member, message) in poisonous().into_iter().chain(poisonous_snapshots()) {
        let refusal = check(&message, &member);
        assert!(refusal.is_err(), "{what} comes through");
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let _ = member.raw.step(message);
            member.persist_all();
        }));
        assert!(ended.is_err(), "raft lives with {what}: is the rule needed?");
    }
}

#[test]
fn what_would_be_believed_does_not_come_through() {
    use MessageType::*;
    let refused = |member: &Member, message: Message| check(&message, member).unwrap_err();
    let member = leader();
    let response = Message {
        index: 7,
        ..message(MsgAppendResponse, 2)
    };
    let beyond = Refusal::BeyondLog { index: 7, last: 6 };
    assert_eq!(refused(&member, response.clone()), beyond);
    let rejection = Message {
        reject: true,
        ..response
    };
    assert_eq!(check(&rejection, &member), Ok(()));
    let member = follower();
    let diverged = |index, theirs, ours| Refusal::Diverged { index, theirs, ours };
    assert_eq!(refused(&member, append(3, 2, 3, vec![])), diverged(3, 2, 1));
    assert_eq!(refused(&member, append(3, 2, 2, vec![])), diverged(2, 2, 1));
    let replaced = append(3, 1, 2, vec![entry(2, 3)]);
    assert_eq!(refused(&member, replaced.clone()), diverged(3, 2, 1));
    assert_eq!(refused(&member, snapshot(3, 3, 3, &[1], &[])), diverged(3, 3, 1));
    // From an earlier term raft answers it and believes nothing.
    let mut later = follower();
    later.receive(append(4, 1, 5, vec![])).unwrap();
    assert_eq!(check(&replaced, &later), Ok(()));
    // What is not committed may be replaced.
    assert_eq!(check(&append(3, 1, 3, vec![entry(2, 4)]), &member), Ok(()));
    let timeout = message(MsgTimeoutNow, 2);
    assert_eq!(
        refused(&hasty_candidate(), message(MsgTimeoutNow, 3)),
        Refusal::MayNotLead
    );
    assert_eq!(check(&timeout, &member), Ok(()));
    assert_eq!(refused(&Member::new(1, &[2], &[1]), timeout), Refusal::MayNotLead);
}

#[test]
fn senders_and_receivers_are_who_they_say() {
    use MessageType::*;
    let heartbeat = message(MsgHeartbeat, 1);
    let with = |to, from| Message {
        to,
        from,
        ..heartbeat.clone()
    };
    assert_eq!(form(&with(5, 2), 1, None), Err(Refusal::NotForUs(5)));
    assert_eq!(form(&with(1, 0), 1, None), Err(Refusal::Sender(0)));
    assert_eq!(form(&with(1, 1), 1, None), Err(Refusal::Sender(1)));
    let other = Refusal::OtherSender { came_from: 3, says: 2 };
    assert_eq!(form(&heartbeat, 1, Some(3)), Err(other));
    assert_eq!(form(&heartbeat, 1, Some(2)), Ok(()));
    let mut forwarded = message(MsgPropose, 0);
    forwarded.entries.push(entry(0, 0));
    assert_eq!(form(&forwarded, 1, Some(3)), Ok(()));
    let mut removed = follower();
    removed.removed.push(2);
    assert_eq!(check(&heartbeat, &removed), Err(Refusal::Removed(2)));
    for kind in [0, 1, 10, 11, 12, 19, -1, i32::MAX] {
        let local = Message {
            msg_type: kind,
            ..heartbeat.clone()
        };
        assert_eq!(form(&local, 1, None), Err(Refusal::Kind(kind)));
    }
}

#[test]
fn entries_that_nobody_could_apply_do_not_come_through() {
    let with = |kind: i32, data: &'static [u8]| {
        let entry = Entry {
            entry_type: kind,
            data: bytes::Bytes::from_static(data),
            ..entry(1, 6)
        };
        let mut proposal = message(MessageType::MsgPropose, 0);
        proposal.entries.push(entry.clone());
        let both = [form(&append(1, 1, 5, vec![entry]), 1, None), form(&proposal, 1, None)];
        assert_eq!(both[0].is_ok(), both[1].is_ok());
        both[0].is_ok()
    };
    assert!(with(0, b"anything"));
    assert!(with(1, &[0x10, 3, 0x18, 9]));
    assert!(!with(1, &[0x10, 9]), "an unknown change");
    assert!(with(1, &[0x10, 1, 0x18, 0]), "of member 0, which clients may name");
    assert!(!with(1, &[0xff]), "none at all");
    assert!(!with(2, &[]), "a ConfChangeV2");
    assert!(!with(3, &[]), "of an unknown type");
}

/// A leader that applied its own removal and was not stopped.
#[test]
fn a_leader_that_is_not_in_its_configuration_counts_nothing() {
    let mut member = leader();
    let mut data = Vec::new();
    let removal = ConfChange {
        change: wire::Change::RemoveNode,
        node_id: 1,
        ..ConfChange::default()
    };
    removal.encode(&mut data);
    let change = removal.for_raft().unwrap();
    member.raw.apply_conf_change(&change).unwrap();
    assert!(!member.is_member() && member.role() == StateRole::Leader);
    let response = Message {
        index: 6,
        ..message(MessageType::MsgAppendResponse, 2)
    };
    assert_eq!(check(&response, &member), Err(Refusal::NotLeading));
    let from = |from| Message {
        from,
        ..response.clone()
    };
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let _ = (member.raw.step(from(2)), member.raw.step(from(3)));
    }));
    assert!(ended.is_err(), "raft lives with it: is the rule needed?");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_drawn_life_panics(input in proptest::collection::vec(any::<u8>(), 0..2000)) {
        fuzz::gate(&input);
    }
}
