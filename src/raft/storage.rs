//! The raft log as raft-rs reads it: the entries after the last released index, in memory.
//!
//! Every entry here is also in the write-ahead log, or in the batch on its way there; `wal` is the durable copy, this
//! is the readable one. Released entries are those that the state machine no longer needs, less what is kept for
//! followers that lag; who lags further gets a snapshot. One owner, the log core. Reads cost O(1) per entry.

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot, SnapshotMetadata};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::Cell;
use std::collections::VecDeque;

/// Entries after `released_index`, and the state raft-rs starts from.
#[derive(Debug)]
pub struct LogStorage {
    /// Index and term of the entry before the first one held.
    released: Position,
    entries: VecDeque<Entry>,
    /// Sum of the payload bytes of `entries`.
    bytes: usize,
    /// The last entry that was applied, and the sum of the payload bytes behind it.
    applied: u64,
    unapplied_bytes: usize,
    hard_state: HardState,
    conf_state: ConfState,
    /// What a durable checkpoint holds: a snapshot that can be sent.
    snapshot: Option<SnapshotMetadata>,
    /// Whether somebody needed one, and there was none that would do.
    snapshot_wanted: Cell<bool>,
}

/// An entry's place in the log. The term is 0 of the start of the log, and where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Index of the entry; 0 stands for the start of the log.
    pub index: u64,
    /// Term it was proposed in.
    pub term: u64,
}

impl LogStorage {
    /// A log that continues behind `released` with `entries`, which must follow it without a gap.
    pub fn new(
        released: Position,
        entries: impl IntoIterator<Item = Entry>,
        hard_state: HardState,
        conf_state: ConfState,
    ) -> LogStorage {
        let mut storage = LogStorage {
            released,
            entries: VecDeque::new(),
            bytes: 0,
            applied: released.index,
            unapplied_bytes: 0,
            hard_state,
            conf_state,
            snapshot: None,
            snapshot_wanted: Cell::new(false),
        };
        storage.append(entries);
        storage
    }

    /// Appends entries; those already held at the same indexes and behind are replaced (raft's log truncation).
    pub fn append(&mut self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            assert!(
                entry.index > self.released.index,
                "entry {} is released already",
                entry.index
            );
            let offset = entry.index - self.released.index - 1;
            assert!(
                offset <= self.entries.len() as u64,
                "entry {} leaves a gap",
                entry.index
            );
            while self.entries.len() as u64 > offset {
                let replaced = self.entries.pop_back().expect("longer than offset");
                assert!(replaced.index > self.applied, "entry {} is applied", replaced.index);
                self.bytes -= replaced.data.len();
                self.unapplied_bytes -= replaced.data.len();
            }
            self.bytes += entry.data.len();
            self.unapplied_bytes += entry.data.len();
            self.entries.push_back(entry);
        }
    }

    /// Records the hard state raft-rs asked to persist.
    pub fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    /// Records an applied membership.
    pub fn set_conf_state(&mut self, conf_state: ConfState) {
        self.conf_state = conf_state;
    }

    /// The applied membership.
    pub fn conf_state(&self) -> &ConfState {
        &self.conf_state
    }

    /// A durable checkpoint holds everything up to `position`, with this membership.
    pub fn set_snapshot(&mut self, position: Position, conf_state: ConfState) {
        self.snapshot = Some(SnapshotMetadata {
            conf_state: Some(conf_state),
            index: position.index,
            term: position.term,
        });
    }

    /// Whether a checkpoint is needed for somebody to get a snapshot. Asking again is for the next one.
    pub fn take_snapshot_wanted(&self) -> bool {
        self.snapshot_wanted.take()
    }

    /// The state machine holds everything up to and including `index`.
    pub fn applied(&mut self, index: u64) {
        while self.applied < index {
            self.applied += 1;
            let applied = self.entry(self.applied).map_or(0, |entry| entry.data.len());
            self.unapplied_bytes -= applied;
        }
    }

    /// Drops entries up to and including `index`, which the state machine holds, the newest `kept` of them excepted as
    /// long as what is held stays within `bytes_max`, and never the last one held.
    pub fn release_to(&mut self, index: u64, kept: u64, bytes_max: usize) {
        self.applied(index.min(self.last()));
        let kept_after = index.saturating_sub(kept);
        while self.entries.len() > 1
            && self.entries[0].index <= index
            && (self.entries[0].index <= kept_after || self.bytes > bytes_max)
        {
            let entry = self.entries.pop_front().expect("not empty");
            self.bytes -= entry.data.len();
            self.released = Position {
                index: entry.index,
                term: entry.term,
            };
        }
    }

    /// An entry that is held.
    pub fn entry(&self, index: u64) -> Option<&Entry> {
        let offset = index.checked_sub(self.released.index + 1)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    /// Payload bytes held of entries that are not applied.
    pub fn unapplied_bytes(&self) -> usize {
        self.unapplied_bytes
    }

    fn last(&self) -> u64 {
        self.released.index + self.entries.len() as u64
    }
}

