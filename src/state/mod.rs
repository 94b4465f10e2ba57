//! The replicated state machine: a pure function of (state, entry).
//!
//! [`State`] is owned by the one writer. `apply` carries out a log entry: it writes the index and the event window and
//! answers in revisions ([`outcome::Outcome`]); nothing of it is seen by readers before [`State::publish`]. It reads no
//! clock (time is passed in and decides nothing that is replicated), no disk (records that decide are named by `needs`
//! and handed in), and nothing else of the member it runs on, so that equal entries make equal states everywhere.
//!
//! The rest of the room is shared with the cores that serve reads: `validate` and `depth` (requests), `range`, `plan`
//! and `compare` (evaluation on an index), `hash`. `backend` makes etcd's database of a store, and a store of that.

pub mod ahead;
pub mod alarm;
pub mod apply;
pub mod backend;
mod changes;
mod compaction;
pub mod compare;
pub mod depth;
pub mod error;
pub mod hash;
pub mod identity;
mod intervals;
pub mod lease;
pub mod legacy;
pub mod members;
pub mod outcome;
pub mod plan;
pub mod quota;
pub mod range;
pub mod read;
mod run;
mod run_txn;
pub mod stand_in;
pub mod validate;
pub mod version;

pub use apply::{Entry, Progress};
pub use changes::{Changes, Restore, RestoreError, Update};
pub use compaction::CompactionProgress;
pub use error::StateError;

use crate::mvcc::index::{Index, IndexWriter, Tree};
use crate::mvcc::view::View;
use crate::mvcc::window::WindowWriter;
use crate::pages::Root;
use alarm::Alarms;
use compaction::Compaction;
use lease::{Lessor, LessorConfig};
use members::Members;
use range::Readable;
use run::Running;
use std::sync::Arc;

/// Everything that applying entries changes.
pub struct State {
    index: IndexWriter<View>,
    window: WindowWriter,
    /// The newest main revision; 1 in a new store.
    revision: i64,
    applied_index: u64,
    applied_term: u64,
    compaction: Compaction,
    lessor: Lessor,
    alarms: Alarms,
    members: Members,
    /// The entry whose apply has stopped on its budget.
    running: Option<Box<Running>>,
}

impl State {
    /// A new store.
    pub fn new(config: LessorConfig) -> State {
        Restore::new(config, &Root::empty(Default::default())).finish()
    }

    /// The readers' end of the index.
    pub fn index(&self) -> &Arc<Index<View>> {
        self.index.index()
    }

    /// The keys as of the last entry, unpublished.
    pub fn keys(&self) -> &Tree {
        self.index.tree()
    }

    /// The event window's writer, for trimming it.
    pub fn window_mut(&mut self) -> &mut WindowWriter {
        &mut self.window
    }

    /// The event window's writer.
    pub fn window(&self) -> &WindowWriter {
        &self.window
    }

    /// The revisions that can be read.
    pub fn readable(&self) -> Readable {
        Readable {
            revision: self.revision,
            compact_revision: self.compaction.compact_revision(),
        }
    }

    /// The raft index of the last entry applied.
    pub fn applied_index(&self) -> u64 {
        self.applied_index
    }

    /// The term of the last entry applied.
    pub fn applied_term(&self) -> u64 {
        self.applied_term
    }

    /// The leases.
    pub fn lessor(&self) -> &Lessor {
        &self.lessor
    }

    /// The leases, for renewals, expiry and changes of leadership, which are not replicated.
    pub fn lessor_mut(&mut self) -> &mut Lessor {
        &mut self.lessor
    }

    /// The alarms.
    pub fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    /// The members.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The members, for configuration changes, which `raft` decodes.
    pub fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    /// Notes that an entry without a request was applied: an empty one of a new leader, or a configuration change.
    pub fn skip(&mut self, index: u64, term: u64) {
        self.assert_follows(index, term);
        (self.applied_index, self.applied_term) = (index, term);
    }

    /// Frees some of what readers have let go of. True when there is more.
    pub fn collect(&mut self) -> bool {
        self.index.collect()
    }

    /// Makes everything applied so far visible to readers, together with the page store's newest root, and returns the
    /// view: a clone is what goes out with the outcomes of the batch.
    ///
    /// # Panics
    /// While an entry is half applied.
    pub fn publish(&mut self, term: u64, sole_voter: bool, pages: Root) -> View {
        assert!(
            self.running.is_none(),
            "published in the middle of entry {}",
            self.applied_index
        );
        let view = View {
            revision: self.revision,
            compact_revision: self.compaction.compact_revision(),
            applied_index: self.applied_index,
            term,
            sole_voter,
            window: self.window.view(),
            pages,
        };
        self.index.publish(view.clone());
        view
    }

    fn assert_follows(&self, index: u64, term: u64) {
        assert!(
            self.running.is_none(),
            "entry {index} came in the middle of entry {}",
            self.applied_index
        );
        assert!(
            index > self.applied_index && term >= self.applied_term,
            "entry {index} of term {term} applied after entry {} of term {}",
            self.applied_index,
            self.applied_term
        );
    }
}

#[cfg(test)]
mod tests;
