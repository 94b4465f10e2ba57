//! When a checkpoint is made, from what, and what follows it.
//!
//! Order (DESIGN 12 (5) and (12)): the commit index of the cut becomes durable in the log; the page store writes data,
//! barrier, meta, barrier; the new root is published; only then the window is trimmed, a snapshot record is written and
//! the log is released. A checkpoint that finds no room is given up and tried again; nothing is lost by that.

use super::storage::Position;
use crate::io::disk::{Completion, Disk};
use crate::limits::{
    CHECKPOINT_FRUITLESS_MAX, CHECKPOINT_GARBAGE_PERCENT, CHECKPOINT_INTERVAL, CHECKPOINT_QUOTA_PAUSE,
    CHECKPOINT_REMOVED_MAX, CHECKPOINT_RETRY, CHECKPOINT_RETRY_DOUBLINGS, CHECKPOINT_SPACE_RETRY, PIN_AGE_MAX,
    PIN_BYTES_MAX,
};
use crate::mvcc::revision::Revision;
use crate::mvcc::window::WindowView;
use crate::pages::{
    self, Aborted, Commit, Cut, NewRecord, PageStore, Progress, RecordId, Root, StateFields, StoreFailure,
};
use crate::state::{Changes, State};
use crate::wal::Ticket;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// What the member is short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// Nothing.
    None,
    /// Room by the quota. Checkpoints make the file smaller, as long as it holds what nobody needs.
    Quota,
    /// Room on the disk, or below the page file's limit. Checkpoints may use the reserve.
    Disk,
}

/// What a step of the checkpoints led to.
pub enum Event {
    /// Nothing that concerns others.
    None,
    /// More can be done at once.
    Busy,
    /// A checkpoint became durable.
    Committed(Committed),
    /// There was no room; writes ought to be refused until a later one succeeds.
    NoSpace(String),
    /// A page that the checkpoint needed is damaged.
    Corrupt(String),
    /// A page that the checkpoint needed could not be read this time.
    Unreadable(String),
}

/// A durable checkpoint.
pub struct Committed {
    /// The new root.
    pub root: Root,
    /// The last entry it contains.
    pub position: Position,
    /// Time from its beginning.
    pub took: Duration,
}

/// A cut that has not become durable yet.
struct Pending {
    changes: Changes,
    membership: Bytes,
    /// The commit index of the cut is durable with this ticket.
    ticket: Ticket,
}

/// Makes checkpoints of one state into one page store.
pub struct Checkpoints {
    store: PageStore,
    pending: Option<Pending>,
    running: Option<Position>,
    /// Deletions that an earlier checkpoint had no time for, or did not make because it was given up.
    remaining: Vec<RecordId>,
    /// What the running checkpoint deletes, for one that comes after it if it is given up.
    deleting: Vec<RecordId>,
    /// What the running checkpoint writes although it was removed already: for the next one to delete.
    outdated: Vec<RecordId>,
    /// A cut whose checkpoint was given up: it is part of the next one.
    given_up: Option<Changes>,
    last_at: Duration,
    began_at: Duration,
    retry_at: Duration,
    /// Checkpoints given up since the last that was not.
    failures: u32,
    /// What there was of the file and to be deleted when the last checkpoint began.
    extent: u64,
    /// Checkpoints for want of room by the quota after which there was no less of that.
    fruitless: u32,
    /// A reader that keeps more than this of the file from reuse is ended, in bytes.
    pub(super) pin_bytes_max: u64,
}

impl Checkpoints {
    /// Checkpoints into `store`.
    pub fn new(store: PageStore) -> Checkpoints {
        Checkpoints {
            store,
            pending: None,
            running: None,
            remaining: Vec::new(),
            deleting: Vec::new(),
            outdated: Vec::new(),
            given_up: None,
            last_at: Duration::ZERO,
            began_at: Duration::ZERO,
            retry_at: Duration::ZERO,
            failures: 0,
            extent: 0,
            fruitless: 0,
            pin_bytes_max: PIN_BYTES_MAX,
        }
    }

    /// The page store.
    pub fn store(&self) -> &PageStore {
        &self.store
    }

    /// Whether a checkpoint is under way or waits for the log.
    pub fn is_active(&self) -> bool {
        self.pending.is_some() || self.running.is_some()
    }

    /// Whether there is room again after a checkpoint was given up for want of it: a later one is durable, and the next
    /// need not be urgent.
    pub fn has_room(&self) -> bool {
        !self.is_active() && self.given_up.is_none() && self.store.is_idle() && self.store.has_room()
    }

