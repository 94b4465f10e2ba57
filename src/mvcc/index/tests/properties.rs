//! Random histories: whatever happens, the index answers as the model does.

use super::check::{Reader, published_equals_own, same_at, sound};
use super::model::Model;
use crate::mvcc::index::{IndexWriter, NEWEST, Put, Tree};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::revision::Revision;
use proptest::prelude::*;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Put(usize, i64),
    Delete(usize),
    /// Ends the transaction: the next change has a new main revision.
    NextMain,
    Publish,
    /// Compacts all keys at this share of the readable revisions.
    Compact(f64),
    /// Compacts one key.
    CompactKey(usize, f64),
    /// Starts again from the records.
    Restart,
    /// Pins the published state until the end.
    Pin,
}

/// Keys that are hard to tell apart: prefixes of each other, zeroes, long common parts.
fn key(number: usize) -> Vec<u8> {
    let mut key = match number % 4 {
        0 => b"/registry/pods/default/".to_vec(),
        1 => b"/registry/pods/".to_vec(),
        2 => b"a".to_vec(),
        _ => vec![0xff; 9],
    };
    match number / 4 % 3 {
        0 => key.extend(vec![0; number / 12 % 12]),
        1 => key.extend((number / 12).to_string().bytes()),
        _ => key.extend([b"\0\xff", &(number as u16 * 97).to_be_bytes()[..]].concat()),
    }
    key
}

fn steps(keys: usize, length: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..keys, prop_oneof![3 => Just(0), 1 => 1..4i64]).prop_map(|(key, lease)| Step::Put(key, lease)),
        6 => (0..keys).prop_map(Step::Delete),
        10 => Just(Step::NextMain),
        5 => Just(Step::Publish),
        1 => (0.0..=1.0).prop_map(Step::Compact),
        2 => (0..keys, 0.0..=1.0).prop_map(|(key, share)| Step::CompactKey(key, share)),
        1 => Just(Step::Restart),
        1 => Just(Step::Pin),
    ];
    prop::collection::vec(step, 1..length)
}

/// The index and the model side by side.
struct Pair {
    writer: IndexWriter<i64>,
    model: Model,
    revision: Revision,
    /// The lowest main revision that may be read: the highest that any key was compacted at.
    pruned_main: i64,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            writer: IndexWriter::new(Tree::new(), 0),
            model: Model::default(),
            revision: Revision::new(2, 0),
            pruned_main: 0,
        }
    }

    fn put(&mut self, key: &[u8], lease: i64) {
        let (previous, current) = self.model.put(key, self.revision, lease);
        assert_eq!(self.writer.put(key, self.revision, lease), Put { previous, current });
        self.revision.sub += 1;
    }

    fn delete(&mut self, key: &[u8]) {
        let expected = self.model.delete(key, self.revision);
        assert_eq!(self.writer.delete(key, self.revision), expected);
        self.revision.sub += u32::from(expected.is_some());
    }

    fn next_main(&mut self) {
        if self.revision.sub > 0 {
            self.revision = Revision::new(self.revision.main + 1, 0);
        }
    }

    /// A main revision between the last compaction and the newest complete transaction.
    fn compaction(&self, share: f64) -> i64 {
        let newest = self.revision.main - i64::from(self.revision.sub == 0);
        self.pruned_main + ((newest - self.pruned_main).max(0) as f64 * share) as i64
    }

    fn prune(&mut self, key: &[u8], main: i64) {
        self.pruned_main = self.pruned_main.max(main);
        for record in self.model.of_key(key) {
            let expected = self.model.is_kept(key, record.revision, main);
            assert_eq!(self.writer.tree().is_kept(key, record.revision, main), expected);
        }
        let mut removed = Vec::new();
        self.writer.prune(key, main, &mut removed);
        assert_eq!(removed, self.model.prune(key, main), "compaction of {key:?} at {main}");
    }

    fn compact(&mut self, main: i64) {
        self.model.keys().iter().for_each(|key| self.prune(key, main));
    }

    fn publish(&mut self) {
        self.next_main();
        self.writer.publish(self.writer.tree().last_revision().main);
        published_equals_own(&self.writer);
    }

    fn restart(&mut self) {
        self.writer = IndexWriter::new(self.model.restored(), self.writer.tree().last_revision().main);
    }
}

/// A key deleted and written again under one main revision: no transaction of etcd's does it, and the model's rule,
/// which is etcd's, then keeps the tombstone and loses the newer record.
fn rewritten_in_one_main(model: &Model, key: &[u8], main: i64) -> bool {
    let deleted = model
        .of_key(key)
        .any(|record| record.revision.main == main && record.meta.is_none());
    deleted && model.get(key, main).is_none()
}

