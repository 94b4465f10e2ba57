//! One block of the event window: records in revision order, their heads apart from their bytes.
//!
//! A head is 48 bytes; a record is found by binary search over the heads. Both parts are append-only, so a block is
//! read while its last records are being written.

use super::RecordRef;
use crate::mvcc::index::append::{AppendBlock, AppendWriter};
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::pages::prefetch::prefetch_bytes;
use std::cmp::Ordering;
use std::sync::Arc;

/// Bytes of an encoded head.
pub(super) const HEAD_BYTES: usize = 48;
const TOMBSTONE: u8 = 1;

/// What is known of a record beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    revision: Revision,
    /// The record this one replaced; `ZERO` for none.
    previous: Revision,
    tombstone: bool,
    /// Where the encoded event `KeyValue` starts in the block's bytes, and its length.
    start: u32,
    length: u32,
    /// Length of the leading part that is the stored form: all of it, or of a tombstone the key field.
    stored_length: u32,
    /// Length of the key.
    key_length: u32,
}

impl Head {
    fn encode(&self, out: &mut [u8]) {
        out[0..8].copy_from_slice(&self.revision.main.to_le_bytes());
        out[8..16].copy_from_slice(&self.previous.main.to_le_bytes());
        let words = [
            self.revision.sub,
            self.previous.sub,
            self.start,
            self.length,
            self.stored_length,
            self.key_length,
        ];
        for (at, word) in words.into_iter().enumerate() {
            out[16 + 4 * at..20 + 4 * at].copy_from_slice(&word.to_le_bytes());
        }
        out[40] = if self.tombstone { TOMBSTONE } else { 0 };
    }

    fn decode(bytes: &[u8]) -> Head {
        let long = |at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Head {
            revision: Revision::new(long(0), word(16)),
            previous: Revision::new(long(8), word(20)),
            tombstone: bytes[40] == TOMBSTONE,
            start: word(24),
            length: word(28),
            stored_length: word(32),
            key_length: word(36),
        }
    }
}

/// The revision in head number `at`.
fn revision_of(heads: &[u8], at: usize) -> Revision {
    let head = &heads[at * HEAD_BYTES..][..HEAD_BYTES];
    let main = i64::from_le_bytes(head[0..8].try_into().expect("eight bytes"));
    let sub = u32::from_le_bytes(head[16..20].try_into().expect("four bytes"));
    Revision::new(main, sub)
}

/// Between which numbers the first record at or after `revision` is, when that at `from` is before it.
fn widen(heads: &[u8], from: usize, count: usize, revision: Revision) -> (usize, usize) {
    let (mut low, mut step) = (from + 1, 1);
    while low + step < count && revision_of(heads, low + step) < revision {
        low += step + 1;
        step *= 2;
    }
    (low, (low + step).min(count))
}

/// The readers' side of a block.
pub struct Block {
    /// Revision of the first record.
    pub first: Revision,
    heads: Arc<AppendBlock>,
    bytes: Arc<AppendBlock>,
}

impl Block {
    /// Records in the block that are readable now.
    pub fn count(&self) -> usize {
        self.heads.filled().len() / HEAD_BYTES
    }

    /// The record number `at`.
    pub fn record(&self, at: usize) -> RecordRef<'_> {
        let heads = self.heads.filled();
        let head = Head::decode(&heads[at * HEAD_BYTES..(at + 1) * HEAD_BYTES]);
        let (start, length) = (head.start as usize, head.length as usize);
        let event = &self.bytes.filled()[start..start + length];
        RecordRef {
            revision: head.revision,
            previous: (head.previous != Revision::ZERO).then_some(head.previous),
            tombstone: head.tombstone,
            event,
            stored_length: head.stored_length as usize,
            key_length: head.key_length as usize,
        }
    }

    /// Number of the first record at or after `revision`; `count` when there is none.
    ///
    /// A main revision has at least one record, and mostly no more: the search starts where the record is if none
    /// before it had more, and widens from there.
    pub fn position(&self, revision: Revision) -> usize {
        let heads = self.heads.filled();
        let count = heads.len() / HEAD_BYTES;
        let distance = revision.main.saturating_sub(self.first.main);
        let guess = usize::try_from(distance).unwrap_or(0).min(count);
        let (mut low, mut high) = (0, guess);
        if guess < count {
            match revision_of(heads, guess).cmp(&revision) {
                Ordering::Equal => return guess,
                Ordering::Greater => {}
                Ordering::Less => (low, high) = widen(heads, guess, count, revision),
            }
        }
        while low < high {
            let middle = (low + high) / 2;
            if revision_of(heads, middle) < revision {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Asks the memory for where [`Block::position`] looks first.
    pub fn warm(&self, revision: Revision) {
        let heads = self.heads.filled();
        let distance = revision.main.saturating_sub(self.first.main);
        let guess = usize::try_from(distance).unwrap_or(0).saturating_mul(HEAD_BYTES);
        if let Some(head) = heads.get(guess..) {
            prefetch_bytes(head, 2);
        }
    }

    /// Memory the block takes when full, in bytes.
    pub fn capacity(&self) -> usize {
        self.heads.capacity() + self.bytes.capacity()
    }
}

/// The writer's side of the newest block.
pub struct BlockWriter {
    heads: AppendWriter,
    bytes: AppendWriter,
}

impl BlockWriter {
    /// An empty block for about `capacity` bytes of records whose first has `first_length` bytes.
    pub fn new(capacity: usize, first_length: usize, average: usize) -> BlockWriter {
        let capacity = capacity.max(first_length);
        let records = (capacity / average.max(16)).max(1) + 1;
        BlockWriter {
            heads: AppendWriter::new(records * HEAD_BYTES),
            bytes: AppendWriter::new(capacity),
        }
    }

    /// Whether a record of `length` bytes fits.
    pub fn fits(&self, length: usize) -> bool {
        self.bytes.free() >= length && self.heads.free() >= HEAD_BYTES
    }

    /// The readers' side.
    pub fn block(&self, first: Revision) -> Block {
        Block {
            first,
            heads: self.heads.block().clone(),
            bytes: self.bytes.block().clone(),
        }
    }

    /// Appends a record; `view` is its event form.
    pub fn append(&mut self, revision: Revision, previous: Option<Revision>, tombstone: bool, view: &KeyValueView<'_>) {
        let length = view.encoded_length();
        let stored = if tombstone {
            KeyValueView {
                key: view.key,
                ..Default::default()
            }
        } else {
            *view
        };
        let start = self.bytes.length();
        self.bytes.append(length, |mut out| view.encode(&mut out));
        let head = Head {
            revision,
            previous: previous.unwrap_or(Revision::ZERO),
            tombstone,
            start: start as u32,
            length: length as u32,
            stored_length: stored.encoded_length() as u32,
            key_length: view.key.len() as u32,
        };
        self.heads.append(HEAD_BYTES, |out| head.encode(out));
    }
}
