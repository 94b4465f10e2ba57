//! raft's entries and state as the log keeps them, and back.

use crate::wal;
use raft::eraftpb::{Entry, HardState};

pub(super) fn to_wal(entry: Entry) -> wal::Entry {
    wal::Entry {
        kind: entry.entry_type as u64,
        term: entry.term,
        index: entry.index,
        data: entry.data,
    }
}

pub(super) fn from_wal(entry: &wal::Entry) -> Entry {
    Entry {
        entry_type: entry.kind as i32,
        term: entry.term,
        index: entry.index,
        data: entry.data.clone(),
        ..Default::default()
    }
}

pub(super) fn wal_state(state: &HardState) -> wal::HardState {
    wal::HardState {
        term: state.term,
        vote: state.vote,
        commit: state.commit,
    }
}
