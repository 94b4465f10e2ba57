//! Clients that mean harm, and one beside them that does not: it is served all the while, nothing panics, and memory
//! and descriptors come back.

mod support;

#[path = "hostile/bytes.rs"]
mod bytes;

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::{call, connect, large_entry, push, unary};
use prost::Message;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use ringd::proto::etcdserverpb as pb;
use support::{
    block_on, confined, etcd,
    frames::{self, Raw},
    grpc::{self, Channel},
    server::{Server, Usage},
};

/// The longest that one request of the client that means well may take, on a loaded machine and without optimization.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the server may take to be as before once the others are gone.
const RECOVERY: Duration = Duration::from_secs(60);
/// The server's `--memory-budget`: far more than it may take here.
const BUDGET: &str = "8GiB";
/// What a server may hold more afterwards than before, and while it is attacked.
const LEFT_BYTES: u64 = 48 << 20;
const ATTACKED_BYTES: u64 = 256 << 20;
/// Descriptors that may be left: a segment of the log more, say.
const LEFT_DESCRIPTORS: u64 = 4;

/// What the client that means well saw.
struct Seen {
    requests: u64,
    slowest: Duration,
}

/// A client that puts and reads until it is told to stop.
struct WellBehaved {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl WellBehaved {
    fn start(server: &Server) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (address, told) = (server.address(), stop.clone());
        let thread = thread::spawn(move || block_on(Self::run(address, told)));
        Self { stop, thread }
    }

    async fn run(address: String, stop: Arc<AtomicBool>) -> Seen {
        let channel = Channel::connect(&address).await.expect("a connection");
        let mut seen = Seen {
            requests: 0,
            slowest: Duration::ZERO,
        };
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let value = seen.requests.to_string();
            let put = etcd::put("well-behaved", &value);
            let answered = async {
                let _: pb::PutResponse = channel.call(etcd::PUT, &put).await.expect("a put");
                let read: pb::RangeResponse = channel
                    .call(etcd::RANGE, &etcd::get("well-behaved"))
                    .await
                    .expect("a read");
                assert_eq!(&read.kvs[0].value[..], value.as_bytes());
            };
            tokio::time::timeout(PATIENCE, answered)
                .await
                .expect("an answer in time");
            seen.slowest = seen.slowest.max(began.elapsed());
            seen.requests += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        seen
    }

    fn stop(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the client that means well was not served")
    }
}

/// Lets `attack` do its worst, and checks what is promised. `stored` bytes are written on the way, which the server
/// keeps in its event window, and what is on its way to the page file once more.
fn survives(name: &str, stored: u64, attack: impl FnOnce(&Server)) {
    survives_within(BUDGET, ATTACKED_BYTES, name, stored, attack);
}

/// The same with another budget, and so much more memory under attack.
fn survives_within(budget: &str, attacked_bytes: u64, name: &str, stored: u64, attack: impl FnOnce(&Server)) {
    confined::take_all_descriptors();
    let server = Server::subject_of_fixed_size(budget, &[]);
    warm_up(&server);
    let before = server.usage();
    let client = WellBehaved::start(&server);
    let began = Instant::now();
    attack(&server);
    let took = began.elapsed();
    let attacked = server.usage();
    let seen = client.stop();
    let after = settled(&server, before, stored);
    println!(
        "{name}: {took:.1?}, {} requests beside it, the slowest {:.1?}; MiB before {} peak {} after {}; \
         descriptors {} {} {}",
        seen.requests,
        seen.slowest,
        before.resident_bytes >> 20,
        after.peak_resident_bytes >> 20,
        after.resident_bytes >> 20,
        before.descriptors,
        attacked.descriptors,
        after.descriptors
    );
    let log = server.log();
    assert!(!log.contains("panic"), "a panic:\n{log}");
    assert!(
        after.peak_resident_bytes < before.resident_bytes + 2 * stored + attacked_bytes,
        "memory under attack: {after:?}"
    );
    assert!(
        after.resident_bytes < before.resident_bytes + 2 * stored + LEFT_BYTES,
        "memory is not given back: {after:?}"
    );
    assert!(
        after.descriptors <= before.descriptors + LEFT_DESCRIPTORS,
        "descriptors are left: {before:?} {after:?}"
    );
}

