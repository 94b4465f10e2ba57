//! Applying committed entries: decode, fetch what decides, run on the state, answer who waits.
//!
//! In slices: an entry may stop on its budget and go on in the next turn, and an entry whose deciding records are not
//! in memory waits for them, while everything else goes on (DESIGN 12 (18)). A view is published per batch, before its
//! answers leave.

use super::core::{Fatal, LogCore};
use super::loader::{Fetch, LoadError};
use super::messages::Reply;
use super::storage::Position;
use super::waiters::Waiter;
use crate::io::disk::Disk;
use crate::limits::{
    APPLY_BATCH_ENTRIES, APPLY_SLICE_BYTES, APPLY_SLICE_RECORDS, COMPACTION_RETRY, COMPACTION_SLICE_RECORDS,
};
use crate::mvcc::readers::Holds;
use crate::mvcc::revision::Revision;
use crate::pages::prefetch::TOGETHER;
use crate::proto::etcdserverpb::InternalRaftRequest;
use crate::state::ahead::likely_key;
use crate::state::depth;
use crate::state::outcome::{Answer, Outcome};
use crate::state::version;
use crate::state::{self, CompactionProgress, Progress};
use raft::eraftpb::{Entry, EntryType};
use std::sync::Arc;
use std::time::Duration;

/// Where apply is.
#[derive(Default)]
pub struct Applier {
    /// The entry under way: decoded, waiting for records or stopped on its budget.
    current: Option<Current>,
    /// Outcomes of applied entries that no published view shows yet.
    unanswered: Vec<(Waiter, Outcome)>,
    /// Physical compactions whose askers wait, with the compact revision.
    physical: Vec<(i64, Waiter, Outcome)>,
    /// What answers that were given will still read in the index.
    holds: Holds,
    /// Answers about changed members that no published view shows yet.
    pub(super) members_answers: Vec<(usize, Reply)>,
    /// Whether the page store found no room at its last checkpoint.
    pub(super) no_space: bool,
}

struct Current {
    position: Position,
    request: InternalRaftRequest,
    length: usize,
    /// Bytes of the records that it has made.
    made_bytes: u64,
    /// What of it is in `dirty_bytes`.
    counted_bytes: u64,
    waiter: Option<Waiter>,
    stage: Stage,
}

enum Stage {
    /// Records are being fetched.
    Loading,
    /// Begun, and stopped on its budget.
    Begun,
}

impl Applier {
    /// Whether no entry is half applied.
    pub fn is_idle(&self) -> bool {
        self.current.is_none()
    }
}

impl LogCore {
    /// Applies up to a batch of entries. True when more could be applied at once.
    pub(super) fn apply_some<D: Disk>(&mut self, disk: &mut D, now: Duration) -> Result<bool, Fatal> {
        let mut changed = false;
        let written = self.state.window().appended_bytes();
        for number in 0..APPLY_BATCH_ENTRIES {
            if self.state.window().appended_bytes() - written > APPLY_SLICE_BYTES {
                break;
            }
            if number % TOGETHER == 0 {
                self.warm_committed();
            }
            if self.applier.current.is_none() {
                // A compaction may be reading: there is one loader, and the next entry may need it.
                if self.is_saturated() || self.loader.is_reading() {
                    break;
                }
                let Some(entry) = self.replica.node().next_committed() else {
                    break;
                };
                if !self.begin_entry(entry, now)? {
                    changed = true;
                    continue;
                }
            }
            match self.continue_entry(disk, now)? {
                Some((waiter, outcome)) => {
                    changed = true;
                    self.applier.unanswered.extend(waiter.map(|waiter| (waiter, outcome)));
                }
                None => break,
            }
        }
        // A batch may end in the middle of an entry: then it is published, and answered, when that entry is done.
        if (changed || !self.applier.unanswered.is_empty()) && self.applier.is_idle() {
            let index = self.state.applied_index();
            self.replica.node().applied(index);
            let root = self.checkpoints.store().root().clone();
            self.publish(root);
            let outcomes = std::mem::take(&mut self.applier.unanswered);
            self.answer(outcomes);
            self.replies.append(&mut self.applier.members_answers);
        }
        let more = match &self.applier.current {
            Some(current) => matches!(current.stage, Stage::Begun) || !self.loader.is_reading(),
            None => self.replica.node().has_committed() && !self.is_saturated() && !self.loader.is_reading(),
        };
        Ok(more)
    }

