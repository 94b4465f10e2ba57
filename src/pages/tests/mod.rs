//! Tests of the store as a whole, against a naive model.

mod aged;
mod crash;
mod damage;
pub(super) mod model;
mod threads;

use super::*;
use crate::io::disk::Disk;
use crate::io::memory::MemoryDisk;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

pub(super) const PATH: &str = "/db.ringd";

/// What a state of the store should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub records: BTreeMap<RecordId, NewRecord>,
    pub trees: BTreeMap<(TreeId, Vec<u8>), Bytes>,
    pub fields: StateFields,
}

/// Changes of one cut, kept so that they can be applied to a store and to a model, and tried again.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    pub records: Vec<NewRecord>,
    pub deletes: Vec<RecordId>,
    pub trees: Vec<(TreeId, Vec<u8>, Option<Bytes>)>,
    pub fields: StateFields,
    pub urgent: bool,
}

impl Batch {
    pub fn cut(&self) -> Cut {
        let mut cut = Cut::new(self.fields.clone(), self.fields.applied_index);
        cut.records = Box::new(self.records.clone().into_iter());
        cut.deletes = self.deletes.clone();
        for (tree, key, value) in &self.trees {
            cut.trees.entry(*tree).or_default().insert(key.clone(), value.clone());
        }
        cut.urgent = self.urgent;
        cut
    }
}

impl Model {
    pub fn apply(&mut self, batch: &Batch) {
        for id in &batch.deletes {
            self.records.remove(id);
        }
        self.records
            .extend(batch.records.iter().map(|record| (record.id, record.clone())));
        for (tree, key, value) in &batch.trees {
            match value {
                Some(value) => self.trees.insert((*tree, key.clone()), value.clone()),
                None => self.trees.remove(&(*tree, key.clone())),
            };
        }
        self.fields = batch.fields.clone();
    }
}

pub(super) fn options() -> Options {
    Options {
        reserve_pages: 0,
        ..Options::new(100..132)
    }
}

pub(super) fn created() -> (MemoryDisk, PageStore) {
    let mut disk = MemoryDisk::new();
    let store = PageStore::create(&mut disk, Path::new(PATH), options()).unwrap();
    (disk, store)
}

pub(super) fn record(main: i64, key: &str, length: usize) -> NewRecord {
    let value: Vec<u8> = (0..length).map(|at| (at as i64 * 7 + main) as u8).collect();
    let key = Bytes::copy_from_slice(key.as_bytes());
    NewRecord {
        id: RecordId::new(main, 0),
        key,
        create_revision: main,
        version: 1,
        value: value.into(),
        ..NewRecord::default()
    }
}

/// Loads what a read says is missing until it answers.
pub(super) fn load<T>(
    disk: &mut dyn Disk,
    store: &PageStore,
    root: &Root,
    cache: &mut PageCache,
    mut read: impl FnMut(&mut PageCache) -> Result<T, ReadFailure>,
) -> Result<T, ReadFailure> {
    loop {
        match read(cache) {
            Err(ReadFailure::Missing(address)) => {
                let (bytes, length) = disk.read(store.file(), address.offset(), address.length()).unwrap();
                root.insert(cache, &address, &bytes[..length])?;
            }
            other => return other,
        }
    }
}

