//! The event window with 100 000 records of 256 bytes. `get`: a random record, as a get answers it: found by its
//! revision and copied. `append`: one more, from time to time with a block, trimmed to the same size; a view each 64.

use super::clock::ThreadTime;
use super::{Random, key};
use criterion::Criterion;
use ringd::mvcc::record::KeyValueView;
use ringd::mvcc::revision::Revision;
use ringd::mvcc::window::WindowWriter;
use std::hint::black_box;

const RECORDS: i64 = 100_000;
const BATCH: i64 = 64;

struct Window {
    writer: WindowWriter,
    main: i64,
    bytes_max: usize,
}

impl Window {
    fn new() -> Window {
        let mut window = Window {
            writer: WindowWriter::new(1),
            main: 1,
            bytes_max: usize::MAX,
        };
        (0..RECORDS).for_each(|number| window.append(&key(number as u64)));
        window.bytes_max = window.writer.bytes();
        window
    }

    fn append(&mut self, key: &str) {
        self.main += 1;
        let fields = KeyValueView {
            key: key.as_bytes(),
            value: &[b'v'; 256],
            create_revision: self.main,
            mod_revision: self.main,
            version: 1,
            lease: 0,
        };
        let revision = Revision::new(self.main, 0);
        self.writer.append(revision, None, false, &fields);
        self.writer.trim(self.main, self.bytes_max);
        if self.main % BATCH == 0 {
            black_box(self.writer.view());
        }
    }
}

pub fn bench(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("window");
    let mut window = Window::new();
    let view = window.writer.view();
    let (mut random, mut out) = (Random(4), Vec::with_capacity(1024));
    group.bench_function("get", |bencher| {
        bencher.iter(|| {
            let main = 2 + random.below(RECORDS as u64) as i64;
            let record = view.get(Revision::new(main, 0)).expect("a record of the window");
            out.clear();
            out.extend_from_slice(record.stored());
            black_box(&out);
        });
    });
    drop(view);
    let new = key(7);
    group.bench_function("append", |bencher| bencher.iter(|| window.append(&new)));
    group.finish();
}
