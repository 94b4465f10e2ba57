//! A range: which rows a request asks for, by revision and metadata (`etcd-surface` 4.3).
//!
//! Used by serve cores on a pinned index and by apply on the writer's own. The work comes in slices, each seeking again
//! in the index it is given; records are fetched afterwards by revision. Only a sort by value needs them before it can
//! say which rows they are.

use crate::mvcc::index::{KeyMeta, KeyReader};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::revision::Revision;
use crate::proto::etcdserverpb::{
    RangeRequest,
    range_request::{SortOrder, SortTarget},
};
use crate::state::error::StateError;
use crate::state::validate::{has_default_order, has_revision_filter};
use bytes::Bytes;
use std::cmp::Ordering;
use std::ops::ControlFlow;

/// The revisions between which the store can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readable {
    /// The newest revision.
    pub revision: i64,
    /// The compact revision, itself readable; -1 before the first compaction.
    pub compact_revision: i64,
}

impl Readable {
    /// The revision that a request for `wanted` reads at; 0 and below mean the newest.
    pub fn resolve(self, wanted: i64) -> Result<i64, StateError> {
        if wanted > self.revision {
            return Err(StateError::FutureRevision);
        }
        let at_main = if wanted <= 0 { self.revision } else { wanted };
        if at_main < self.compact_revision {
            return Err(StateError::Compacted);
        }
        Ok(at_main)
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where its record is; `main` is the mod revision.
    pub revision: Revision,
    /// Main revision of the key's creation.
    pub create_revision: i64,
    /// 1 for the first version since.
    pub version: i64,
    /// The key, where the row is answered from the index alone.
    pub key: Option<Box<[u8]>>,
}

/// What of a record a row shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// All of it.
    Record,
    /// All but the value.
    WithoutValue,
    /// Key, create revision, mod revision and version, all of them in the row: no record is read.
    FromIndex,
}

/// The rows of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRows {
    /// The header's revision.
    pub revision: i64,
    /// In the order asked for, limited.
    pub rows: Vec<Row>,
    /// Whether the limit cut rows off.
    pub more: bool,
    /// Keys in the interval, whatever filters and limit say.
    pub count: i64,
    /// What to show of each row.
    pub projection: Projection,
}

/// A range in progress.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeRun {
    request: RangeRequest,
    at_main: i64,
    /// Rows after which to stop reading, one more than asked for.
    stop_after: usize,
    projection: Projection,
    next: Next,
    /// Rows found so far, those that were taken away included.
    found: usize,
    result: RangeRows,
}

#[derive(Clone, Debug, PartialEq)]
enum Next {
    /// Collect rows from this key on.
    Rows(Bytes),
    /// Rows are complete; count from this key on.
    Count(Bytes),
    Done,
}

impl RangeRun {
    /// Prepares a range on a store that can be read between the revisions of `readable`.
    pub fn new(request: &RangeRequest, readable: Readable) -> Result<RangeRun, StateError> {
        let at_main = readable.resolve(request.revision)?;
        Ok(RangeRun::resolved(request, readable.revision, at_main))
    }

    /// Prepares a range at a revision that was found readable before, as by `outcome::RangeOutcome::Later`.
    pub fn resolved(request: &RangeRequest, header_revision: i64, at_main: i64) -> RangeRun {
        let limited = request.limit > 0 && has_default_order(request) && !has_revision_filter(request);
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let projection = match (request.keys_only, request.sort_target == SortTarget::Value as i32) {
            (false, _) => Projection::Record,
            (true, true) => Projection::WithoutValue,
            (true, false) => Projection::FromIndex,
        };
        let start = request.key.clone();
        RangeRun {
            at_main,
            stop_after: if limited { limit.saturating_add(1) } else { usize::MAX },
            projection,
            next: if request.count_only {
                Next::Count(start)
            } else {
                Next::Rows(start)
            },
            found: 0,
            result: RangeRows {
                revision: header_revision,
                rows: Vec::new(),
                more: false,
                count: 0,
                projection,
            },
            request: request.clone(),
        }
    }

    /// At most how many rows a range would find, were it read now; `at_main` is the newest revision.
    pub fn rows_at_most(request: &RangeRequest, keys: &impl KeyReader, at_main: i64) -> u64 {
        if request.count_only {
            return 0;
        }
        let run = RangeRun::resolved(request, at_main, at_main);
        let end = RangeEnd::from_request(&request.range_end);
        let (mut counted, mut resume) = keys.count(&request.key, end, at_main);
        while let Some(key) = resume.filter(|_| counted < run.stop_after as u64) {
            let more = keys.count(&key, RangeEnd::from_request(&request.range_end), at_main);
            (counted, resume) = (counted + more.0, more.1);
        }
        counted.min(run.stop_after as u64)
    }

    /// The same range from its beginning, which keeps nothing alive of the buffer that the request came in.
    pub fn afresh(&self) -> RangeRun {
        let request = RangeRequest {
            key: Bytes::copy_from_slice(&self.request.key),
            range_end: Bytes::copy_from_slice(&self.request.range_end),
            ..self.request.clone()
        };
        RangeRun::resolved(&request, self.result.revision, self.at_main)
    }

    /// Does one slice. True when all rows are found.
    pub fn step(&mut self, keys: &impl KeyReader) -> bool {
        self.step_within(keys, usize::MAX)
    }

