//! Hashes over the stored history, equal to etcd's for equal history (`etcd-surface` 4.12, DESIGN 12 (21)).
//!
//! HashKV covers the records up to the asked revision. Of those at or below the compact revision it takes only what a
//! compaction at the *asked* revision would keep, and no tombstone at exactly the compact revision. If such a
//! compaction would keep nothing at all, it takes all that the compaction at the compact revision has kept.

use crate::mvcc::index::{KeyReader, ResumeKey};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::revision::Revision;
use crate::state::error::StateError;
use crate::state::range::Readable;
use crc32c::crc32c_append;
use std::ops::ControlFlow;

/// The bucket that holds the history.
const KEY_BUCKET: &[u8] = b"key";

/// The answer of HashKV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHash {
    /// CRC-32C.
    pub hash: u32,
    /// The compact revision at the time.
    pub compact_revision: i64,
    /// The revision hashed up to.
    pub revision: i64,
}

/// A HashKV in progress. Every call takes the index of the same view, pinned anew.
#[derive(Clone, Debug)]
pub struct KvHasher {
    crc: u32,
    revision: i64,
    compact_revision: i64,
    /// The revision whose compaction says what counts below the compact revision.
    keep_at: i64,
    probe: Option<ResumeKey>,
    /// Of a compaction that keeps no key: whether it keeps a deletion is still to be found out.
    may_keep_deletion: bool,
}

impl KvHasher {
    /// Starts at a view; `wanted` is 0 for its newest revision.
    pub fn new(wanted: i64, readable: Readable) -> Result<KvHasher, StateError> {
        if wanted > readable.revision {
            return Err(StateError::FutureRevision);
        }
        if wanted > 0 && wanted < readable.compact_revision {
            return Err(StateError::Compacted);
        }
        let revision = if wanted == 0 { readable.revision } else { wanted };
        Ok(KvHasher {
            crc: crc32c_append(0, KEY_BUCKET),
            revision,
            compact_revision: readable.compact_revision,
            keep_at: revision,
            probe: Some(b"\0".to_vec()),
            may_keep_deletion: false,
        })
    }

    /// What a compaction hashes on its way: all up to `compacted` that it found, which is what the one before, at
    /// `previous`, has left. A compaction keeps what was deleted in its very revision, unlike a look at that revision.
    pub fn of_compaction(previous: i64, compacted: i64) -> KvHasher {
        KvHasher {
            crc: crc32c_append(0, KEY_BUCKET),
            revision: compacted,
            compact_revision: previous,
            keep_at: compacted,
            probe: Some(b"\0".to_vec()),
            may_keep_deletion: true,
        }
    }

    /// The revision whose deletions are wanted by `deletion`, if that is so once `prepare` is done. Comes before
    /// `feed`.
    pub fn deletions_wanted(&self) -> Option<i64> {
        (self.may_keep_deletion && self.keep_at != self.revision).then_some(self.revision)
    }

    /// Takes a record of the revision wanted.
    pub fn deletion(&mut self, revision: Revision, tombstone: bool) {
        if tombstone && revision.main == self.revision {
            self.keep_at = self.revision;
        }
    }

    /// Finds out which rule applies, slice by slice, until it returns true. Comes before `feed`.
    pub fn prepare(&mut self, keys: &impl KeyReader) -> bool {
        let Some(start) = self.probe.take() else {
            return true;
        };
        let mut found = false;
        let resume = keys.range(&start, RangeEnd::Unbounded, self.revision, &mut |_, _| {
            found = true;
            ControlFlow::Break(())
        });
        if found {
            return true;
        }
        self.probe = resume;
        if self.probe.is_none() {
            self.keep_at = self.compact_revision;
        }
        self.probe.is_none()
    }

    /// Takes the next record in order of revision: its key, whether it is a tombstone, and its bytes as stored. False
    /// when it and all later ones are beyond the asked revision.
    pub fn feed(
        &mut self,
        keys: &impl KeyReader,
        revision: Revision,
        tombstone: bool,
        key: &[u8],
        stored: &[u8],
    ) -> bool {
        debug_assert!(self.probe.is_none(), "prepare comes first");
        if revision.main > self.revision {
            return false;
        }
        let counts = revision.main > self.compact_revision
            || keys
                .get(key, self.keep_at)
                .is_some_and(|kept| kept.revision == revision);
        if counts {
            let (bytes, length) = revision.to_bytes(tombstone);
            self.crc = crc32c_append(crc32c_append(self.crc, &bytes[..length]), stored);
        }
        true
    }

    /// The answer.
    pub fn finish(self) -> KvHash {
        KvHash {
            hash: self.crc,
            compact_revision: self.compact_revision,
            revision: self.revision,
        }
    }
}

/// Hashes a whole backend as etcd's `Hash` does: the buckets by name, in each the pairs by key.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackendHasher {
    crc: u32,
}

impl BackendHasher {
    /// Keys of the `meta` bucket that are left out.
    pub const IGNORED: [&'static [u8]; 3] = [b"consistent_index", b"term", b"storageVersion"];

    /// A bucket begins.
    pub fn bucket(&mut self, name: &[u8]) {
        self.crc = crc32c_append(self.crc, name);
    }

    /// The next pair of the bucket.
    pub fn pair(&mut self, key: &[u8], value: &[u8]) {
        self.crc = crc32c_append(crc32c_append(self.crc, key), value);
    }

    /// CRC-32C of everything.
    pub fn finish(self) -> u32 {
        self.crc
    }
}