    /// Whether now is the time for one: `due_bytes` in the window that the store lacks, or enough records removed, or
    /// anything new for long enough. Without room on the disk one is tried from time to time, even an empty one: it
    /// makes usable what earlier ones freed, and finds out whether the disk has room again. Without room by the quota
    /// they follow each other for as long as that gives room back.
    pub fn is_due(&self, now: Duration, state: &State, dirty_bytes: u64, due_bytes: u64, pressure: Pressure) -> bool {
        if self.is_active() || !self.store.is_idle() || now < self.retry_at {
            return false;
        }
        match pressure {
            Pressure::Disk if now >= self.last_at + CHECKPOINT_SPACE_RETRY => return true,
            Pressure::Quota if now >= self.last_at + self.quota_pause() && self.has_garbage(state, dirty_bytes) => {
                return true;
            }
            _ => {}
        }
        let behind = state.applied_index() > self.store.root().fields().applied_index;
        (behind || self.has_removed(state))
            && (dirty_bytes >= due_bytes
                || self.remaining.len() >= CHECKPOINT_REMOVED_MAX
                || now >= self.last_at + CHECKPOINT_INTERVAL)
    }

    /// Whether there will soon be more room by the quota, without anybody's doing.
    pub fn is_making_room(&self, state: &State) -> bool {
        let is_pending = |pending: &Pending| !pending.changes.removed.is_empty();
        let is_removing = self.pending.as_ref().is_some_and(is_pending) || !self.deleting.is_empty();
        self.fruitless < CHECKPOINT_FRUITLESS_MAX
            && (is_removing || !self.outdated.is_empty() || self.has_garbage(state, 0))
    }

    /// Time between checkpoints for want of room by the quota: longer and longer while they don't help, as when readers
    /// hold what could go.
    fn quota_pause(&self) -> Duration {
        (CHECKPOINT_QUOTA_PAUSE * (1 << self.fruitless.min(16))).min(CHECKPOINT_INTERVAL)
    }

    fn has_removed(&self, state: &State) -> bool {
        !self.remaining.is_empty() || state.has_removed()
    }

    /// Whether a good part of what the quota counts may be of no use: records that compaction removed, pages that were
    /// freed, or `dirty_bytes`, of which a checkpoint finds out what they are.
    fn has_garbage(&self, state: &State, dirty_bytes: u64) -> bool {
        let (size, in_use) = (self.store.size(), self.store.size_in_use());
        let garbage = size.saturating_sub(in_use) + dirty_bytes;
        self.has_removed(state) || garbage * 100 > (size + dirty_bytes) * CHECKPOINT_GARBAGE_PERCENT
    }

    /// Cuts the state now. `ticket` says when its commit index is durable; `membership` are raft's voters.
    pub fn cut(&mut self, state: &mut State, ticket: Ticket, membership: Bytes) {
        assert!(!self.is_active());
        let mut changes = state.take_changes();
        if let Some(mut earlier) = self.given_up.take() {
            earlier.updates.append(&mut changes.updates);
            earlier.removed.append(&mut changes.removed);
            changes.updates = earlier.updates;
            changes.removed = earlier.removed;
            changes.removed.sort_unstable();
        }
        self.pending = Some(Pending {
            changes,
            membership,
            ticket,
        });
    }

    /// Whether the token is the page store's.
    pub fn owns(&self, token: u64) -> bool {
        self.store.owns(token)
    }

    /// Takes the end of an operation of the page store's.
    pub fn completed(&mut self, completion: Completion) -> Result<(), StoreFailure> {
        self.store.completed(completion)
    }

    /// Goes on, by a bounded amount of work.
    pub fn step(
        &mut self,
        disk: &mut dyn Disk,
        durable: Ticket,
        now: Duration,
        pressure: Pressure,
    ) -> Result<Event, StoreFailure> {
        if self.store.is_idle() {
            match self.pending.take_if(|pending| pending.ticket <= durable) {
                Some(pending) => self.begin(pending, now, pressure),
                None => return Ok(Event::None),
            }
        }
        Ok(match self.store.step(disk)? {
            Progress::Idle | Progress::Waiting => Event::None,
            Progress::Busy => Event::Busy,
            Progress::Committed(commit) => self.committed(commit, now),
            Progress::Aborted(reason) => self.aborted(reason, now),
        })
    }

