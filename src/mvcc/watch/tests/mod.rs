//! Tests of the hub against a store that is kept twice: as window, pages and views, and as a plain list of records.

mod checker;
mod cost;
mod progress;
mod random;
mod rules;
mod setup;

use super::batch::Bounds;
use super::*;
use crate::io::disk::Disk;
use crate::io::memory::MemoryDisk;
use crate::mvcc::record::KeyValueView;
use crate::mvcc::view::View;
use crate::mvcc::window::WindowWriter;
use crate::pages::{Cut, NewRecord, Options, PageStore, RecordId, StateFields};
use crate::proto::etcdserverpb::WatchResponse;
use bytes::Bytes;
use prost::Message as _;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

const CONFIG: HubConfig = HubConfig {
    cluster_id: 11,
    member_id: 12,
    fragment_bytes: 300,
    progress_interval: Duration::from_secs(600),
    seed: 1,
};

/// A change of one key in a transaction.
#[derive(Clone, Debug)]
enum Operation {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

fn put(key: &str, value: &str) -> Operation {
    Operation::Put(key.into(), value.into())
}

fn delete(key: &str) -> Operation {
    Operation::Delete(key.into())
}

/// The store.
struct World {
    /// Every record ever written.
    history: Vec<NewRecord>,
    window: WindowWriter,
    disk: MemoryDisk,
    pages: PageStore,
    cache: PageCache,
    revision: i64,
    compact_revision: i64,
}

/// What the hub reads, borrowed from the world.
struct Reader<'a> {
    cache: &'a mut PageCache,
    history: &'a [NewRecord],
    compact_revision: i64,
    damaged: &'a [PageAddress],
}

impl History for Reader<'_> {
    fn cache(&mut self) -> &mut PageCache {
        self.cache
    }

    fn damage(&self, address: &PageAddress) -> Option<Corrupt> {
        self.damaged.contains(address).then(|| address.corrupt("scratched"))
    }

    fn compact_revision(&self) -> i64 {
        self.compact_revision
    }

    fn revision_at(&self, key: &[u8], main: i64) -> Option<Revision> {
        newest(self.history, key, main).map(|record| Revision::new(record.id.main, record.id.sub))
    }
}

/// The version of a key that lives at a revision.
fn newest<'a>(history: &'a [NewRecord], key: &[u8], main: i64) -> Option<&'a NewRecord> {
    let end = history.partition_point(|record| record.id.main <= main);
    let found = history[..end].iter().rev().find(|record| record.key == key)?;
    (!found.tombstone).then_some(found)
}

impl World {
    fn new() -> World {
        let mut disk = MemoryDisk::new();
        let options = Options {
            reserve_pages: 0,
            ..Options::new(0..32)
        };
        let pages = PageStore::create(&mut disk, Path::new("/db"), options).unwrap();
        World {
            history: Vec::new(),
            window: WindowWriter::new(1),
            disk,
            pages,
            cache: PageCache::new(0),
            revision: 1,
            compact_revision: -1,
        }
    }

    fn view(&self) -> View {
        View {
            revision: self.revision,
            compact_revision: self.compact_revision,
            applied_index: 0,
            term: 3,
            sole_voter: true,
            window: self.window.view(),
            pages: self.pages.root().clone(),
        }
    }

    /// A transaction. Deletions of keys that do not live are left out, as etcd does.
    fn write(&mut self, operations: &[Operation]) -> i64 {
        let main = self.revision + 1;
        let mut sub = 0;
        for operation in operations {
            let key = match operation {
                Operation::Put(key, _) | Operation::Delete(key) => key,
            };
            let previous = newest(&self.history, key, main - 1).cloned();
            let mut record = NewRecord {
                id: RecordId::new(main, sub),
                tombstone: true,
                key: key.clone().into(),
                ..NewRecord::default()
            };
            match (operation, &previous) {
                (Operation::Delete(_), None) => continue,
                (Operation::Delete(_), Some(_)) => {}
                (Operation::Put(_, value), previous) => {
                    record.tombstone = false;
                    record.create_revision = previous.as_ref().map_or(main, |record| record.create_revision);
                    record.version = previous.as_ref().map_or(1, |record| record.version + 1);
                    record.value = value.clone().into();
                }
            }
            sub += 1;
            append(&mut self.window, &record, previous.map(|record| record.id));
            self.history.push(record);
        }
        if sub > 0 {
            self.revision = main;
        }
        self.revision
    }

    fn compact(&mut self, revision: i64) {
        assert!(revision > self.compact_revision && revision <= self.revision);
        self.compact_revision = revision;
    }

