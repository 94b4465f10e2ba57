//! Deciding a transaction before any of it is done (`etcd-surface` 4.2).
//!
//! All compares, nested ones too, look at the state before the transaction, and so do the checks that may refuse it.
//! Both together turn the tree of a request into the list of steps of the path that is taken; carrying them out cannot
//! fail. Recursion is as deep as the request, which `depth` has bounded.

use crate::mvcc::index::{KeyMeta, KeyReader, NEWEST};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request,
};
use crate::state::compare::{self, Comparing};
use crate::state::error::StateError;
use crate::state::range::{RangeRun, Readable};
use crate::state::read::{NoRecords, Records, for_each};
use bytes::Bytes;
use std::ops::ControlFlow;

/// One step of the path.
pub(crate) enum Step {
    /// The operations of a (nested) transaction follow, up to the matching `Leave`.
    Enter {
        succeeded: bool,
    },
    Leave,
    Range {
        request: RangeRequest,
        /// Whether a later step may write.
        writes_follow: bool,
    },
    Put {
        request: PutRequest,
        kept: Option<Kept>,
    },
    Delete(DeleteRangeRequest),
    Empty,
}

/// What a put with `ignore_value` or `ignore_lease` keeps of the record before.
pub(crate) struct Kept {
    pub meta: KeyMeta,
    /// Empty unless the value is kept. Shared with the record before: a transaction may keep many large ones.
    pub value: Bytes,
}

/// The state that a plan is made on.
pub(crate) struct Planner<'a, K, R> {
    pub keys: &'a K,
    pub readable: Readable,
    pub lease_exists: &'a dyn Fn(i64) -> bool,
    pub records: &'a R,
    /// Compares that are decided already.
    pub comparing: &'a Comparing,
}

