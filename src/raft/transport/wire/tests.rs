//! The translation against itself and against bytes written down by hand. Against etcd's code: `tests/peer_codec.rs`.

use super::*;
use crate::limits::transport as limits;
use crate::raft::transport::arbitrary;
use bytes::Bytes;
use proptest::prelude::*;
use raft::eraftpb::{self, ConfChangeType, Entry, Message, MessageType, Snapshot};

fn encoded(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, &mut out).expect("a message that can leave");
    out
}

#[test]
fn numbers_are_raftpbs() {
    let mut message = Message {
        to: 1,
        from: 2,
        term: 3,
        log_term: 4,
        index: 5,
        entries: vec![Entry {
            entry_type: 1,
            term: 6,
            index: 7,
            data: "d".into(),
            ..Entry::default()
        }],
        commit: 8,
        reject: true,
        reject_hint: 9,
        context: "c".into(),
        ..Message::default()
    };
    message.set_msg_type(MessageType::MsgAppend);
    let expected = [
        0x08, 3, 0x10, 1, 0x18, 2, 0x20, 3, 0x28, 4, 0x30, 5, // type to from term logTerm index
        0x3a, 9, 0x08, 1, 0x10, 6, 0x18, 7, 0x22, 1, b'd', // entries
        0x40, 8, 0x50, 1, 0x58, 9, 0x62, 1, b'c', // commit reject rejectHint context
    ];
    assert_eq!(encoded(&message), expected);
    assert_eq!(decode(Bytes::from(encoded(&message))), Ok(message));
}

/// Fields that raftpb has not, or not there, neither leave nor are they read.
#[test]
fn what_raft_rs_adds_stays_here() {
    let mut vote = Message {
        term: 3,
        ..Message::default()
    };
    vote.set_msg_type(MessageType::MsgRequestVote);
    let plain = encoded(&vote);
    let more = Message {
        commit: 5,
        commit_term: 2,
        priority: 7,
        deprecated_priority: 7,
        ..vote.clone()
    };
    assert_eq!(encoded(&more), plain);
    let mut response = Message {
        commit: 5,
        ..vote.clone()
    };
    response.set_msg_type(MessageType::MsgAppendResponse);
    assert_eq!(decode(encoded(&response).into()).unwrap().commit, 0);
    // 13 is a vote in raftpb, 14 responses to storage.
    let with_vote = [&plain[..], &[0x68, 9, 0x72, 0, 0x78, 1, 0x80, 1, 1]].concat();
    assert_eq!(decode(with_vote.into()), Ok(vote));
    let snapshot = Message {
        request_snapshot: 3,
        ..response
    };
    assert_eq!(encode(&snapshot, &mut Vec::new()), Err(Unsendable::RequestSnapshot));
}

#[test]
fn messages_to_oneself_neither_leave_nor_come() {
    for number in [0, 1, 10, 11, 12, 19, 20, 21, 22, 23, 99] {
        let message = Message {
            msg_type: number,
            ..Message::default()
        };
        assert_eq!(encode(&message, &mut Vec::new()), Err(Unsendable::Local(number)));
        let bytes = Bytes::from(vec![0x08, number as u8]);
        assert_eq!(decode(bytes), Err(WireError::MessageType(number as u64)));
    }
    assert_eq!(decode(Bytes::new()), Err(WireError::MessageType(0)));
}

#[test]
fn a_snapshot_that_is_none_is_dropped() {
    // An older member's heartbeat: every field is there, the snapshot too.
    let bytes = [0x08, 8, 0x4a, 4, 0x12, 2, 0x10, 0];
    assert_eq!(decode(Bytes::copy_from_slice(&bytes)).unwrap().snapshot, None);
    // Two parts of one message field are one.
    let bytes = [0x08, 7, 0x4a, 2, 0x0a, 0, 0x4a, 4, 0x12, 2, 0x10, 6];
    let message = decode(Bytes::copy_from_slice(&bytes)).unwrap();
    assert_eq!(message.get_snapshot().get_metadata().index, 6);
}

#[test]
fn packed_lists_are_read_too() {
    let state = [0x0a, 3, 1, 2, 3, 0x10, 9];
    let metadata = [&[0x0a, state.len() as u8][..], &state].concat();
    let snapshot = [&[0x12, metadata.len() as u8][..], &metadata].concat();
    let message = [&[0x08, 7, 0x4a, snapshot.len() as u8][..], &snapshot].concat();
    let message = decode(message.into()).unwrap();
    let state = message.get_snapshot().get_metadata().get_conf_state();
    assert_eq!((&state.voters[..], &state.learners[..]), (&[1, 2, 3][..], &[9][..]));
}

