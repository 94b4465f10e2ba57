//! Asking the memory for keys and their revisions before they are looked up.
//!
//! A lookup among a million keys waits for memory a dozen times, one after the other. Several lookups that go step by
//! step together wait as often as one: each step asks for what the next one of all will look at.

use super::node::{Kind, Node};
use super::read::Root;
use crate::mvcc::revision::Revision;
use crate::pages::prefetch::{TOGETHER, prefetch};

/// Lines of a node that a search looks into: its head and the fragments.
const NODE_LINES: usize = 10;
/// Lines of a key's entry, and of its list, that are asked for: more than most have.
const PIECE_LINES: usize = 2;

impl Root<'_> {
    /// Asks for what looking up `keys`, at most [`TOGETHER`], goes through, and says where each one's newest record
    /// probably is: the key found may be a neighbour, for keys are not compared to their end.
    pub fn warm(self, keys: &[&[u8]], mut newest: impl FnMut(Revision)) {
        assert!(keys.len() <= TOGETHER, "{} lookups together", keys.len());
        let mut nodes: [&Node; TOGETHER] = [self.node(); TOGETHER];
        let nodes = &mut nodes[..keys.len()];
        // All leaves are equally deep.
        while let Some(Kind::Inner(_)) = nodes.first().map(|node| &node.kind) {
            for (node, key) in nodes.iter_mut().zip(keys) {
                if let Kind::Inner(inner) = &node.kind {
                    *node = inner.child(inner.child_for(key));
                    prefetch(*node, NODE_LINES);
                }
            }
        }
        let mut found = [None; TOGETHER];
        let places = found.iter_mut().zip(nodes).zip(keys);
        for ((found, node), key) in places {
            if let Kind::Leaf(leaf) = &node.kind {
                *found = leaf.keys.near(key);
                prefetch(found.map_or(std::ptr::null(), std::ptr::from_ref), 1);
            }
        }
        let entries = found.iter().flatten();
        entries.clone().for_each(|entry| prefetch(entry.address(), PIECE_LINES));
        // SAFETY: an entry of a leaf of a pinned root is no separator, and valid while the root is; so are the lists
        // that are read from it.
        let lists = entries.map(|entry| unsafe { entry.list() });
        lists.clone().for_each(|list| prefetch(list.address(), PIECE_LINES));
        for list in lists {
            // SAFETY: as above.
            if let Some(meta) = unsafe { list.revisions() }.newest() {
                newest(meta.revision);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TOGETHER;
    use crate::mvcc::index::{IndexWriter, NEWEST, Tree};
    use crate::mvcc::revision::Revision;

    /// Whatever keys are there: those that are get their newest revision, nothing is read that is not there.
    #[test]
    fn stress_warming_finds_what_a_lookup_finds() {
        let mut writer = IndexWriter::new(Tree::new(), ());
        let index = writer.index().clone();
        index.pin().warm(&[b"none"], |_| panic!("there are no keys"));
        let mut main = 1;
        for keys in [1, 2, 63, 65, 2000, 40_000] {
            for key in 0..keys {
                main += 1;
                let key = format!("key/{:07}", key * 7919 % 100_003);
                writer.put(key.as_bytes(), Revision::new(main, 0), 0);
                if main % 11 == 0 {
                    main += 1;
                    writer.delete(key.as_bytes(), Revision::new(main, 0));
                }
            }
            writer.publish(());
            let pinned = index.pin();
            for from in (0..keys).step_by(31).take(200) {
                let keys: Vec<String> = (from..from + TOGETHER)
                    .map(|key| format!("key/{:07}", key * 7919 % 100_003))
                    .collect();
                let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
                let mut found = Vec::new();
                pinned.warm(&keys, |revision| found.push(revision));
                let there = keys.iter().filter_map(|key| pinned.get(key, NEWEST));
                assert!(there.into_iter().all(|meta| found.contains(&meta.revision)));
            }
            let odd: [&[u8]; 4] = [b"", b"k", b"\xff\xff", b"key/00000000000000000000"];
            pinned.warm(&odd, |_| {});
            pinned.warm(&[], |_| panic!("nothing was asked for"));
        }
    }
}
