//! The index: user key → its revisions, with one writer and any number of readers that take no lock.
//!
//! # Shape
//!
//! A B+tree of entries; an entry is a key and an append-only list of its revisions, tombstones among them (see `list`).
//! The writer appends to the list of a live key in place, and copies the path for a creation, a deletion or a pruning
//! (see `tree`). Nothing of it is visible before [`IndexWriter::publish`], which puts a new root and the caller's view
//! into a cell as one immutable object (see `cell`). A reader pins it with [`Index::pin`], and ignores revisions in the
//! lists that are newer than the root it holds. So a pinned state is exact and unchanging, prunings included.
//!
//! A [`Pinned`] holds an epoch back, and with it memory: it must not live across a yield. A long read stops after a
//! slice, keeps the key to go on from, and seeks again in a new pin at its own revision.
//!
//! # Cost
//!
//! With n keys: `get`, `put`, `delete`, `prune` O(log n); `range` O(log n) and a step per key; `count` O(log n) at the
//! newest revision, at older ones O(log n) and a step per key in leaves where keys were created or deleted since.
//! A key with one revision takes about 90 bytes and its own length, measured at a million keys: 12 of the entry, 24 of
//! the list, 18 to 26 in its leaf, the rest the allocator's rounding. A further revision takes 16, with growing room up
//! to 24; in a key that ever had a lease 8 more. `bytes` says what a tree really takes. Replaced memory and views come
//! home to the writer when their readers are gone, and are freed in bounded steps with later publications.
//!
//! # Promises
//!
//! Revision, create revision, version and lease of a [`KeyMeta`] are exact at every revision that no pruning has
//! passed. Compaction follows etcd's `keyIndex` (`server/storage/mvcc/key_index.go`, 3.7) for every history that etcd
//! can produce; a key deleted and written again under one main revision, which etcd's transactions forbid, keeps its
//! newest.
//!
//! The room knows nothing of views: `V` is whatever the store publishes beside the root.

pub mod append;
mod cell;
mod entry;
mod garbage;
mod handles;
mod list;
mod meta;
mod node;
mod prefetch;
mod read;
mod reader;
mod restore;
mod sync;
mod tree;

use super::revision::Revision;
pub use handles::{Index, IndexWriter, Pinned};
pub use meta::{KeyMeta, NEWEST, Put};
pub use reader::KeyReader;
pub use restore::RestoreBatch;
pub use tree::Tree;

/// The first key that an interrupted read has not looked at: the start of its next slice.
pub type ResumeKey = Vec<u8>;

/// A record that cannot be part of the history that was restored so far. The store it comes from is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Records come in the order of their revisions.
    #[error("record {revision:?} of the store comes after record {last:?}: its order is damaged; restore a backup")]
    OutOfOrder { revision: Revision, last: Revision },
    /// No history leads to these numbers.
    #[error(
        "record {revision:?} of the store claims create revision and version {found:?}, which cannot be; restore a \
         backup"
    )]
    Impossible { revision: Revision, found: (i64, i64) },
    /// The record is not the one that follows its key's record before it.
    #[error(
        "record {revision:?} of the store has create revision and version {found:?} where the key's earlier records \
         ask for {expected:?}: one is missing or damaged; restore a backup"
    )]
    Disagrees {
        revision: Revision,
        found: (i64, i64),
        expected: (i64, i64),
    },
}

#[cfg(test)]
mod tests;
