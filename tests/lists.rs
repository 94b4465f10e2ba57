//! Large lists by many clients, one of which does not read: memory stays within the budget, puts beside the lists go
//! on, and a stream of chunks delivers what a unary list does.
//!
//! Quick by default; `RINGD_LISTS_LONG=1` is 200 000 keys of 1 KB, ten clients, 50 MB/s in all, 60 s (build it with
//! `--release`).

mod support;

use std::time::{Duration, Instant};

use prost::Message;
use ringd::proto::etcdserverpb::{self as pb, request_op::Request};
use support::{
    block_on, etcd,
    grpc::{Channel, Status},
    number_from_environment,
    server::{Program, Server},
};
use tokio::{task::LocalSet, time::sleep};

/// How large a run is.
struct Load {
    keys: usize,
    clients: usize,
    bytes_per_second: u64,
    duration: Duration,
}

const QUICK: Load = Load {
    keys: 20_000,
    clients: 10,
    bytes_per_second: 50_000_000,
    duration: Duration::from_secs(8),
};
const LONG: Load = Load {
    keys: 200_000,
    clients: 10,
    bytes_per_second: 50_000_000,
    duration: Duration::from_secs(60),
};

/// ringd's `--memory-budget`, and what it may take beyond.
const BUDGET_MIB: u64 = 512;
const SLACK_MIB: u64 = 64;
const VALUE_LENGTH: usize = 1024;
/// Keys written by one txn while filling.
const KEYS_PER_TXN: usize = 100;
/// A client takes in this much ahead of its rate.
const STREAM_WINDOW: u32 = 1 << 20;
/// What a call is told that has waited half a minute for memory, and how long it is asked again.
const TOO_MANY_REQUESTS: &str = "etcdserver: too many requests";
const ROOM_TIMEOUT: Duration = Duration::from_secs(300);
/// The pause between two puts beside the lists.
const PUT_PAUSE: Duration = Duration::from_millis(5);

async fn fill(channel: &Channel, keys: usize) {
    let mut requests = (0..keys).map(|number| {
        // Values that differ, so that a row out of place shows.
        let value = format!("{number:0VALUE_LENGTH$}");
        etcd::operation(Request::RequestPut(etcd::put(format!("list/{number:07}"), value)))
    });
    loop {
        let success: Vec<_> = requests.by_ref().take(KEYS_PER_TXN).collect();
        if success.is_empty() {
            return;
        }
        let txn = pb::TxnRequest {
            success,
            ..Default::default()
        };
        channel.call::<pb::TxnResponse>(etcd::TXN, &txn).await.expect("a txn");
    }
}

/// Lists until `end`, taking in no more than its share of the rate, and returns the bytes received.
async fn list(address: String, method: &'static str, end: Instant, bytes_per_second: u64) -> u64 {
    let channel = Channel::connect_with_windows(&address, STREAM_WINDOW, STREAM_WINDOW)
        .await
        .expect("a connection");
    let began = Instant::now();
    let mut received = 0;
    while Instant::now() < end {
        let mut stream = channel.stream(method, &[]).await.expect("a call");
        stream.send(&etcd::get_prefix("list/")).expect("a request");
        stream.finish_sending().expect("a request");
        while let Some(piece) = stream.next_piece().await.expect("a list") {
            received += piece.len() as u64;
            let due = Duration::from_secs_f64(received as f64 / bytes_per_second as f64);
            // A sleep of nothing takes up to a millisecond, too.
            if let Some(early) = due.checked_sub(began.elapsed()) {
                sleep(early).await;
            }
            if Instant::now() >= end {
                stream.cancel();
                break;
            }
        }
    }
    received
}

/// Asks for a list and never reads it.
async fn ask_without_reading(address: String, end: Instant) {
    let channel = Channel::connect_with_windows(&address, STREAM_WINDOW, STREAM_WINDOW)
        .await
        .expect("a connection");
    let mut stream = channel.stream(etcd::RANGE, &[]).await.expect("a call");
    stream.send(&etcd::get_prefix("list/")).expect("a request");
    stream.finish_sending().expect("a request");
    sleep(end.saturating_duration_since(Instant::now())).await;
}

