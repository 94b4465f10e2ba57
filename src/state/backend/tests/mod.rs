//! Tests of etcd's backend: rows against what etcd stores, and stores that are exported and imported again.

mod refused;
mod round_trip;

use super::*;
use crate::bbolt::{Content, File, Measure, Writer};
use crate::io::buffer::AlignedBuffer;
use crate::io::disk::{Disk, OpenMode, Operation};
use crate::io::memory::MemoryDisk;
use crate::pages::{
    self, Cut, NewRecord, PageCache, PageStore, ReadFailure, RecordId, RecordScan, Root, Scanned, StateFields, TreeId,
    TreeScan, TreeUpdates,
};
use crate::proto::etcdserverpb::AlarmMember;
use crate::proto::leasepb::Lease;
use crate::state::members::{Downgrade, Member};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

const STORE: &str = "/db.ringd";
const DATABASE: &str = "/snapshot.db";
const IMPORTED: &str = "/imported.ringd";

/// Buckets, keys and values.
type Contents = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

fn options() -> pages::Options {
    pages::Options::new(0..8)
}

/// A page store with these records and rows.
fn store(
    disk: &mut MemoryDisk,
    records: Vec<NewRecord>,
    rows: &[(TreeId, Vec<u8>, Vec<u8>)],
    fields: StateFields,
) -> PageStore {
    let mut store = PageStore::create(disk, Path::new(STORE), options()).unwrap();
    let mut cut = Cut::new(fields, 0);
    cut.records = Box::new(records.into_iter());
    for (tree, key, value) in rows {
        let updates: &mut TreeUpdates = cut.trees.entry(*tree).or_default();
        updates.insert(key.clone(), Some(value.clone().into()));
    }
    store.run(disk, cut).unwrap().unwrap();
    store
}

/// Calls until a page is not missing any more.
fn loading<T, E>(
    disk: &mut MemoryDisk,
    store: &PageStore,
    cache: &mut PageCache,
    mut call: impl FnMut(&mut PageCache) -> Result<T, E>,
    missing: impl Fn(&E) -> Option<pages::PageAddress>,
) -> Result<T, E> {
    loop {
        let result = call(cache);
        let Some(address) = result.as_ref().err().and_then(&missing) else {
            return result;
        };
        let (buffer, length) = disk.read(store.file(), address.offset(), address.length()).unwrap();
        store.root().insert(cache, &address, &buffer[..length]).unwrap();
    }
}

/// The database file of the store's root.
fn exported(disk: &mut MemoryDisk, store: &PageStore, budget: usize) -> Result<Vec<u8>, ExportError> {
    let mut cache = PageCache::new(64 << 10);
    let mut export = Export::new(store.root().clone());
    let mut file = Vec::new();
    loop {
        let missing = |error: &ExportError| match error {
            ExportError::Page(ReadFailure::Missing(address)) => Some(*address),
            _ => None,
        };
        let step = loading(disk, store, &mut cache, |cache| export.step(cache, budget), missing)?;
        match step {
            Exported::Measuring | Exported::Writing => assert!(file.is_empty() || export.length().is_some()),
            Exported::Measured(length) => assert_eq!(export.length(), Some(length)),
            Exported::Chunk(mut chunk) => file.append(&mut chunk),
            Exported::End => {
                assert_eq!(Some(file.len() as u64), export.length());
                return Ok(file);
            }
        }
    }
}

/// Everything a root holds: pairs of its trees, the records among them as their debug form, and its fields.
fn everything(disk: &mut MemoryDisk, store: &PageStore) -> (Vec<String>, StateFields) {
    let root: &Root = store.root();
    let mut cache = PageCache::new(64 << 10);
    let missing = |error: &ReadFailure| match error {
        ReadFailure::Missing(address) => Some(*address),
        _ => None,
    };
    let mut found = Vec::new();
    let mut scan = RecordScan::new(RecordId::ZERO);
    while loading(
        disk,
        store,
        &mut cache,
        |cache| {
            scan.step(root, cache, 100, |record| {
                found.push(format!("{record:?}"));
                ControlFlow::Continue(())
            })
        },
        missing,
    )
    .unwrap()
        == Scanned::More
    {}
    for tree in TreeId::ALL.into_iter().filter(|tree| *tree != TreeId::Records) {
        let mut scan = TreeScan::new(tree, b"");
        while loading(
            disk,
            store,
            &mut cache,
            |cache| {
                scan.step(root, cache, 100, |key, value| {
                    found.push(format!("{tree:?} {} {}", key.escape_ascii(), value.escape_ascii()));
                    ControlFlow::Continue(())
                })
            },
            missing,
        )
        .unwrap()
            == Scanned::More
        {}
    }
    (found, root.fields().clone())
}

fn put_file(disk: &mut MemoryDisk, path: &str, bytes: &[u8]) {
    let (file, _) = disk.open(Path::new(path), OpenMode::CreateNew).unwrap();
    let mut buffer = AlignedBuffer::zeroed(bytes.len());
    buffer[..bytes.len()].copy_from_slice(bytes);
    let (offset, durable) = (0, true);
    let write = Operation::Write {
        file,
        offset,
        buffer,
        durable,
    };
    disk.call(write).unwrap();
    disk.call(Operation::Close { file }).unwrap();
}

/// Takes the database file over.
fn imported(disk: &mut MemoryDisk) -> Result<Imported, ImportError> {
    let mut import = Import::new(disk, Path::new(DATABASE), Path::new(IMPORTED), options())?;
    loop {
        match import.step(disk) {
            Ok(ImportProgress::More(_)) => {}
            Ok(ImportProgress::Done(imported)) => return Ok(imported),
            Err(error) => {
                import.abandon(disk).unwrap();
                return Err(error);
            }
        }
    }
}

/// A database file with these contents.
fn database(contents: &Contents) -> Vec<u8> {
    let mut measure = Measure::new();
    for (name, bucket) in contents {
        measure.bucket(name).unwrap();
        bucket
            .iter()
            .for_each(|(key, value)| measure.put(key, value.len()).unwrap());
    }
    let mut writer = Writer::new(measure.finish());
    for (name, bucket) in contents {
        writer.bucket(name).unwrap();
        bucket.iter().for_each(|(key, value)| writer.put(key, value).unwrap());
    }
    let mut bytes = writer.take();
    bytes.append(&mut writer.finish().unwrap());
    bytes
}

fn contents(mut bytes: &[u8]) -> Contents {
    let file = File::open(&mut bytes, "test.db").unwrap();
    let mut contents = Contents::new();
    let mut buckets = file.cursor(&file.root());
    while let Some(element) = buckets.next(&mut bytes).unwrap() {
        let Content::Bucket(bucket) = element.content else {
            panic!("a value outside of a bucket")
        };
        let pairs = contents.entry(element.key.to_vec()).or_default();
        let mut cursor = file.cursor(&bucket);
        while let Some(element) = cursor.next(&mut bytes).unwrap() {
            let Content::Value(value) = element.content else {
                panic!("a bucket inside of a bucket")
            };
            pairs.insert(element.key.to_vec(), value.to_vec());
        }
    }
    contents
}
