//! The compares of a transaction (`etcd-surface` 4.2): whether they hold of the state before it.
//!
//! A compare of one key is a look-up. One of an interval may have to look at every key of the store, so those are
//! decided beforehand in slices ([`Comparing`]).

use crate::limits::{APPLY_SLICE_COST, INDEX_SLICE_ENTRIES};
use crate::mvcc::index::{KeyMeta, KeyReader};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{
    Compare, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
};
use crate::state::error::StateError;
use crate::state::read::{Records, for_each};
use bytes::Bytes;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::ControlFlow;

/// The compares of a transaction that look at intervals, nested ones and those of both branches included, being decided
/// one slice after the other, all at the same revision.
#[derive(Clone, Debug, Default)]
pub struct Comparing {
    /// To do, the next one last.
    waiting: Vec<Interval>,
    /// By address: a compare stays where it is in its request.
    decided: HashMap<usize, bool>,
    /// Of the last slice.
    cost: usize,
}

/// A compare of an interval.
#[derive(Clone, Debug)]
struct Interval {
    address: usize,
    compare: Compare,
    next: Bytes,
    /// Keys looked at so far.
    seen: usize,
}

impl Comparing {
    /// Collects them. `request` must live until the transaction was planned.
    pub fn new(request: &TxnRequest) -> Comparing {
        let mut comparing = Comparing::default();
        comparing.collect(request);
        comparing
    }

    fn collect(&mut self, request: &TxnRequest) {
        for compare in request.compare.iter().filter(|compare| is_sliced(compare)) {
            let next = compare.key.clone();
            let address = address(compare);
            self.waiting.push(Interval {
                address,
                compare: compare.clone(),
                next,
                seen: 0,
            });
        }
        for operation in request.success.iter().chain(&request.failure) {
            if let Some(Request::RequestTxn(nested)) = &operation.request {
                self.collect(nested);
            }
        }
    }

    /// Whether all are decided.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Does one slice. True when all are decided. `records` has what
    /// [`needed_by_txn`](crate::state::plan::needed_by_txn) names; a compare of other values is in a branch that is not
    /// taken, and is left out.
    pub fn step(&mut self, keys: &impl KeyReader, at_main: i64, records: &impl Records) -> bool {
        if let Some(interval) = self.waiting.last_mut() {
            let before = interval.seen;
            let decided = interval.step(keys, at_main, records);
            let is_last = !matches!(decided, Ok(None));
            self.cost = slice_cost(&interval.compare, interval.seen - before, is_last);
            if let Ok(Some(holds)) = decided {
                self.decided.insert(interval.address, holds);
            }
            if is_last {
                self.waiting.pop();
            }
        }
        self.is_done()
    }

    /// What the last slice cost of apply's budget.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    /// Whether a compare holds, if it was decided here.
    pub(crate) fn decided(&self, compare: &Compare) -> Option<bool> {
        self.decided.get(&address(compare)).copied()
    }
}

