//! Checks: a tree's own structure, and everything it can be asked against the model.

use super::model::Model;
use crate::mvcc::index::node::{INNER_CHILDREN, Kind, Node};
use crate::mvcc::index::{IndexWriter, KeyMeta, KeyReader, Tree};
use crate::mvcc::interval::RangeEnd;
use std::ops::ControlFlow;

/// Whole intervals, read slice after slice.
pub trait Reader: KeyReader {
    /// A whole range, read in slices of at most `limit` keys.
    fn range_all(&self, start: &[u8], end: RangeEnd<'_>, at_main: i64, limit: usize) -> Vec<(Vec<u8>, KeyMeta)> {
        let mut found = Vec::new();
        let mut next = Some(start.to_vec());
        while let Some(start) = next {
            let mut left = limit;
            next = self.range(&start, end, at_main, &mut |key, meta| {
                found.push((key.to_vec(), meta));
                left -= 1;
                if left == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        }
        found
    }

    fn count_all(&self, start: &[u8], end: RangeEnd<'_>, at_main: i64) -> u64 {
        let (mut total, mut next) = self.count(start, end, at_main);
        while let Some(start) = next {
            let (more, resume) = self.count(&start, end, at_main);
            total += more;
            next = resume;
        }
        total
    }
}

impl<K: KeyReader> Reader for K {}

/// Asks everything about one revision. `bounds` are keys to begin and end ranges at.
pub fn same_at(reader: &dyn Reader, model: &Model, at_main: i64, bounds: &[Vec<u8>]) {
    for key in model.keys().iter().chain(bounds) {
        assert_eq!(
            reader.get(key, at_main),
            model.get(key, at_main),
            "get {key:?} at {at_main}"
        );
    }
    for start in bounds {
        let ends = bounds.iter().map(|end| RangeEnd::Before(end));
        for end in ends.chain([RangeEnd::Unbounded, RangeEnd::Single]) {
            let expected = model.range(start, end, at_main);
            let limit = 1 + start.len() % 3;
            assert_eq!(
                reader.range_all(start, end, at_main, limit),
                expected,
                "{start:?} {end:?} at {at_main}"
            );
            assert_eq!(reader.range_all(start, end, at_main, usize::MAX), expected);
            let counted = reader.count_all(start, end, at_main);
            assert_eq!(counted, expected.len() as u64, "count {start:?} {end:?} at {at_main}");
        }
    }
}

/// The tree's structure is sound and its own numbers are right.
pub fn sound(tree: &Tree) {
    let mut totals = Totals::default();
    // SAFETY: the root of a borrowed tree.
    node(
        unsafe { &*tree.root },
        None,
        None,
        tree.last_revision().main,
        &mut totals,
    );
    assert_eq!(totals.keys, tree.keys());
    assert_eq!(totals.revisions, tree.revisions());
    assert_eq!(totals.bytes, tree.bytes(), "bytes are counted as they are used");
}

#[derive(Default)]
struct Totals {
    keys: usize,
    revisions: usize,
    bytes: usize,
}

fn cost(size: usize) -> usize {
    (size + 8).next_multiple_of(16)
}

/// Checks what is below a node, whose keys must lie in `low..high`; returns its depth.
fn node(node_: &Node, low: Option<&[u8]>, high: Option<&[u8]>, last_main: i64, totals: &mut Totals) -> usize {
    totals.bytes += size_of::<Node>();
    assert!(node_.changed() <= last_main);
    match &node_.kind {
        Kind::Leaf(leaf) => {
            let keys: Vec<&[u8]> = (0..leaf.keys.len()).map(|at| leaf.keys.key(at)).collect();
            ordered(&keys, low, high);
            for (at, entry) in leaf.keys.entries().iter().enumerate() {
                // SAFETY: the tree is borrowed.
                let (list, revisions) = unsafe { (entry.list(), entry.revisions()) };
                assert_eq!(leaf.keys.search(keys[at]), Ok(at));
                assert_eq!(
                    leaf.is_live(at),
                    revisions.newest().is_some(),
                    "live mark of {:?}",
                    keys[at]
                );
                totals.keys += 1;
                totals.revisions += revisions.len();
                // SAFETY: as above.
                totals.bytes += unsafe { cost(entry.size()) + cost(list.size()) };
            }
            assert_eq!(
                leaf.live_between(0, 64),
                leaf.live_between(0, keys.len()),
                "marks only where keys are"
            );
            1
        }
        Kind::Inner(inner) => {
            let separators: Vec<&[u8]> = (0..inner.len() - 1).map(|at| inner.separators.key(at)).collect();
            ordered(&separators, low, high);
            for separator in inner.separators.entries() {
                // SAFETY: the tree is borrowed.
                totals.bytes += cost(unsafe { separator.size() });
            }
            assert!(inner.len() <= INNER_CHILDREN);
            let mut depths = Vec::new();
            for at in 0..inner.len() {
                let child = inner.child(at);
                assert_eq!(inner.counts[at], child.live());
                assert!(inner.changed[at] >= child.changed());
                let low = if at == 0 { low } else { Some(separators[at - 1]) };
                let high = separators.get(at).copied().or(high);
                depths.push(node(child, low, high, last_main, totals));
            }
            assert!(
                depths.iter().all(|depth| *depth == depths[0]),
                "all leaves are on one level"
            );
            depths[0] + 1
        }
    }
}

fn ordered(keys: &[&[u8]], low: Option<&[u8]>, high: Option<&[u8]>) {
    assert!(keys.is_sorted_by(|left, right| left < right), "keys in order");
    assert!(low.is_none_or(|low| keys.iter().all(|key| *key >= low)));
    assert!(high.is_none_or(|high| keys.iter().all(|key| *key < high)));
}

/// The writer's tree is sound and the newest pinned state says the same as the tree.
pub fn published_equals_own(writer: &IndexWriter<i64>) {
    let pinned = writer.index().pin();
    let own = writer.tree().range_all(b"", RangeEnd::Unbounded, i64::MAX, 100);
    assert_eq!(pinned.range_all(b"", RangeEnd::Unbounded, i64::MAX, 7), own);
    assert_eq!(*pinned.view(), writer.tree().last_revision().main);
}