/// Takes the steps; what is pinned on the way is checked after all that came behind it.
fn walk(pair: &mut Pair, steps: &[Step]) {
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Put(number, lease) => {
                if !rewritten_in_one_main(&pair.model, &key(number), pair.revision.main) {
                    pair.put(&key(number), lease);
                }
            }
            Step::Delete(number) => pair.delete(&key(number)),
            Step::NextMain => pair.next_main(),
            Step::Publish => pair.publish(),
            Step::Compact(share) => pair.compact(pair.compaction(share)),
            Step::CompactKey(number, share) => pair.prune(&key(number), pair.compaction(share)),
            Step::Restart => pair.restart(),
            Step::Pin => {
                pair.publish();
                let (index, model, pruned_main) =
                    (Arc::clone(pair.writer.index()), pair.model.clone(), pair.pruned_main);
                let pinned = index.pin();
                walk(pair, &steps[number + 1..]);
                (pruned_main..=*pinned.view()).for_each(|at_main| same_at(&pinned, &model, at_main, &bounds()[..3]));
                return;
            }
        }
        sound(pair.writer.tree());
    }
}

/// Where ranges begin and end: keys, and what is below and between them.
fn bounds() -> Vec<Vec<u8>> {
    [0, 14, 38, 1, 5, 12, 23]
        .map(key)
        .into_iter()
        .chain([vec![], vec![0]])
        .collect()
}

fn run(steps: Vec<Step>) {
    let mut pair = Pair::new();
    walk(&mut pair, &steps);
    let bounds = bounds();
    let newest = pair.revision.main;
    for at_main in pair.pruned_main..=newest {
        same_at(pair.writer.tree(), &pair.model, at_main, &bounds);
    }
    pair.publish();
    let pinned = pair.writer.index().pin();
    for at_main in (pair.pruned_main..=newest).chain([NEWEST]) {
        same_at(&pinned, &pair.model, at_main, &bounds[..4]);
    }
    for record in &pair.model.records {
        let expected = pair.model.get_before(&record.key, record.revision);
        assert_eq!(pinned.get_before(&record.key, record.revision), expected);
    }
    let restored = pair.model.restored();
    sound(&restored);
    for at_main in pair.pruned_main..=newest {
        same_at(&restored, &pair.model, at_main, &bounds[..4]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn few_keys_long_histories(steps in steps(7, 150)) {
        run(steps);
    }

    #[test]
    fn many_keys_short_histories(steps in steps(400, 250)) {
        run(steps);
    }
}

/// Enough keys for four levels: everything is created, deleted and compacted away again, in waves.
#[test]
fn grows_and_shrinks() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut writer = IndexWriter::new(Tree::new(), 0);
    let mut keys: Vec<Vec<u8>> = (0..20_000u32)
        .map(|number| format!("/registry/{}/{number:05}", number % 7).into_bytes())
        .collect();
    let empty = writer.tree().bytes();
    let mut main = 1;
    for wave in 0..3 {
        match wave {
            0 => keys.sort(),
            _ => keys.shuffle(&mut random),
        }
        for (number, key) in keys.iter().enumerate() {
            main += 1;
            writer.put(key, Revision::new(main, 0), 0);
            if number % 997 == 0 {
                writer.publish(main);
            }
        }
        let live_main = main;
        sound(writer.tree());
        assert_eq!(
            writer.tree().count_all(b"", RangeEnd::Unbounded, NEWEST),
            keys.len() as u64
        );
        let (deleted, left) = keys.split_at(if wave == 2 { keys.len() } else { keys.len() * 9 / 10 });
        for key in deleted {
            main += 1;
            assert!(writer.delete(key, Revision::new(main, 0)).is_some());
        }
        writer.publish(main);
        let pinned = writer.index().pin();
        assert_eq!(
            pinned.count(b"", RangeEnd::Unbounded, NEWEST),
            (left.len() as u64, None)
        );
        assert_eq!(pinned.count_all(b"", RangeEnd::Unbounded, live_main), keys.len() as u64);
        assert!(
            pinned.count(b"", RangeEnd::Unbounded, live_main).1.is_some(),
            "old counts come in slices"
        );
        let seen = pinned.range_all(b"/registry/3/", RangeEnd::Before(b"/registry/4"), NEWEST, usize::MAX);
        let mut expected: Vec<_> = left
            .iter()
            .filter(|key| key.starts_with(b"/registry/3/"))
            .cloned()
            .collect();
        expected.sort();
        assert_eq!(seen.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), expected);
        drop(pinned);
        let mut removed = Vec::new();
        keys.iter().for_each(|key| writer.prune(key, main + 1, &mut removed));
        sound(writer.tree());
        assert_eq!(writer.tree().keys(), left.len());
        writer.publish(main);
        published_equals_own(&writer);
    }
    assert_eq!(writer.tree().bytes(), empty, "an empty tree is as small as it was");
}