    /// Asks the memory for the way to the keys of the entries that come next.
    fn warm_committed(&self) {
        let mut keys: [&[u8]; TOGETHER] = [&[]; TOGETHER];
        let mut count = 0;
        let entries = self.replica.node_ref().committed().take(TOGETHER);
        for key in entries.filter_map(|entry| likely_key(&entry.data)) {
            keys[count] = key;
            count += 1;
        }
        if count > 1 {
            self.state.keys().warm(&keys[..count]);
        }
    }

    /// Decodes an entry. False when it was done with right away.
    fn begin_entry(&mut self, entry: Entry, now: Duration) -> Result<bool, Fatal> {
        let position = Position {
            index: entry.index,
            term: entry.term,
        };
        let mut dropped = Vec::new();
        let waiter = self.waiters.take(position, &mut dropped);
        self.drop_waiters(dropped);
        match entry.get_entry_type() {
            EntryType::EntryNormal if entry.data.is_empty() => {
                // raft puts nothing in the place of a membership change that comes while another is under way.
                self.drop_waiters(waiter);
                self.state.skip(position.index, position.term);
                Ok(false)
            }
            EntryType::EntryNormal => {
                let length = entry.data.len();
                let request = depth::decode_entry(entry.data).map_err(|error| Fatal::Entry {
                    index: position.index,
                    reason: error.to_string(),
                })?;
                let id = request.header.as_ref().map_or(0, |header| header.id);
                let waiter = waiter.or_else(|| self.waiters.take_forwarded(id));
                if let Some(set) = &request.cluster_version_set
                    && let Some(problem) = version::too_new(&set.ver)
                {
                    return Err(Fatal::TooOld(problem));
                }
                if let Some(alarm) = &request.alarm {
                    self.alarm_applied(alarm);
                }
                let needed = self.state.needs(&request);
                if !needed.is_empty() {
                    let root = self.checkpoints.store().root().clone();
                    self.loader.start(root, needed, self.state.stand_ins(&request));
                }
                self.applier.current = Some(Current {
                    position,
                    request,
                    length,
                    made_bytes: 0,
                    counted_bytes: 0,
                    waiter,
                    stage: Stage::Loading,
                });
                Ok(true)
            }
            EntryType::EntryConfChange => {
                self.apply_conf_change(&entry, waiter, now)?;
                Ok(false)
            }
            EntryType::EntryConfChangeV2 => Err(Fatal::Entry {
                index: position.index,
                reason: "it is a ConfChangeV2, which etcd's log never holds".to_string(),
            }),
        }
    }

    /// Goes on with the current entry. `None` when it has to wait or its budget is used up.
    fn continue_entry<D: Disk>(
        &mut self,
        disk: &mut D,
        now: Duration,
    ) -> Result<Option<(Option<Waiter>, Outcome)>, Fatal> {
        let current = self.applier.current.as_mut().expect("an entry is under way");
        let written = self.state.window().appended_bytes();
        let progress = match current.stage {
            Stage::Loading => {
                if self.loader.step(disk)? != Fetch::Done {
                    return Ok(None);
                }
                let entry = state::Entry {
                    index: current.position.index,
                    term: current.position.term,
                    request: &current.request,
                    answer: current.waiter.is_some(),
                    now,
                };
                self.state.apply(&entry, self.loader.found(), APPLY_SLICE_RECORDS)
            }
            Stage::Begun => self.state.resume(APPLY_SLICE_RECORDS),
        };
        // An entry may be longer than the records that it makes, or far shorter, as of a put that keeps a value.
        current.made_bytes += self.state.window().appended_bytes() - written;
        let unstored = current.made_bytes.max(current.length as u64);
        self.dirty_bytes += unstored - std::mem::replace(&mut current.counted_bytes, unstored);
        match progress {
            Progress::More => {
                current.stage = Stage::Begun;
                Ok(None)
            }
            Progress::Needs(revisions) => {
                let root = self.checkpoints.store().root().clone();
                let stand_ins = self.state.stand_ins(&current.request);
                self.loader.start(root, revisions, stand_ins);
                current.stage = Stage::Loading;
                Ok(None)
            }
            Progress::Done(outcome) => {
                let current = self.applier.current.take().expect("an entry is under way");
                self.counters.applied(&current.request, &outcome);
                if let Some(checkpoints) = &current.request.lease_checkpoint {
                    self.renew_after(checkpoints, now);
                }
                Ok(self.finish_entry(current, outcome))
            }
        }
    }

