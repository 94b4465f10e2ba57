//! Between the state and the page store: what a checkpoint has to write, and taking it over again at boot.
//!
//! The trees hold etcd's keys and values (`etcd-surface` 5.4): leases, alarms, members with removed ids, and in the
//! `Meta` tree what etcd spreads over its buckets `cluster` and `meta`, under the same names. The page store's own
//! commit fields carry revision, applied index and term.

use crate::limits::RESTORE_REVISION_MAX;
use crate::mvcc::index::{self, IndexWriter, NEWEST, RestoreBatch, Tree};
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::mvcc::window::{WindowView, WindowWriter};
use crate::pages::{Root, TreeId};
use crate::proto::etcdserverpb::AlarmMember;
use crate::proto::leasepb;
use crate::state::State;
use crate::state::alarm::Alarms;
use crate::state::backend::names::{CLUSTER_VERSION, DOWNGRADE, FINISHED_COMPACTION, SCHEDULED_COMPACTION};
use crate::state::compaction::Compaction;
use crate::state::lease::{Lessor, LessorConfig};
use crate::state::members::Members;
use crate::state::read::for_each;
use prost::Message;
use std::ops::ControlFlow;

/// One change of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// Which.
    pub tree: TreeId,
    /// etcd's key.
    pub key: Vec<u8>,
    /// etcd's value; `None` deletes.
    pub value: Option<Vec<u8>>,
}

/// An immutable cut of the state at one entry: all that a checkpoint needs.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The store's revision.
    pub revision: i64,
    /// The compact revision; -1 before the first.
    pub compact_revision: i64,
    /// The last entry contained.
    pub applied_index: u64,
    /// Its term.
    pub applied_term: u64,
    /// The records: those behind the last checkpoint are new.
    pub window: WindowView,
    /// Changes of the small trees since the last cut.
    pub updates: Vec<Update>,
    /// Records that compaction removed since the last cut, in order, and whether each was a tombstone. Some may be in
    /// the window only: those are not to be written at all.
    pub removed: Vec<(Revision, bool)>,
}

impl State {
    /// Cuts. What is returned is not returned again: it has to become durable, or the process to end.
    ///
    /// # Panics
    /// While an entry is half applied.
    pub fn take_changes(&mut self) -> Changes {
        assert!(
            self.running.is_none(),
            "checkpoint in the middle of entry {}",
            self.applied_index
        );
        let mut updates = Vec::new();
        let mut add = |tree, key, value| updates.push(Update { tree, key, value });
        for (key, value) in self.lessor.take_changes() {
            add(TreeId::Leases, key, value);
        }
        for (key, value) in self.members.take_changes() {
            add(TreeId::Members, key, value);
        }
        for (key, value) in self.alarms.take_changes() {
            add(TreeId::Alarms, key, value);
        }
        if let Some(version) = self.members.take_version_change() {
            add(TreeId::Meta, CLUSTER_VERSION.to_vec(), Some(version));
        }
        if let Some(downgrade) = self.members.take_downgrade_change() {
            add(TreeId::Meta, DOWNGRADE.to_vec(), Some(downgrade));
        }
        if let Some((scheduled, finished)) = self.compaction.take_marks() {
            add(TreeId::Meta, SCHEDULED_COMPACTION.to_vec(), mark(scheduled));
            add(TreeId::Meta, FINISHED_COMPACTION.to_vec(), mark(finished));
        }
        Changes {
            revision: self.revision,
            compact_revision: self.compaction.compact_revision(),
            applied_index: self.applied_index,
            applied_term: self.applied_term,
            window: self.window.view(),
            updates,
            removed: self.compaction.take_removed(),
        }
    }
}

/// A compaction mark as etcd stores it: a revision; nothing for one that never was.
fn mark(main: i64) -> Option<Vec<u8>> {
    let (bytes, length) = Revision::new(main, 0).to_bytes(false);
    (main >= 0).then(|| bytes[..length].to_vec())
}

/// Why a stored state cannot be taken over. The store is damaged, or written by another version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// A record.
    #[error(transparent)]
    Record(#[from] index::RestoreError),
    /// A pair of a tree.
    #[error("tree {tree:?} of the page store has {reason} under key {}; restore a backup", key.escape_ascii())]
    Pair {
        /// The tree.
        tree: TreeId,
        /// The key.
        key: Vec<u8>,
        /// What is wrong.
        reason: &'static str,
    },
    /// A revision beyond what a store can reach.
    #[error("record {0:?} of the page store has an impossible revision; restore a backup")]
    Revision(Revision),
}