impl<K: KeyReader, R: Records> Planner<'_, K, R> {
    /// The path of a transaction, or why it has no effect.
    pub fn plan(&self, request: &TxnRequest) -> Result<Vec<Step>, StateError> {
        let mut steps = Vec::with_capacity(2 + request.success.len().max(request.failure.len()));
        self.plan_level(request, &mut steps)?;
        let mut follow = false;
        for step in steps.iter_mut().rev() {
            match step {
                Step::Range { writes_follow, .. } => *writes_follow = follow,
                Step::Put { .. } | Step::Delete(_) => follow = true,
                Step::Enter { .. } | Step::Leave | Step::Empty => {}
            }
        }
        Ok(steps)
    }

    fn plan_level(&self, request: &TxnRequest, steps: &mut Vec<Step>) -> Result<(), StateError> {
        let succeeded = self.compares_hold(request)?;
        steps.push(Step::Enter { succeeded });
        for operation in if succeeded { &request.success } else { &request.failure } {
            self.plan_operation(operation, steps)?;
        }
        steps.push(Step::Leave);
        Ok(())
    }

    fn compares_hold(&self, request: &TxnRequest) -> Result<bool, StateError> {
        for compare in &request.compare {
            let holds = match self.comparing.decided(compare) {
                Some(holds) => holds,
                None => compare::holds(compare, self.keys, self.readable.revision, self.records)?,
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn plan_operation(&self, operation: &RequestOp, steps: &mut Vec<Step>) -> Result<(), StateError> {
        let step = match &operation.request {
            Some(Request::RequestRange(range)) => {
                self.check_range(range)?;
                Step::Range {
                    request: range.clone(),
                    writes_follow: false,
                }
            }
            Some(Request::RequestPut(put)) => Step::Put {
                kept: self.check_put(put)?,
                request: put.clone(),
            },
            Some(Request::RequestDeleteRange(delete)) => Step::Delete(delete.clone()),
            Some(Request::RequestTxn(nested)) => return self.plan_level(nested, steps),
            None => Step::Empty,
        };
        steps.push(step);
        Ok(())
    }

    /// Not the same as [`Readable::resolve`]: a negative revision is compared with the compact revision here.
    fn check_range(&self, request: &RangeRequest) -> Result<(), StateError> {
        match request.revision {
            0 => Ok(()),
            revision if revision > self.readable.revision => Err(StateError::FutureRevision),
            revision if revision < self.readable.compact_revision => Err(StateError::Compacted),
            _ => Ok(()),
        }
    }

    /// Whether a put can be done, and what it keeps.
    pub fn check_put(&self, request: &PutRequest) -> Result<Option<Kept>, StateError> {
        if request.lease != 0 && !(self.lease_exists)(request.lease) {
            return Err(StateError::LeaseNotFound);
        }
        if !request.ignore_value && !request.ignore_lease {
            return Ok(None);
        }
        let meta = self.keys.get(&request.key, NEWEST).ok_or(StateError::KeyNotFound)?;
        let value = if request.ignore_value {
            let missing = StateError::MissingRecord(meta.revision);
            let record = self.records.kept(meta.revision).ok_or(missing.clone())?;
            let value = KeyValueView::decode(&record).ok_or(missing)?.value;
            record.slice_ref(value)
        } else {
            Bytes::new()
        };
        Ok(Some(Kept { meta, value }))
    }
}

/// The records whose values decide about a transaction: a superset of those that [`Planner::plan`] looks at, each once.
/// `at_main` is the newest revision.
pub fn needed_by_txn(request: &TxnRequest, keys: &impl KeyReader, at_main: i64) -> Vec<Revision> {
    let mut needed = Needed::default();
    collect_needed(request, keys, at_main, &mut needed);
    let Needed {
        mut revisions,
        intervals,
    } = needed;
    for (start, end) in union(intervals) {
        for_each(keys, start, end.to_request(), at_main, |_, meta| {
            revisions.push(meta.revision);
            ControlFlow::Continue(())
        });
    }
    revisions.sort_unstable();
    revisions.dedup();
    revisions
}

/// What is needed of records.
#[derive(Default)]
struct Needed<'a> {
    revisions: Vec<Revision>,
    /// The newest record of each key in these. Many compares may look at the same keys.
    intervals: Vec<Interval<'a>>,
}

type Interval<'a> = (&'a [u8], RangeEnd<'a>);

/// Intervals that have no key in common, and together have the keys of those given.
fn union(mut intervals: Vec<Interval<'_>>) -> Vec<Interval<'_>> {
    intervals.sort_unstable_by_key(|(start, _)| *start);
    let mut disjoint: Vec<Interval<'_>> = Vec::new();
    for (start, end) in intervals {
        match (disjoint.last_mut(), end) {
            (Some((_, RangeEnd::Unbounded)), _) => break,
            (Some((_, RangeEnd::Before(last))), RangeEnd::Before(end)) if start <= *last => *last = end.max(*last),
            _ => disjoint.push((start, end)),
        }
    }
    disjoint
}

fn collect_needed<'a>(request: &'a TxnRequest, keys: &impl KeyReader, at_main: i64, needed: &mut Needed<'a>) {
    let (mut may_succeed, mut may_fail) = (true, false);
    for compare in &request.compare {
        if compare::needs_values(compare) {
            let mut first = None;
            for_each(keys, &compare.key, &compare.range_end, at_main, |_, meta| {
                first = Some(meta.revision);
                ControlFlow::Break(())
            });
            match RangeEnd::from_request(&compare.range_end) {
                RangeEnd::Single => needed.revisions.extend(first),
                end => needed.intervals.extend(first.map(|_| (&compare.key[..], end))),
            }
            // Without a key it is false, whatever the value.
            may_succeed &= first.is_some();
            may_fail = true;
        } else if compare::is_sliced(compare) {
            may_fail = true;
        } else if compare::holds(compare, keys, at_main, &NoRecords) != Ok(true) {
            may_succeed = false;
        }
    }
    may_fail |= !may_succeed;
    let success = request.success.iter().filter(|_| may_succeed);
    let failure = request.failure.iter().filter(|_| may_fail);
    for operation in success.chain(failure) {
        match &operation.request {
            Some(Request::RequestPut(put)) => needed.revisions.extend(needed_by_put(put, keys)),
            Some(Request::RequestTxn(nested)) => collect_needed(nested, keys, at_main, needed),
            _ => {}
        }
    }
}

/// The record whose value a put keeps.
pub fn needed_by_put(request: &PutRequest, keys: &impl KeyReader) -> Option<Revision> {
    let meta = if request.ignore_value {
        keys.get(&request.key, NEWEST)
    } else {
        None
    };
    meta.map(|meta| meta.revision)
}

/// A read-only transaction, decided: the ranges of the branch that is taken, to be run and finished one by one.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadTxn {
    /// The header's revision.
    pub revision: i64,
    /// Which branch was taken.
    pub succeeded: bool,
    /// One for each operation of the branch.
    pub ranges: Vec<RangeRun>,
}

/// Decides a transaction that `validate::is_read_only` holds of, on a pinned index and its view's revisions. `records`
/// has what [`needed_by_txn`] names. Compares of intervals are made in one go: see [`decide_compared`].
pub fn decide_read_only(
    request: &TxnRequest,
    keys: &impl KeyReader,
    readable: Readable,
    records: &impl Records,
) -> Result<ReadTxn, StateError> {
    let mut comparing = Comparing::new(request);
    while !comparing.step(keys, readable.revision, records) {}
    decide_compared(request, &comparing, keys, readable, records)
}

/// As [`decide_read_only`], with the compares of intervals decided before: `comparing` was made of this very `request`,
/// stepped at the view's revision, and is done.
pub fn decide_compared(
    request: &TxnRequest,
    comparing: &Comparing,
    keys: &impl KeyReader,
    readable: Readable,
    records: &impl Records,
) -> Result<ReadTxn, StateError> {
    let planner = Planner {
        keys,
        readable,
        lease_exists: &|_| false,
        records,
        comparing,
    };
    let mut decided = ReadTxn {
        revision: readable.revision,
        succeeded: false,
        ranges: Vec::new(),
    };
    for step in planner.plan(request)? {
        match step {
            Step::Enter { succeeded } => decided.succeeded = succeeded,
            Step::Range { request, .. } => decided.ranges.push(RangeRun::new(&request, readable)?),
            Step::Leave | Step::Empty | Step::Put { .. } | Step::Delete(_) => {}
        }
    }
    Ok(decided)
}
