//! Single rules, each by example.

use super::check::{Reader, sound};
use super::model::Model;
use crate::mvcc::index::{IndexWriter, KeyMeta, NEWEST, RestoreBatch, RestoreError, Tree};
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::revision::Revision;
use std::sync::Arc;

fn at(main: i64, sub: u32) -> Revision {
    Revision::new(main, sub)
}

/// put 2, put 3, delete 4, put 5, delete 6.
fn two_generations() -> Tree {
    let mut tree = Tree::new();
    tree.put(b"k", at(2, 0), 0);
    tree.put(b"k", at(3, 0), 7);
    tree.delete(b"k", at(4, 0));
    tree.put(b"k", at(5, 0), 0);
    tree.delete(b"k", at(6, 0));
    tree
}

#[test]
fn versions_and_creations_follow_generations() {
    let tree = two_generations();
    let meta = |main, create_revision, version, lease| {
        Some(KeyMeta {
            revision: at(main, 0),
            create_revision,
            version,
            lease,
        })
    };
    assert_eq!(tree.get(b"k", 1), None);
    assert_eq!(tree.get(b"k", 2), meta(2, 2, 1, 0));
    assert_eq!(tree.get(b"k", 3), meta(3, 2, 2, 7));
    assert_eq!(tree.get(b"k", 4), None);
    assert_eq!(tree.get(b"k", 5), meta(5, 5, 1, 0));
    assert_eq!(tree.get(b"k", NEWEST), None);
    assert_eq!(tree.get_before(b"k", at(3, 0)), meta(2, 2, 1, 0));
    assert_eq!(tree.get_before(b"k", at(5, 0)), None);
    assert_eq!(tree.get_before(b"k", at(6, 0)), meta(5, 5, 1, 0));
}

#[test]
fn compaction_goes_step_by_step_as_etcds() {
    // Compaction at 1..=7 of the same history; what goes, and what HashKV at that revision keeps.
    let gone: [&[i64]; 8] = [
        &[],
        &[],
        &[],
        &[2],
        &[2, 3],
        &[2, 3, 4],
        &[2, 3, 4, 5],
        &[2, 3, 4, 5, 6],
    ];
    let kept = [None, None, Some(2), Some(3), None, Some(5), None, None];
    for main in 1..=7 {
        let mut tree = two_generations();
        for revision in 2..=6 {
            let expected = kept[main as usize] == Some(revision);
            assert_eq!(
                tree.is_kept(b"k", at(revision, 0), main),
                expected,
                "{revision} at {main}"
            );
        }
        let mut removed = Vec::new();
        tree.prune(b"k", main, &mut removed);
        let removed: Vec<i64> = removed.iter().map(|(revision, _)| revision.main).collect();
        assert_eq!(removed, gone[main as usize], "compaction at {main}");
        assert_eq!(tree.keys(), usize::from(main < 7));
        sound(&tree);
    }
}

#[test]
fn a_tombstone_at_the_compact_revision_goes_with_the_next() {
    let mut tree = two_generations();
    let mut removed = Vec::new();
    tree.prune(b"k", 6, &mut removed);
    assert_eq!(removed.len(), 4);
    assert_eq!((tree.keys(), tree.revisions(), tree.get(b"k", 6)), (1, 1, None));
    removed.clear();
    tree.prune(b"k", 6, &mut removed);
    assert!(removed.is_empty());
    tree.prune(b"k", 7, &mut removed);
    assert_eq!(removed, [(at(6, 0), true)]);
    assert_eq!((tree.keys(), tree.revisions()), (0, 0));
    assert_eq!(tree.put(b"k", at(8, 0), 0).current.version, 1);
}

#[test]
fn version_survives_the_loss_of_the_generations_beginning() {
    let mut tree = Tree::new();
    for main in 2..12 {
        tree.put(b"k", at(main, 0), i64::from(main == 4));
    }
    tree.prune(b"k", 6, &mut Vec::new());
    tree.prune(b"k", 9, &mut Vec::new());
    let meta = tree.get(b"k", 10).unwrap();
    assert_eq!((meta.create_revision, meta.version, meta.lease), (2, 9, 0));
    let put = tree.put(b"k", at(12, 0), 5);
    assert_eq!((put.current.create_revision, put.current.version), (2, 11));
    tree.delete(b"k", at(13, 0));
    assert_eq!(tree.put(b"k", at(14, 0), 0).current.create_revision, 14);
    assert_eq!(tree.get(b"k", 12).unwrap().lease, 5);
}

