//! Hours in minutes: keys overwritten and deleted, leases that come and go, compactions. Memory, the store's file, the
//! log's directory and the number of descriptors have to level off.
//!
//! `RINGD_SOAK_SECONDS` sets the length: 120 in CI, 1800 for the whole soak.

mod support;

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use ringd::proto::etcdserverpb as pb;
use support::{
    block_on, etcd,
    grpc::{Channel, Status, Stream},
    number_from_environment,
    server::{Program, Server, Usage},
};
use tokio::{task::LocalSet, time::sleep};

/// The length of a run when nothing else is asked, in seconds.
const QUICK_SECONDS: u64 = 120;
/// How many compactions fit into a run, and how many it has at least on a slow machine; a long one compacts each
/// minute.
const COMPACTIONS: u32 = 12;
const COMPACTIONS_MIN: u32 = 4;
/// How many samples are taken between two compactions. What counts is the lowest of them: between two compactions
/// the store grows by what was written, which on a busy machine is more in one minute than in another.
const SAMPLES_PER_COMPACTION: u32 = 20;
/// A run goes on until this many revisions have come for each second that was planned: figures level off with what was
/// written, not with time. A machine that is too slow for that has so many times as long.
const REVISIONS_PER_SECOND_MIN: i64 = 300;
const STRETCH_MAX: u32 = 10;
const WRITERS: u64 = 16;
const KEYS: u64 = 2000;
const VALUE_BYTES_MAX: usize = 6000;
/// Writes of one writer in a second.
const WRITES_PER_SECOND: u64 = 150;
/// gRPC's code for a lease that is not there.
const NOT_FOUND: i32 = 5;
/// Leases end by themselves, or are revoked before.
const LEASE_TTL: i64 = 3;
/// What the server is told: little memory and few old log segments, so that both reach their bounds in a short run.
const ARGUMENTS: [&str; 2] = ["--unsafe-no-fsync", "--max-wals=1"];
const BUDGET: &str = "64MiB";
/// A figure has leveled off when a straight line through its lows after the start rises at most by this share of the
/// mean, or by the figure's own step, whichever is more: files grow in steps.
const GROWTH_ALLOWED: f64 = 0.05;
/// One in so many of the lows belongs to the start.
const WARM_UP_PART: usize = 6;
const MEMORY_STEP: f64 = 3e6;
const STORE_STEP: f64 = 8e6;
/// A segment.
const LOG_STEP: f64 = 64e6;
const DESCRIPTORS_STEP: f64 = 4.0;

/// What all parts of a run know.
struct Run {
    /// The highest revision of any answer.
    revision: Cell<i64>,
    is_over: Cell<bool>,
}

async fn write(address: String, seed: u64, run: Rc<Run>) {
    let channel = Channel::connect(&address).await.expect("a connection");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let pause = Duration::from_secs(1) / WRITES_PER_SECOND as u32;
    while !run.is_over.get() {
        let key = format!("soak/{:05}", random.random_range(0..KEYS));
        let newest = match random.random_range(0..20) {
            0..14 => {
                let value = vec![random.random(); random.random_range(0..VALUE_BYTES_MAX)];
                let answer: pb::PutResponse = channel.call(etcd::PUT, &etcd::put(&key, value)).await.expect("a put");
                Some(answer.header)
            }
            14..18 => {
                let answer = channel
                    .call::<pb::DeleteRangeResponse>(etcd::DELETE_RANGE, &etcd::delete(&key))
                    .await;
                Some(answer.expect("a delete").header)
            }
            18 => {
                let id = lease(&channel).await;
                let request = pb::PutRequest {
                    lease: id,
                    ..etcd::put(&key, "leased")
                };
                if_it_lives(channel.call::<pb::PutResponse>(etcd::PUT, &request).await).map(|answer| answer.header)
            }
            _ => {
                let request = pb::LeaseRevokeRequest {
                    id: lease(&channel).await,
                };
                let revoked = channel
                    .call::<pb::LeaseRevokeResponse>(etcd::LEASE_REVOKE, &request)
                    .await;
                if_it_lives(revoked).map(|answer| answer.header)
            }
        };
        let newest = newest.map_or(0, |header| header.expect("a header").revision);
        run.revision.set(run.revision.get().max(newest));
        sleep(pause).await;
    }
}

