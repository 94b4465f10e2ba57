//! Taking records over at boot: some thousand of them at a time, sorted by key by whoever decoded them.
//!
//! Records reach the tree in any order of keys as long as those of one key come in the order of their revisions. Sorted
//! ones meet the same nodes again while these are in the processor's caches, and sorting is work for another thread.

use super::RestoreError;
use super::node::common_prefix;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;

/// Consecutive records of the store, without their values.
#[derive(Debug, Default)]
pub struct RestoreBatch {
    keys: Vec<u8>,
    rows: Vec<Row>,
    /// Bytes that all keys have in common at their start.
    prefix: usize,
    /// The rows by key, and within a key by revision: the eight bytes behind the prefix, and the row. Empty until
    /// sorted.
    order: Vec<(u64, u32)>,
}

#[derive(Debug)]
struct Row {
    key_start: usize,
    key_length: u32,
    tombstone: bool,
    revision: Revision,
    create_revision: i64,
    version: i64,
    lease: i64,
}

impl RestoreBatch {
    /// Adds the next record.
    pub fn push(&mut self, revision: Revision, record: &KeyValueView<'_>, tombstone: bool) -> Result<(), RestoreError> {
        assert!(self.order.is_empty(), "a sorted batch is complete");
        match self.rows.last() {
            Some(row) if row.revision >= revision => {
                let last = row.revision;
                return Err(RestoreError::OutOfOrder { revision, last });
            }
            Some(_) => self.prefix = common_prefix(&self.keys[..self.prefix], record.key),
            None => self.prefix = record.key.len(),
        }
        self.rows.push(Row {
            key_start: self.keys.len(),
            key_length: u32::try_from(record.key.len()).expect("a key is far shorter than 4 GiB: requests are bounded"),
            tombstone,
            revision,
            create_revision: record.create_revision,
            version: record.version,
            lease: record.lease,
        });
        self.keys.extend_from_slice(record.key);
        Ok(())
    }

    /// Puts the records in the order in which the tree takes them.
    pub fn sort(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend((0..self.rows.len()).map(|row| (fragment(&self.key(row)[self.prefix..]), row as u32)));
        order.sort_unstable_by(|left, right| {
            let rest = |row: u32| &self.key(row as usize)[self.prefix..];
            left.0
                .cmp(&right.0)
                .then_with(|| rest(left.1).cmp(rest(right.1)))
                .then_with(|| left.1.cmp(&right.1))
        });
        self.order = order;
    }

    /// Drops the records and keeps the memory.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.rows.clear();
        self.order.clear();
    }

    /// Bytes of the keys.
    pub fn key_bytes(&self) -> usize {
        self.keys.len()
    }

    /// The first and the last revision; `None` in an empty batch.
    pub fn span(&self) -> Option<(Revision, Revision)> {
        Some((self.rows.first()?.revision, self.rows.last()?.revision))
    }

    /// Whether a record has a lease.
    pub fn has_leases(&self) -> bool {
        self.rows.iter().any(|row| row.lease != 0)
    }

    /// The records by key and revision, and whether each is a tombstone.
    pub(super) fn sorted(&self) -> impl Iterator<Item = (Revision, KeyValueView<'_>, bool)> {
        assert_eq!(
            self.order.len(),
            self.rows.len(),
            "a batch is sorted before it is taken over"
        );
        self.order.iter().map(|&(_, number)| {
            let row = &self.rows[number as usize];
            let record = KeyValueView {
                key: self.key(number as usize),
                create_revision: row.create_revision,
                mod_revision: row.revision.main,
                version: row.version,
                value: &[],
                lease: row.lease,
            };
            (row.revision, record, row.tombstone)
        })
    }

    fn key(&self, row: usize) -> &[u8] {
        let row = &self.rows[row];
        &self.keys[row.key_start..row.key_start + row.key_length as usize]
    }
}

/// Bytes that compare as they do, as a number; equal numbers say nothing.
fn fragment(rest: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = rest.len().min(8);
    bytes[..length].copy_from_slice(&rest[..length]);
    u64::from_be_bytes(bytes)
}
