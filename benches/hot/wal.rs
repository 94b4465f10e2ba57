//! The log's encoding: entries of 300 bytes gathered, framed, checksummed and written as one batch to a disk that keeps
//! nothing of it; per entry. `batch-1`: a batch of one, `batch-64`: of 64.

use super::clock::ThreadTime;
use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput};
use ringd::io::disk::{Completion, Disk, Operation, Outcome};
use ringd::io::memory::MemoryDisk;
use ringd::wal::{Entry, HardState, Metadata, Options, Writer, create};
use std::path::Path;
use std::time::Duration;

const ENTRY_BYTES: usize = 300;

/// Takes writes and forgets them; files, names and the rest are a disk in memory's.
struct Forgetful {
    rest: MemoryDisk,
    written: Vec<Completion>,
}

impl Disk for Forgetful {
    fn submit(&mut self, token: u64, operation: Operation) {
        match operation {
            Operation::Write { buffer, .. } => self.written.push(Completion {
                token,
                result: Ok(Outcome::Written { buffer }),
            }),
            other => self.rest.submit(token, other),
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.written);
        self.rest.poll(completions);
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) {
        self.poll(completions);
    }
}

struct Log {
    disk: Forgetful,
    writer: Writer,
    completions: Vec<Completion>,
}

impl Log {
    fn new() -> Log {
        let mut disk = Forgetful {
            rest: MemoryDisk::new(),
            written: Vec::new(),
        };
        let options = Options::new(0x5eed, 0..3);
        let writer = create(&mut disk, Path::new("/wal"), Metadata::default(), options).expect("a new log");
        Log {
            disk,
            writer,
            completions: Vec::new(),
        }
    }

    /// Until all of it is durable, as far as the disk says. Segments that are full go.
    fn append(&mut self, entries: &[Entry]) {
        let commit = self.writer.last_index();
        let state = HardState {
            term: 1,
            vote: 1,
            commit,
        };
        let ticket = self.writer.append(entries, Some(&state));
        self.writer.release_to(commit);
        while self.writer.durable() < ticket {
            self.writer.submit(&mut self.disk, Duration::from_secs(1));
            self.disk.poll(&mut self.completions);
            for Completion { token, result } in self.completions.drain(..) {
                self.writer.completed(token, result).expect("a disk without faults");
            }
        }
    }
}

pub fn bench(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("wal");
    let data = Bytes::from(vec![b'v'; ENTRY_BYTES]);
    for length in [1, 64] {
        let mut log = Log::new();
        group.throughput(Throughput::Elements(length));
        group.bench_function(BenchmarkId::from_parameter(format!("batch-{length}")), |bencher| {
            bencher.iter(|| {
                let first = log.writer.last_index() + 1;
                let entries: Vec<Entry> = (first..first + length)
                    .map(|index| Entry {
                        kind: 0,
                        term: 1,
                        index,
                        data: data.clone(),
                    })
                    .collect();
                log.append(&entries);
            });
        });
    }
    group.finish();
}