#[test]
fn what_is_malformed_is_named() {
    let cases: [(&[u8], WireError); 10] = [
        (&[0x08], WireError::Malformed("a varint without an end")),
        (&[0x3a, 5, 0], WireError::Malformed("a field longer than its message")),
        (&[0x00, 0], WireError::Malformed("a field number out of range")),
        (&[0x0b], WireError::Malformed("a group, or an unknown wire type")),
        (&[0x6d, 0, 0], WireError::Malformed("a field longer than its message")),
        (&[0x3a, 2, 0x08, 3], WireError::EntryType(3)),
        (&[0x38, 0], WireError::FieldType("entries")),
        (&[0x0a, 0], WireError::FieldType("type")),
        (&[0x4d, 0, 0, 0, 0], WireError::FieldType("snapshot")),
        (
            &[0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            WireError::Malformed("a varint of more than 64 bits"),
        ),
    ];
    for (bytes, error) in cases {
        assert_eq!(decode(Bytes::copy_from_slice(bytes)), Err(error), "{bytes:?}");
    }
}

#[test]
fn lists_and_contexts_are_bounded() {
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgHeartbeat);
    message.context = vec![0; limits::CONTEXT_BYTES_MAX + 1].into();
    assert!(matches!(
        decode(encoded(&message).into()),
        Err(WireError::TooLong { field: "context", .. })
    ));
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgSnapshot);
    let mut snapshot = Snapshot::default();
    let state = snapshot.mut_metadata().mut_conf_state();
    state.voters = vec![1; limits::CONFIGURATION_MEMBERS_MAX + 1];
    message.snapshot = Some(snapshot);
    assert!(matches!(
        decode(encoded(&message).into()),
        Err(WireError::TooMany { field: "voters", .. })
    ));
    let entries = [0x3a, 0].repeat(limits::MESSAGE_ENTRIES_MAX + 1);
    let message = [&[0x08, 3][..], &entries].concat();
    assert!(matches!(
        decode(message.into()),
        Err(WireError::TooMany { field: "entries", .. })
    ));
}

#[test]
fn changes_have_raftpbs_numbers() {
    let change = ConfChange {
        id: 4,
        change: Change::AddLearnerNode,
        node_id: 9,
        context: "c".into(),
    };
    let mut out = Vec::new();
    change.encode(&mut out);
    assert_eq!(out, [0x08, 4, 0x10, 3, 0x18, 9, 0x22, 1, b'c']);
    assert_eq!(ConfChange::decode(out.into()), Ok(change.clone()));
    let for_raft = change.for_raft().unwrap();
    assert_eq!(for_raft.get_change_type(), ConfChangeType::AddLearnerNode);
    assert_eq!((for_raft.id, for_raft.node_id), (4, 9));
    let update = ConfChange {
        change: Change::UpdateNode,
        ..change
    };
    assert_eq!(update.for_raft(), None);
    assert_eq!(
        ConfChange::decode(Bytes::from_static(&[0x10, 4])),
        Err(WireError::ChangeType(4))
    );
    for (ours, theirs) in [
        (Change::AddNode, ConfChangeType::AddNode),
        (Change::RemoveNode, ConfChangeType::RemoveNode),
    ] {
        let change = ConfChange {
            change: ours,
            ..ConfChange::default()
        };
        assert_eq!(
            change.for_raft().as_ref().map(eraftpb::ConfChange::get_change_type),
            Some(theirs)
        );
    }
}

proptest! {
    #[test]
    fn messages_come_back(message in arbitrary::message()) {
        let bytes = encoded(&message);
        prop_assert_eq!(bytes.len(), encoded_length(&message));
        prop_assert_eq!(decode(bytes.into()), Ok(message));
    }

    #[test]
    fn entries_come_back(entry in arbitrary::entry()) {
        let mut bytes = Vec::new();
        encode_entry(&entry, &mut bytes);
        prop_assert_eq!(bytes.len(), entry_length(&entry));
        prop_assert_eq!(decode_entry(bytes.into()), Ok(entry));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        if let Ok(message) = decode(bytes.clone()) {
            prop_assert_eq!(decode(encoded(&message).into()), Ok(message));
        }
        let _ = (decode_entry(bytes.clone()), ConfChange::decode(bytes));
    }

    #[test]
    fn cut_messages_do_not_panic(message in arbitrary::message(), cut: proptest::sample::Index) {
        let mut bytes = encoded(&message);
        bytes.truncate(cut.index(bytes.len()));
        let _ = decode(bytes.into());
    }
}
