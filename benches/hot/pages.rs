//! The page store on a disk in memory, with 50 000 records of 256 bytes.
//!
//! `checkpoint-1000`: a thousand new records and the deletion of the thousand oldest, down to the new meta page; per
//! record. `lookup`: a random record whose pages are in the cache. `scan-500`: the heads of 500 records, per record.

use super::clock::ThreadTime;
use super::{Random, key};
use criterion::{Criterion, Throughput};
use ringd::io::disk::Disk;
use ringd::io::memory::MemoryDisk;
use ringd::pages::{
    Cut, NewRecord, Options, PageCache, PageStore, ReadFailure, RecordId, RecordScan, Root, StateFields,
};
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;

const RECORDS: i64 = 50_000;
const PART: i64 = 1000;
const ROWS: usize = 500;
const CACHE_BYTES: usize = 64 << 20;

struct Store {
    disk: MemoryDisk,
    pages: PageStore,
    first: i64,
    next: i64,
}

impl Store {
    fn new() -> Store {
        let mut disk = MemoryDisk::new();
        let options = Options {
            reserve_pages: 0,
            ..Options::new(0..32)
        };
        let pages = PageStore::create(&mut disk, Path::new("/db"), options).expect("a new store");
        let mut store = Store {
            disk,
            pages,
            first: 2,
            next: 2,
        };
        store.checkpoint(RECORDS, 0);
        store
    }

    fn checkpoint(&mut self, new: i64, deleted: i64) {
        let fields = StateFields {
            revision: self.next + new - 1,
            ..StateFields::default()
        };
        let mut cut = Cut::new(fields, 0);
        cut.records = Box::new((self.next..self.next + new).map(record));
        let deleted = self.first..self.first + deleted;
        cut.deletes = deleted.clone().map(|main| RecordId::new(main, 0)).collect();
        let commit = self.pages.run(&mut self.disk, cut).expect("a sound store");
        let commit = commit.expect("a disk with room");
        assert!(commit.remaining_deletes.is_empty());
        (self.first, self.next) = (deleted.end, self.next + new);
    }

    /// Loads what a read says is missing until it answers.
    fn load<T>(
        &mut self,
        root: &Root,
        cache: &mut PageCache,
        mut read: impl FnMut(&mut PageCache) -> Result<T, ReadFailure>,
    ) -> T {
        loop {
            match read(cache) {
                Ok(answer) => return answer,
                Err(ReadFailure::Missing(address)) => {
                    let (bytes, length) = (self.disk)
                        .read(self.pages.file(), address.offset(), address.length())
                        .expect("a page");
                    root.insert(cache, &address, &bytes[..length]).expect("a sound page");
                }
                Err(failure) => panic!("{failure}"),
            }
        }
    }
}

fn record(main: i64) -> NewRecord {
    NewRecord {
        id: RecordId::new(main, 0),
        key: key(main as u64 * 7919 % 100_000).into(),
        create_revision: main,
        version: 1,
        value: vec![b'v'; 256].into(),
        ..NewRecord::default()
    }
}

pub fn bench(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("pages");
    let mut store = Store::new();
    let mut random = Random(3);
    let root = store.pages.root().clone();
    let mut cache = PageCache::new(CACHE_BYTES);
    (store.first..store.next).for_each(|main| {
        store.load(&root, &mut cache, |cache| root.record(cache, RecordId::new(main, 0)));
    });
    group.bench_function("lookup", |bencher| {
        bencher.iter(|| {
            let id = RecordId::new(2 + random.below(RECORDS as u64) as i64, 0);
            let found = root.record(&mut cache, id).expect("in the cache");
            assert!(black_box(found).is_some());
        });
    });
    group.throughput(Throughput::Elements(ROWS as u64));
    group.bench_function("scan-500", |bencher| {
        bencher.iter(|| {
            let from = 2 + random.below((RECORDS - ROWS as i64) as u64) as i64;
            let mut scan = RecordScan::new(RecordId::new(from, 0));
            scan.step_heads(&root, &mut cache, ROWS, |head| {
                black_box(head);
                ControlFlow::Continue(())
            })
            .expect("in the cache")
        });
    });
    drop(root);
    group.throughput(Throughput::Elements(PART as u64));
    group.bench_function("checkpoint-1000", |bencher| {
        bencher.iter(|| store.checkpoint(PART, PART))
    });
    group.finish();
}
