//! The index with 200 000 keys, which is more than the caches of a core hold.
//!
//! `get`: one key at the newest revision, pinned anew each time. `range-100`: a hundred keys from a random one on.
//! `count`: of all keys. `put`: one more version of a random key, a state published after every 64. `create-delete`: a
//! new key, and its deletion.

use super::clock::ThreadTime;
use super::{Random, key};
use criterion::{Criterion, Throughput};
use ringd::mvcc::index::{IndexWriter, NEWEST, Tree};
use ringd::mvcc::interval::RangeEnd;
use ringd::mvcc::revision::Revision;
use std::hint::black_box;
use std::ops::ControlFlow;

const KEYS: u64 = 200_000;
/// Changes between two published states, as under load.
const BATCH: i64 = 64;
const ROWS: u64 = 100;

/// An index in which every key was put once, and what changes it.
struct Filled {
    writer: IndexWriter<()>,
    main: i64,
}

impl Filled {
    fn new() -> Filled {
        let mut filled = Filled {
            writer: IndexWriter::new(Tree::new(), ()),
            main: 1,
        };
        (0..KEYS).for_each(|number| {
            filled.put(&key(number));
        });
        filled.writer.publish(());
        filled
    }

    fn next(&mut self) -> Revision {
        if self.main % BATCH == 0 {
            self.writer.publish(());
        }
        self.main += 1;
        Revision::new(self.main, 0)
    }

    fn put(&mut self, key: &str) {
        let revision = self.next();
        black_box(self.writer.put(key.as_bytes(), revision, 0));
    }

    fn delete(&mut self, key: &str) {
        let revision = self.next();
        assert!(self.writer.delete(key.as_bytes(), revision).is_some());
    }
}

pub fn bench(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("index");
    let mut filled = Filled::new();
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let mut random = Random(1);
    let index = filled.writer.index().clone();
    group.bench_function("get", |bencher| {
        bencher.iter(|| {
            let key = &keys[random.below(KEYS) as usize];
            let found = index.pin().get(key.as_bytes(), NEWEST);
            assert!(found.is_some());
            found
        });
    });
    group.throughput(Throughput::Elements(ROWS));
    group.bench_function("range-100", |bencher| {
        bencher.iter(|| {
            let start = &keys[random.below(KEYS) as usize];
            let mut rows = 0;
            index
                .pin()
                .range(start.as_bytes(), RangeEnd::Unbounded, NEWEST, |key, meta| {
                    black_box((key, meta));
                    rows += 1;
                    match rows < ROWS {
                        true => ControlFlow::Continue(()),
                        false => ControlFlow::Break(()),
                    }
                })
        });
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("count", |bencher| {
        bencher.iter(|| {
            let (count, rest) = index
                .pin()
                .count(b"/registry/", RangeEnd::Before(b"/registry0"), NEWEST);
            assert_eq!((count, rest), (KEYS, None));
        });
    });
    group.bench_function("create-delete", |bencher| {
        bencher.iter(|| {
            let new = key(KEYS + random.below(KEYS));
            filled.put(&new);
            filled.delete(&new);
        });
    });
    group.bench_function("put", |bencher| {
        bencher.iter(|| filled.put(&keys[random.below(KEYS) as usize]));
    });
    group.finish();
}