/// A few requests, so that what a server allocates once is there.
fn warm_up(server: &Server) {
    put_many(server, 500, |number| format!("warm{number}"), 1000);
}

/// Puts values of `bytes` bytes, one after the other.
fn put_many(server: &Server, count: u32, key: impl Fn(u32) -> String, bytes: usize) {
    block_on(async {
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        for number in 0..count {
            let put = etcd::put(key(number), vec![7; bytes]);
            let _: pb::PutResponse = channel.call(etcd::PUT, &put).await.expect("a put");
        }
    });
}

/// Grants `count` leases, from id 1 on, 500 at a time.
async fn grant_many(channel: &Channel, count: i64, ttl: i64) {
    for first in (1..=count).step_by(500) {
        let grants = (first..first + 500).map(|id| {
            let channel = channel.clone();
            let request = pb::LeaseGrantRequest { id, ttl };
            async move {
                let granted: Result<pb::LeaseGrantResponse, _> = channel.call(etcd::LEASE_GRANT, &request).await;
                granted.expect("a lease");
            }
        });
        futures::future::join_all(grants).await;
    }
}

/// Waits until descriptors and memory are as before, or the time for that is over.
fn settled(server: &Server, before: Usage, stored: u64) -> Usage {
    let deadline = Instant::now() + RECOVERY;
    loop {
        let usage = server.usage();
        let is_settled = usage.descriptors <= before.descriptors + LEFT_DESCRIPTORS
            && usage.resident_bytes < before.resident_bytes + 2 * stored + LEFT_BYTES;
        if is_settled || Instant::now() > deadline {
            return usage;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn slow_and_half_open_connections() {
    survives("slow and half-open connections", 0, |server| {
        let mut sockets = Vec::new();
        for number in 0..600 {
            let mut socket = TcpStream::connect(server.address()).expect("a connection");
            let begin: &[u8] = match number % 6 {
                0 => b"",
                1 => b"GET /health HTTP/1.1\r\nHost: x\r\nX: ",
                2 => b"PRI * HTTP/2.0\r\n\r\n",
                3 => b"POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
                4 => frames::PREFACE,
                _ => b"P",
            };
            socket.write_all(begin).expect("room in the socket");
            if number % 12 < 6 {
                socket.shutdown(Shutdown::Write).expect("half-closed");
            }
            sockets.push(socket);
        }
        for round in 0..20 {
            for (number, socket) in sockets.iter_mut().enumerate() {
                // Half of them are closed by now.
                let _ = socket.write_all(if number % 6 == 1 { b"a" } else { b"" });
            }
            thread::sleep(Duration::from_millis(if round == 0 { 1000 } else { 50 }));
        }
    });
}

#[test]
fn garbage() {
    survives("garbage", 0, |server| {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for number in 0..2000 {
            let mut socket = TcpStream::connect(server.address()).expect("a connection");
            let mut bytes = vec![0; random.random_range(1..3000)];
            random.fill_bytes(&mut bytes);
            if number % 3 > 0 {
                let _ = socket.write_all(frames::PREFACE);
                let _ = socket.write_all(&frames::frame(frames::SETTINGS, 0, 0, b""));
            }
            if number % 3 == 2 {
                // Frames that look right and are not.
                for _ in 0..20 {
                    let payload = &bytes[..bytes.len().min(random.random_range(0..100))];
                    let (kind, flags) = (random.random_range(0..12), random.random());
                    let _ = socket.write_all(&frames::frame(kind, flags, random.random_range(0..6), payload));
                }
            }
            let _ = socket.write_all(&bytes);
            if number % 5 == 0 {
                let _ = socket.set_read_timeout(Some(Duration::from_millis(20)));
                let _ = socket.read(&mut bytes);
            }
        }
    });
}

#[test]
fn resets() {
    survives("rapid resets", 0, |server| {
        for path in [etcd::RANGE, etcd::WATCH, etcd::PUT] {
            let mut raw = connect(server);
            let put = grpc::frame(&etcd::put("reset", "x").encode_to_vec());
            for number in 0..20_000_u32 {
                let stream = number * 2 + 1;
                let mut bytes = frames::header_frames(stream, &call(path), false);
                bytes.extend(frames::frame(frames::DATA, 0, stream, &put));
                bytes.extend(frames::frame(frames::RST_STREAM, 0, stream, &[0, 0, 0, 8]));
                if !push(&mut raw, &bytes) {
                    break;
                }
            }
        }
    });
}

#[test]
fn streams_of_nothing() {
    survives("streams of nothing", 0, |server| {
        let mut all = Vec::new();
        for path in [etcd::WATCH, etcd::LEASE_KEEP_ALIVE, etcd::RANGE, etcd::RANGE_STREAM] {
            let mut raw = connect(server);
            for number in 0..10_000_u32 {
                if !push(&mut raw, &frames::header_frames(number * 2 + 1, &call(path), false)) {
                    break;
                }
            }
            all.push(raw);
        }
        thread::sleep(Duration::from_secs(2));
    });
}

#[test]
fn header_lists_without_end() {
    survives("header lists without end", 0, |server| {
        let value = vec![b'x'; 4000];
        for kind in 0..4 {
            for _ in 0..50 {
                let mut raw = connect(server);
                match kind {
                    // One list in one block, far too large.
                    0 => {
                        let mut fields = call(etcd::RANGE);
                        fields.extend((0..500).map(|_| (&b"x-large"[..], &value[..])));
                        push(&mut raw, &frames::header_frames(1, &fields, true));
                    }
                    // Empty continuations.
                    1 => {
                        push(&mut raw, &frames::frame(frames::HEADERS, 0, 1, b""));
                        for _ in 0..10_000 {
                            if !push(&mut raw, &frames::frame(frames::CONTINUATION, 0, 1, b"")) {
                                break;
                            }
                        }
                    }
                    // An entry of the table, named again and again.
                    2 => {
                        let mut block = large_entry();
                        block.extend(std::iter::repeat_n(0x80 | 62, 12_000));
                        push(
                            &mut raw,
                            &frames::frame(frames::HEADERS, frames::END_HEADERS, 1, &block),
                        );
                    }
                    // Many lists that fill the table.
                    _ => {
                        let flags = frames::END_HEADERS | frames::END_STREAM;
                        for number in 0..500_u32 {
                            push(
                                &mut raw,
                                &frames::frame(frames::HEADERS, flags, number * 2 + 1, &large_entry()),
                            );
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn watches_made_and_unmade_and_never_read() {
    survives("watches made and unmade", 0, |server| {
        let mut raw = connect(server);
        raw.headers(1, &call(etcd::WATCH), false).expect("a stream");
        for number in 0..50_000_i64 {
            let create = etcd::create_watch(pb::WatchCreateRequest {
                key: format!("k{number}").into(),
                watch_id: number + 1,
                ..Default::default()
            });
            let mut bytes = grpc::frame(&create.encode_to_vec()).to_vec();
            if number % 2 == 0 {
                bytes.extend_from_slice(&grpc::frame(&etcd::cancel_watch(number + 1).encode_to_vec()));
            }
            bytes.extend_from_slice(&grpc::frame(&etcd::request_progress().encode_to_vec()));
            if !push(&mut raw, &frames::frame(frames::DATA, 0, 1, &bytes)) {
                break;
            }
        }
    });
}

#[test]
fn watches_that_are_never_read() {
    survives("watches never read", 40 << 20, |server| {
        let mut all = Vec::new();
        for _ in 0..50 {
            let mut raw = connect(server);
            for stream in [1, 3] {
                raw.headers(stream, &call(etcd::WATCH), false).expect("a stream");
                let create = etcd::create_watch(pb::WatchCreateRequest {
                    key: "\0".into(),
                    range_end: "\0".into(),
                    prev_kv: true,
                    ..Default::default()
                });
                raw.data(stream, &grpc::frame(&create.encode_to_vec()), false)
                    .expect("room");
            }
            all.push(raw);
        }
        put_many(server, 400, |number| format!("watched{}", number % 10), 100_000);
    });
}

/// Answers that nobody takes: the stream's window is empty from the start.
#[test]
fn keep_alives_that_are_never_read() {
    survives("keep-alives never read", 0, |server| {
        let mut raw = Raw::connect_silently(&server.address()).expect("a connection");
        raw.send(frames::PREFACE).expect("room");
        raw.send(&frames::frame(frames::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]))
            .expect("room");
        raw.headers(1, &call(etcd::LEASE_KEEP_ALIVE), false).expect("a stream");
        let request = grpc::frame(&pb::LeaseKeepAliveRequest { id: 7 }.encode_to_vec());
        let many = request.repeat(2000);
        for _ in 0..1000 {
            if !push(
                &mut raw,
                &frames::frame(frames::DATA, 0, 1, &many[..many.len().min(16_000)]),
            ) {
                break;
            }
        }
    });
}

#[test]
fn reads_that_nobody_takes() {
    survives("reads nobody takes", 20 << 20, |server| {
        put_many(server, 200, |number| format!("large{number:03}"), 100_000);
        let mut all = Vec::new();
        let read = etcd::get_prefix("large").encode_to_vec();
        for _ in 0..40 {
            let mut raw = connect(server);
            for number in 0..50_u32 {
                let path = if number % 2 == 0 {
                    etcd::RANGE
                } else {
                    etcd::RANGE_STREAM
                };
                let stream = number * 2 + 1;
                let mut bytes = unary(stream, path, &read);
                bytes.extend(frames::frame(frames::WINDOW_UPDATE, 0, stream, &[0x40, 0, 0, 0]));
                push(&mut raw, &bytes);
            }
            push(&mut raw, &frames::frame(frames::WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]));
            all.push(raw);
        }
        thread::sleep(Duration::from_secs(3));
    });
}

/// One large record, asked for thousands of times at once, before anybody can notice that no answer is taken: what is
/// made of the answers stays within a small budget.
#[test]
fn large_records_that_nobody_takes() {
    for (name, path) in [("unary", etcd::RANGE), ("stream", etcd::RANGE_STREAM)] {
        survives_within("128MiB", 128 << 20, name, 4 << 20, |server| {
            put_many(server, 1, |_| "large".to_string(), 1_400_000);
            let read = etcd::get("large").encode_to_vec();
            let mut bytes = frames::frame(frames::WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]);
            for number in 0..500_u32 {
                let stream = number * 2 + 1;
                bytes.extend(unary(stream, path, &read));
                bytes.extend(frames::frame(frames::WINDOW_UPDATE, 0, stream, &[0x40, 0, 0, 0]));
            }
            let mut all: Vec<_> = (0..10).map(|_| connect(server)).collect();
            for raw in &mut all {
                push(raw, &bytes);
            }
            thread::sleep(Duration::from_secs(3));
        });
    }
}

/// More connections than descriptors: those that are there are served, and once they are gone new ones are.
#[test]
fn connections_without_end() {
    survives("connections without end", 0, |server| {
        let limit = server.usage().descriptors + 100;
        let set = std::process::Command::new("prlimit")
            .arg(format!("--nofile={limit}:{limit}"))
            .args(["--pid", &server.process_id().to_string()])
            .status();
        assert!(set.expect("prlimit runs").success());
        let sockets: Vec<_> = (0..400).map(|_| TcpStream::connect(server.address())).collect();
        assert!(sockets.iter().filter(|socket| socket.is_ok()).count() > 100);
        thread::sleep(Duration::from_secs(2));
        drop(sockets);
        let deadline = Instant::now() + RECOVERY;
        while server.http_get("/version").is_err() {
            assert!(Instant::now() < deadline, "no connection is taken any more");
            thread::sleep(Duration::from_millis(50));
        }
    });
}

/// Beside as many connections as are let in, the log goes on in new segments: it needs descriptors, too.
#[test]
fn connections_leave_descriptors_for_the_log() {
    const PUTS: u32 = 140;
    let stored = u64::from(PUTS) << 20;
    survives("connections beside new segments", stored, |server| {
        let address = server.address();
        block_on(async {
            let channel = Channel::connect(&address).await.expect("a connection");
            let limit = server.usage().descriptors + 100;
            let set = std::process::Command::new("prlimit")
                .arg(format!("--nofile={limit}:{limit}"))
                .args(["--pid", &server.process_id().to_string()])
                .status();
            assert!(set.expect("prlimit runs").success());
            let sockets: Vec<_> = (0..400).map(|_| TcpStream::connect(&address)).collect();
            let value = vec![b'v'; 1 << 20];
            for number in 0..PUTS {
                let put = pb::PutRequest {
                    key: format!("large{}", number % 8).into(),
                    value: value.clone().into(),
                    ..Default::default()
                };
                let _: pb::PutResponse = channel.call(etcd::PUT, &put).await.expect("a put");
            }
            drop(sockets);
        });
    });
}

#[test]
fn leases_without_end() {
    survives("leases without end", 0, |server| {
        block_on(async {
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            let count = support::number_from_environment("RINGD_HOSTILE_LEASES", 20_000) as i64;
            grant_many(&channel, count, 2).await;
            let deadline = Instant::now() + Duration::from_secs(120);
            loop {
                let left: pb::LeaseLeasesResponse = channel
                    .call(etcd::LEASE_LEASES, &pb::LeaseLeasesRequest {})
                    .await
                    .expect("leases");
                if left.leases.is_empty() {
                    break;
                }
                assert!(Instant::now() < deadline, "{} leases have not ended", left.leases.len());
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
    });
}

/// Messages that lack their last byte, as large as they may be.
#[test]
fn messages_that_never_end() {
    // Some of what a core may hold of them may stay with the allocator for a while.
    survives("messages that never end", 32 << 20, |server| {
        let message = vec![0; 2 << 20];
        let mut body = vec![0];
        body.extend_from_slice(&(message.len() as u32).to_be_bytes());
        body.extend_from_slice(&message[1..]);
        let mut all = Vec::new();
        for _ in 0..24 {
            let mut raw = connect(server);
            for number in 0..16_u32 {
                let stream = number * 2 + 1;
                let mut bytes = frames::header_frames(stream, &call(etcd::PUT), false);
                for piece in body.chunks(16_384) {
                    bytes.extend(frames::frame(frames::DATA, 0, stream, piece));
                }
                if !push(&mut raw, &bytes) {
                    break;
                }
            }
            all.push(raw);
        }
        thread::sleep(Duration::from_millis(500));
    });
}

/// Long answers of one piece, asked for again and again and not taken.
#[test]
fn lists_of_leases_that_nobody_takes() {
    survives("lists of leases nobody takes", 8 << 20, |server| {
        block_on(async {
            let channel = Channel::connect(&server.address()).await.expect("a connection");
            grant_many(&channel, 30_000, 100_000).await;
        });
        let mut all = Vec::new();
        for _ in 0..20 {
            let mut raw = connect(server);
            for number in 0..200_u32 {
                let stream = number * 2 + 1;
                push(&mut raw, &unary(stream, etcd::LEASE_LEASES, b""));
            }
            all.push(raw);
        }
        thread::sleep(Duration::from_secs(2));
    });
}