    /// Does one slice, in which at most `rows_max` rows are found. True when there are no more.
    pub fn step_within(&mut self, keys: &impl KeyReader, rows_max: usize) -> bool {
        match std::mem::replace(&mut self.next, Next::Done) {
            Next::Rows(start) => self.collect(keys, &start, rows_max),
            Next::Count(start) => {
                let end = RangeEnd::from_request(&self.request.range_end);
                let (counted, resume) = keys.count(&start, end, self.at_main);
                self.result.count += counted as i64;
                if let Some(key) = resume {
                    self.next = Next::Count(key.into());
                }
            }
            Next::Done => {}
        }
        matches!(self.next, Next::Done)
    }

    fn collect(&mut self, keys: &impl KeyReader, start: &[u8], rows_max: usize) {
        let end = RangeEnd::from_request(&self.request.range_end);
        let RangeRows { rows, count, .. } = &mut self.result;
        let (request, before) = (&self.request, rows.len());
        let stop_at = before.saturating_add(rows_max.min(self.stop_after - self.found));
        let with_key = self.projection == Projection::FromIndex;
        let resume = keys.range(start, end, self.at_main, &mut |key, meta| {
            *count += 1;
            if passes(request, &meta) {
                rows.push(Row {
                    revision: meta.revision,
                    create_revision: meta.create_revision,
                    version: meta.version,
                    key: with_key.then(|| key.into()),
                });
            }
            if rows.len() < stop_at {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        self.found += self.result.rows.len() - before;
        if let Some(key) = resume {
            let key = Bytes::from(key);
            self.next = if self.found < self.stop_after {
                Next::Rows(key)
            } else {
                Next::Count(key)
            };
        }
    }

    /// Keys counted so far.
    pub fn counted(&self) -> usize {
        self.result.count as usize
    }

    /// Rows found so far and not taken away: what the run holds in memory.
    pub fn rows(&self) -> &[Row] {
        &self.result.rows
    }

    /// Takes away the rows found so far, of a run [in key order](Self::is_in_key_order): they are shown as they come,
    /// as far as the limit goes.
    pub fn take_rows(&mut self) -> Vec<Row> {
        debug_assert!(self.is_in_key_order());
        let beyond = self.found.saturating_sub(self.limit().unwrap_or(usize::MAX));
        let mut rows = std::mem::take(&mut self.result.rows);
        rows.truncate(rows.len().saturating_sub(beyond));
        rows
    }

    /// Whether rows are shown in the order in which they are found.
    pub fn is_in_key_order(&self) -> bool {
        let by_key = !matches!(
            SortTarget::try_from(self.request.sort_target),
            Ok(SortTarget::Value | SortTarget::Version | SortTarget::Create | SortTarget::Mod)
        );
        self.request.count_only || (by_key && self.request.sort_order != SortOrder::Descend as i32)
    }

    /// What is shown of each row.
    pub fn projection(&self) -> Projection {
        self.projection
    }

    /// At most how many rows are shown.
    fn limit(&self) -> Option<usize> {
        usize::try_from(self.request.limit).ok().filter(|limit| *limit > 0)
    }

    /// The revision that is read at.
    pub fn at_main(&self) -> i64 {
        self.at_main
    }

    /// Whether the rows are sorted by value, so that `finish` needs the records of [`RangeRun::rows`].
    pub fn needs_values(&self) -> bool {
        !self.request.count_only && self.request.sort_target == SortTarget::Value as i32
    }

    /// Sorts and cuts. `value` gives the value of a row by its place in [`RangeRun::rows`], and is asked only if
    /// [`RangeRun::needs_values`] says so. Call it when `step` has returned true.
    pub fn finish<'v>(mut self, value: impl Fn(usize) -> &'v [u8]) -> RangeRows {
        self.sort(value);
        if let Some(limit) = self.limit().filter(|limit| self.found > *limit) {
            self.result.rows.truncate(limit);
            self.result.more = true;
        }
        self.result
    }

    /// Rows that are equal in what is sorted by stay in the order of their keys whichever way it goes. etcd's sort
    /// leaves them so when they are at most twelve, or all equal; else it promises no order.
    fn sort<'v>(&mut self, value: impl Fn(usize) -> &'v [u8]) {
        let descend = self.request.sort_order == SortOrder::Descend as i32;
        let directed = |ascending: Ordering| if descend { ascending.reverse() } else { ascending };
        let rows = &mut self.result.rows;
        match SortTarget::try_from(self.request.sort_target) {
            Ok(SortTarget::Value) => {
                let mut order: Vec<usize> = (0..rows.len()).collect();
                order.sort_by(|&left, &right| directed(value(left).cmp(value(right))));
                let mut unsorted: Vec<_> = std::mem::take(rows).into_iter().map(Some).collect();
                rows.extend(order.into_iter().filter_map(|place| unsorted[place].take()));
            }
            Ok(SortTarget::Version) => rows.sort_by(|left, right| directed(left.version.cmp(&right.version))),
            Ok(SortTarget::Create) => {
                rows.sort_by(|left, right| directed(left.create_revision.cmp(&right.create_revision)))
            }
            Ok(SortTarget::Mod) => rows.sort_by(|left, right| directed(left.revision.main.cmp(&right.revision.main))),
            // The index has them in this order.
            Ok(SortTarget::Key) | Err(_) if descend => rows.reverse(),
            Ok(SortTarget::Key) | Err(_) => {}
        }
    }
}

fn passes(request: &RangeRequest, meta: &KeyMeta) -> bool {
    let (modified, created) = (meta.revision.main, meta.create_revision);
    (request.max_mod_revision == 0 || modified <= request.max_mod_revision)
        && (request.min_mod_revision == 0 || modified >= request.min_mod_revision)
        && (request.max_create_revision == 0 || created <= request.max_create_revision)
        && (request.min_create_revision == 0 || created >= request.min_create_revision)
}