/// A state being taken over from the page store: all pairs of the trees in any order, all records in theirs.
pub struct Restore {
    root: Root,
    keys: Tree,
    /// Whether a record has a lease.
    has_leases: bool,
    lessor: Lessor,
    alarms: Alarms,
    members: Members,
    scheduled: i64,
    finished: i64,
    /// Records that a compaction removed and the store still has.
    removed: Vec<(Revision, bool)>,
}

impl Restore {
    /// Begins at a root.
    pub fn new(config: LessorConfig, root: &Root) -> Restore {
        Restore {
            root: root.clone(),
            keys: Tree::new(),
            has_leases: false,
            lessor: Lessor::new(config),
            alarms: Alarms::default(),
            members: Members::default(),
            scheduled: -1,
            finished: -1,
            removed: Vec::new(),
        }
    }

    /// Takes a pair of a tree.
    pub fn pair(&mut self, tree: TreeId, key: &[u8], value: &[u8]) -> Result<(), RestoreError> {
        let result = match tree {
            TreeId::Leases => self.lease(key, value),
            TreeId::Members => self.members.restore_member(key, value),
            TreeId::Alarms => AlarmMember::decode(key)
                .map(|alarm| self.alarms.restore(&alarm))
                .map_err(|_| "an alarm that is no AlarmMember"),
            TreeId::Meta => self.meta(key, value),
            TreeId::Users | TreeId::Roles | TreeId::Records => Err("a pair that this version does not know"),
        };
        result.map_err(|reason| RestoreError::Pair {
            tree,
            key: key.to_vec(),
            reason,
        })
    }

    fn lease(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let lease = leasepb::Lease::decode(value).map_err(|_| "a lease that is no leasepb.Lease")?;
        if key != lease.id.to_be_bytes() || lease.id == 0 {
            return Err("a lease of another id");
        }
        self.lessor.restore(&lease);
        Ok(())
    }

    fn meta(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let revision = || match Revision::from_bytes(value) {
            Some((revision, false)) if revision.main <= RESTORE_REVISION_MAX => Ok(revision.main),
            _ => Err("a compaction mark that is no revision"),
        };
        match key {
            CLUSTER_VERSION => self.members.restore_version(value)?,
            DOWNGRADE => self.members.restore_downgrade(value)?,
            SCHEDULED_COMPACTION => self.scheduled = revision()?,
            FINISHED_COMPACTION => self.finished = revision()?,
            // The pairs of others.
            _ => {}
        }
        Ok(())
    }

    /// Takes the next records, sorted. The pairs come before them.
    pub fn records(&mut self, batch: &RestoreBatch) -> Result<(), RestoreError> {
        if let Some((first, last)) = batch.span() {
            let possible = 1..=RESTORE_REVISION_MAX;
            if let Some(revision) = [first, last].iter().find(|revision| !possible.contains(&revision.main)) {
                return Err(RestoreError::Revision(*revision));
            }
        }
        self.has_leases |= batch.has_leases();
        let compact_main = self.scheduled.max(self.finished);
        Ok(self.keys.restore(batch, compact_main, &mut self.removed)?)
    }

    /// The state as of the root, published. No lease expires before [`Lessor::promote`].
    pub fn finish(mut self) -> State {
        if self.has_leases {
            for_each(&self.keys, b"", b"\0", NEWEST, |key, meta| {
                if meta.lease != 0 {
                    self.lessor.attach(meta.lease, key);
                }
                ControlFlow::Continue(())
            });
        }
        let compaction = Compaction::restored(self.scheduled, self.finished, self.removed);
        let fields = self.root.fields();
        let stored = fields.revision.max(self.keys.last_revision().main);
        let revision = stored.max(compaction.compact_revision()).max(1);
        let (applied_index, applied_term) = (fields.applied_index, fields.term);
        let window = WindowWriter::new(revision);
        let view = View {
            sole_voter: false,
            revision,
            compact_revision: compaction.compact_revision(),
            applied_index,
            term: applied_term,
            window: window.view(),
            pages: self.root,
        };
        State {
            index: IndexWriter::new(self.keys, view),
            window,
            revision,
            applied_index,
            applied_term,
            compaction,
            lessor: self.lessor,
            alarms: self.alarms,
            members: self.members,
            running: None,
        }
    }
}