    /// Writes everything to the page store, without what is compacted, and lets the window begin at `first_main`.
    fn checkpoint(&mut self, first_main: i64) {
        let fields = StateFields {
            revision: self.revision,
            compact_revision: self.compact_revision,
            ..StateFields::default()
        };
        let stored = self.pages.root().fields().clone();
        let mut cut = Cut::new(fields, 0);
        let start = self.history.partition_point(|record| record.id.main <= stored.revision);
        let compact = self.compact_revision;
        let kept = |record: &NewRecord| {
            record.id.main >= compact
                || newest(&self.history, &record.key, compact).is_some_and(|newest| newest.id == record.id)
        };
        cut.records = Box::new(
            self.history[start..]
                .iter()
                .filter(|record| kept(record))
                .cloned()
                .collect::<Vec<_>>()
                .into_iter(),
        );
        let was_kept = |record: &&NewRecord| {
            let compact = stored.compact_revision;
            record.id.main >= compact
                || newest(&self.history, &record.key, compact).is_some_and(|newest| newest.id == record.id)
        };
        let stored_records = self.history[..start].iter().filter(was_kept);
        cut.deletes = stored_records
            .filter(|record| !kept(record))
            .map(|record| record.id)
            .collect();
        self.pages.run(&mut self.disk, cut).unwrap().unwrap();
        self.window = WindowWriter::new(first_main - 1);
        for record in self.history.iter().filter(|record| record.id.main >= first_main) {
            let previous = newest(&self.history, &record.key, record.id.main - 1);
            append(&mut self.window, record, previous.map(|record| record.id));
        }
    }

    fn load(&mut self, missing: &[PageAddress]) {
        for address in missing {
            let (bytes, length) = self
                .disk
                .read(self.pages.file(), address.offset(), address.length())
                .unwrap();
            self.pages
                .root()
                .insert(&mut self.cache, address, &bytes[..length])
                .unwrap();
        }
    }

    /// One call of `advance`, and the loading that it asks for.
    fn step(&mut self, hub: &mut Hub, sink: &mut Sink, now: Duration) -> bool {
        let view = self.view();
        let mut reader = Reader {
            cache: &mut self.cache,
            history: &self.history,
            compact_revision: self.compact_revision,
            damaged: &[],
        };
        let outcome = hub.advance(&view, &mut reader, sink, now);
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        self.load(&outcome.missing);
        outcome.more || !outcome.missing.is_empty()
    }

    /// Calls `advance` until there is nothing left to do.
    fn settle(&mut self, hub: &mut Hub, sink: &mut Sink, now: Duration) {
        for _ in 0..100_000 {
            if !self.step(hub, sink, now) {
                return;
            }
        }
        panic!("the hub does not come to rest");
    }
}

fn append(window: &mut WindowWriter, record: &NewRecord, previous: Option<RecordId>) {
    let previous = previous.map(|id| Revision::new(id.main, id.sub));
    let revision = Revision::new(record.id.main, record.id.sub);
    let fields = fields(record);
    window.append(revision, previous, record.tombstone, &fields);
}

fn fields(record: &NewRecord) -> KeyValueView<'_> {
    KeyValueView {
        key: &record.key,
        create_revision: record.create_revision,
        mod_revision: record.id.main,
        version: record.version,
        value: &record.value,
        lease: record.lease,
    }
}

/// Streams with room for a number of messages each.
#[derive(Default)]
struct Sink {
    room: BTreeMap<StreamId, usize>,
    queues: BTreeMap<StreamId, VecDeque<WatchResponse>>,
}

impl Sink {
    /// Everything that was sent to a stream since the last time.
    fn take(&mut self, stream: StreamId) -> Vec<WatchResponse> {
        self.queues.entry(stream).or_default().drain(..).collect()
    }
}

impl WatchSink for Sink {
    fn can_send(&self, stream: StreamId) -> bool {
        let used = self.queues.get(&stream).map_or(0, VecDeque::len);
        used < self.room.get(&stream).copied().unwrap_or(usize::MAX)
    }

    fn send(&mut self, stream: StreamId, message: Message<'_>) {
        let mut bytes = Vec::new();
        message.copy_to(&mut bytes);
        assert_eq!(message.to_parts().concat(), bytes);
        let response = WatchResponse::decode(Bytes::from(bytes)).unwrap();
        self.queues.entry(stream).or_default().push_back(response);
    }
}

/// A hub with bounds that even a short history exceeds.
fn small_hub(revision: i64) -> Hub {
    let bounds = Bounds {
        records: 7,
        events: 9,
        bytes: 500,
        revisions: 5,
        missing_pages: 2,
        work: 11,
        moves: 2,
    };
    Hub::with_bounds(CONFIG, revision, bounds)
}