impl Storage for LogStorage {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState {
            hard_state: self.hard_state.clone(),
            conf_state: self.conf_state.clone(),
        })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.released.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        assert!(
            low <= high && high <= self.last() + 1,
            "entries {low}..{high} of a log that ends at {}",
            self.last()
        );
        let start = (low - self.released.index - 1) as usize;
        let count = (high - low) as usize;
        let mut budget = max_size.into().unwrap_or(u64::MAX);
        let mut taken = Vec::with_capacity(count.min(1024));
        for entry in self.entries.range(start..start + count) {
            // At least one entry is returned, however large, as raft-rs asks.
            let size = entry.data.len() as u64 + 24;
            if !taken.is_empty() && size > budget {
                break;
            }
            budget = budget.saturating_sub(size);
            taken.push(entry.clone());
        }
        Ok(taken)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let is_known = self.released.term > 0 || index == 0;
        if index == self.released.index && is_known {
            return Ok(self.released.term);
        }
        // A follower would refuse what follows an entry of term 0; a snapshot it takes.
        if index <= self.released.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        match self.entries.get((index - self.released.index - 1) as usize) {
            Some(entry) => Ok(entry.term),
            None => Err(raft::Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.released.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// A member takes only a snapshot in which it is a member: one that joined since the last checkpoint waits for the
    /// next.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let does = |metadata: &&SnapshotMetadata| {
            let ConfState { voters, learners, .. } = metadata.get_conf_state();
            let is_member = voters.contains(&to) || learners.contains(&to);
            is_member && metadata.index >= request_index.max(self.released.index)
        };
        let Some(metadata) = self.snapshot.as_ref().filter(does) else {
            self.snapshot_wanted.set(true);
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        };
        Ok(Snapshot {
            metadata: Some(metadata.clone()),
            ..Default::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        Entry {
            index,
            term,
            data: vec![b'x'; 10].into(),
            ..Default::default()
        }
    }

    fn storage() -> LogStorage {
        let released = Position { index: 4, term: 1 };
        LogStorage::new(
            released,
            [entry(5, 1), entry(6, 2), entry(7, 2)],
            HardState::default(),
            ConfState::default(),
        )
    }

    #[test]
    fn reads_what_it_holds() {
        let storage = storage();
        assert_eq!((storage.first_index().unwrap(), storage.last_index().unwrap()), (5, 7));
        let indexes = |low, high, size: u64| {
            let entries = storage
                .entries(low, high, size, GetEntriesContext::empty(false))
                .unwrap();
            entries.iter().map(|entry| entry.index).collect::<Vec<_>>()
        };
        assert_eq!(indexes(5, 8, u64::MAX), [5, 6, 7]);
        assert_eq!(indexes(5, 8, 0), [5]);
        assert_eq!(indexes(5, 8, 70), [5, 6]);
        assert_eq!(storage.term(4).unwrap(), 1);
        assert_eq!(storage.term(6).unwrap(), 2);
        assert!(storage.term(3).is_err());
        assert!(storage.term(8).is_err());
        assert!(
            storage
                .entries(4, 6, u64::MAX, GetEntriesContext::empty(false))
                .is_err()
        );
    }

    #[test]
    fn append_replaces_a_conflicting_tail() {
        let mut storage = storage();
        storage.append([entry(6, 3)]);
        assert_eq!(storage.last_index().unwrap(), 6);
        assert_eq!(storage.term(6).unwrap(), 3);
        assert_eq!((storage.bytes, storage.unapplied_bytes()), (20, 20));
    }

    #[test]
    fn release_keeps_the_last_entry() {
        let mut storage = storage();
        storage.release_to(6, 0, usize::MAX);
        assert_eq!(storage.first_index().unwrap(), 7);
        assert_eq!(storage.term(6).unwrap(), 2);
        storage.release_to(100, 0, usize::MAX);
        assert_eq!(storage.last_index().unwrap(), 7);
        assert_eq!((storage.bytes, storage.unapplied_bytes()), (10, 0));
    }

    #[test]
    fn some_entries_are_kept_for_followers_within_a_bound() {
        let mut storage = storage();
        storage.release_to(6, 2, usize::MAX);
        assert_eq!(storage.first_index().unwrap(), 5);
        storage.release_to(6, 1, usize::MAX);
        assert_eq!(storage.first_index().unwrap(), 6);
        storage.release_to(6, 1, 15);
        assert_eq!(storage.first_index().unwrap(), 7);
    }

    /// A log read from segments that begin behind an entry does not say its term. Of term 0 it would pass for another.
    #[test]
    fn an_entry_of_unknown_term_is_not_held() {
        let released = Position { index: 4, term: 0 };
        let unknown = LogStorage::new(released, [entry(5, 1)], HardState::default(), ConfState::default());
        let compacted = raft::Error::Store(StorageError::Compacted);
        assert_eq!(unknown.term(4).unwrap_err(), compacted);
        assert_eq!(unknown.term(5).unwrap(), 1);
        let empty = LogStorage::new(Position::default(), [], HardState::default(), ConfState::default());
        assert_eq!(empty.term(0).unwrap(), 0);
    }

    #[test]
    fn what_is_kept_for_followers_is_not_unapplied() {
        let mut storage = storage();
        assert_eq!(storage.unapplied_bytes(), 30);
        storage.applied(6);
        storage.applied(5);
        assert_eq!((storage.bytes, storage.unapplied_bytes()), (30, 10));
        storage.append([entry(7, 3), entry(8, 3)]);
        assert_eq!((storage.bytes, storage.unapplied_bytes()), (40, 20));
        storage.release_to(6, 1, usize::MAX);
        assert_eq!((storage.bytes, storage.unapplied_bytes()), (30, 20));
        storage.applied(8);
        assert_eq!((storage.bytes, storage.unapplied_bytes()), (30, 0));
    }

    #[test]
    fn a_snapshot_is_a_checkpoint_that_what_is_held_continues() {
        let mut storage = storage();
        assert!(storage.snapshot(0, 1).is_err());
        assert!(storage.take_snapshot_wanted());
        storage.set_snapshot(Position { index: 6, term: 2 }, ConfState::from((vec![1, 2], vec![3])));
        let metadata = storage.snapshot(0, 1).unwrap().metadata.unwrap();
        assert_eq!((metadata.index, metadata.term), (6, 2));
        assert_eq!(metadata.conf_state.unwrap().learners, [3]);
        assert!(!storage.take_snapshot_wanted());
        assert!(storage.snapshot(7, 1).is_err(), "older than what is asked for");
        assert!(storage.take_snapshot_wanted() && !storage.take_snapshot_wanted());
        assert!(storage.snapshot(0, 3).is_ok());
        assert!(
            storage.snapshot(0, 4).is_err(),
            "it would not be taken by one who is no member in it"
        );
        assert!(storage.take_snapshot_wanted());
    }
}
