//! The watch hub of a serve core, with messages copied as a connection copies them.
//!
//! `fan-out-1000`: one put of 256 bytes to a key that a thousand streams watch; per event. `one-of-10000`: a put to a
//! key that one of ten thousand watches is about, half of which are on ranges. `catch-up`: a watch that starts a
//! thousand puts ago, in the window; per event.

use super::clock::ThreadTime;
use super::key;
use bytes::BytesMut;
use criterion::{Criterion, Throughput};
use ringd::mvcc::record::KeyValueView;
use ringd::mvcc::revision::Revision;
use ringd::mvcc::view::View;
use ringd::mvcc::watch::{CreateRequest, History, Hub, HubConfig, Message, StreamId, WatchSink};
use ringd::mvcc::window::WindowWriter;
use ringd::pages::{Corrupt, PageAddress, PageCache, Root};
use std::hint::black_box;
use std::time::Duration;

const WINDOW_BYTES: usize = 8 << 20;
const NOW: Duration = Duration::ZERO;
const FAN_OUT: u64 = 1000;
const WATCHES: u64 = 10_000;
const BEHIND: i64 = 1000;

/// A store that has a window only.
struct World {
    window: WindowWriter,
    revision: i64,
    cache: PageCache,
    hub: Hub,
    sink: Sink,
}

/// What every stream's socket would get.
#[derive(Default)]
struct Sink {
    out: BytesMut,
    messages: u64,
}

impl WatchSink for Sink {
    fn can_send(&self, _stream: StreamId) -> bool {
        true
    }

    fn send(&mut self, _stream: StreamId, message: Message<'_>) {
        self.messages += 1;
        self.out.clear();
        message.copy_to(&mut self.out);
        black_box(&self.out);
    }
}

struct Reader<'a>(&'a mut PageCache);

impl History for Reader<'_> {
    fn cache(&mut self) -> &mut PageCache {
        self.0
    }

    fn damage(&self, _address: &PageAddress) -> Option<Corrupt> {
        None
    }

    fn compact_revision(&self) -> i64 {
        -1
    }

    fn revision_at(&self, _key: &[u8], _main: i64) -> Option<Revision> {
        None
    }
}

impl World {
    fn new() -> World {
        let config = HubConfig {
            cluster_id: 1,
            member_id: 2,
            fragment_bytes: 2 << 20,
            progress_interval: Duration::from_secs(600),
            seed: 1,
        };
        World {
            window: WindowWriter::new(1),
            revision: 1,
            cache: PageCache::new(0),
            hub: Hub::new(config, 1),
            sink: Sink::default(),
        }
    }

    fn view(&self) -> View {
        View {
            revision: self.revision,
            compact_revision: -1,
            applied_index: 0,
            sole_voter: true,
            term: 1,
            window: self.window.view(),
            pages: Root::empty(Default::default()),
        }
    }

    fn watch(&mut self, stream: StreamId, key: &str, range_end: &str, start_revision: i64) {
        let request = CreateRequest {
            key: key.as_bytes(),
            range_end: range_end.as_bytes(),
            start_revision,
            ..CreateRequest::default()
        };
        let view = self.view();
        self.hub.open(stream, NOW);
        self.hub.create(stream, request, &view, NOW, &mut self.sink);
    }

    fn put(&mut self, key: &str) {
        self.revision += 1;
        let fields = KeyValueView {
            key: key.as_bytes(),
            value: &[b'v'; 256],
            create_revision: self.revision,
            mod_revision: self.revision,
            version: 1,
            lease: 0,
        };
        self.window
            .append(Revision::new(self.revision, 0), None, false, &fields);
        self.window.trim(self.revision, WINDOW_BYTES);
    }

    /// Gives the watches what is new; how many messages that were.
    fn settle(&mut self) -> u64 {
        let (view, before) = (self.view(), self.sink.messages);
        let mut reader = Reader(&mut self.cache);
        while self.hub.advance(&view, &mut reader, &mut self.sink, NOW).more {}
        self.sink.messages - before
    }
}

pub fn bench(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("watch");
    group.throughput(Throughput::Elements(FAN_OUT));
    let mut world = World::new();
    (0..FAN_OUT).for_each(|stream| world.watch(stream, &key(1), "", 0));
    group.bench_function("fan-out-1000", |bencher| {
        bencher.iter(|| {
            world.put(&key(1));
            assert_eq!(world.settle(), FAN_OUT);
        });
    });
    group.throughput(Throughput::Elements(1));
    let mut world = World::new();
    for watch in 0..WATCHES {
        // Up to the key that follows, which is in no order with the next watch's.
        let end = key(watch) + "\0";
        let end = if watch % 2 == 0 { "" } else { &end };
        world.watch(watch, &key(watch), end, 0);
    }
    let mut number = 0;
    group.bench_function("one-of-10000", |bencher| {
        bencher.iter(|| {
            number = (number + 7919) % WATCHES;
            world.put(&key(number));
            assert_eq!(world.settle(), 1);
        });
    });
    group.throughput(Throughput::Elements(BEHIND as u64));
    let mut world = World::new();
    (0..2 * BEHIND).for_each(|_| world.put(&key(1)));
    group.bench_function("catch-up", |bencher| {
        bencher.iter(|| {
            world.watch(1, &key(1), "", world.revision - BEHIND + 1);
            assert!(world.settle() > 0);
            world.hub.close(1);
        });
    });
    group.finish();
}
