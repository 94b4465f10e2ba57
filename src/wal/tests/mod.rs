//! Tests of the whole log on the faulty disk.

mod crash;
mod failed_syncs;
mod format;
mod rules;
mod space;

use super::{Entry, Error, HardState, Metadata, Options, Persisted, Recovered, Ticket, Writer, create, recover};
use crate::io::disk::{Completion, Disk};
use crate::io::faulty::FaultyDisk;
use crate::io::medium::Random;
use bytes::Bytes;
use std::path::Path;
use std::time::Duration;

const DIRECTORY: &str = "/wal";
const METADATA: Metadata = Metadata {
    node_id: 0xabc,
    cluster_id: 0xdef,
};
const SEGMENT: u64 = 32 << 10;

fn options() -> Options {
    Options {
        segment_bytes: SEGMENT,
        ..Options::new(0x5eed, 100..103)
    }
}

/// A writer on a faulty disk.
struct Bench {
    disk: FaultyDisk,
    writer: Writer,
}

impl Bench {
    fn new(disk: FaultyDisk, options: Options) -> Bench {
        let mut disk = disk;
        let writer = create(&mut disk, Path::new(DIRECTORY), METADATA, options).unwrap();
        Bench { disk, writer }
    }

    fn submit(&mut self) {
        let now = Duration::from_micros(self.disk.now());
        self.writer.submit(&mut self.disk, now);
    }

    /// Submits what is due and waits for what completes next.
    fn step(&mut self) -> Result<Vec<Persisted>, Error> {
        self.submit();
        let mut completions: Vec<Completion> = Vec::new();
        if self.disk.in_flight() == 0 {
            let deadline = self.writer.deadline().map_or(0, |deadline| deadline.as_micros() as u64);
            self.disk.set_now(deadline.max(self.disk.now() + 1));
        }
        self.disk.wait(&mut completions);
        let mut persisted = Vec::new();
        for Completion { token, result } in completions {
            assert!(self.writer.owns(token));
            persisted.extend(self.writer.completed(token, result)?);
        }
        Ok(persisted)
    }

    /// Until everything appended is durable.
    fn flush(&mut self) -> Ticket {
        for _ in 0..10_000 {
            if self.writer.is_idle() {
                return self.writer.durable();
            }
            self.step().unwrap();
        }
        panic!("the log does not come to rest");
    }

    /// Until nothing is in flight and the next segment is ready.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.step().unwrap();
        }
        while self.writer.in_flight() > 0 {
            self.step().unwrap();
        }
        assert!(self.writer.is_idle());
    }

    fn put(&mut self, term: u64, index: u64, length: usize) -> Ticket {
        self.writer.append(&[entry(term, index, length)], None)
    }

    fn put_all(&mut self, indexes: std::ops::RangeInclusive<u64>, length: usize) {
        for index in indexes {
            self.put(1, index, length);
        }
    }

    fn segment_path(&self, position: usize) -> std::path::PathBuf {
        Path::new(DIRECTORY).join(self.writer.segments().nth(position).unwrap().file_name())
    }
}

/// An entry whose payload is determined by term and index, without zeros.
fn entry(term: u64, index: u64, length: usize) -> Entry {
    let mut random = Random::new(term << 32 | index);
    let data: Vec<u8> = (0..length).map(|_| random.bits() as u8 | 1).collect();
    Entry {
        kind: 0,
        term,
        index,
        data: Bytes::from(data),
    }
}

fn reopen(disk: &mut FaultyDisk, after: u64) -> Result<Recovered, Error> {
    recover(disk, Path::new(DIRECTORY), options(), after, 0)
}

fn state(term: u64, commit: u64) -> HardState {
    HardState { term, vote: 1, commit }
}
