//! Many watches on many streams while keys change quickly and some streams are not read for a while: every watch gets
//! every event once and in order, with the previous value, and no progress answer is ahead of the events.
//!
//! A key's `version` counts its puts, so that one watch's events alone show a lost or a repeated one. Quick by default;
//! `RINGD_WATCH_LONG=1` is 20 000 watches on 100 streams, 10 000 puts/s, stalls of 30 s (build it with `--release`).

mod support;

use std::{
    cell::Cell,
    collections::BTreeMap,
    rc::Rc,
    sync::{Arc, OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use ringd::proto::etcdserverpb as pb;
use support::{
    block_on, etcd,
    grpc::{Channel, Stream},
    number_from_environment,
    server::Server,
};
use tokio::{
    task::LocalSet,
    time::{sleep, timeout},
};

/// How large a run is.
struct Load {
    watches: usize,
    streams: usize,
    /// Threads that read the streams; the puts have one of their own.
    threads: usize,
    keys: usize,
    puts_per_second: u64,
    duration: Duration,
    /// Every so manieth stream is not read for `stall` after the puts began.
    stalled_every: usize,
    stall: Duration,
    /// How long the watches may take to catch up after the last put.
    catch_up: Duration,
}

const QUICK: Load = Load {
    watches: 2000,
    streams: 20,
    threads: 1,
    keys: 200,
    puts_per_second: 1000,
    duration: Duration::from_secs(4),
    stalled_every: 5,
    stall: Duration::from_secs(3),
    catch_up: Duration::from_secs(60),
};

const LONG: Load = Load {
    watches: 20_000,
    streams: 100,
    threads: 2,
    keys: 1000,
    puts_per_second: 10_000,
    duration: Duration::from_secs(60),
    stalled_every: 10,
    stall: Duration::from_secs(30),
    catch_up: Duration::from_secs(300),
};

/// Small enough that a stream that is not read soon stops the server's sending.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 256 << 20;
/// Streams on one connection.
const STREAMS_PER_CONNECTION: usize = 10;
/// Connections that put, and puts in flight on each.
const PUTTING_CONNECTIONS: usize = 4;
const PUTS_IN_FLIGHT: usize = 16;
/// How often a stream asks for progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// The most memory the server may ever take, unless `RINGD_WATCH_MEMORY_MIB` says otherwise.
const MEMORY_MIB: u64 = 640;
const VALUE_LENGTH: usize = 100;

/// The version of each key.
type Versions = BTreeMap<usize, i64>;

fn key(number: usize) -> String {
    format!("key{number:05}")
}

/// What one stream has received.
struct Watching {
    stream: Stream,
    /// The key of each watch, by its id.
    keys: Vec<usize>,
    /// The version and the revision of the last event of each watch.
    last: Vec<(i64, i64)>,
    progress: i64,
    progress_answers: u64,
}

impl Watching {
    async fn open(channel: &Channel, keys: Vec<usize>) -> Self {
        let mut stream = channel.stream(etcd::WATCH, &[]).await.expect("a stream");
        for (id, number) in keys.iter().enumerate() {
            let request = pb::WatchCreateRequest {
                key: key(*number).into(),
                prev_kv: true,
                // Id 0 would let the server choose.
                watch_id: id as i64 + 1,
                ..Default::default()
            };
            stream.send(&etcd::create_watch(request)).expect("a create request");
        }
        for _ in &keys {
            let created: pb::WatchResponse = stream
                .next()
                .await
                .expect("the stream goes on")
                .expect("the stream goes on");
            assert!(created.created && !created.canceled, "{created:?}");
        }
        let last = vec![(0, 0); keys.len()];
        Self {
            stream,
            keys,
            last,
            progress: 0,
            progress_answers: 0,
        }
    }

    /// Reads until every watch has seen the final version of its key.
    async fn run(mut self, stall: Duration, finals: Arc<OnceLock<Versions>>) -> u64 {
        sleep(stall).await;
        let mut asked = Instant::now();
        while !finals.get().is_some_and(|finals| self.is_complete(finals)) {
            if asked.elapsed() > PROGRESS_INTERVAL {
                asked = Instant::now();
                self.stream.send(&etcd::request_progress()).expect("a progress request");
            }
            if let Ok(response) = timeout(PROGRESS_INTERVAL, self.stream.next::<pb::WatchResponse>()).await {
                self.absorb(response.expect("the stream goes on").expect("the stream goes on"));
            }
        }
        self.progress_answers
    }

    fn absorb(&mut self, response: pb::WatchResponse) {
        let revision = response.header.as_ref().expect("a header").revision;
        assert!(!response.canceled, "{response:?}");
        if response.events.is_empty() {
            assert!(
                revision >= self.progress,
                "progress went back from {} to {revision}",
                self.progress
            );
            self.progress = revision;
            self.progress_answers += 1;
            return;
        }
        let watch = response.watch_id as usize - 1;
        for event in response.events {
            let kv = event.kv.expect("a key");
            let (version, at) = self.last[watch];
            assert_eq!(
                kv.key,
                key(self.keys[watch]).as_bytes(),
                "watch {watch} received another key"
            );
            assert_eq!(
                kv.version,
                version + 1,
                "watch {watch} lost or repeated an event of {:?}",
                kv.key
            );
            assert!(
                kv.mod_revision > self.progress,
                "watch {watch}: {} after progress to {}",
                kv.mod_revision,
                self.progress
            );
            let previous = event.prev_kv.map_or((0, 0), |kv| (kv.version, kv.mod_revision));
            assert_eq!(previous, (version, at), "watch {watch} has another previous value");
            self.last[watch] = (kv.version, kv.mod_revision);
        }
    }

    fn is_complete(&self, finals: &Versions) -> bool {
        self.keys
            .iter()
            .zip(&self.last)
            .all(|(key, (version, _))| finals.get(key).copied().unwrap_or(0) == *version)
    }
}

/// Puts at the load's rate, and returns how many.
async fn put_all(address: &str, load: &Load) -> u64 {
    let began = Instant::now();
    let done = Rc::new(Cell::new(0_u64));
    let total = load.puts_per_second * load.duration.as_secs();
    let mut tasks = Vec::new();
    for _ in 0..PUTTING_CONNECTIONS {
        let channel = Channel::connect(address).await.expect("a connection");
        for _ in 0..PUTS_IN_FLIGHT {
            let (channel, done, keys, rate) = (channel.clone(), done.clone(), load.keys as u64, load.puts_per_second);
            tasks.push(tokio::task::spawn_local(async move {
                loop {
                    let number = done.get();
                    if number >= total {
                        return;
                    }
                    done.set(number + 1);
                    let due = Duration::from_secs_f64(number as f64 / rate as f64);
                    sleep(due.saturating_sub(began.elapsed())).await;
                    // A multiplier without a common factor with the number of keys: all keys, in a mixed order.
                    let request = etcd::put(key((number * 7919 % keys) as usize), vec![b'v'; VALUE_LENGTH]);
                    channel
                        .call::<pb::PutResponse>(etcd::PUT, &request)
                        .await
                        .expect("a put");
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("the puts succeed");
    }
    done.get()
}

async fn versions(address: &str) -> Versions {
    let channel = Channel::connect(address).await.expect("a connection");
    let all: pb::RangeResponse = channel
        .call(etcd::RANGE, &etcd::get_prefix("key"))
        .await
        .expect("the keys");
    let number = |key: &[u8]| {
        std::str::from_utf8(&key[3..])
            .expect("a number")
            .parse()
            .expect("a number")
    };
    all.kvs.iter().map(|kv| (number(&kv.key), kv.version)).collect()
}

/// The streams of one thread: opens them, says so, and reads until all is there. Returns the progress answers.
fn read_streams(
    address: &str,
    load: &Load,
    thread: usize,
    opened: mpsc::Sender<()>,
    finals: &Arc<OnceLock<Versions>>,
) -> u64 {
    let per_stream = load.watches / load.streams;
    block_on(LocalSet::new().run_until(async {
        let mut watching = Vec::new();
        let mut channel = None;
        for number in (thread..load.streams).step_by(load.threads) {
            if watching.len() % STREAMS_PER_CONNECTION == 0 {
                let connecting = Channel::connect_with_windows(address, STREAM_WINDOW, CONNECTION_WINDOW);
                channel = Some(connecting.await.expect("a connection"));
            }
            let keys = (0..per_stream)
                .map(|watch| (number * per_stream + watch) % load.keys)
                .collect();
            let stall = match number % load.stalled_every {
                0 => load.stall,
                _ => Duration::ZERO,
            };
            watching.push((Watching::open(channel.as_ref().expect("set above"), keys).await, stall));
        }
        opened.send(()).expect("the test goes on");
        let running = watching
            .into_iter()
            .map(|(watching, stall)| tokio::task::spawn_local(watching.run(stall, finals.clone())));
        let running: Vec<_> = running.collect();
        let mut progress = 0;
        for task in running {
            progress += task.await.expect("nothing was lost");
        }
        progress
    }))
}

#[test]
fn many_watches_lose_nothing() {
    let load = match number_from_environment("RINGD_WATCH_LONG", 0) {
        0 => &QUICK,
        _ => &LONG,
    };
    let server = Server::subject_of_fixed_size("8GiB", &["--unsafe-no-fsync"]);
    let address = server.address();
    let finals: Arc<OnceLock<Versions>> = Arc::default();
    let (opened, all_opened) = mpsc::channel();
    let reading = (0..load.threads).map(|thread| {
        let (address, finals, opened) = (address.clone(), finals.clone(), opened.clone());
        thread::spawn(move || read_streams(&address, load, thread, opened, &finals))
    });
    let reading: Vec<_> = reading.collect();
    drop(opened);
    for _ in 0..load.threads {
        all_opened.recv().expect("the watches are made");
    }
    let began = Instant::now();
    let rate = block_on(LocalSet::new().run_until(async {
        let puts = put_all(&address, load).await;
        let rate = puts as f64 / began.elapsed().as_secs_f64();
        finals.set(versions(&address).await).expect("set once");
        rate
    }));
    let all_put = Instant::now();
    while !reading.iter().all(|thread| thread.is_finished()) {
        assert!(all_put.elapsed() < load.catch_up, "the watches do not catch up");
        thread::sleep(Duration::from_millis(20));
    }
    let (took, behind) = (began.elapsed(), all_put.elapsed());
    let progress = reading
        .into_iter()
        .map(|thread| thread.join().expect("nothing was lost"));
    let progress: u64 = progress.sum();
    assert!(progress > 0, "no progress request was ever answered");
    let peak_mib = server.usage().peak_resident_bytes >> 20;
    println!(
        "{} watches on {} streams: puts at {rate:.0}/s, {progress} progress answers, all caught up {took:?} after the \
         first put and {behind:?} after the last, peak memory {peak_mib} MiB",
        load.watches, load.streams
    );
    let allowed = number_from_environment("RINGD_WATCH_MEMORY_MIB", MEMORY_MIB);
    assert!(
        peak_mib <= allowed,
        "the server took {peak_mib} MiB at its peak, more than {allowed}"
    );
}
