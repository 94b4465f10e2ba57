//! Carrying out what was decided: the only code that writes the index and the window.
//!
//! An entry that changes anything makes one main revision; each key it writes gets the next ordinal in it. Work stops on a
//! budget of records, inside a deletion too, and goes on where it was. It cannot fail.

use crate::limits::APPLY_SLICE_KEYS;
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest};
use crate::state::State;
use crate::state::outcome::{Answer, DeleteOutcome, OperationOutcome, PutOutcome, RangeOutcome, TxnOutcome};
use crate::state::plan::{Kept, Step};
use crate::state::range::RangeRun;
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
    begin: i64,
    /// Keys written so far.
    changes: u32,
    /// Whether somebody waits for the answer.
    answer: bool,
}

/// What is left to do of an entry.
pub(crate) enum Work {
    Delete(Deletion),
    Txn {
        steps: std::vec::IntoIter<Step>,
        /// The (nested) transactions that are not finished, outermost first.
        open: Vec<TxnOutcome>,
        deletion: Option<Deletion>,
    },
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
    fn revision(&self) -> i64 {
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
    /// Goes on until the work is done or `budget` records are written.
    pub(crate) fn run(&mut self, mut running: Running, mut budget: usize) -> Result<Answer, Running> {
        let Running { work, writing } = &mut running;
        let answer = match work {
            Work::Delete(deletion) => self.run_deletion(writing, deletion, &mut budget).map(Answer::Delete),
            Work::Txn { steps, open, deletion } => {
                self.run_txn(writing, steps, open, deletion, budget).map(Answer::Txn)
            }
            Work::Revoke { id, keys } => self.run_revoke(writing, *id, keys, budget),
        };
        self.revision = if answer.is_some() {
            writing.revision()
        } else {
            self.revision
        };
        answer.ok_or(running)
    }

    /// Carries out a put by itself.
    pub(crate) fn run_one_put(&mut self, request: &PutRequest, kept: Option<&Kept>, answer: bool) -> Answer {
        let mut writing = Writing::new(self.revision, answer);
        let outcome = self.run_put(&mut writing, request, kept);
        self.revision = writing.revision();
        Answer::Put(outcome)
    }

    fn run_put(&mut self, writing: &mut Writing, request: &PutRequest, kept: Option<&Kept>) -> PutOutcome {
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

    fn run_deletion(
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
            // A slice without live keys is work, too.
            *budget -= keys.len().max(1);
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

    fn run_txn(
        &mut self,
        writing: &mut Writing,
        steps: &mut std::vec::IntoIter<Step>,
        open: &mut Vec<TxnOutcome>,
        deletion: &mut Option<Deletion>,
        mut budget: usize,
    ) -> Option<TxnOutcome> {
        loop {
            let outcome = if let Some(deleting) = deletion {
                let outcome = self.run_deletion(writing, deleting, &mut budget)?;
                *deletion = None;
                OperationOutcome::Delete(outcome)
            } else {
                if budget == 0 {
                    return None;
                }
                match steps
                    .next()
                    .expect("a path ends with leaving its outermost transaction")
                {
                    Step::Enter { succeeded } => {
                        open.push(TxnOutcome {
                            revision: 0,
                            succeeded,
                            operations: Vec::new(),
                        });
                        continue;
                    }
                    Step::Leave => {
                        let left = open.pop().expect("a path leaves what it has entered");
                        if open.is_empty() {
                            return Some(TxnOutcome {
                                revision: writing.revision(),
                                ..left
                            });
                        }
                        OperationOutcome::Txn(left)
                    }
                    Step::Range { request, writes_follow } => {
                        OperationOutcome::Range(self.run_range(writing, &request, writes_follow))
                    }
                    Step::Put { request, kept } => {
                        budget -= 1;
                        OperationOutcome::Put(self.run_put(writing, &request, kept.as_ref()))
                    }
                    Step::Delete(request) => {
                        *deletion = Some(Deletion::new(&request, writing.revision()));
                        continue;
                    }
                    Step::Empty => OperationOutcome::Empty,
                }
            };
            open.last_mut()
                .expect("an operation is inside of a transaction")
                .operations
                .push(outcome);
        }
    }

    /// A range reads what is there at its place in the transaction. If no main revision stands for that, between two
    /// writes of the transaction, it has to be read now.
    fn run_range(&self, writing: &Writing, request: &RangeRequest, writes_follow: bool) -> RangeOutcome {
        if !writing.answer {
            return RangeOutcome::Skipped;
        }
        let revision = writing.revision();
        let at_main = if request.revision > 0 {
            request.revision
        } else {
            revision
        };
        if at_main <= writing.begin || !writes_follow {
            return RangeOutcome::Later { revision, at_main };
        }
        let mut run = RangeRun::resolved(request, revision, at_main);
        while !run.step(self.keys()) {}
        RangeOutcome::Found(Box::new(run))
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
                return Some(Answer::LeaseRevoke { id });
            };
            self.run_delete(writing, &key);
        }
        None
    }
}
