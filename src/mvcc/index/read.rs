//! Reading a root: what the keys of one state of the tree were at a revision. Used by readers and by the writer alike.
//!
//! A node whose newest creation or deletion is not after the asked revision answers from its counts and live marks.
//! So counting at the newest revision visits one path for each end of the interval, and counting at an older one looks
//! only into leaves where keys were created or deleted since.

use super::entry::Entry;
use super::node::{Kind, Leaf, Node};
use super::{KeyMeta, ResumeKey};
use crate::limits::INDEX_SLICE_ENTRIES;
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::revision::Revision;
use std::ops::ControlFlow;

/// One state of the tree, for as long as it is pinned.
#[derive(Clone, Copy)]
pub struct Root<'t>(&'t Node);

/// The part of an interval that a node is asked for; `None` where it reaches over the node's end.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    start: Option<&'a [u8]>,
    end: Option<&'a [u8]>,
}

/// A walk over the leaves of an interval with a bound on its work.
struct Walk<F> {
    at_main: i64,
    budget: usize,
    visit: F,
}

impl<'t> Root<'t> {
    pub fn new(node: &'t Node) -> Root<'t> {
        Root(node)
    }

    pub fn node(self) -> &'t Node {
        self.0
    }

    /// The entry of a key, live or deleted.
    pub fn entry(self, key: &[u8]) -> Option<Entry> {
        let mut node = self.0;
        loop {
            match &node.kind {
                Kind::Inner(inner) => node = inner.child(inner.child_for(key)),
                Kind::Leaf(leaf) => return leaf.keys.search(key).ok().map(|at| leaf.keys.entries()[at]),
            }
        }
    }

    pub fn get(self, key: &[u8], at_main: i64) -> Option<KeyMeta> {
        // SAFETY: an entry of a pinned root is valid while the root is.
        unsafe { self.entry(key)?.revisions() }.meta_at(at_main)
    }

    pub fn get_before(self, key: &[u8], revision: Revision) -> Option<KeyMeta> {
        // SAFETY: as in `get`.
        let revisions = unsafe { self.entry(key)?.revisions() };
        revisions
            .position_before(revision)
            .and_then(|index| revisions.meta(index))
    }

    pub fn is_kept(self, key: &[u8], revision: Revision, compact_main: i64) -> bool {
        self.get(key, compact_main)
            .is_some_and(|meta| meta.revision == revision)
    }

    pub fn range(
        self,
        start: &[u8],
        end: RangeEnd<'_>,
        at_main: i64,
        mut visit: impl FnMut(&[u8], KeyMeta) -> ControlFlow<()>,
    ) -> Option<ResumeKey> {
        let Some(bounds) = Bounds::new(start, end) else {
            // There is nothing behind a single key, whatever the visitor says.
            if let Some(meta) = self.get(start, at_main) {
                let _ = visit(start, meta);
            }
            return None;
        };
        let mut walk = Walk {
            at_main,
            budget: INDEX_SLICE_ENTRIES,
            visit,
        };
        walk.range(self.0, bounds).break_value()
    }

    pub fn count(self, start: &[u8], end: RangeEnd<'_>, at_main: i64) -> (u64, Option<ResumeKey>) {
        let Some(bounds) = Bounds::new(start, end) else {
            return (u64::from(self.get(start, at_main).is_some()), None);
        };
        let mut total = 0;
        let mut walk = Walk {
            at_main,
            budget: INDEX_SLICE_ENTRIES,
            visit: |keys: u64| total += keys,
        };
        let resume = walk.count(self.0, bounds).break_value();
        (total, resume)
    }
}

impl<'a> Bounds<'a> {
    /// `None` for a single key.
    fn new(start: &'a [u8], end: RangeEnd<'a>) -> Option<Bounds<'a>> {
        let end = match end {
            RangeEnd::Single => return None,
            RangeEnd::Before(end) => Some(end),
            RangeEnd::Unbounded => None,
        };
        let start = Some(start);
        Some(Bounds { start, end })
    }

    /// The children of a node that hold keys of the interval, and which part of it each is asked for.
    fn children<'n>(self, inner: &'n super::node::Inner) -> impl Iterator<Item = (usize, Bounds<'a>)> + use<'n, 'a> {
        let first = self.start.map_or(0, |start| inner.child_for(start));
        let last = self.end.map_or(inner.len() - 1, |end| inner.child_before(end));
        (first..=last).map(move |at| {
            let start = self.start.filter(|_| at == first);
            let end = self.end.filter(|_| at == last);
            (at, Bounds { start, end })
        })
    }

    /// The positions of a leaf's keys that are in the interval.
    fn positions(self, leaf: &Leaf) -> std::ops::Range<usize> {
        let find = |key| leaf.keys.search(key).unwrap_or_else(|at| at);
        let from = self.start.map_or(0, find);
        from..self.end.map_or(leaf.keys.len(), find).max(from)
    }

    fn covers_all(self) -> bool {
        self.start.is_none() && self.end.is_none()
    }
}

impl<F: FnMut(&[u8], KeyMeta) -> ControlFlow<()>> Walk<F> {
    /// Shows the live keys below a node; breaks with the key to go on from.
    fn range(&mut self, node: &Node, bounds: Bounds<'_>) -> ControlFlow<ResumeKey> {
        match &node.kind {
            Kind::Inner(inner) => {
                for (at, bounds) in bounds.children(inner) {
                    self.range(inner.child(at), bounds)?;
                }
            }
            Kind::Leaf(leaf) => {
                let marks_hold = leaf.changed <= self.at_main;
                for at in bounds.positions(leaf) {
                    let key = leaf.keys.key(at);
                    self.spend(key)?;
                    if marks_hold && !leaf.is_live(at) {
                        continue;
                    }
                    if let Some(meta) = meta_at(leaf, at, self.at_main)
                        && (self.visit)(key, meta).is_break()
                    {
                        return ControlFlow::Break([key, b"\0"].concat());
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl<F: FnMut(u64)> Walk<F> {
    /// Reports how many live keys there are below a node; breaks with the key to go on from.
    fn count(&mut self, node: &Node, bounds: Bounds<'_>) -> ControlFlow<ResumeKey> {
        match &node.kind {
            Kind::Inner(inner) => {
                for (at, bounds) in bounds.children(inner) {
                    match bounds.covers_all() && inner.changed[at] <= self.at_main {
                        true => (self.visit)(inner.counts[at]),
                        false => self.count(inner.child(at), bounds)?,
                    }
                }
            }
            Kind::Leaf(leaf) => {
                let positions = bounds.positions(leaf);
                if leaf.changed <= self.at_main {
                    (self.visit)(leaf.live_between(positions.start, positions.end));
                    return ControlFlow::Continue(());
                }
                for at in positions {
                    self.spend(leaf.keys.key(at))?;
                    (self.visit)(u64::from(meta_at(leaf, at, self.at_main).is_some()));
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl<F> Walk<F> {
    /// Breaks before `key` when the work of one slice is done.
    fn spend(&mut self, key: &[u8]) -> ControlFlow<ResumeKey> {
        match self.budget.checked_sub(1) {
            Some(left) => {
                self.budget = left;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(key.to_vec()),
        }
    }
}

fn meta_at(leaf: &Leaf, at: usize, at_main: i64) -> Option<KeyMeta> {
    // SAFETY: an entry of a pinned root is valid while the root is.
    unsafe { leaf.keys.entries()[at].revisions() }.meta_at(at_main)
}
