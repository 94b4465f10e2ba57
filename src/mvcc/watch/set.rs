//! A set of watches, searched by the key of a change: exact keys by hash, ranges by the interval tree.

use super::interval_tree::{End, IntervalTree};
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a watch looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Span {
    /// One key.
    Key(Arc<[u8]>),
    /// The keys from a start up to an end, itself excluded.
    Range(Arc<[u8]>, End),
}

/// Watches by what they look at. Watches are named by numbers of the hub's.
pub(super) struct WatchSet {
    keys: HashMap<Arc<[u8]>, BTreeSet<u32>>,
    ranges: IntervalTree,
    members: BTreeSet<u32>,
}

impl WatchSet {
    pub fn new() -> WatchSet {
        WatchSet {
            keys: HashMap::new(),
            ranges: IntervalTree::new(),
            members: BTreeSet::new(),
        }
    }

    /// The watches in it, by number.
    pub fn members(&self) -> &BTreeSet<u32> {
        &self.members
    }

    /// Adds a watch, which must not be in it.
    pub fn insert(&mut self, watch: u32, span: &Span) {
        assert!(self.members.insert(watch), "watch {watch} is in the set twice");
        match span {
            Span::Key(key) => {
                self.keys.entry(key.clone()).or_default().insert(watch);
            }
            Span::Range(start, end) => self.ranges.insert(start, end, watch),
        }
    }

    /// Removes a watch, which must be in it.
    pub fn remove(&mut self, watch: u32, span: &Span) {
        assert!(self.members.remove(&watch), "watch {watch} is not in the set");
        let removed = match span {
            Span::Key(key) => {
                let watches = self.keys.get_mut(key);
                let removed = watches.is_some_and(|watches| watches.remove(&watch));
                if self.keys.get(key).is_some_and(|watches| watches.is_empty()) {
                    self.keys.remove(key);
                }
                removed
            }
            Span::Range(start, end) => self.ranges.remove(start, end, watch),
        };
        assert!(removed, "watch {watch} is not where its key says");
    }

    /// Calls `found` with every watch that looks at `key`. Returns the steps of the search, as a measure of its cost.
    pub fn find(&self, key: &[u8], mut found: impl FnMut(u32)) -> usize {
        if let Some(watches) = self.keys.get(key) {
            watches.iter().for_each(|watch| found(*watch));
        }
        1 + self.ranges.stab(key, &mut found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_keys_and_ranges_until_they_are_removed() {
        let mut set = WatchSet::new();
        let spans = [
            Span::Key(b"b"[..].into()),
            Span::Key(b"b"[..].into()),
            Span::Range(b"a"[..].into(), Some(b"c"[..].into())),
            Span::Range(b"b"[..].into(), None),
        ];
        for (watch, span) in spans.iter().enumerate() {
            set.insert(watch as u32, span);
        }
        let find = |set: &WatchSet, key: &[u8]| {
            let mut found = Vec::new();
            set.find(key, |watch| found.push(watch));
            found.sort_unstable();
            found
        };
        assert_eq!(find(&set, b"b"), [0, 1, 2, 3]);
        assert_eq!(find(&set, b"a"), [2]);
        assert_eq!(find(&set, b"c"), [3]);
        for (watch, span) in spans.iter().enumerate() {
            set.remove(watch as u32, span);
        }
        assert!(find(&set, b"b").is_empty());
        assert!(set.members().is_empty() && set.keys.is_empty());
    }
}