#[test]
fn deleting_what_is_not_there_changes_nothing() {
    let mut tree = Tree::new();
    assert_eq!(tree.delete(b"k", at(2, 0)), None);
    assert_eq!((tree.keys(), tree.last_revision()), (0, Revision::ZERO));
    tree.put(b"k", at(2, 0), 0);
    assert!(tree.delete(b"k", at(3, 0)).is_some());
    assert_eq!(tree.delete(b"k", at(4, 0)), None);
    assert_eq!(tree.revisions(), 2);
}

#[test]
#[should_panic(expected = "came too late")]
fn a_change_out_of_order_is_a_bug() {
    let mut tree = Tree::new();
    tree.put(b"a", at(3, 1), 0);
    tree.put(b"b", at(3, 1), 0);
}

#[test]
fn a_lease_is_reported_with_what_was_before() {
    let mut tree = Tree::new();
    tree.put(b"k", at(2, 0), 4);
    let put = tree.put(b"k", at(3, 0), 5);
    assert_eq!((put.previous.unwrap().lease, put.current.lease), (4, 5));
    let put = tree.put(b"k", at(4, 0), 0);
    assert_eq!((put.previous.unwrap().lease, put.current.lease), (5, 0));
    assert_eq!(tree.delete(b"k", at(5, 0)).unwrap().lease, 0);
}

#[test]
fn damaged_records_are_named() {
    fn restore(tree: &mut Tree, revision: Revision, view: &KeyValueView<'_>, gone: bool) -> Result<(), RestoreError> {
        let mut batch = RestoreBatch::default();
        batch.push(revision, view, gone)?;
        batch.sort();
        tree.restore(&batch, 0, &mut Vec::new())
    }
    let record = |create_revision, version| KeyValueView {
        key: b"k",
        create_revision,
        version,
        ..Default::default()
    };
    let mut tree = Tree::new();
    for (create_revision, version) in [(0, 1), (6, 1), (5, 0), (4, 1), (-1, 3)] {
        let found = (create_revision, version);
        let refused = restore(&mut tree, at(5, 0), &record(create_revision, version), false);
        assert_eq!(
            refused,
            Err(RestoreError::Impossible {
                revision: at(5, 0),
                found
            })
        );
    }
    restore(&mut tree, at(5, 0), &record(3, 2), false).unwrap();
    let refused = restore(&mut tree, at(5, 0), &record(3, 3), false);
    assert_eq!(
        refused.unwrap_err().to_string().split(':').next(),
        Some("record Revision { main")
    );
    let refused = restore(&mut tree, at(6, 0), &record(3, 4), false);
    let (found, expected) = ((3, 4), (3, 3));
    assert_eq!(
        refused,
        Err(RestoreError::Disagrees {
            revision: at(6, 0),
            found,
            expected
        })
    );
    restore(&mut tree, at(6, 0), &record(0, 0), true).unwrap();
    let refused = restore(&mut tree, at(7, 0), &record(3, 3), false);
    let (found, expected) = ((3, 3), (7, 1));
    assert_eq!(
        refused,
        Err(RestoreError::Disagrees {
            revision: at(7, 0),
            found,
            expected
        })
    );
    restore(&mut tree, at(7, 0), &record(7, 1), false).unwrap();
    let mut batch = RestoreBatch::default();
    batch.push(at(9, 1), &record(9, 1), false).unwrap();
    let refused = batch.push(at(9, 1), &record(9, 2), false);
    let (revision, last) = (at(9, 1), at(9, 1));
    assert_eq!(refused, Err(RestoreError::OutOfOrder { revision, last }));
    assert_eq!(tree.get(b"k", NEWEST).unwrap().create_revision, 7);
    assert_eq!(tree.get(b"k", 5).unwrap().version, 2);
}

#[test]
fn enormous_keys_work() {
    let mut model = Model::default();
    let mut tree = Tree::new();
    for number in 0..100u8 {
        let mut key = vec![b'x'; 1_500_000];
        key.push(number);
        key.extend(vec![0; usize::from(number) % 5]);
        let revision = at(2 + i64::from(number), 0);
        tree.put(&key, revision, 0);
        model.put(&key, revision, 0);
    }
    sound(&tree);
    for record in &model.records {
        assert_eq!(tree.get(&record.key, NEWEST), model.get(&record.key, NEWEST));
    }
    let keys = model.keys();
    let (start, end) = (&keys[2], RangeEnd::Before(&keys[40]));
    assert_eq!(tree.count(start, end, NEWEST), (38, None));
}