    /// What follows an applied entry beside its answer. A physical compaction is answered when it is done.
    fn finish_entry(&mut self, current: Current, outcome: Outcome) -> Option<(Option<Waiter>, Outcome)> {
        if let Ok(Answer::LeaseRevoke { id, .. }) = outcome.answer {
            let (revoked, waiting) = std::mem::take(&mut self.renewals)
                .into_iter()
                .partition(|(lease, _)| *lease == id);
            self.renewals = waiting;
            let revoked: Vec<(i64, Waiter)> = revoked;
            for (_, waiter) in revoked {
                self.replies.push((
                    waiter.core,
                    Reply::Renewed {
                        token: waiter.token,
                        ttl_s: Some(0),
                    },
                ));
            }
        }
        let physical = current
            .request
            .compaction
            .filter(|compaction| compaction.physical && outcome.answer.is_ok());
        if let (Some(compaction), Some(waiter)) = (physical, current.waiter) {
            self.applier
                .physical
                .push((compaction.revision, waiter, outcome.clone()));
            return Some((None, outcome));
        }
        Some((current.waiter, outcome))
    }

    /// Answers outcomes of the batch that was just published.
    fn answer(&mut self, outcomes: Vec<(Waiter, Outcome)>) {
        if outcomes.is_empty() {
            return;
        }
        let index = self.state.index().clone();
        let view = Arc::new(index.pin().view().clone());
        let reads_at = outcomes.iter().filter_map(|(_, outcome)| outcome.reads_at()).min();
        let hold = reads_at.map(|at_main| self.applier.holds.give(at_main));
        for (waiter, outcome) in outcomes {
            let reply = Reply::Applied {
                token: waiter.token,
                outcome,
                view: view.clone(),
                hold: hold.clone(),
            };
            self.replies.push((waiter.core, reply));
        }
    }

    /// Removes what a compaction leaves, by slices. True when more could be removed at once.
    pub(super) fn compact_some<D: Disk>(&mut self, disk: &mut D, now: Duration) -> Result<bool, Fatal> {
        if !self.applier.is_idle() || now < self.compaction_retry_at {
            return Ok(false);
        }
        match self.state.compaction_target() {
            Some(target) if self.readers.lowest().min(self.applier.holds.lowest()) >= target => {}
            _ => return Ok(false),
        }
        self.counters.compacting(now);
        let before = self.state.keys().revisions();
        let progress = self.state.compaction_step(COMPACTION_SLICE_RECORDS);
        self.count_compacted(before);
        match progress {
            CompactionProgress::Idle => {
                self.counters.compaction_began = None;
                return Ok(false);
            }
            CompactionProgress::More => {}
            CompactionProgress::NeedsRecords { from, through } => {
                return Ok(self.load_compacted(disk, now, from, through));
            }
            CompactionProgress::Finished(revision) => {
                self.counters.compacted(now);
                let root = self.checkpoints.store().root().clone();
                self.publish(root);
                let (done, waiting) = std::mem::take(&mut self.applier.physical)
                    .into_iter()
                    .partition(|(at, _, _)| *at <= revision);
                self.applier.physical = waiting;
                let done: Vec<(i64, Waiter, Outcome)> = done;
                self.answer(done.into_iter().map(|(_, waiter, outcome)| (waiter, outcome)).collect());
                tracing::info!(compact_revision = revision, "finished scheduled compaction");
            }
        }
        Ok(true)
    }

    /// Counts the records that went since the index had `before` revisions.
    fn count_compacted(&mut self, before: usize) {
        self.counters.records_compacted += before.saturating_sub(self.state.keys().revisions()) as u64;
    }

    /// Hands a compaction the keys of records that only the page store has. What it can't read it tries again later:
    /// nobody waits for what is only to be removed.
    fn load_compacted<D: Disk>(&mut self, disk: &mut D, now: Duration, from: Revision, through: i64) -> bool {
        let root = self.checkpoints.store().root().clone();
        match self.loader.keys(disk, &root, from, through, COMPACTION_SLICE_RECORDS) {
            Ok(Some((keys, next))) => {
                let before = self.state.keys().revisions();
                self.state.compact_records(keys, next);
                self.count_compacted(before);
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.compaction_retry_at = now + COMPACTION_RETRY;
                let path = self.checkpoints.store().path().display();
                match error {
                    LoadError::Disk { .. } => tracing::error!("a compaction waits: {error}"),
                    damaged => self.raise_corrupt(&format!("page file {path}: {damaged}"), now),
                }
                false
            }
        }
    }
}
