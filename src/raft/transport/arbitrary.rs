//! Messages drawn at random, for the tests of this folder.

use super::wire::kind_of;
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use raft::eraftpb::{ConfState, Entry, Message, MessageType, Snapshot, SnapshotMetadata};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..4u64, 0..300u64, any::<u64>(), Just(u64::MAX)]
}

fn payload() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        Just(Bytes::new()),
        vec(any::<u8>(), 0..300).prop_map(Bytes::from),
        (70_000..200_000usize).prop_map(|length| Bytes::from(vec![7; length])),
    ]
}

prop_compose! {
    pub fn entry()(entry_type in 0..3, term in number(), index in number(), data in payload()) -> Entry {
        Entry { entry_type, term, index, data, ..Entry::default() }
    }
}

prop_compose! {
    fn conf_state()(
        voters in vec(number(), 0..4),
        learners in vec(number(), 0..3),
        voters_outgoing in vec(number(), 0..2),
        learners_next in vec(number(), 0..2),
        auto_leave: bool,
    ) -> ConfState {
        ConfState { voters, learners, voters_outgoing, learners_next, auto_leave }
    }
}

prop_compose! {
    fn snapshot()(
        data in payload(),
        conf_state in proptest::option::of(conf_state()),
        index in number(),
        term in number(),
        with_metadata: bool,
    ) -> Snapshot {
        let metadata = SnapshotMetadata { conf_state, index, term };
        Snapshot { data, metadata: with_metadata.then_some(metadata) }
    }
}

/// Types that go from member to member.
pub fn kind() -> impl Strategy<Value = MessageType> {
    let kinds: Vec<_> = (0..30).filter_map(kind_of).collect();
    proptest::sample::select(kinds)
}

prop_compose! {
    /// A message that can leave, as it is read again.
    pub fn message()(
        kind in kind(),
        [to, from, term, log_term, index, commit, reject_hint] in [
            number(), number(), number(), number(), number(), number(), number(),
        ],
        entries in vec(entry(), 0..5),
        snapshot in proptest::option::of(snapshot()),
        reject: bool,
        context in vec(any::<u8>(), 0..20),
    ) -> Message {
        use MessageType::{MsgAppend, MsgHeartbeat, MsgSnapshot};
        let mut message = Message {
            to, from, term, log_term, index, entries, reject, reject_hint,
            commit: if matches!(kind, MsgAppend | MsgHeartbeat | MsgSnapshot) { commit } else { 0 },
            snapshot: if kind == MsgSnapshot { snapshot } else { None },
            context: context.into(),
            ..Message::default()
        };
        message.set_msg_type(kind);
        message
    }
}

/// The same bytes in pieces of these lengths, over and over.
pub fn pieces<'a>(mut bytes: &'a [u8], lengths: &'a [usize]) -> impl Iterator<Item = Bytes> + 'a {
    lengths.iter().cycle().map_while(move |length| {
        let (piece, rest) = bytes.split_at((*length).clamp(1, bytes.len().max(1)).min(bytes.len()));
        bytes = rest;
        (!piece.is_empty()).then(|| Bytes::copy_from_slice(piece))
    })
}
