//! The event window: the newest part of the history, in memory, in revision order, already encoded.
//!
//! A chain of append-only blocks with one writer and any number of readers. A [`WindowView`] shows the records up to
//! one revision and keeps their blocks alive; taking one costs a reference count, reading through one takes no lock. It
//! serves watches (a scan from a cursor), reads and `prev_kv` (a lookup by revision), and the next checkpoint (a scan
//! of what the page store does not hold yet). Whole blocks leave at the old end, and only those whose records the page
//! store holds (DESIGN 12 (12)).
//!
//! Size: 48 bytes and the encoded `KeyValue` per record. Lookup: O(log blocks), and in a block
//! O(log of how many records there have more than one in their revision), which is mostly one step.

mod block;

use super::record::KeyValueView;
use super::revision::Revision;
use crate::limits::{WINDOW_BLOCK_BYTES, WINDOW_RECORD_BYTES_MIN};
use crate::pages::prefetch::prefetch_bytes;
use block::{Block, BlockWriter};
use bytes::Bytes;
use std::sync::Arc;

/// Cache lines of a record that are asked for ahead; the processor goes on with those behind by itself.
const WARM_LINES: usize = 6;

/// One change, borrowed from the window.
#[derive(Clone, Copy, Debug)]
pub struct RecordRef<'a> {
    /// When it happened.
    pub revision: Revision,
    /// The record of the same key that it replaced; none for a creation.
    pub previous: Option<Revision>,
    /// Whether it is a deletion.
    pub tombstone: bool,
    /// The encoded `KeyValue` as events and answers carry it; of a tombstone key and mod revision.
    event: &'a [u8],
    stored_length: usize,
    key_length: usize,
}

impl<'a> RecordRef<'a> {
    /// The encoded `KeyValue` of an event or an answer.
    pub fn event(&self) -> &'a [u8] {
        self.event
    }

    /// The encoded `KeyValue` as the `key` bucket stores it: of a tombstone the key alone.
    pub fn stored(&self) -> &'a [u8] {
        &self.event[..self.stored_length]
    }

    /// The key.
    pub fn key(&self) -> &'a [u8] {
        // Field 1 comes first: a tag of one byte, the length, the key.
        let start = if self.key_length == 0 {
            0
        } else {
            1 + super::record::varint_length(self.key_length as u64)
        };
        &self.event[start..start + self.key_length]
    }

    /// The fields.
    pub fn fields(&self) -> KeyValueView<'a> {
        KeyValueView::decode(self.event).expect("the window holds what apply encoded")
    }
}

/// The window up to one revision.
#[derive(Clone)]
pub struct WindowView {
    /// With the revision of each one's first record, so that the search for a block touches nothing else.
    blocks: Arc<Vec<(Revision, Arc<Block>)>>,
    /// The newest record shown; `ZERO` when there is none.
    last: Revision,
    /// The oldest main revision of which every record is here.
    first_main: i64,
}

impl WindowView {
    /// The oldest main revision of which every record is in the window. Everything newer is there as well; when the
    /// window is empty it is the main revision that will be written next.
    pub fn first_main(&self) -> i64 {
        self.first_main
    }

    /// The newest record shown.
    pub fn last(&self) -> Revision {
        self.last
    }

    /// The record at exactly this revision.
    pub fn get(&self, revision: Revision) -> Option<RecordRef<'_>> {
        if revision.main < self.first_main {
            return None;
        }
        let record = self.scan(revision).next()?;
        (record.revision == revision).then_some(record)
    }

    /// Asks the memory for the records at these revisions, all together.
    pub fn warm(&self, revisions: &[Revision]) {
        let here = || revisions.iter().filter(|revision| revision.main >= self.first_main);
        for revision in here() {
            let after = self.blocks.partition_point(|(first, _)| first <= revision);
            if let Some((_, block)) = self.blocks.get(after.saturating_sub(1)) {
                block.warm(*revision);
            }
        }
        let records = here().filter_map(|revision| self.get(*revision));
        records.for_each(|record| prefetch_bytes(record.event(), WARM_LINES));
    }

    /// The record at exactly this revision as the `key` bucket stores it, to be kept without a copy. It keeps the
    /// view's blocks alive.
    pub fn kept(&self, revision: Revision) -> Option<Bytes> {
        self.get(revision)?;
        let view = self.clone();
        Some(Bytes::from_owner(KeptRecord { view, revision }))
    }

    /// Records from `from` on, in revision order.
    pub fn scan(&self, from: Revision) -> Scan<'_> {
        let after = self.blocks.partition_point(|(first, _)| *first <= from);
        let block = after.saturating_sub(1);
        let position = self.blocks.get(block).map_or(0, |(_, block)| block.position(from));
        Scan {
            view: self,
            block,
            position,
        }
    }
}