/// Everything a root holds, read through a cache of a few pages.
pub(super) fn dump(disk: &mut dyn Disk, store: &PageStore, root: &Root) -> Result<Model, ReadFailure> {
    let mut cache = PageCache::new(64 << 10);
    let mut model = Model {
        fields: root.fields().clone(),
        ..Model::default()
    };
    let mut scan = RecordScan::new(RecordId::ZERO);
    loop {
        let scanned = load(disk, store, root, &mut cache, |cache| {
            scan.step(root, cache, 7, |view| {
                let record = NewRecord {
                    id: view.id,
                    tombstone: view.tombstone,
                    key: Bytes::copy_from_slice(view.key),
                    create_revision: view.create_revision,
                    version: view.version,
                    lease: view.lease,
                    value: Bytes::copy_from_slice(view.value),
                };
                assert!(model.records.insert(view.id, record).is_none(), "visited once");
                ControlFlow::Continue(())
            })
        })?;
        if scanned == Scanned::End {
            break;
        }
    }
    for tree in TreeId::ALL.into_iter().skip(1) {
        let mut scan = TreeScan::new(tree, b"");
        while Scanned::More
            == load(disk, store, root, &mut cache, |cache| {
                scan.step(root, cache, 5, |key, value| {
                    model.trees.insert((tree, key.to_vec()), Bytes::copy_from_slice(value));
                    ControlFlow::Continue(())
                })
            })?
        {}
    }
    Ok(model)
}

pub(super) fn assert_sound(disk: &mut dyn Disk, store: &PageStore, model: &Model) {
    let report = store.check(disk).unwrap();
    assert_eq!(report.records, model.records.len() as u64);
    assert_eq!(report.entries, model.trees.len() as u64);
    assert_eq!(report.lost_pages, 0);
    assert!(
        &dump(disk, store, store.root()).unwrap() == model,
        "the store differs from the model"
    );
}

#[test]
fn a_first_checkpoint_is_read_back_and_survives_reopening() {
    let (mut disk, mut store) = created();
    let mut model = Model::default();
    assert_sound(&mut disk, &store, &model);
    let mut batch = Batch::default();
    for main in 2..2000 {
        batch
            .records
            .push(record(main, &format!("key-{}", main % 50), (main as usize * 37) % 3000));
    }
    batch.records.push(record(2000, &"k".repeat(5000), 100_000));
    batch.records.push(record(2001, &"k".repeat(5000), 0));
    batch.records.push(NewRecord {
        id: RecordId::new(2001, 1),
        tombstone: true,
        key: "gone".into(),
        ..NewRecord::default()
    });
    batch.trees.push((TreeId::Leases, b"lease".to_vec(), Some("60".into())));
    batch
        .trees
        .push((TreeId::Roles, b"role".to_vec(), Some(vec![7; 20_000].into())));
    batch.fields = StateFields {
        revision: 2001,
        compact_revision: 1,
        applied_index: 77,
        term: 3,
        membership: "members".into(),
    };
    let commit = store.run(&mut disk, batch.cut()).unwrap().unwrap();
    assert_eq!(commit.root.generation(), 2);
    model.apply(&batch);
    assert_sound(&mut disk, &store, &model);
    let store = PageStore::open(&mut disk, Path::new(PATH), options()).unwrap();
    assert_sound(&mut disk, &store, &model);
    let root = store.root().clone();
    let mut cache = PageCache::new(1 << 20);
    let mut read = |id| load(&mut disk, &store, &root, &mut cache, |cache| root.record(cache, id)).unwrap();
    assert_eq!(
        read(RecordId::new(2000, 0)).unwrap().view(),
        model.records[&RecordId::new(2000, 0)].view()
    );
    assert!(read(RecordId::new(2000, 1)).is_none());
    assert!(read(RecordId::new(9999, 0)).is_none());
    let value = load(&mut disk, &store, &root, &mut cache, |cache| {
        root.get(cache, TreeId::Roles, b"role")
    })
    .unwrap();
    assert_eq!(value.unwrap()[..], [7; 20_000]);
    let heads = &mut Vec::new();
    let mut scan = RecordScan::new(RecordId::new(1990, 0));
    load(&mut disk, &store, &root, &mut cache, |cache| {
        scan.step_heads(&root, cache, 100, |head| {
            heads.push((head.id, head.key.len(), head.value_length));
            ControlFlow::Continue(())
        })
    })
    .unwrap();
    let expected: Vec<_> = model
        .records
        .range(RecordId::new(1990, 0)..)
        .map(|(id, record)| (*id, record.key.len(), record.value.len()))
        .collect();
    assert_eq!(*heads, expected);
}