impl Interval {
    /// Whether it holds, if this slice was the last one.
    fn step(
        &mut self,
        keys: &impl KeyReader,
        at_main: i64,
        records: &impl Records,
    ) -> Result<Option<bool>, StateError> {
        let mut holds = Ok(true);
        let (compare, seen) = (&self.compare, &mut self.seen);
        let end = RangeEnd::from_request(&compare.range_end);
        let resume = keys.range(&self.next, end, at_main, &mut |_, meta| {
            *seen += 1;
            holds = holds_of(compare, &meta, records);
            if holds == Ok(true) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        Ok(match resume {
            _ if !holds? => Some(false),
            None if self.seen == 0 => Some(holds_of_none(&self.compare)),
            None => Some(true),
            Some(key) => {
                self.next = key.into();
                None
            }
        })
    }
}

/// What a slice costs that looked at `seen` keys and was the last one or not. A value costs as much as a record
/// written.
fn slice_cost(compare: &Compare, seen: usize, is_last: bool) -> usize {
    match (needs_values(compare), is_last) {
        (true, _) => seen.max(1),
        (false, true) => seen * APPLY_SLICE_COST / INDEX_SLICE_ENTRIES + 1,
        (false, false) => APPLY_SLICE_COST,
    }
}

/// Whether the compare is one of those that [`Comparing`] decides.
pub(crate) fn is_sliced(compare: &Compare) -> bool {
    !compare.range_end.is_empty()
}

fn address(compare: &Compare) -> usize {
    std::ptr::from_ref(compare) as usize
}

/// Whether the compare looks at values, for which records are needed.
pub(crate) fn needs_values(compare: &Compare) -> bool {
    compare.target == CompareTarget::Value as i32
}

/// Whether `compare` holds at `at_main`: of every key of its interval, or of an absent key if there is none.
pub(crate) fn holds(
    compare: &Compare,
    keys: &impl KeyReader,
    at_main: i64,
    records: &impl Records,
) -> Result<bool, StateError> {
    let mut result = Ok(true);
    let mut empty = true;
    for_each(keys, &compare.key, &compare.range_end, at_main, |_, meta| {
        empty = false;
        result = holds_of(compare, &meta, records);
        if result == Ok(true) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    if empty {
        return Ok(holds_of_none(compare));
    }
    result
}

/// Whether it holds where there is no key: its numbers are 0, its value compares as false with anything.
fn holds_of_none(compare: &Compare) -> bool {
    !needs_values(compare) && judge(compare, compare_number(compare, None))
}

fn holds_of(compare: &Compare, meta: &KeyMeta, records: &impl Records) -> Result<bool, StateError> {
    if !needs_values(compare) {
        return Ok(judge(compare, compare_number(compare, Some(meta))));
    }
    Ok(judge(
        compare,
        value_of(records, meta.revision)?.cmp(wanted_value(compare)),
    ))
}

/// What a value is compared with.
pub(crate) fn wanted_value(compare: &Compare) -> &[u8] {
    match &compare.target_union {
        Some(TargetUnion::Value(value)) => value,
        _ => b"",
    }
}

/// The value of a record that was fetched before.
pub(crate) fn value_of(records: &impl Records, revision: Revision) -> Result<&[u8], StateError> {
    let record = records.record(revision).and_then(KeyValueView::decode);
    record
        .map(|record| record.value)
        .ok_or(StateError::MissingRecord(revision))
}

/// How the key's number stands to the wanted one. A target union of another kind than the target counts as 0.
fn compare_number(compare: &Compare, meta: Option<&KeyMeta>) -> Ordering {
    let of = |field: fn(&KeyMeta) -> i64| meta.map_or(0, field);
    let (actual, wanted) = match (CompareTarget::try_from(compare.target), &compare.target_union) {
        (Ok(CompareTarget::Version), union) => (
            of(|meta| meta.version),
            if let Some(TargetUnion::Version(wanted)) = union {
                *wanted
            } else {
                0
            },
        ),
        (Ok(CompareTarget::Create), union) => (
            of(|meta| meta.create_revision),
            if let Some(TargetUnion::CreateRevision(wanted)) = union {
                *wanted
            } else {
                0
            },
        ),
        (Ok(CompareTarget::Mod), union) => (
            of(|meta| meta.revision.main),
            if let Some(TargetUnion::ModRevision(wanted)) = union {
                *wanted
            } else {
                0
            },
        ),
        (Ok(CompareTarget::Lease), union) => (
            of(|meta| meta.lease),
            if let Some(TargetUnion::Lease(wanted)) = union {
                *wanted
            } else {
                0
            },
        ),
        // A target outside the enumeration compares as equal.
        (Ok(CompareTarget::Value) | Err(_), _) => (0, 0),
    };
    actual.cmp(&wanted)
}

fn judge(compare: &Compare, order: Ordering) -> bool {
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => order.is_eq(),
        Ok(CompareResult::NotEqual) => order.is_ne(),
        Ok(CompareResult::Greater) => order.is_gt(),
        Ok(CompareResult::Less) => order.is_lt(),
        // A result outside the enumeration always holds.
        Err(_) => true,
    }
}