/// A record and the view that it is in.
struct KeptRecord {
    view: WindowView,
    revision: Revision,
}

impl AsRef<[u8]> for KeptRecord {
    fn as_ref(&self) -> &[u8] {
        let record = self.view.get(self.revision);
        record.expect("a view goes on showing what it has shown").stored()
    }
}

impl std::fmt::Debug for WindowView {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "WindowView({}..={:?}, {} blocks)",
            self.first_main,
            self.last,
            self.blocks.len()
        )
    }
}

/// Records of a view in revision order.
pub struct Scan<'a> {
    view: &'a WindowView,
    block: usize,
    position: usize,
}

impl<'a> Iterator for Scan<'a> {
    type Item = RecordRef<'a>;

    fn next(&mut self) -> Option<RecordRef<'a>> {
        loop {
            let (_, block) = self.view.blocks.get(self.block)?;
            if self.position < block.count() {
                let record = block.record(self.position);
                // A block goes on being filled after the view was taken.
                if record.revision > self.view.last {
                    return None;
                }
                self.position += 1;
                return Some(record);
            }
            self.block += 1;
            self.position = 0;
        }
    }
}

/// The single writer of the window.
pub struct WindowWriter {
    blocks: Arc<Vec<(Revision, Arc<Block>)>>,
    newest: Option<BlockWriter>,
    last: Revision,
    first_main: i64,
    bytes: usize,
    /// Of all records ever appended.
    appended_bytes: u64,
    /// Running average of record lengths, to size the next block's table of heads.
    average: usize,
}

impl WindowWriter {
    /// An empty window behind the main revision `revision`.
    pub fn new(revision: i64) -> WindowWriter {
        WindowWriter {
            blocks: Arc::new(Vec::new()),
            newest: None,
            last: Revision::ZERO,
            first_main: revision + 1,
            bytes: 0,
            appended_bytes: 0,
            average: WINDOW_RECORD_BYTES_MIN,
        }
    }

    /// Appends a change. `fields` is the event form: of a deletion only key and mod revision are set. Revisions rise.
    pub fn append(
        &mut self,
        revision: Revision,
        previous: Option<Revision>,
        tombstone: bool,
        fields: &KeyValueView<'_>,
    ) {
        assert!(revision > self.last, "{revision:?} does not follow {:?}", self.last);
        debug_assert_eq!(fields.mod_revision, revision.main);
        let length = fields.encoded_length();
        if !self.newest.as_ref().is_some_and(|block| block.fits(length)) {
            self.start_block(revision, length);
        }
        self.newest
            .as_mut()
            .expect("just made")
            .append(revision, previous, tombstone, fields);
        self.appended_bytes += (block::HEAD_BYTES + length) as u64;
        self.average = (self.average * 63 + length) / 64;
        self.last = revision;
    }

    fn start_block(&mut self, first: Revision, length: usize) {
        let writer = BlockWriter::new(WINDOW_BLOCK_BYTES, length, self.average / 2);
        let block = Arc::new(writer.block(first));
        self.bytes += block.capacity();
        Arc::make_mut(&mut self.blocks).push((first, block));
        self.newest = Some(writer);
    }

    /// The window as it is now.
    pub fn view(&self) -> WindowView {
        WindowView {
            blocks: self.blocks.clone(),
            last: self.last,
            first_main: self.first_main,
        }
    }

    /// Memory of the blocks, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of all records that were ever appended, those that have left included: what it grows by is what an entry
    /// has made, however short the entry is.
    pub fn appended_bytes(&self) -> u64 {
        self.appended_bytes
    }

    /// Drops the oldest blocks while more than `bytes_max` bytes are held and every record of the block has a main
    /// revision of at most `held_main`, which the published page store root must hold. The newest block stays.
    pub fn trim(&mut self, held_main: i64, bytes_max: usize) {
        let mut dropped = 0;
        while self.bytes > bytes_max && dropped + 1 < self.blocks.len() {
            let next = self.blocks[dropped + 1].0;
            // The block's last record may share a main revision with the next block's first.
            let complete_to = if next.sub == 0 { next.main - 1 } else { next.main };
            if complete_to > held_main {
                break;
            }
            self.bytes -= self.blocks[dropped].1.capacity();
            self.first_main = complete_to + 1;
            dropped += 1;
        }
        if dropped > 0 {
            Arc::make_mut(&mut self.blocks).drain(..dropped);
        }
    }
}

#[cfg(test)]
mod tests;
