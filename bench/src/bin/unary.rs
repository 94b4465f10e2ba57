//! What one unary call costs in the HTTP/2 and gRPC machines alone: bytes in, events, answer, bytes out.
//!
//! Three clients: one that repeats its header block (as load generators do), one that indexes a new `grpc-timeout` each
//! time (as grpc-go does), and one that sends its whole list as Huffman strings each time (the worst).

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ringd::grpc::{self, Event, message_prefix};
use ringd::http::frame::{self, FrameHeader, flag, kind};
use ringd::http::{self, hpack::huffman};

const BATCHES: u32 = 400;
const CALLS_PER_BATCH: u32 = 32;
const MESSAGE: usize = 62;
const ROUNDS: u32 = 40;

const FIELDS: [(&str, &str); 6] = [
    (":path", "/etcdserverpb.KV/Put"),
    (":authority", "127.0.0.1:2379"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-go/1.83.0"),
    ("te", "trailers"),
    ("hasleader", "true"),
];

fn main() {
    type Block = fn(u32) -> Vec<u8>;
    for (name, block) in [
        ("repeated header block", repeated as Block),
        ("indexed with a new grpc-timeout", with_timeout as Block),
        ("whole list as Huffman strings", literal as Block),
    ] {
        let batches: Vec<Bytes> = (0..BATCHES).map(|batch| wire(batch, block)).collect();
        run(&batches);
        let mut best = f64::MAX;
        for _ in 0..ROUNDS {
            let start = thread_time_ns();
            run(&batches);
            let calls = f64::from(BATCHES * CALLS_PER_BATCH);
            best = best.min((thread_time_ns() - start) as f64 / calls);
        }
        println!("{name}: {best:.0} ns of CPU per call (best of {ROUNDS} rounds)");
    }
}

/// CPU time of this thread, which other load on the machine does not lengthen as it does the wall's.
fn thread_time_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "clock_gettime: {}", std::io::Error::last_os_error());
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// One connection's life.
fn run(batches: &[Bytes]) {
    let now = Duration::from_secs(1);
    let http = http::Connection::new(Arc::new(http::Config::default()), now);
    let config = grpc::Config {
        max_message: 2 << 20,
        plain_http: false,
    };
    let mut connection = grpc::Connection::new(http, Arc::new(config));
    let mut spare = Vec::with_capacity(65_536);
    let reply = [7; MESSAGE];
    let mut answered = 0;
    for batch in batches {
        connection.receive(batch.clone(), now);
        while let Some(event) = connection.next_event() {
            match event {
                Event::Started { .. } => {
                    black_box(connection.request().path());
                }
                Event::Message { call, message, .. } => {
                    black_box(&message);
                    let sent = connection.reply(call, reply.len(), |out| out.extend_from_slice(&reply));
                    assert_eq!(sent, Ok(()));
                    answered += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        spare = connection.take_output(spare, now);
        black_box(&spare);
        spare.clear();
    }
    assert_eq!(answered, BATCHES * CALLS_PER_BATCH);
}

fn wire(batch: u32, block: fn(u32) -> Vec<u8>) -> Bytes {
    let mut out = Vec::new();
    if batch == 0 {
        out.extend_from_slice(frame::PREFACE);
        FrameHeader {
            length: 0,
            kind: kind::SETTINGS,
            flags: 0,
            stream: 0,
        }
        .write(&mut out);
    } else {
        let mut update = FrameHeader {
            length: 4,
            kind: kind::WINDOW_UPDATE,
            flags: 0,
            stream: 0,
        }
        .bytes()
        .to_vec();
        update.extend_from_slice(&(CALLS_PER_BATCH * (MESSAGE as u32 + 5)).to_be_bytes());
        out.extend(update);
    }
    for call in 0..CALLS_PER_BATCH {
        let number = batch * CALLS_PER_BATCH + call;
        let stream = 2 * number + 1;
        let block = block(number);
        let flags = flag::END_HEADERS;
        FrameHeader {
            length: block.len(),
            kind: kind::HEADERS,
            flags,
            stream,
        }
        .write(&mut out);
        out.extend_from_slice(&block);
        let flags = flag::END_STREAM;
        FrameHeader {
            length: 5 + MESSAGE,
            kind: kind::DATA,
            flags,
            stream,
        }
        .write(&mut out);
        out.extend_from_slice(&message_prefix(MESSAGE));
        out.extend_from_slice(&[9; MESSAGE]);
    }
    Bytes::from(out)
}

/// A literal field, inserted into the table or not, its strings Huffman-coded.
fn field(out: &mut Vec<u8>, first: u8, name: &str, value: &str) {
    out.push(first);
    for text in [name, value] {
        let mut encoded = Vec::new();
        huffman::encode(text.as_bytes(), &mut encoded);
        assert!(encoded.len() < 127);
        out.push(0x80 | encoded.len() as u8);
        out.extend(encoded);
    }
}

fn repeated(number: u32) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (position, (name, value)) in FIELDS.iter().enumerate() {
        if number == 0 {
            field(&mut block, 0x40, name, value);
        } else {
            block.push(0x80 | (61 + FIELDS.len() - position) as u8);
        }
    }
    block
}

/// The table holds the six fields, then one timeout more per call, and so on until the six fall out and enter again.
fn with_timeout(number: u32) -> Vec<u8> {
    const PERIOD: u32 = 40;
    let mut block = vec![0x83, 0x86];
    let behind = number % PERIOD;
    for (position, (name, value)) in FIELDS.iter().enumerate() {
        if behind == 0 {
            field(&mut block, 0x40, name, value);
        } else {
            block.push(0x80 | (61 + FIELDS.len() - position + behind as usize) as u8);
        }
    }
    let timeout = format!("{}u", 4_999_000 + number % 1_000);
    if behind == 0 {
        field(&mut block, 0x40, "grpc-timeout", &timeout);
    } else {
        // The name of the newest entry, the last call's timeout.
        let mut encoded = Vec::new();
        huffman::encode(timeout.as_bytes(), &mut encoded);
        block.extend_from_slice(&[0x7e, 0x80 | encoded.len() as u8]);
        block.extend(encoded);
    }
    block
}

fn literal(_: u32) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in FIELDS {
        field(&mut block, 0x00, name, value);
    }
    block
}
