//! What both ends of the index can be asked, as one trait.

use super::{KeyMeta, Pinned, ResumeKey, Tree};
use crate::mvcc::interval::RangeEnd;
use std::ops::ControlFlow;

/// Reads of an index, by the writer from its own tree and by everybody else from a pinned one; see [`Pinned`] for what
/// each function means.
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