    fn begin(&mut self, pending: Pending, now: Duration, pressure: Pressure) {
        self.began_at = now;
        self.note_extent(pressure);
        let Pending {
            changes, membership, ..
        } = pending;
        let fields = StateFields {
            revision: changes.revision,
            compact_revision: changes.compact_revision,
            applied_index: changes.applied_index,
            term: changes.applied_term,
            membership,
        };
        let stored_main = self.store.root().fields().revision;
        let mut deletes = std::mem::take(&mut self.remaining);
        let removed = changes.removed.iter().map(|(revision, _)| *revision);
        // A record that is not stored yet is stored all the same, and deleted by the next checkpoint: deletions go by
        // revision and this one may not make them all, and of a key whose tombstone is missing an older record, not yet
        // deleted, would live again at the next start.
        let (stored, outdated): (Vec<Revision>, Vec<Revision>) =
            removed.partition(|revision| revision.main <= stored_main);
        self.outdated = outdated.into_iter().map(record_id).collect();
        deletes.extend(stored.into_iter().map(record_id));
        deletes.sort_unstable();
        deletes.dedup();
        self.deleting.clone_from(&deletes);
        let mut trees: BTreeMap<pages::TreeId, pages::TreeUpdates> = BTreeMap::new();
        for update in &changes.updates {
            let value = update.value.clone().map(Bytes::from);
            trees.entry(update.tree).or_default().insert(update.key.clone(), value);
        }
        self.running = Some(Position {
            index: changes.applied_index,
            term: changes.applied_term,
        });
        let records = new_records(changes.window.clone(), stored_main, changes.revision);
        self.given_up = Some(Changes {
            window: changes.window.clone(),
            ..changes
        });
        let now_ms = now.as_millis() as u64;
        let cut = Cut {
            records: Box::new(records),
            deletes,
            trees,
            fields,
            urgent: pressure == Pressure::Disk,
            now_ms,
        };
        if let Err(error) = self.store.begin(cut) {
            unreachable!("the state makes only cuts that the format holds: {error}");
        }
    }

    /// Notes whether the checkpoint before this one helped: whether the file, what of it is in use, or what is to be
    /// deleted is less than before.
    fn note_extent(&mut self, pressure: Pressure) {
        let extent = self.store.size() + self.store.size_in_use() + self.remaining.len() as u64;
        self.fruitless = match pressure {
            Pressure::Quota if extent >= self.extent => self.fruitless + 1,
            _ => 0,
        };
        self.extent = extent;
    }

    fn committed(&mut self, commit: Commit, now: Duration) -> Event {
        self.given_up = None;
        self.remaining = commit.remaining_deletes;
        self.remaining.append(&mut self.outdated);
        self.deleting = Vec::new();
        self.last_at = now;
        self.failures = 0;
        self.expire_pins(now);
        let position = self.running.take().expect("a checkpoint was running");
        Event::Committed(Committed {
            root: commit.root,
            position,
            took: now.saturating_sub(self.began_at),
        })
    }

    /// Readers that hold an old state for too long, or too much of the file by it, are ended (DESIGN 12 (8)).
    fn expire_pins(&mut self, now: Duration) {
        for pin in self.store.pins(now.as_millis() as u64) {
            if pin.age_ms > PIN_AGE_MAX.as_millis() as u64 || pin.held_bytes > self.pin_bytes_max {
                tracing::warn!(
                    age_ms = pin.age_ms,
                    held_bytes = pin.held_bytes,
                    "ended reads of an old state"
                );
                self.store.expire(pin.generation);
            }
        }
    }

    fn aborted(&mut self, reason: Aborted, now: Duration) -> Event {
        self.running = None;
        self.remaining = std::mem::take(&mut self.deleting);
        self.outdated = Vec::new();
        self.retry_at = now + (CHECKPOINT_RETRY * (1 << self.failures.min(CHECKPOINT_RETRY_DOUBLINGS)));
        self.failures += 1;
        // What readers hold may be what is missing.
        self.expire_pins(now);
        match reason {
            Aborted::DiskFull(_) | Aborted::Limit { .. } => Event::NoSpace(reason.to_string()),
            Aborted::Corrupt(_) => Event::Corrupt(format!("page file {}: {reason}", self.store.path().display())),
            // A read that failed says nothing of what is stored: the checkpoint is tried again.
            Aborted::Read(_) => Event::Unreadable(reason.to_string()),
        }
    }
}

fn record_id(revision: Revision) -> RecordId {
    RecordId {
        main: revision.main,
        sub: revision.sub,
    }
}

/// The records that the store lacks. An iterator over an immutable view; the records' bytes are copied when it gets to
/// them.
fn new_records(window: WindowView, stored_main: i64, through_main: i64) -> impl Iterator<Item = NewRecord> + use<> {
    let mut next = Revision::new(stored_main + 1, 0);
    std::iter::from_fn(move || {
        let record = window
            .scan(next)
            .next()
            .filter(|record| record.revision.main <= through_main)?;
        next = Revision::new(record.revision.main, record.revision.sub + 1);
        let fields = record.fields();
        Some(NewRecord {
            id: record_id(record.revision),
            tombstone: record.tombstone,
            key: Bytes::copy_from_slice(fields.key),
            create_revision: fields.create_revision,
            version: fields.version,
            lease: fields.lease,
            value: Bytes::copy_from_slice(fields.value),
        })
    })
}