/// Puts one after the other until `end`, and returns how long each took, sorted.
async fn put_until(address: String, end: Instant) -> Vec<Duration> {
    let channel = Channel::connect(&address).await.expect("a connection");
    let mut times = Vec::new();
    while Instant::now() < end {
        let asked = Instant::now();
        channel
            .call::<pb::PutResponse>(etcd::PUT, &etcd::put("beside", "value"))
            .await
            .expect("a put");
        times.push(asked.elapsed());
        sleep(PUT_PAUSE).await;
    }
    times.sort_unstable();
    times
}

fn percentile_99(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() * 99 / 100]
}

/// The buckets of ringd's own histogram of puts, from receipt to sending: bounds in seconds, and how many are below.
fn put_histogram(server: &Server) -> Vec<(f64, u64)> {
    let metrics = server.http_body("/metrics").expect("metrics");
    let begin = r#"ringd_request_duration_seconds_bucket{success="true",type="Put",le=""#;
    let lines = metrics
        .lines()
        .filter_map(|line| line.strip_prefix(begin)?.split_once("\"} "));
    let buckets = lines.map(|(bound, below)| (bound.replace("+Inf", "inf").parse(), below.parse()));
    buckets
        .map(|(bound, below)| (bound.expect("a bound"), below.expect("a count")))
        .collect()
}

/// The least bound below which 99 of 100 puts between two scrapes are, in seconds.
fn percentile_99_between(before: &[(f64, u64)], after: &[(f64, u64)]) -> Option<f64> {
    let made = |index: usize| after[index].1 - before.get(index).map_or(0, |bucket| bucket.1);
    let all = made(after.len().checked_sub(1)?);
    let found = (0..after.len()).find(|&index| made(index) * 100 >= all * 99)?;
    Some(after[found].0)
}

#[test]
fn lists_stay_within_the_memory_budget() {
    let load = if number_from_environment("RINGD_LISTS_LONG", 0) == 0 {
        QUICK
    } else {
        LONG
    };
    let server = Server::subject_of_fixed_size(&format!("{BUDGET_MIB}MiB"), &["--unsafe-no-fsync"]);
    let address = server.address();
    block_on(LocalSet::new().run_until(async {
        let channel = Channel::connect(&address).await.expect("a connection");
        fill(&channel, load.keys).await;
        let at_first = put_histogram(&server);
        let alone = put_until(address.clone(), Instant::now() + load.duration / 4).await;
        let before_lists = put_histogram(&server);

        let end = Instant::now() + load.duration;
        let share = load.bytes_per_second / (load.clients - 1) as u64;
        let idle = tokio::task::spawn_local(ask_without_reading(address.clone(), end));
        let listing: Vec<_> = (1..load.clients)
            .map(|client| {
                let streams = client % 3 == 0 && server.program() != Program::Etcd351;
                let method = if streams { etcd::RANGE_STREAM } else { etcd::RANGE };
                tokio::task::spawn_local(list(address.clone(), method, end, share))
            })
            .collect();
        let beside = put_until(address.clone(), end).await;
        let mut received = 0;
        for client in listing {
            received += client.await.expect("a client lists");
        }
        idle.await.expect("the client that does not read");
        let at_last = put_histogram(&server);
        println!(
            "by the server's own histogram: put p99 at most {:?} s alone, {:?} s beside the lists",
            percentile_99_between(&at_first, &before_lists),
            percentile_99_between(&before_lists, &at_last)
        );

        let peak_mib = server.usage().peak_resident_bytes >> 20;
        println!(
            "{} keys of {VALUE_LENGTH} bytes, {} clients: {} MB listed, peak memory {peak_mib} MiB, put p99 {:?} \
             alone, {:?} beside the lists ({} puts)",
            load.keys,
            load.clients,
            received / 1_000_000,
            percentile_99(&alone),
            percentile_99(&beside),
            beside.len()
        );
        assert!(
            received > load.keys as u64 * VALUE_LENGTH as u64,
            "not one whole list was received"
        );
        assert!(beside.len() > 10, "puts beside the lists hardly went on");
        if server.program() == Program::Ringd {
            let allowed = BUDGET_MIB + SLACK_MIB;
            assert!(
                peak_mib <= allowed,
                "the server took {peak_mib} MiB at its peak, more than {allowed}"
            );
        }
    }));
}

