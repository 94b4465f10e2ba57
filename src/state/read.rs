//! Reading keys, by the writer from its own index and by everybody else from a pinned one.

use crate::mvcc::index::{KeyMeta, Pinned, ResumeKey, Tree};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::revision::Revision;
use bytes::Bytes;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::ControlFlow;

/// What evaluation needs of an index; see `mvcc::index::Pinned` for what each function means.
pub trait KeyReader {
    /// The version of `key` that a read at `at_main` sees.
    fn get(&self, key: &[u8], at_main: i64) -> Option<KeyMeta>;

    /// One slice of the keys of an interval.
    fn range(
        &self,
        start: &[u8],
        end: RangeEnd<'_>,
        at_main: i64,
        visit: &mut dyn FnMut(&[u8], KeyMeta) -> ControlFlow<()>,
    ) -> Option<ResumeKey>;

    /// One slice of counting.
    fn count(&self, start: &[u8], end: RangeEnd<'_>, at_main: i64) -> (u64, Option<ResumeKey>);
}

impl KeyReader for Tree {
    fn get(&self, key: &[u8], at_main: i64) -> Option<KeyMeta> {
        Tree::get(self, key, at_main)
    }

    fn range(
        &self,
        start: &[u8],
        end: RangeEnd<'_>,
        at_main: i64,
        visit: &mut dyn FnMut(&[u8], KeyMeta) -> ControlFlow<()>,
    ) -> Option<ResumeKey> {
        Tree::range(self, start, end, at_main, visit)
    }

    fn count(&self, start: &[u8], end: RangeEnd<'_>, at_main: i64) -> (u64, Option<ResumeKey>) {
        Tree::count(self, start, end, at_main)
    }
}

impl<V: Send + Sync + 'static> KeyReader for Pinned<'_, V> {
    fn get(&self, key: &[u8], at_main: i64) -> Option<KeyMeta> {
        Pinned::get(self, key, at_main)
    }

    fn range(
        &self,
        start: &[u8],
        end: RangeEnd<'_>,
        at_main: i64,
        visit: &mut dyn FnMut(&[u8], KeyMeta) -> ControlFlow<()>,
    ) -> Option<ResumeKey> {
        Pinned::range(self, start, end, at_main, visit)
    }

    fn count(&self, start: &[u8], end: RangeEnd<'_>, at_main: i64) -> (u64, Option<ResumeKey>) {
        Pinned::count(self, start, end, at_main)
    }
}

/// Shows every key of an interval, slice after slice, until `visit` breaks.
pub(crate) fn for_each(
    keys: &impl KeyReader,
    start: &[u8],
    end: &[u8],
    at_main: i64,
    mut visit: impl FnMut(&[u8], KeyMeta) -> ControlFlow<()>,
) {
    let broken = Cell::new(false);
    let mut visit = |key: &[u8], meta: KeyMeta| {
        let flow = visit(key, meta);
        broken.set(flow.is_break());
        flow
    };
    let end = RangeEnd::from_request(end);
    let mut resume = keys.range(start, end, at_main, &mut visit);
    while let Some(key) = resume.filter(|_| !broken.get()) {
        resume = keys.range(&key, end, at_main, &mut visit);
    }
}

/// Encoded records that were fetched before an evaluation which depends on them.
pub trait Records {
    /// The stored `mvccpb.KeyValue` of a revision.
    fn record(&self, revision: Revision) -> Option<&[u8]>;
}

impl Records for HashMap<Revision, Bytes> {
    fn record(&self, revision: Revision) -> Option<&[u8]> {
        self.get(&revision).map(|bytes| &bytes[..])
    }
}

/// No records: for requests that depend on none.
pub struct NoRecords;

impl Records for NoRecords {
    fn record(&self, _: Revision) -> Option<&[u8]> {
        None
    }
}
