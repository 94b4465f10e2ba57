//! Carrying out what was decided: the only code that writes the index and the window.
//!
//! An entry that changes anything makes one main revision; each key it writes gets the next ordinal in it. Work stops
//! on a budget, inside a deletion too, and goes on where it was.

use crate::limits::{APPLY_SLICE_COST, APPLY_SLICE_KEYS};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{DeleteRangeRequest, PutRequest};
use crate::state::State;
use crate::state::error::StateError;
use crate::state::outcome::{Answer, DeleteOutcome, PutOutcome};
use crate::state::plan::Kept;
use crate::state::run_txn::TxnRun;
use bytes::Bytes;
use std::ops::ControlFlow;

/// An entry that is applied in slices.
pub(crate) struct Running {
    work: Work,
    writing: Writing,
}

/// The main revision that an entry makes, if it writes anything.
pub(crate) struct Writing {
    /// The revision before it.
    pub begin: i64,
    /// Keys written so far.
    changes: u32,
    /// Whether somebody waits for the answer.
    pub answer: bool,
}

/// What is left to do of an entry.
pub(crate) enum Work {
    Delete(Deletion),
    Txn(TxnRun),
    Revoke {
        id: i64,
        keys: Box<dyn Iterator<Item = Box<[u8]>> + Send>,
    },
}

/// A deletion of an interval, slice by slice.
pub(crate) struct Deletion {
    /// The first key that was not looked at; `None` at the end.
    next: Option<Bytes>,
    end: Bytes,
    /// The revision that says which keys exist.
    at_main: i64,
    with_previous: bool,
    deleted: i64,
    previous: Vec<Revision>,
}

impl Deletion {
    pub fn new(request: &DeleteRangeRequest, at_main: i64) -> Deletion {
        Deletion {
            next: Some(request.key.clone()),
            end: request.range_end.clone(),
            at_main,
            with_previous: request.prev_kv,
            deleted: 0,
            previous: Vec::new(),
        }
    }
}

impl Running {
    pub fn new(work: Work, writing: Writing) -> Running {
        Running { work, writing }
    }
}

impl Writing {
    pub fn new(begin: i64, answer: bool) -> Writing {
        Writing {
            begin,
            changes: 0,
            answer,
        }
    }

    /// The revision that its reads see and its header shows at this point.
    pub fn revision(&self) -> i64 {
        self.begin + i64::from(self.changes > 0)
    }

    /// The place of its next record.
    fn next_record(&mut self) -> Revision {
        let revision = Revision::new(self.begin + 1, self.changes);
        self.changes = self
            .changes
            .checked_add(1)
            .expect("a request is too small to name 2^32 keys and memory to hold them");
        revision
    }
}

impl State {
    /// Goes on until the work is done or the budget is used up.
    pub(crate) fn run(
        &mut self,
        mut running: Box<Running>,
        mut budget: usize,
    ) -> Result<Result<Answer, StateError>, Box<Running>> {
        let Running { work, writing } = &mut *running;
        let answer = match work {
            Work::Delete(deletion) => self
                .run_deletion(writing, deletion, &mut budget)
                .map(Answer::Delete)
                .map(Ok),
            Work::Txn(txn) => self
                .run_txn(writing, txn, &mut budget)
                .map(|outcome| outcome.map(Answer::Txn)),
            Work::Revoke { id, keys } => self.run_revoke(writing, *id, keys, budget).map(Ok),
        };
        if answer.is_some() {
            self.revision = writing.revision();
        }
        answer.ok_or(running)
    }

    /// Carries out a put by itself.
    pub(crate) fn run_one_put(&mut self, request: &PutRequest, kept: Option<&Kept>, answer: bool) -> Answer {
        let mut writing = Writing::new(self.revision, answer);
        let outcome = self.run_put(&mut writing, request, kept);
        self.revision = writing.revision();
        Answer::Put(outcome)
    }

    pub(crate) fn run_put(&mut self, writing: &mut Writing, request: &PutRequest, kept: Option<&Kept>) -> PutOutcome {
        let previous_lease = kept.map_or(0, |kept| kept.meta.lease);
        let lease = if request.ignore_lease {
            previous_lease
        } else {
            request.lease
        };
        let value = match kept {
            Some(kept) if request.ignore_value => &kept.value,
            _ => &request.value,
        };
        let revision = writing.next_record();
        let put = self.index.put(&request.key, revision, lease);
        let previous = put.previous.map(|previous| previous.revision);
        let record = KeyValueView {
            key: &request.key,
            create_revision: put.current.create_revision,
            mod_revision: revision.main,
            version: put.current.version,
            value,
            lease,
        };
        self.window.append(revision, previous, false, &record);
        let before = put.previous.map_or(0, |previous| previous.lease);
        if before != lease {
            self.lessor.detach(before, &request.key);
            self.lessor.attach(lease, &request.key);
        }
        PutOutcome {
            revision: revision.main,
            previous: previous.filter(|_| request.prev_kv && writing.answer),
        }
    }

    /// Deletes a key that may exist; tells what it was.
    fn run_delete(&mut self, writing: &mut Writing, key: &[u8]) -> Option<Revision> {
        let revision = Revision::new(writing.begin + 1, writing.changes);
        let previous = self.index.delete(key, revision)?;
        writing.next_record();
        let event = KeyValueView {
            key,
            mod_revision: revision.main,
            ..KeyValueView::default()
        };
        self.window.append(revision, Some(previous.revision), true, &event);
        if previous.lease != 0 {
            self.lessor.detach(previous.lease, key);
        }
        Some(previous.revision)
    }

    pub(crate) fn run_deletion(
        &mut self,
        writing: &mut Writing,
        deletion: &mut Deletion,
        budget: &mut usize,
    ) -> Option<DeleteOutcome> {
        while let Some(start) = deletion.next.take() {
            if *budget == 0 {
                deletion.next = Some(start);
                return None;
            }
            let slice = APPLY_SLICE_KEYS.min(*budget);
            let mut keys: Vec<Box<[u8]>> = Vec::new();
            let end = RangeEnd::from_request(&deletion.end);
            let resume = self.keys().range(&start, end, deletion.at_main, |key, _| {
                keys.push(key.into());
                if keys.len() < slice {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            // Looking for keys among deleted ones is work, too.
            let cost = if resume.is_some() { APPLY_SLICE_COST } else { 1 };
            *budget = budget.saturating_sub(keys.len().max(cost));
            for key in keys {
                let previous = self.run_delete(writing, &key);
                deletion.deleted += i64::from(previous.is_some());
                deletion
                    .previous
                    .extend(previous.filter(|_| deletion.with_previous && writing.answer));
            }
            deletion.next = resume.map(Bytes::from);
        }
        Some(DeleteOutcome {
            revision: writing.revision(),
            deleted: deletion.deleted,
            previous: std::mem::take(&mut deletion.previous),
        })
    }

    fn run_revoke(
        &mut self,
        writing: &mut Writing,
        id: i64,
        keys: &mut dyn Iterator<Item = Box<[u8]>>,
        budget: usize,
    ) -> Option<Answer> {
        for _ in 0..budget {
            let Some(key) = keys.next() else {
                self.lessor.revoke(id);
                let deleted = writing.changes as usize;
                return Some(Answer::LeaseRevoke { id, deleted });
            };
            self.run_delete(writing, &key);
        }
        None
    }
}