#[test]
fn a_pin_sees_neither_later_changes_nor_prunings() {
    let mut writer = IndexWriter::new(Tree::new(), 1);
    writer.put(b"a", at(2, 0), 0);
    writer.put(b"b", at(2, 1), 0);
    assert_eq!(writer.index().pin().get(b"a", NEWEST), None, "not published yet");
    assert!(writer.tree().get(b"a", NEWEST).is_some(), "the writer sees its own");
    writer.publish(2);
    let index = Arc::clone(writer.index());
    let before = index.pin();
    writer.put(b"a", at(3, 0), 0);
    writer.delete(b"b", at(3, 1));
    writer.put(b"c", at(3, 2), 0);
    writer.publish(3);
    writer.prune(b"a", 3, &mut Vec::new());
    writer.prune(b"b", 4, &mut Vec::new());
    writer.publish(4);
    assert_eq!(before.get(b"a", NEWEST).unwrap().revision, at(2, 0));
    assert_eq!(before.get_before(b"a", at(9, 0)).unwrap().revision, at(2, 0));
    assert_eq!(before.count_all(b"", RangeEnd::Unbounded, NEWEST), 2);
    assert_eq!(before.range_all(b"", RangeEnd::Unbounded, NEWEST, 9).len(), 2);
    let now = index.pin();
    assert_eq!((*before.view(), *now.view()), (2, 4));
    assert_eq!(now.get(b"a", 2), None, "pruned");
    assert_eq!(now.count_all(b"", RangeEnd::Unbounded, 3), 2);
    sound(writer.tree());
}

#[test]
fn readers_outlive_the_writer_and_a_replacement() {
    let mut writer = IndexWriter::new(two_generations(), 6);
    let index = Arc::clone(writer.index());
    let old = index.pin();
    let mut tree = Tree::new();
    tree.put(b"new", at(2, 0), 0);
    writer.replace(tree);
    assert_eq!(*index.pin().view(), 6);
    writer.publish(2);
    assert!(index.pin().get(b"new", NEWEST).is_some() && index.pin().get(b"k", 5).is_none());
    assert!(old.get(b"k", 5).is_some() && old.get(b"new", NEWEST).is_none());
    writer.put(b"never published", at(3, 0), 0);
    writer.put(b"new", at(4, 0), 0);
    drop(writer);
    assert_eq!(index.pin().get(b"new", NEWEST).unwrap().revision, at(2, 0));
    assert_eq!(index.pin().count_all(b"", RangeEnd::Unbounded, NEWEST), 1);
    assert!(old.get(b"k", 5).is_some());
}

/// A checkpoint deletes only so many records; those that wait when the member stops are in the store for the next
/// start.
#[test]
fn what_a_compaction_removed_is_left_out_at_boot_whatever_of_it_is_still_stored() {
    let record = |key: &'static [u8], create_revision, version| KeyValueView {
        key,
        create_revision,
        version,
        ..Default::default()
    };
    let gone = KeyValueView {
        key: b"gone",
        ..Default::default()
    };
    let mut batch = RestoreBatch::default();
    // Version 3 of `a` was removed, version 2 was not; `gone` has lost its beginning.
    batch.push(at(3, 0), &record(b"a", 2, 2), false).unwrap();
    batch.push(at(5, 0), &record(b"a", 2, 4), false).unwrap();
    batch.push(at(6, 0), &record(b"gone", 1, 7), false).unwrap();
    batch.push(at(7, 0), &gone, true).unwrap();
    batch.push(at(8, 0), &record(b"kept", 8, 1), false).unwrap();
    batch.push(at(9, 0), &record(b"a", 2, 5), false).unwrap();
    batch.sort();
    let mut tree = Tree::new();
    let mut removed = Vec::new();
    tree.restore(&batch, 8, &mut removed).unwrap();
    removed.sort_unstable();
    assert_eq!(removed, [(at(3, 0), false), (at(6, 0), false), (at(7, 0), true)]);
    assert_eq!((tree.keys(), tree.revisions()), (2, 3));
    assert_eq!(tree.get(b"gone", NEWEST), None);
    let meta = tree.get(b"a", 8).unwrap();
    assert_eq!((meta.revision, meta.create_revision, meta.version), (at(5, 0), 2, 4));
    assert_eq!(tree.get(b"a", NEWEST).unwrap().version, 5);
    // Without a compaction there is no such gap.
    let refused = Tree::new().restore(&batch, 2, &mut Vec::new());
    assert!(matches!(refused, Err(RestoreError::Disagrees { .. })), "{refused:?}");
}
