//! Compaction: the revision below which history is gone, and the removal of what nobody can read any more.
//!
//! `apply` only moves the compact revision. The removal follows in slices and may be spread over any number of entries:
//! it walks the records between the last compaction that was finished and the one that was asked for, both included,
//! and prunes the key of each. So it costs in proportion to the revisions compacted. The record kept as a tombstone at
//! exactly the former compact revision is the reason to begin there.
//!
//! The removed revisions go to the page store with the next checkpoint, together with the mark that says how far the
//! removal came: a restart goes on from there.

use crate::mvcc::revision::Revision;
use crate::state::State;
use crate::state::error::StateError;
use std::collections::VecDeque;

/// The main revision of a store's first record.
const FIRST_MAIN: i64 = 2;

/// How far the removal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionProgress {
    /// There is nothing to remove.
    Idle,
    /// The budget is used up.
    More,
    /// Hand the records from `from` up to and with main revision `through` to [`State::compact_records`], in slices;
    /// the window does not have them any more.
    NeedsRecords {
        /// The first.
        from: Revision,
        /// The main revision of the last.
        through: i64,
    },
    /// The removal for this compact revision is done; a physical compaction is answered now.
    Finished(i64),
}

/// What is known about compactions.
#[derive(Debug)]
pub(crate) struct Compaction {
    compact_revision: i64,
    /// The last one whose removal is done; -1 when there was none.
    finished: i64,
    /// Those to do, in order.
    pending: VecDeque<i64>,
    /// Where the walk for the first of them is.
    position: Revision,
    removed: Vec<(Revision, bool)>,
    /// Whether the marks changed since the last checkpoint.
    changed: bool,
}

impl Compaction {
    /// After a restart: the marks of the last checkpoint, -1 where there is none.
    pub fn restored(scheduled: i64, finished: i64, removed: Vec<(Revision, bool)>) -> Compaction {
        Compaction {
            compact_revision: scheduled.max(finished),
            finished,
            pending: (scheduled > finished).then_some(scheduled).into_iter().collect(),
            position: start(finished),
            removed,
            changed: false,
        }
    }

    pub fn compact_revision(&self) -> i64 {
        self.compact_revision
    }

    pub fn schedule(&mut self, wanted: i64, revision: i64) -> Result<(), StateError> {
        if wanted <= self.compact_revision {
            return Err(StateError::Compacted);
        }
        if wanted > revision {
            return Err(StateError::FutureRevision);
        }
        self.compact_revision = wanted;
        self.pending.push_back(wanted);
        self.changed = true;
        Ok(())
    }

    /// The marks, scheduled and finished, if they changed since the last call.
    pub fn take_marks(&mut self) -> Option<(i64, i64)> {
        std::mem::take(&mut self.changed).then_some((self.compact_revision, self.finished))
    }

    /// The revisions that went since the last call, and whether each was a tombstone.
    pub fn take_removed(&mut self) -> Vec<(Revision, bool)> {
        let mut removed = std::mem::take(&mut self.removed);
        removed.sort_unstable();
        removed
    }

    fn finish(&mut self, target: i64) -> CompactionProgress {
        self.pending.pop_front();
        self.finished = target;
        self.position = start(target);
        self.changed = true;
        CompactionProgress::Finished(target)
    }
}

fn start(finished: i64) -> Revision {
    Revision::new(finished.max(FIRST_MAIN), 0)
}

impl State {
    /// The compact revision whose removal is under way or next. It must not begin before every reader has a view of at
    /// least this revision (DESIGN 12 (10)); what older views name would be gone.
    pub fn compaction_target(&self) -> Option<i64> {
        self.compaction.pending.front().copied()
    }

    /// Whether records were removed since the last cut.
    pub fn has_removed(&self) -> bool {
        !self.compaction.removed.is_empty()
    }

    /// Walks up to `budget` records of the window. What it removes is seen with the next publication.
    pub fn compaction_step(&mut self, budget: usize) -> CompactionProgress {
        assert!(
            self.running.is_none(),
            "compaction in the middle of entry {}",
            self.applied_index
        );
        let Some(target) = self.compaction_target() else {
            return CompactionProgress::Idle;
        };
        let from = self.compaction.position;
        let window = self.window.view();
        if from.main > target {
            return self.compaction.finish(target);
        }
        if from.main < window.first_main() {
            let through = target.min(window.first_main() - 1);
            return CompactionProgress::NeedsRecords { from, through };
        }
        let mut records = window.scan(from).take_while(|record| record.revision.main <= target);
        for record in records.by_ref().take(budget) {
            self.index.prune(record.key(), target, &mut self.compaction.removed);
        }
        match records.next() {
            Some(next) => {
                self.compaction.position = next.revision;
                CompactionProgress::More
            }
            None => self.compaction.finish(target),
        }
    }

    /// Takes records that [`State::compaction_step`] asked for, by key. `next` is the first that was not handed in;
    /// (`through` + 1, 0) when that was the last. Records that an earlier removal took may be missing.
    pub fn compact_records<K: AsRef<[u8]>>(&mut self, keys: impl IntoIterator<Item = K>, next: Revision) {
        assert!(
            self.running.is_none(),
            "compaction in the middle of entry {}",
            self.applied_index
        );
        assert!(
            next >= self.compaction.position,
            "the walk of a compaction goes forward"
        );
        let Some(target) = self.compaction_target() else {
            return;
        };
        for key in keys {
            self.index.prune(key.as_ref(), target, &mut self.compaction.removed);
        }
        self.compaction.position = next;
    }
}
