//! Reading whole intervals of keys, and records that were fetched before they are read.

use crate::mvcc::index::{KeyMeta, KeyReader};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::revision::Revision;
use bytes::Bytes;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::ControlFlow;

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

    /// The same, to be kept: shared where that can be.
    fn kept(&self, revision: Revision) -> Option<Bytes> {
        self.record(revision).map(Bytes::copy_from_slice)
    }
}

impl Records for HashMap<Revision, Bytes> {
    fn record(&self, revision: Revision) -> Option<&[u8]> {
        self.get(&revision).map(|bytes| &bytes[..])
    }

    fn kept(&self, revision: Revision) -> Option<Bytes> {
        self.get(&revision).cloned()
    }
}

/// No records: for requests that depend on none.
pub struct NoRecords;

impl Records for NoRecords {
    fn record(&self, _: Revision) -> Option<&[u8]> {
        None
    }
}
