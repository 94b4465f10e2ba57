//! What the index should be, written as simply as possible: the list of everything that happened.

use crate::mvcc::index::{KeyMeta, RestoreBatch, Tree};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;

/// One record of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Vec<u8>,
    /// The version, or `None` for a tombstone.
    pub meta: Option<KeyMeta>,
    pub revision: Revision,
}

/// All records, in the order of their revisions.
#[derive(Clone, Default)]
pub struct Model {
    pub records: Vec<Record>,
}

impl Model {
    pub fn of_key<'a>(&'a self, key: &'a [u8]) -> impl DoubleEndedIterator<Item = &'a Record> {
        self.records.iter().filter(move |record| record.key == key)
    }

    pub fn get(&self, key: &[u8], at_main: i64) -> Option<KeyMeta> {
        self.of_key(key).rfind(|record| record.revision.main <= at_main)?.meta
    }

    pub fn get_before(&self, key: &[u8], revision: Revision) -> Option<KeyMeta> {
        self.of_key(key).rfind(|record| record.revision < revision)?.meta
    }

    pub fn put(&mut self, key: &[u8], revision: Revision, lease: i64) -> (Option<KeyMeta>, KeyMeta) {
        let previous = self.get(key, i64::MAX);
        let meta = KeyMeta {
            revision,
            create_revision: previous.map_or(revision.main, |meta| meta.create_revision),
            version: previous.map_or(0, |meta| meta.version) + 1,
            lease,
        };
        self.push(key, revision, Some(meta));
        (previous, meta)
    }

    pub fn delete(&mut self, key: &[u8], revision: Revision) -> Option<KeyMeta> {
        let previous = self.get(key, i64::MAX)?;
        self.push(key, revision, None);
        Some(previous)
    }

    fn push(&mut self, key: &[u8], revision: Revision, meta: Option<KeyMeta>) {
        let key = key.to_vec();
        self.records.push(Record { key, meta, revision });
    }

    pub fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> = self.records.iter().map(|record| record.key.clone()).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    pub fn range(&self, start: &[u8], end: RangeEnd<'_>, at_main: i64) -> Vec<(Vec<u8>, KeyMeta)> {
        let keys = self.keys().into_iter().filter(|key| end.contains(start, key));
        keys.filter_map(|key| self.get(&key, at_main).map(|meta| (key, meta)))
            .collect()
    }

    /// The key's history as etcd sees it: generations, each but the last closed by a tombstone.
    fn generations(&self, key: &[u8]) -> Vec<Vec<Revision>> {
        let mut generations = vec![Vec::new()];
        for record in self.of_key(key) {
            generations.last_mut().unwrap().push(record.revision);
            if record.meta.is_none() {
                generations.push(Vec::new());
            }
        }
        generations
    }

    /// etcd's rule: the generation is the first that is open or was closed at `main` or later; in it, the newest
    /// revision at or below `main`. Both as positions.
    fn compaction(&self, key: &[u8], main: i64) -> (usize, Option<usize>) {
        let generations = self.generations(key);
        let last = generations.len() - 1;
        let generation = (0..last)
            .find(|index| generations[*index].last().unwrap().main >= main)
            .unwrap_or(last);
        let newest = generations[generation]
            .iter()
            .rposition(|revision| revision.main <= main);
        (generation, newest)
    }

    /// Removes what etcd's `compact` removes of a key.
    pub fn prune(&mut self, key: &[u8], main: i64) -> Vec<(Revision, bool)> {
        let generations = self.generations(key);
        let (generation, newest) = self.compaction(key, main);
        let before: usize = generations[..generation].iter().map(Vec::len).sum();
        let obsolete = before + newest.unwrap_or(0);
        let removed: Vec<_> = self
            .of_key(key)
            .take(obsolete)
            .map(|record| (record.revision, record.meta.is_none()))
            .collect();
        self.records
            .retain(|record| removed.iter().all(|(revision, _)| *revision != record.revision));
        removed
    }

    /// Whether etcd's `keep` names a revision.
    pub fn is_kept(&self, key: &[u8], revision: Revision, main: i64) -> bool {
        let generations = self.generations(key);
        let (generation, newest) = self.compaction(key, main);
        let Some(newest) = newest else {
            return false;
        };
        let tombstone = newest + 1 == generations[generation].len() && generation + 1 != generations.len();
        generations[generation][newest] == revision && !tombstone
    }

    /// A tree filled from the records, as boot does it.
    pub fn restored(&self) -> Tree {
        let mut tree = Tree::new();
        let mut batch = RestoreBatch::default();
        for records in self.records.chunks(1 + self.records.len() / 3) {
            batch.clear();
            for record in records {
                let (view, tombstone) = record.view();
                batch.push(record.revision, &view, tombstone).unwrap();
            }
            batch.sort();
            tree.restore(&batch, 0, &mut Vec::new()).unwrap();
        }
        tree
    }
}

impl Record {
    pub fn view(&self) -> (KeyValueView<'_>, bool) {
        let mut view = KeyValueView {
            key: &self.key,
            ..Default::default()
        };
        if let Some(meta) = self.meta {
            view.create_revision = meta.create_revision;
            view.mod_revision = meta.revision.main;
            view.version = meta.version;
            view.lease = meta.lease;
        }
        (view, self.meta.is_none())
    }
}