/// The answer to a request that names a lease; none if the lease ended before on a machine that is busy.
fn if_it_lives<T>(answer: Result<T, Status>) -> Option<T> {
    match answer {
        Err(status) if status.code == NOT_FOUND => None,
        answer => Some(answer.expect("a request with a lease")),
    }
}

async fn lease(channel: &Channel) -> i64 {
    let request = pb::LeaseGrantRequest { ttl: LEASE_TTL, id: 0 };
    channel
        .call::<pb::LeaseGrantResponse>(etcd::LEASE_GRANT, &request)
        .await
        .expect("a lease")
        .id
}

async fn compact(address: String, interval: Duration, run: Rc<Run>) -> u32 {
    let channel = Channel::connect(&address).await.expect("a connection");
    let mut compactions = 0;
    loop {
        sleep(interval).await;
        if run.is_over.get() {
            return compactions;
        }
        let request = pb::CompactionRequest {
            revision: run.revision.get(),
            physical: false,
        };
        channel
            .call::<pb::CompactionResponse>(etcd::COMPACT, &request)
            .await
            .expect("a compaction");
        compactions += 1;
    }
}

/// Streams and connections that come and go: none of them may stay behind as a descriptor or as memory.
async fn come_and_go(address: String, run: Rc<Run>) {
    while !run.is_over.get() {
        let channel = Channel::connect(&address).await.expect("a connection");
        let mut watches: Vec<Stream> = Vec::new();
        for _ in 0..10 {
            let mut stream = channel.stream(etcd::WATCH, &[]).await.expect("a stream");
            let range_end = etcd::prefix_end(b"soak/").into();
            let request = pb::WatchCreateRequest {
                key: "soak/".into(),
                range_end,
                prev_kv: true,
                ..Default::default()
            };
            stream.send(&etcd::create_watch(request)).expect("a create request");
            watches.push(stream);
        }
        for watch in &mut watches {
            watch.next_raw().await.expect("the watch is created");
        }
        let listed: pb::RangeResponse = channel
            .call(etcd::RANGE, &etcd::get_prefix("soak/"))
            .await
            .expect("a list");
        assert!(listed.count <= KEYS as i64);
        sleep(Duration::from_millis(500)).await;
    }
}

/// Samples until the run is over, which it says.
async fn sample(server: &Server, length: Duration, interval: Duration, run: &Run) -> Vec<Usage> {
    let (began, mut samples) = (Instant::now(), Vec::new());
    while !run.is_over.get() {
        sleep(interval / SAMPLES_PER_COMPACTION).await;
        samples.push(server.usage());
        let is_written = run.revision.get() >= length.as_secs() as i64 * REVISIONS_PER_SECOND_MIN;
        let elapsed = began.elapsed();
        run.is_over
            .set(elapsed >= length && (is_written || elapsed >= length * STRETCH_MAX));
    }
    samples
}

