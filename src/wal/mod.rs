//! The write-ahead log in etcd's format: frames, segments, group commit, recovery and repair.
//!
//! [`create`] makes a log, [`recover`] reads one and hands over what raft and the state machine start from, both with
//! the [`Writer`] that goes on behind it. The writer is a state machine over [`crate::io::disk::Disk`]: what is
//! appended gathers while a batch is in flight, and each batch is one aligned durable write. Etcd's own tools read what
//! is written here, and what etcd wrote is read here. Bytes, invariants and what is assumed of the medium are in
//! `docs/wal.md`. The room knows nothing of what entries carry, of raft's rules or of the page store.

mod ahead;
mod error;
mod frame;
mod housekeeping;
mod readback;
mod record;
mod recovery;
mod repair;
mod segment;
#[cfg(test)]
mod tests;
mod writer;

pub use error::Error;
pub use readback::ReadBack;
pub use record::{ConfState, Entry, HardState, Malformed, Metadata, Snapshot};
pub use recovery::{Recovered, create, exists, recover};
pub use repair::Repair;
pub use segment::SegmentName;
pub use writer::{Persisted, Ticket, Writer};

use crate::limits;
use std::ops::Range;

/// How a log is written. All of it may differ from start to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a segment, a multiple of 4096.
    pub segment_bytes: u64,
    /// A random number; nobody who can store entries may know it. Segments made from now on carry it.
    pub mark_key: u64,
    /// How many segments are kept although nothing needs them; 0 keeps all.
    pub max_wals: usize,
    /// Nothing is synced: a power cut can lose anything.
    pub unsafe_no_fsync: bool,
    /// Every batch ends at a block, so that no block with acknowledged bytes is ever written again: for media on which
    /// a power cut can damage the whole block that is being written.
    pub pad_batches: bool,
    /// Bytes of the largest entry. What a batch that was cut may have left behind the log's end is overwritten as far
    /// as that, and 4 MiB at least.
    pub entry_bytes_max: usize,
    /// The tokens the writer submits its operations with, at least [`TOKENS`].
    pub tokens: Range<u64>,
}

/// How many tokens a writer needs.
pub const TOKENS: u64 = 3;

impl Options {
    /// The defaults, for a random `mark_key` and the tokens that are the writer's.
    pub fn new(mark_key: u64, tokens: Range<u64>) -> Options {
        Options {
            segment_bytes: limits::WAL_SEGMENT_BYTES,
            mark_key,
            max_wals: 5,
            unsafe_no_fsync: false,
            pad_batches: false,
            entry_bytes_max: limits::WAL_BATCH_BYTES_MAX,
            tokens,
        }
    }
}

/// Reads arbitrary bytes as a segment, for fuzzing: must neither panic nor take memory out of proportion.
pub fn fuzz(bytes: &[u8]) {
    let scanned = segment::scan(bytes, 0, None, |_, kind, data| {
        recovery::decode_payload(kind, data).map(|_| ())
    });
    if let Ok(scanned) = scanned {
        assert!(scanned.end <= bytes.len() as u64);
        if let Some(damage) = scanned.damage {
            assert!(damage.offset == scanned.end);
            assert!(damage.mark_behind.is_none_or(|mark| mark >= damage.offset));
        }
    }
}