/// The answer to a call that may have to wait for the memory that others hold. On a machine with a slow disk that takes
/// longer than the server lets a call wait, and then it says so.
async fn when_there_is_room<T>(call: impl AsyncFn() -> Result<T, Status>) -> Result<T, Status> {
    let began = Instant::now();
    loop {
        match call().await {
            Err(status) if status.message == TOO_MANY_REQUESTS => {
                assert!(
                    began.elapsed() < ROOM_TIMEOUT,
                    "there is no room after {ROOM_TIMEOUT:?}"
                );
            }
            answer => return answer,
        }
    }
}

/// Lists in every order, streams and transactions, all of everything, asked for by many who read none of it: the
/// smallest budget holds, and who reads is served.
#[test]
fn many_who_do_not_read_stay_within_a_small_budget() {
    const IDLE: usize = 40;
    let server = match Program::subject() {
        Program::Ringd => Server::subject_of_fixed_size("64MiB", &["--unsafe-no-fsync"]),
        // Others have no budget.
        _ => return,
    };
    let address = server.address();
    block_on(async {
        let channel = Channel::connect(&address).await.expect("a connection");
        fill(&channel, QUICK.keys).await;
        let all = etcd::get_prefix("list/");
        let sorted = pb::RangeRequest {
            sort_target: pb::range_request::SortTarget::Mod as i32,
            sort_order: pb::range_request::SortOrder::Descend as i32,
            ..all.clone()
        };
        let mut idle = Vec::new();
        for number in 0..IDLE {
            let channel = Channel::connect_with_windows(&address, STREAM_WINDOW, STREAM_WINDOW)
                .await
                .expect("a connection");
            let method = if number % 4 == 0 {
                etcd::RANGE_STREAM
            } else {
                etcd::RANGE
            };
            let mut stream = channel.stream(method, &[]).await.expect("a call");
            let request = if number % 16 == 1 { &sorted } else { &all };
            stream.send(request).expect("a request");
            stream.finish_sending().expect("a request");
            idle.push((channel, stream));
        }
        let large = pb::TxnRequest {
            success: vec![etcd::operation(Request::RequestRange(all.clone())); 4],
            ..Default::default()
        };
        let refused = when_there_is_room(async || channel.call::<pb::TxnResponse>(etcd::TXN, &large).await)
            .await
            .expect_err("80 MB at once");
        assert_eq!(refused.code, 8, "{refused:?}");
        assert!(refused.message.contains("--memory-budget"), "{refused:?}");
        for request in [&all, &sorted] {
            let listed = when_there_is_room(async || channel.call::<pb::RangeResponse>(etcd::RANGE, request).await);
            let listed = listed.await.expect("a list");
            assert_eq!((listed.kvs.len(), listed.count), (QUICK.keys, QUICK.keys as i64));
        }
        let peak_mib = server.usage().peak_resident_bytes >> 20;
        println!("{IDLE} clients that do not read: peak memory {peak_mib} MiB");
        assert!(peak_mib <= 64 + SLACK_MIB, "{peak_mib} MiB");
        drop(idle);
    });
}

#[test]
fn a_large_stream_of_chunks_is_the_unary_list() {
    let keys = if number_from_environment("RINGD_LISTS_LONG", 0) == 0 {
        QUICK.keys
    } else {
        LONG.keys
    };
    let server = Server::subject(&["--unsafe-no-fsync"]);
    block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        fill(&channel, keys).await;
        let request = etcd::get_prefix("list/");
        let unary: pb::RangeResponse = channel.call(etcd::RANGE, &request).await.expect("a list");
        assert_eq!(unary.kvs.len(), keys);
        let reply = channel
            .unary(etcd::RANGE_STREAM, request.encode_to_vec().into(), &[])
            .await;
        assert_eq!(reply.status.code, 0, "{:?}", reply.status);
        assert!(reply.messages.len() > 1, "a list of {keys} KB came in one chunk");
        let mut merged = pb::RangeResponse::default();
        for message in reply.messages {
            let chunk = pb::RangeStreamResponse::decode(message)
                .expect("a chunk")
                .range_response
                .expect("a response");
            merged.merge(chunk.encode_to_vec().as_slice()).expect("chunks merge");
        }
        assert!(
            merged.encode_to_vec() == unary.encode_to_vec(),
            "the merged chunks differ from the unary list"
        );
    });
}
