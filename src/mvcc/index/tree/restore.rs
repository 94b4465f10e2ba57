//! Filling the tree at boot from sorted batches of the store's records.

use super::super::list::Origin;
use super::super::restore::RestoreBatch;
use super::super::{KeyMeta, RestoreError};
use super::Tree;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;

impl Tree {
    /// Takes over records of the store at boot, sorted. Batches come in the order of their revisions; the older records
    /// of a key may be gone. Version and create revision are the records', and are checked against the key's records
    /// before. After an error the tree is good for nothing.
    ///
    /// The store may still hold records that a compaction at or before `compact_main` has removed, any of a key's and
    /// not only its newest ones: they are left out and appended to `removed`, with whether each was a tombstone.
    pub fn restore(
        &mut self,
        batch: &RestoreBatch,
        compact_main: i64,
        removed: &mut Vec<(Revision, bool)>,
    ) -> Result<(), RestoreError> {
        let Some((first, last)) = batch.span() else {
            return Ok(());
        };
        if first <= self.last {
            let (revision, last) = (first, self.last);
            return Err(RestoreError::OutOfOrder { revision, last });
        }
        for (revision, record, tombstone) in batch.sorted() {
            if revision.main <= compact_main {
                self.leave_out(record.key, removed);
                if tombstone && revision.main < compact_main {
                    removed.push((revision, true));
                    continue;
                }
            }
            self.take_over(revision, &record, tombstone)?;
        }
        self.last = last;
        Ok(())
    }

    /// Takes a key out of the tree, all of whose records a compaction has removed.
    fn leave_out(&mut self, key: &[u8], removed: &mut Vec<(Revision, bool)>) {
        let Some(entry) = self.root().entry(key) else {
            return;
        };
        // SAFETY: found in the writer's tree.
        let (list, revisions) = unsafe { (entry.list(), entry.revisions()) };
        removed.extend((0..revisions.len()).map(|index| revisions.revision(index)));
        self.revisions -= revisions.len();
        self.remove(key);
        self.lose_entry(entry);
        self.lose_list(list);
    }

    /// Takes over a record that is newer than all of its key's.
    fn take_over(
        &mut self,
        revision: Revision,
        record: &KeyValueView<'_>,
        tombstone: bool,
    ) -> Result<(), RestoreError> {
        let found = self.root().entry(record.key);
        // SAFETY: found in the writer's tree.
        let previous = found.and_then(|entry| unsafe { entry.revisions() }.newest());
        if !tombstone {
            check_record(revision, record, found.is_some(), previous)?;
        }
        match found {
            None if tombstone => self.create(record.key, revision, true, None, 0),
            None => {
                let origin = Origin::of(record.create_revision, record.version, revision.main);
                self.create(record.key, revision, false, origin, record.lease);
            }
            Some(entry) => {
                self.append(entry, revision, tombstone, if tombstone { 0 } else { record.lease });
                if previous.is_none() != tombstone {
                    self.mark(record.key, !tombstone, revision.main);
                }
            }
        }
        Ok(())
    }
}

/// Whether a record at boot can follow what is known of its key: any sensible one if that is nothing, else the next
/// version exactly.
fn check_record(
    revision: Revision,
    record: &KeyValueView<'_>,
    known: bool,
    previous: Option<KeyMeta>,
) -> Result<(), RestoreError> {
    let found = (record.create_revision, record.version);
    if !known {
        let (create_revision, version) = found;
        let sensible = version >= 1
            && (1..=revision.main).contains(&create_revision)
            && (version > 1 || create_revision == revision.main);
        return match sensible {
            true => Ok(()),
            false => Err(RestoreError::Impossible { revision, found }),
        };
    }
    let expected = previous.map_or((revision.main, 1), |meta| (meta.create_revision, meta.version + 1));
    match found == expected {
        true => Ok(()),
        false => Err(RestoreError::Disagrees {
            revision,
            found,
            expected,
        }),
    }
}
