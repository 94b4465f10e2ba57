//! Asking the memory for records before they are read.
//!
//! A lookup in cached pages waits for memory some eight times, one after the other. Several that go step by step
//! together wait as often as one. Nothing here reads a page that is not in the cache, and nothing depends on its having
//! run.

use super::cache::{Block, PageCache};
use super::node::Node;
use super::page::TreeId;
use super::prefetch::{TOGETHER, prefetch_bytes};
use super::record::{ID_BYTES, RecordId};
use super::root::Root;

/// Lines of a leaf with its header and slots.
const HEAD_LINES: usize = 3;
/// Lines of an entry at a leaf's end of which only the key is looked at.
const KEY_LINES: usize = 1;
/// Lines of a record; the processor goes on with those behind by itself.
const RECORD_LINES: usize = 6;

impl Root {
    /// Asks for what reading the records `ids`, at most [`TOGETHER`], goes through, as far as their leaves are in the
    /// cache.
    pub fn warm(&self, cache: &PageCache, ids: &[RecordId]) {
        assert!(ids.len() <= TOGETHER, "{} records together", ids.len());
        let mut leaves: [Option<(Node<'_>, [u8; ID_BYTES])>; TOGETHER] = [None; TOGETHER];
        for (leaf, id) in leaves.iter_mut().zip(ids) {
            let key = id.encode();
            let Some(block) = self.peek_leaf(cache, &key) else {
                continue;
            };
            // The count of its readers lies before the page, and is written to.
            prefetch_bytes(block.bytes(), HEAD_LINES);
            *leaf = Some((Node::new(block.bytes()), key));
        }
        let leaves = || leaves.iter().flatten();
        for (leaf, _) in leaves() {
            leaf.ends()
                .into_iter()
                .for_each(|entry| prefetch_bytes(entry, KEY_LINES));
        }
        for entry in leaves().filter_map(|(leaf, key)| leaf.probable(key)) {
            prefetch_bytes(entry, RECORD_LINES);
        }
    }

    /// The leaf of records where `key` is or would be.
    fn peek_leaf<'c>(&self, cache: &'c PageCache, key: &[u8]) -> Option<&'c Block> {
        let tree = TreeId::Records as usize;
        let start = self.inner.trees[tree];
        let mut child = start.root?;
        for level in (1..start.height).rev() {
            let node = Node::new(cache.peek(&child.address(tree as u8, level))?.bytes());
            child = node.child(node.child_index(key)).1;
        }
        cache.peek(&child.address(tree as u8, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Batch, Model, created, load, model::random_batch};
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// Whatever is in the cache and whichever records are asked for, there or not: a lookup finds afterwards what it
    /// found before, in pages of every shape.
    #[test]
    fn stress_warming_changes_nothing() {
        let mut rng = StdRng::seed_from_u64(3);
        let (mut disk, mut store) = created();
        let mut model = Model::default();
        let mut root = Root::empty(Default::default());
        root.warm(&PageCache::new(0), &[RecordId::new(1, 0)]);
        for _ in 0..20 {
            let batch: Batch = random_batch(&mut rng, &model, 200);
            root = store.run(&mut disk, batch.cut()).unwrap().unwrap().root;
            model.apply(&batch);
            let mut cache = PageCache::new(256 << 10);
            let newest = model.fields.revision + 2;
            for _ in 0..50 {
                let count = rng.random_range(0..=TOGETHER);
                let id = |_| RecordId::new(rng.random_range(0..=newest), rng.random_range(0..3));
                let ids: Vec<RecordId> = (0..count).map(id).collect();
                root.warm(&cache, &ids);
                for id in ids {
                    let found = load(&mut disk, &store, &root, &mut cache, |cache| root.record(cache, id)).unwrap();
                    let expected = model.records.get(&id);
                    assert_eq!(
                        found.as_ref().map(|record| record.view()),
                        expected.map(|record| record.view())
                    );
                }
            }
        }
    }
}