/// A figure's name, the figure, and its step.
type Figure = (&'static str, fn(&Usage) -> u64, f64);

const FIGURES: [Figure; 4] = [
    ("memory", |usage| usage.resident_bytes, MEMORY_STEP),
    ("store", |usage| usage.store_bytes, STORE_STEP),
    ("log", |usage| usage.wal_bytes, LOG_STEP),
    ("descriptors", |usage| usage.descriptors, DESCRIPTORS_STEP),
];

/// How far a straight line through the values (least squares) rises from the first to the last, and their mean.
fn rise(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let middle = (count - 1.0) / 2.0;
    let offsets = values
        .iter()
        .enumerate()
        .map(|(at, value)| (at as f64 - middle, value - mean));
    let (products, squares) = offsets.fold((0.0, 0.0), |(products, squares), (x, y)| {
        (products + x * y, squares + x * x)
    });
    (products / squares * (count - 1.0), mean)
}

/// The lowest sample between two compactions each.
fn lows(samples: &[Usage], figure: fn(&Usage) -> u64) -> Vec<u64> {
    let periods = samples.chunks_exact(SAMPLES_PER_COMPACTION as usize);
    periods.filter_map(|period| period.iter().map(figure).min()).collect()
}

fn grows(values: &[f64], step: f64) -> bool {
    let (rise, mean) = rise(values);
    rise > (mean * GROWTH_ALLOWED).max(step)
}

#[test]
fn growth_is_noticed() {
    let leaking = |per_sample: f64| {
        (0..60)
            .map(move |at| 100e6 + per_sample * f64::from(at))
            .collect::<Vec<_>>()
    };
    assert_eq!(rise(&leaking(1e6)), (59e6, 129.5e6));
    assert!(!grows(&leaking(0.0), MEMORY_STEP));
    assert!(!grows(&leaking(0.05e6), MEMORY_STEP));
    assert!(grows(&leaking(0.12e6), MEMORY_STEP));
    // A saw tooth has no trend, and one on a slope has.
    let saw = |slope: f64| (0..60).map(move |at| 100e6 + 2e6 * f64::from(at % 10) + slope * f64::from(at));
    assert!(!grows(&saw(0.0).collect::<Vec<_>>(), MEMORY_STEP));
    assert!(grows(&saw(0.3e6).collect::<Vec<_>>(), MEMORY_STEP));
    assert!(grows(&(20..50).map(f64::from).collect::<Vec<_>>(), DESCRIPTORS_STEP));
}

#[test]
fn nothing_grows_without_end() {
    let length = Duration::from_secs(number_from_environment("RINGD_SOAK_SECONDS", QUICK_SECONDS));
    let arguments: &[&str] = match Program::subject() {
        Program::Ringd => &ARGUMENTS,
        _ => &ARGUMENTS[..1],
    };
    let server = Server::subject_of_fixed_size(BUDGET, arguments);
    let address = server.address();
    let samples = block_on(LocalSet::new().run_until(async {
        let run = Rc::new(Run {
            revision: Cell::new(1),
            is_over: Cell::new(false),
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| tokio::task::spawn_local(write(address.clone(), writer, run.clone())))
            .collect();
        let visitors = tokio::task::spawn_local(come_and_go(address.clone(), run.clone()));
        let interval = (length / COMPACTIONS).min(Duration::from_secs(60));
        let compactor = tokio::task::spawn_local(compact(address.clone(), interval, run.clone()));
        let samples = sample(&server, length, interval, &run).await;
        for writer in writers {
            writer.await.expect("a writer");
        }
        visitors.await.expect("the visitors");
        let compactions = compactor.await.expect("the compactor");
        let revision = run.revision.get();
        println!(
            "{length:?}, {} samples, revision {revision}, {compactions} compactions",
            samples.len()
        );
        assert!(compactions >= COMPACTIONS_MIN && revision > 100, "too little was done");
        samples
    }));
    let mut grown = Vec::new();
    for (name, figure, step) in FIGURES {
        let lows = lows(&samples, figure);
        // The rest is long enough for a trend to be told from the ups and downs of the store.
        let values: Vec<f64> = lows[lows.len() / WARM_UP_PART..]
            .iter()
            .map(|low| *low as f64)
            .collect();
        let (rise, mean) = rise(&values);
        let most = samples.iter().map(figure).max();
        println!("{name}: at most {most:?}, lows {lows:?}; after the start {mean:.0} and a rise of {rise:.0}");
        if grows(&values, step) {
            grown.push(name);
        }
    }
    assert!(grown.is_empty(), "still growing: {grown:?}");
}
